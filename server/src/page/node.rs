//! All about one node.

use std::sync::Arc;

use axum::Extension;
use axum::extract::Query;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use slipway_protocol::shared::printable::{line, lines, size};
use slipway_protocol::{
    Claim, Disk, EkCertificate, Installed, Inventory, NodeKey, NodeStatus, NodeTpm, Proof, RunState, RunStatus,
    StepState, StepStatus, TpmOrigin,
};

use crate::api::answer::UrlPath;
use crate::base::error::Error;
use crate::base::time::{Millis, now};
use crate::node::status::is_stranger;
use crate::operate::{self, LogType};
use crate::page::acts;
use crate::page::agent::agent_words;
use crate::page::answer::{Failed, Html};
use crate::page::changes;
use crate::page::chart::{self, Times};
use crate::page::events;
use crate::page::fleet::note;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::power::power_words;
use crate::page::reasons;
use crate::page::rows::{model, name, path, reference};
use crate::page::session::Visitor;
use crate::page::timeline;
use crate::page::words::{self, Tone};
use crate::rules::{progress, trouble};
use crate::store::logs::LoggedBoot;
use crate::store::to_word;

/// Events of the timeline.
const EVENTS: u32 = 200;
/// Earlier runs that are shown.
const RUNS: usize = 20;
/// Bytes of a log that are shown: its end.
const LOG: usize = 128 << 10;

/// Shows a node, or a waiting machine.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let visitor = &frame.visitor;
    let node = operate::show_node(&visitor.store, &node).await?;
    let (mut runs, mut events, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    if !is_stranger(&node) {
        runs = operate::list_runs(&visitor.store, Some(&node.id)).await?;
        runs.reverse();
        events = events::of_node(visitor, &node.id, EVENTS).await?;
        for kind in [LogType::Installer, LogType::HostBoot] {
            logs.push((kind, operate::list_boots(&visitor.store, &node.id, kind).await?));
        }
    }
    let usual = match &node.run {
        Some(run) => chart::usual(&visitor.store, run).await?,
        None => Times::new(),
    };
    let now = now();
    let reason = reasons::first(&node);
    let content = html! {
        div.title data-sync="title" {
            h1 { (name(&node)) }
            (words::state(&node.state, words::of_node(node.state)))
            span.muted { (model(&node)) }
            span.muted #heard { "heard " (words::since(node.last_seen, now)) }
        }
        div data-sync="reason" {
            @if let Some(reason) = &reason { (note(reason, now)) }
            @for flag in node.flags.iter().map(reasons::of_flag).filter(|flag| Some(flag) != reason.as_ref()) {
                (note(&flag, now))
            }
        }
        (acts::buttons(&node))
        div data-sync="claims" { (claims(&node, now)) }
        div.node {
            div data-sync="facts" { (facts(&node, now)) }
            div {
                div data-sync="run" { (run(&node, now)) }
                div data-sync="changes" { (changes::section(&visitor.store, &node, now).await?) }
                @if !is_stranger(&node) {
                    div data-sync="timeline" { (timeline::section(&events, now)) }
                    section { @for (kind, boots) in &logs { (log_of(&node, *kind, boots, now)) } }
                    div data-sync="runs" { (earlier(&runs, &usual, now)) }
                }
            }
        }
    };
    let title = name(&node);
    Ok(frame.page("/fleet", &title, Follows::Node(&node.id), content))
}

/// Rows of a list of terms, without those that are not known.
fn terms<'a>(rows: impl IntoIterator<Item = (&'a str, Option<Markup>)>) -> Markup {
    html! {
        dl {
            @for (term, text) in rows {
                @if let Some(text) = text { dt { (term) } dd { (text) } }
            }
        }
    }
}

fn text(text: &str) -> Option<Markup> {
    (!text.is_empty()).then(|| html! { (line(text)) })
}

fn mono(text: &str) -> Option<Markup> {
    (!text.is_empty()).then(|| html! { span.mono { (line(text)) } })
}

/// Who it is, and what it has.
fn facts(node: &NodeStatus, now: Millis) -> Markup {
    let identity = &node.identity;
    let labels: Vec<String> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mac_only = || html! { span.warn { "▲ MAC addresses alone, which anybody can read and use" } };
    html! {
        section {
            h2 { "Identity" }
            (terms([
                ("Name", node.name.as_deref().and_then(text)),
                ("Id", (!is_stranger(node)).then(|| mono(&node.id)).flatten()),
                ("Class", text(node.class.name())),
                ("Site", node.site.as_deref().and_then(text)),
                ("Labels", text(&labels.join(", "))),
                ("System", node.installed.as_ref().map(|installed| installed_words(installed, now))),
                ("Agent", node.agent.as_ref().map(|agent| agent_words(node, agent, now))),
                ("Power", node.power.as_ref().map(|power| power_words(power, now))),
                ("Serial number", identity.serial.as_deref().and_then(mono)),
                ("UUID", identity.uuid.as_deref().and_then(mono)),
                ("MAC addresses", mono(&identity.macs.join(", "))),
                ("Known by", node.mac_only.then(mac_only)),
                ("Must prove", Some(html! { (required(node.require)) })),
                ("Proof", node.key.as_ref().map(|key| proof(key, now))),
                ("TPM", node.tpm.as_ref().map(|tpm| tpm_words(tpm, now))),
                ("Secure Boot", node.inventory.as_ref().map(secure_boot)),
                ("slipway", node.agent_version.as_deref().and_then(text)),
            ]))
            @if !node.earlier_keys.is_empty() {
                details {
                    summary {
                        (node.earlier_keys.len())
                        @if node.earlier_keys.len() == 1 { " earlier key" } @else { " earlier keys" }
                    }
                    ul { @for key in &node.earlier_keys { li { (proof(key, now)) } } }
                }
            }
        }
        @if let Some(inventory) = &node.inventory { (hardware(node, inventory)) }
    }
}

fn installed_words(installed: &Installed, now: Millis) -> Markup {
    html! {
        (line(installed.os.as_deref().unwrap_or("by a workflow"))) ", image "
        span.mono { (installed.image.to_string().chars().take(19).collect::<String>()) "…" } ", for "
        (words::since(Some(installed.since), now))
        @if installed.behind { span.warn { " ▲ the operating system has a newer image" } }
    }
}

fn required(proof: Proof) -> &'static str {
    match proof {
        Proof::Registered => "its identifiers",
        Proof::Token => "a bootstrap token",
        Proof::Attested => "its TPM",
    }
}

fn proof(key: &NodeKey, now: Millis) -> Markup {
    let proved = match key.proof {
        Proof::Registered => "registered: its machine sent the identifiers",
        Proof::Token => "token: its machine proved a bootstrap token",
        Proof::Attested => "attested: its machine proved its TPM",
    };
    let short: String = key.fingerprint.chars().take(16).collect();
    html! {
        (proved) ", from " span.mono { (line(&key.address)) } ", key " span.mono { (short) } " for "
        (words::since(Some(key.since), now))
    }
}

fn tpm_words(tpm: &NodeTpm, now: Millis) -> Markup {
    let origin = match tpm.origin {
        TpmOrigin::Registered => "registered by an operator",
        TpmOrigin::Certificate => "certified by a trusted manufacturer",
        TpmOrigin::Release => "of the first or a released machine",
    };
    let certificate = match tpm.certificate {
        None => "",
        Some(EkCertificate::None) => ", without a certificate",
        Some(EkCertificate::UnknownIssuer) => ", certificate of an untrusted manufacturer",
        Some(EkCertificate::Bad) => ", invalid certificate",
        Some(EkCertificate::Verified) => ", certificate verified",
    };
    html! {
        (origin) (certificate)
        @match tpm.proved_at {
            Some(at) => { ", proved " (words::since(Some(at), now)) " ago" },
            None => ", not proved yet",
        }
        @if tpm.has_event_log { ", with event log" }
        " " span.mono.muted { (tpm.ek.join(" or ")) }
    }
}

fn secure_boot(inventory: &Inventory) -> Markup {
    let firmware = &inventory.firmware;
    let text = match (firmware.uefi, firmware.secure_boot) {
        (false, _) => "none: the firmware is a BIOS",
        (true, Some(true)) => "on",
        (true, Some(false)) if firmware.setup_mode == Some(true) => "off, in Setup Mode",
        (true, Some(false)) => "off",
        (true, None) => "unknown",
    };
    html! { (text) }
}

fn hardware(node: &NodeStatus, inventory: &Inventory) -> Markup {
    let cpu = &inventory.cpu;
    let processor = format!("{} {} threads, {}", cpu.model.as_deref().unwrap_or_default(), cpu.threads, cpu.arch);
    let memory = (inventory.memory > 0).then(|| html! { (size(inventory.memory)) });
    let hints = node.disk.as_ref().map(|hints| html! { code { (line(&crate::store::to_json(hints))) } });
    html! {
        section {
            h2 { "Hardware" }
            (terms([
                ("Model", text(&model(node))),
                ("Processor", text(&processor)),
                ("Memory", memory),
                ("Asset tag", inventory.system.asset_tag.as_deref().and_then(text)),
                ("Loaded from", inventory.loaded_from.as_deref().and_then(text)),
                ("Disk hints", hints),
            ]))
            h3 { "Disks" }
            ul { @for disk in &inventory.disks { li { (disk_words(disk)) } } }
            @if inventory.disks.is_empty() { p.muted { "none found" } }
            h3 { "Network cards" }
            ul {
                @for nic in &inventory.nics {
                    li {
                        span.mono { (line(&nic.name)) } " "
                        @if let Some(mac) = &nic.mac { span.mono { (line(mac)) } " " }
                        @if nic.carrier { span.good { "link" } } @else { span.muted { "no link" } }
                        @if let Some(speed) = nic.speed { ", " (speed) " Mbit/s" }
                        @if !nic.addresses.is_empty() { ", " span.mono { (line(&nic.addresses.join(", "))) } }
                        span.muted { " " (line(nic.driver.as_deref().unwrap_or("no driver"))) }
                    }
                }
            }
            @for device in &inventory.unserved { p.warn { "▲ " (line(&device.to_string())) } }
        }
    }
}

fn disk_words(disk: &Disk) -> Markup {
    // A virtual disk says that it spins, whatever it is made of.
    let kind = match (disk.transport.as_deref(), disk.rotational && disk.transport.as_deref() != Some("virtio")) {
        (Some(transport), true) => format!("{transport}, spins"),
        (Some(transport), false) => transport.to_owned(),
        (None, true) => "spins".to_owned(),
        (None, false) => String::new(),
    };
    html! {
        (disk.in_words()) span.muted { " " (line(&kind)) }
        @if disk.removable { span.muted { " removable" } }
        @if disk.read_only { span.warn { " ▲ write-protected" } }
    }
}

/// The machines that ask to be let in as a node, beside its own machine if they contest it.
pub fn claims(node: &NodeStatus, now: Millis) -> Markup {
    let is_contested = node.claims.iter().any(|claim| trouble::is_contested(claim, now));
    let contested = node.key.as_ref().filter(|_| is_contested);
    html! {
        @if !node.claims.is_empty() {
            div.claims {
                @if let Some(key) = contested {
                    section {
                        h2 { "The node's machine" }
                        (terms([
                            ("Address", mono(&key.address)),
                            ("Proof", Some(proof(key, now))),
                            ("Heard", Some(html! { (words::since(node.last_seen, now)) " ago" })),
                            ("Serial number", node.identity.serial.as_deref().and_then(mono)),
                            ("UUID", node.identity.uuid.as_deref().and_then(mono)),
                            ("MAC addresses", mono(&node.identity.macs.join(", "))),
                        ]))
                    }
                }
                @for claim in &node.claims { (claim_section(contested.is_some(), claim, now)) }
            }
        }
    }
}

fn claim_section(is_contest: bool, claim: &Claim, now: Millis) -> Markup {
    html! {
        section data-id=(claim.code) {
            h2 class=[is_contest.then_some("bad")] {
                @if is_contest { "■ Contested by the claim " } @else { "Claim " }
                span.mono { (claim.code) }
            }
            (terms([
                ("Why it waits", Some(html! { (claim.reason.in_words()) })),
                ("Like node", claim.node.as_deref().filter(|_| !is_contest).map(|node| html! {
                    a href={ "/nodes/" (node) } { (line(node)) }
                })),
                ("Address", mono(&claim.address)),
                ("Serial number", claim.identity.serial.as_deref().and_then(mono)),
                ("UUID", claim.identity.uuid.as_deref().and_then(mono)),
                ("MAC addresses", mono(&claim.identity.macs.join(", "))),
                ("Shared", text(&claim.shared.join(", "))),
                ("TPM, not proved", claim.tpm.as_ref().map(|tpm| html! {
                    span.mono { (line(tpm.ek.as_deref().unwrap_or("not usable"))) }
                    @if let Some(problem) = &tpm.problem { " " (line(problem)) }
                })),
                ("Asks for", Some(words::since(Some(claim.first_asked), now))),
                ("Last asked", Some(html! { (words::since(Some(claim.last_asked), now)) " ago" })),
            ]))
            a.button href=(path("release", &claim.code)) { "Release this machine…" }
        }
    }
}

/// The newest run, with its steps.
fn run(node: &NodeStatus, now: Millis) -> Markup {
    html! {
        section {
            @match &node.run {
                None => {
                    h2 { "Run" }
                    p.muted {
                        @if is_stranger(node) { "None: this machine is not a node yet." }
                        @else { "None yet. Start one to install an operating system." }
                    }
                },
                Some(run) => (run_section(run, now)),
            }
        }
    }
}

/// A run with its steps, and what was reported besides.
pub fn run_section(run: &RunStatus, now: Millis) -> Markup {
    html! {
        h2 {
            "Run " a.mono href={ "/runs/" (run.id) } { (run.id) } " "
            @if let Some(os) = &run.os { "of " (line(os)) " " }
            (words::of_run(run))
        }
        p.muted {
            "started " (words::since(Some(run.created_at), now)) " ago"
            @if let Some(end) = run.finished_at {
                ", took " (words::age(end.saturating_sub(run.started_at.unwrap_or(run.created_at))))
            }
            @if let Some(at) = run.phoned_home_at {
                ", the system reported " (words::since(Some(at), now)) " ago"
            }
        }
        @if run.state == RunState::Running {
            p { (words::bar(Some(run.percent), "the run")) " of the run" }
        }
        ol.steps { @for (index, step) in run.steps.iter().enumerate() { (step_row(index, step, now)) } }
        (reports(run, now))
    }
}

fn step_row(index: usize, step: &StepStatus, now: Millis) -> Markup {
    let moved = step.progress.as_ref().filter(|_| step.state == StepState::Running);
    let took = match (step.started_at, step.finished_at) {
        (Some(began), Some(ended)) => html! { span.number.muted { (words::age(ended.saturating_sub(began))) } },
        (Some(began), None) => words::since(Some(began), now),
        _ => html! {},
    };
    html! {
        li data-id={ "step-" (index) } {
            span {
                span.number.muted { (index + 1) } " " (line(&step.name)) " "
                (words::state(&step.state, words::of_step(step.state)))
                @if step.attempt > 1 { span.warn { " attempt " (step.attempt) } }
            }
            span { (took) }
            @if let Some(moved) = moved {
                div.more { (words::bar(progress::of_step(moved), &step.name)) " · " (words::pace(moved)) }
            }
            @for note in &step.notes { div.more { (line(note)) } }
            @if let Some(outcome) = &step.outcome {
                @if !outcome.summary.is_empty() { div.more { (line(&outcome.summary)) } }
                @for disk in &outcome.disks { div.more { (line(&disk.in_words())) } }
                @for warning in &outcome.warnings { div.more { span.warn { "▲ " (line(warning)) } } }
            }
            @if let Some(failure) = &step.failure {
                div.more {
                    span.bad { "■ " (words::prose(&failure.reason)) }
                    @for cause in &failure.causes { br; "because: " (words::prose(cause)) }
                }
                @if !failure.log_tail.is_empty() {
                    details.more {
                        summary { "Last lines of the log" }
                        pre tabindex="0" { (line_by_line(&failure.log_tail)) }
                    }
                }
            }
        }
    }
}

fn line_by_line(lines: &[String]) -> String {
    lines.iter().map(|text| line(text).into_owned()).collect::<Vec<_>>().join("\n")
}

/// What was reported from outside of the workflow.
fn reports(run: &RunStatus, now: Millis) -> Markup {
    html! {
        @if let Some(boot) = &run.boot {
            h3 { "Installed system" }
            p {
                (to_word(&boot.report.stage)) " in boot " (boot.boots)
                @if let Some(state) = &boot.report.system_state { ", systemd is " (line(state)) }
                ", reported " (words::since(Some(boot.at), now)) " ago"
            }
            @for unit in &boot.report.failed_units { p.warn { "▲ failed: " (line(unit)) } }
        }
        @if !run.external_steps.is_empty() {
            h3 { "External steps" }
            ol.steps {
                @for step in &run.external_steps {
                    li data-id={ "external-" (step.name) } {
                        span {
                            (line(&step.name))
                            @if let Some(status) = step.status { " " (words::state(&status, external_tone(status))) }
                            @if step.unknown { span.warn { " ▲ unknown name" } }
                        }
                        span { (words::since(Some(step.updated_at), now)) }
                        div.more {
                            (words::bar(step.percent, &step.name)) " "
                            @if let Some(label) = &step.label { (line(label)) }
                        }
                        @if !step.logs.is_empty() {
                            details.more { summary { "Log" } pre tabindex="0" { (lines(&step.logs)) } }
                        }
                    }
                }
            }
        }
    }
}

fn external_tone(status: slipway_protocol::ExternalStepStatus) -> Tone {
    use slipway_protocol::ExternalStepStatus as Status;
    match status {
        Status::Init => Tone::Work,
        Status::Done => Tone::Good,
        Status::Failed => Tone::Bad,
    }
}

/// Runs of the node, newest first, each with how long its steps took, beside what is usual.
fn earlier(runs: &[RunStatus], usual: &[(String, Millis)], now: Millis) -> Markup {
    let runs = &runs[..runs.len().min(RUNS)];
    let times: Vec<Times> = runs.iter().map(chart::times).collect();
    let longest = times.iter().map(Vec::as_slice).chain([usual]).map(chart::total).max().unwrap_or_default();
    let failure = |run: &RunStatus| {
        let (_, step) = reasons::current(run).filter(|_| run.state == RunState::Failed)?;
        step.failure.clone()
    };
    html! {
        @if longest > 0 {
            section {
                h2 { "Time of the steps" }
                ol.steps {
                    @if !usual.is_empty() {
                        li data-id="usual" {
                            span { "usual for this image, the median of the site" }
                            span.number { (words::age(chart::total(usual))) }
                            div.more { (chart::bar(usual, longest)) }
                        }
                    }
                    @for (run, times) in runs.iter().zip(&times) {
                        li data-id=(run.id) {
                            span {
                                "run " a.mono href={ "/runs/" (run.id) } { (run.id) } " "
                                (words::of_run(run)) ", "
                                (words::since(Some(run.created_at), now)) " ago"
                            }
                            span.number { (words::age(chart::total(times))) }
                            @if !times.is_empty() { div.more { (chart::bar(times, longest)) } }
                            @if let Some(failure) = failure(run) { div.more { (failure.in_one_line()) } }
                        }
                    }
                }
            }
        }
    }
}

/// The log of the newest boot, and links to those of the boots before.
fn log_of(node: &NodeStatus, kind: LogType, boots: &[LoggedBoot], now: Millis) -> Markup {
    let (title, word) = match kind {
        LogType::Installer => ("Console of the installer", "installer"),
        LogType::HostBoot => ("Boot log of the installed system", "host_boot"),
    };
    let path = format!("/nodes/{}/log?type={word}", reference(node));
    html! {
        details data-log=(path) {
            summary { (title) @if boots.is_empty() { span.muted { ", nothing yet" } } }
            p {
                a href=(path) { "As text" } " "
                label { span.unseen { "Filter " (title) } input type="search" placeholder="filter" spellcheck="false"; }
            }
            pre tabindex="0" aria-label=(title) {}
            @if boots.len() > 1 {
                p {
                    "Earlier boots: "
                    @for (index, boot) in boots.iter().enumerate().skip(1) {
                        @if index > 1 { ", " }
                        a href={ (path) "&boot=" (index + 1) } { (size(boot.bytes)) }
                        ", begun " (words::since(Some(boot.first_at), now)) " ago"
                    }
                }
            }
        }
    }
}

/// Chooses a log, and the boot that it is of.
#[derive(Deserialize)]
pub struct WhichLog {
    #[serde(default)]
    r#type: LogType,
    boot: Option<String>,
}

/// Sends the end of a log as text.
pub async fn log(
    visitor: Visitor,
    UrlPath(node): UrlPath<String>,
    Query(which): Query<WhichLog>,
) -> Result<Response, Failed> {
    let log: Result<String, Error> =
        operate::node_log(&visitor.store, &node, which.r#type, which.boot.as_deref()).await;
    let log = log?;
    let cut = log.len().saturating_sub(LOG);
    // At the beginning of a line, which is that of a character too.
    let start = if cut == 0 {
        0
    } else {
        log.as_bytes()[cut..].iter().position(|byte| *byte == b'\n').map_or(log.len(), |at| cut + at + 1)
    };
    let end = log.get(start..).unwrap_or_default().to_owned();
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], end).into_response())
}
