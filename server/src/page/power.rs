//! The power of a machine: how it is, what switches it, and the buttons that switch it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::response::Response;
use maud::{Markup, html};
use slipway_protocol::shared::duration;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{
    ErrorCode, NodePower, NodeStatus, PowerActState, PowerBoot, PowerMode, PowerProvider, PowerState, Redfish,
    RunState, Secret,
};

use crate::api::answer::UrlPath;
use crate::base::error::Error;
use crate::base::time::{Millis, now};
use crate::operate::{self, PowerChange, PowerRequest};
use crate::page::answer::{Failed, Html, see_other};
use crate::page::forms;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::rows::{name, reference};
use crate::page::session::{Act, Fields, Visitor};
use crate::page::words::{self, Tone};
use crate::power::{hook, redfish};
use crate::store::to_word;

/// What the buttons ask for: word in the form, request, text, and whether the machine's system is cut off.
const REQUESTS: [(&str, PowerRequest, &str, bool); 5] = [
    ("on", PowerRequest::On, "Switch on", false),
    ("status", PowerRequest::Status, "Ask whether it is on", false),
    ("off", PowerRequest::Off, "Switch off", true),
    ("cycle", PowerRequest::Cycle, "Switch off and on", true),
    ("boot", PowerRequest::Boot, "Boot slipway", true),
];
/// Modes: word, mode, title.
const MODES: [(&str, PowerMode, &str); 3] = [
    ("real", PowerMode::Real, "really"),
    ("recorder", PowerMode::Recorder, "only on paper: what would be done is recorded as an event"),
    ("disabled", PowerMode::Disabled, "not at all"),
];

/// What a machine boots once: word, choice, title.
const BOOTS: [(&str, PowerBoot, &str); 3] = [
    ("network", PowerBoot::Network, "from the network, by PXE"),
    ("http", PowerBoot::Http, "from a URL, by UEFI HTTP boot"),
    ("media", PowerBoot::Media, "a disc image in a virtual drive of the BMC"),
];

/// Shows the power of a machine.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let node = operate::show_node(&frame.visitor.store, &node).await?;
    Ok(page(&frame, &node, &as_fields(node.power.as_ref()), None))
}

/// Asks that a machine is switched.
pub async fn switch(
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
    sent: Act,
) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let node = operate::show_node(store, &node).await?;
    let asked = async {
        let known = REQUESTS.iter().find(|(word, ..)| fields.text("act") == *word);
        let Some((_, request, _, is_cut)) = known else {
            return Err(Error::refused(ErrorCode::InvalidRequest, "choose what is to be done"));
        };
        if *is_cut && fields.text("confirm") != name(&node) {
            let message = format!("nothing was done: {:?} has to be typed to confirm", name(&node));
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        operate::switch_power(store, &node.id, *request).await
    };
    answer(&frame, &live, &node, asked.await, None)
}

/// Changes what switches a machine.
pub async fn change(
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
    sent: Act,
) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let node = operate::show_node(store, &node).await?;
    let changed = async { operate::change_power(store, &node.id, change_of(&fields)?).await };
    answer(&frame, &live, &node, changed.await, Some(&fields))
}

fn answer(
    frame: &Frame,
    live: &Live,
    node: &NodeStatus,
    done: Result<NodePower, Error>,
    fields: Option<&Fields>,
) -> Result<Response, Failed> {
    match done {
        Ok(_) => {
            live.has_changed();
            Ok(see_other(&format!("/nodes/{}/power", node.id), None))
        }
        Err(error) => {
            let known = as_fields(node.power.as_ref());
            forms::again(error, |problem| page(frame, node, fields.unwrap_or(&known), Some(problem)))
        }
    }
}

fn change_of(fields: &Fields) -> Result<PowerChange, Error> {
    let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
    if fields.text("provider") == "none" {
        return Ok(PowerChange { provider: Some(PowerProvider::None), ..PowerChange::default() });
    }
    let mut options = BTreeMap::new();
    for text in fields.text("options").lines().map(str::trim).filter(|text| !text.is_empty()) {
        let wrong = || invalid(format!("{text:?} is not an option such as ip=192.0.2.71"));
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        options.insert(key.to_owned(), value.to_owned());
    }
    let (is_redfish, is_qemu) = (fields.text("provider") == "redfish", fields.text("provider") == "qemu");
    let limit = fields.given("limit").map(|text| duration::parse(&text)).transpose().map_err(invalid)?;
    // As it was typed: blanks may belong to it.
    let password =
        fields.all("password").next().filter(|text| !text.is_empty()).map(|text| Secret::from(text.to_owned()));
    Ok(PowerChange {
        provider: Some(match fields.text("provider") {
            "redfish" => PowerProvider::Redfish,
            "qemu" => PowerProvider::Qemu,
            _ => PowerProvider::Command,
        }),
        mode: MODES.iter().find(|(word, ..)| fields.text("mode") == *word).map(|(_, mode, _)| *mode),
        hook: (!is_redfish && !is_qemu).then(|| fields.text("hook").to_owned()),
        options: (!is_redfish).then_some(options),
        redfish: is_redfish.then(|| redfish_of(fields)),
        password: password.or_else(|| fields.ticked("no_password").then(Secret::default)),
        limit_seconds: limit.map(|limit| u32::try_from(limit.as_secs()).unwrap_or(u32::MAX)),
    })
}

fn redfish_of(fields: &Fields) -> Redfish {
    let boot = BOOTS.iter().find(|(word, ..)| fields.text("boot") == *word).map(|(_, boot, _)| *boot);
    Redfish {
        url: fields.text("url").to_owned(),
        username: fields.text("username").to_owned(),
        system: fields.given("system"),
        // Browsers send line breaks in their own way.
        ca: fields.given("ca").map(|ca| ca.replace("\r\n", "\n") + "\n"),
        pin: fields.given("pin"),
        boot: boot.unwrap_or_default(),
        boot_url: fields.given("boot_url"),
    }
}

/// What the form shows of settings that are known.
fn as_fields(power: Option<&NodePower>) -> Fields {
    let Some(power) = power else { return Fields::default() };
    let options = power.options.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    let mut fields = Fields::default();
    for (name, text) in [
        ("hook", power.hook.clone().unwrap_or_default()),
        ("options", options),
        ("mode", to_word(&power.mode)),
        ("limit", format!("{}s", power.limit_seconds)),
    ] {
        fields.push(name.to_owned(), text);
    }
    if power.provider == PowerProvider::Qemu {
        fields.push("provider".to_owned(), "qemu".to_owned());
    }
    if let Some(redfish) = &power.redfish {
        for (name, text) in [
            ("provider", Some("redfish".to_owned())),
            ("url", Some(redfish.url.clone())),
            ("username", Some(redfish.username.clone())),
            ("system", redfish.system.clone()),
            ("ca", redfish.ca.clone()),
            ("pin", redfish.pin.clone()),
            ("boot", Some(to_word(&redfish.boot))),
            ("boot_url", redfish.boot_url.clone()),
        ] {
            fields.push(name.to_owned(), text.unwrap_or_default());
        }
    }
    fields
}

fn page(frame: &Frame, node: &NodeStatus, fields: &Fields, problem: Option<&Error>) -> Html {
    let known = node.power.as_ref();
    let content = html! {
        h1 { "Power: " (name(node)) }
        (forms::refused(problem))
        div data-sync="power" { (state(node, now())) }
        @if known.is_some_and(|power| power.mode != PowerMode::Disabled) { (buttons(frame, node)) }
        (settings(frame, node, fields))
        p { a href={ "/nodes/" (reference(node)) } { "Back to " (name(node)) } }
    };
    frame.page("/fleet", "Power", Follows::Node(&node.id), content)
}

fn state(node: &NodeStatus, now: Millis) -> Markup {
    html! {
        @match &node.power {
            None => p.teach {
                "Nothing switches this machine yet. Say below what does, and a run can start it without a hand."
            },
            Some(power) => dl {
                dt { "Power" } dd { (power_words(power, now)) }
                @if let Some(act) = &power.act {
                    dt { "Last act" }
                    dd {
                        "the machine " (line(&act.in_words())) " "
                        span.muted { (words::since(Some(act.asked_at), now)) }
                    }
                }
            },
        }
    }
}

/// Says whether a machine is on, and what is being done about it.
pub fn power_words(power: &NodePower, now: Millis) -> Markup {
    let open = power.act.as_ref().filter(|act| act.state.is_open() || act.state == PowerActState::Failed);
    html! {
        @match power.state {
            Some(PowerState::On) => (words::state(&PowerState::On, Tone::Good)),
            Some(PowerState::Off) => (words::state(&PowerState::Off, Tone::Quiet)),
            None => "unknown",
        }
        @if power.state_at.is_some() { " " span.muted { "asked " (words::since(power.state_at, now)) } }
        @if let Some(act) = open {
            @if act.state == PowerActState::Failed { " " span.bad { "■ " (line(&act.in_words())) } }
            @else { " " span.warn { (line(&act.in_words())) } }
        }
        @match power.mode {
            PowerMode::Real => {},
            PowerMode::Recorder => { " " span.warn { "▲ only recorded" } },
            PowerMode::Disabled => { " " span.muted { "switching is disabled" } },
        }
    }
}

fn buttons(frame: &Frame, node: &NodeStatus) -> Markup {
    let action = format!("/nodes/{}/power", reference(node));
    let run = node.run.as_ref().filter(|run| run.state == RunState::Running);
    let button = |is_cut: bool| {
        html! {
            @for (word, _, text, cuts) in REQUESTS {
                @if cuts == is_cut {
                    button type="submit" name="act" value=(word) class=[is_cut.then_some("danger")] { (text) } " "
                }
            }
        }
    };
    html! {
        form.edit method="post" action=(action) { (frame.visitor.proof_field()) div { (button(false)) } }
        form.edit method="post" action=(action) {
            (frame.visitor.proof_field())
            p {
                "These switch the machine off without telling its operating system."
                @if run.is_some() {
                    span.warn { " ▲ A run is going on; a disk that is half written does not boot." }
                }
            }
            label {
                span { "Type the name " strong { (name(node)) } ", so that it is this machine and no other" }
                input type="text" name="confirm" required autocomplete="off" spellcheck="false";
            }
            div { (button(true)) }
        }
    }
}

fn by_redfish(fields: &Fields) -> Markup {
    html! {
        fieldset {
            legend { "By Redfish" }
            (forms::field("url", "URL of the BMC", "Such as https://192.0.2.71.", fields))
            (forms::field("username", "User", "A user who may switch the machine and set what it boots.", fields))
            (forms::field("system", "System", "Only if the BMC has several machines: its id.", fields))
            (forms::field("pin", "SHA-256 of its certificate", "Such as sha256:b4fe…; or give its CA.", fields))
            label { "CA of its certificate"
                textarea name="ca" rows="2" spellcheck="false" aria-describedby="ca-hint" { (fields.text("ca")) }
                span.hint id="ca-hint" { "In PEM." }
            }
            label { "Boots once"
                select name="boot" {
                    @for (word, _, title) in BOOTS {
                        option value=(word) selected[fields.text("boot") == word] { (title) }
                    }
                }
            }
            (forms::field("boot_url", "URL to boot from", "For HTTP boot or a virtual drive.", fields))
        }
    }
}

fn by_hook(fields: &Fields) -> Markup {
    html! {
        fieldset {
            legend { "By a hook, or as a virtual machine" }
            (forms::field("hook", "Hook", "Such as ipmi or wake-on-lan: its name in /etc/slipway/power.", fields))
            label { "Options"
                textarea name="options" rows="3" spellcheck="false" aria-describedby="options-hint" {
                    (fields.text("options"))
                }
                span.hint id="options-hint" {
                    "One on each line, such as ip=192.0.2.71; for a virtual machine memory=1G or disk=8G."
                }
            }
        }
    }
}

fn settings(frame: &Frame, node: &NodeStatus, fields: &Fields) -> Markup {
    let has_password = node.power.as_ref().is_some_and(|power| power.has_password);
    let [hook, bmc] = [hook::LIMIT, redfish::LIMIT].map(|limit| duration::words(Duration::from_secs(limit.into())));
    let limit = format!("When a hook is stopped, or a BMC is not waited for. Default: {hook}, for a BMC {bmc}.");
    html! {
        h2 { "What switches it" }
        form.edit method="post" action={ "/nodes/" (reference(node)) "/power/settings" } {
            (frame.visitor.proof_field())
            label { "Provider"
                select name="provider" {
                    option value="command" { "a hook: a program on the server's host" }
                    option value="redfish" selected[fields.text("provider") == "redfish"] { "its BMC, by Redfish" }
                    option value="qemu" selected[fields.text("provider") == "qemu"] {
                        "the server itself: it is a virtual machine"
                    }
                    option value="none" selected[fields.text("provider") == "none"] { "nothing" }
                }
            }
            (by_redfish(fields))
            (by_hook(fields))
            label { "Password"
                input type="password" name="password" autocomplete="new-password" aria-describedby="password-hint";
                span.hint id="password-hint" {
                    @if has_password { "One is kept. Give it again if what it is sent to changes." }
                    @else { "May be left out. It is kept encrypted, and is never shown." }
                }
            }
            @if has_password { (forms::tick("no_password", "Remove the password", false)) }
            label { "It is switched"
                select name="mode" {
                    @for (word, _, title) in MODES {
                        option value=(word) selected[fields.text("mode") == word] { (title) }
                    }
                }
            }
            (forms::field("limit", "Limit", &limit, fields))
            (forms::submit("Save"))
        }
    }
}
