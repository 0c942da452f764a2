//! Pages on which operators act on nodes, one or many. A page says what it will do to which disk and asks; what it then
//! does is exactly what it said, to exactly these nodes. If it would say something else by then, nothing is done.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use slipway_protocol::shared::printable::line;
use slipway_protocol::workflow::agent::DRAIN;
use slipway_protocol::{Afterwards, Disk, DiskHints, EraseMode, ErrorCode, NodeState, NodeStatus, RunState};

use crate::api::answer::UrlPath;
use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::node::status::{self, is_stranger};
use crate::operate::{self, NewRun, NodeChange, Task};
use crate::page::answer::{Failed, see_other};
use crate::page::disks::{disks_of, erases};
use crate::page::forms;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::offers::{Act, has_open_run, is_rebooted, is_switched};
use crate::page::rows::{name, path, reference};
use crate::page::session::{Act as Sent, Fields, Visitor};
use crate::page::view::View;
use crate::page::words;
use crate::rules::state;
use crate::run::foresee::{erased, possible};
use crate::store::systems::System;
use crate::store::{Store, systems, to_json};

/// Maximum number of nodes on which operators act at once.
const MOST: usize = 1000;
/// Up to this many nodes are looked up one by one; more are found faster by reading all.
const FEW: usize = 20;

/// The buttons of a node, each that is not possible with its reason.
pub fn buttons(node: &NodeStatus) -> Markup {
    html! {
        div.acts data-sync="acts" {
            @for act in Act::ALL {
                @if act == Act::Cancel && may_retry(node) {
                    a.button href={ "/nodes/" (reference(node)) "/retry" } { "Retry run…" }
                }
                @if act == Act::Confirm && !is_stranger(node) {
                    a.button href={ "/nodes/" (reference(node)) "/power" } { "Power…" }
                    @if node.agent.is_some() {
                        a.button href={ "/nodes/" (reference(node)) "/agent" } { "Agent…" }
                        @if may_drain(node) {
                            a.button href={ "/nodes/" (reference(node)) "/agent#drain" } { "Drain…" }
                        }
                    }
                }
                @match act.obstacle(node) {
                    // Nobody misses these where they have no meaning.
                    Some(_) if matches!(act, Act::Confirm | Act::Recommission) => {},
                    Some(reason) => span {
                        button type="button" disabled { (act.verb()) "…" } " " span.muted { (reason) }
                    },
                    None => a.button href=(path(act.word(), &reference(node))) {
                        (act.verb()) "…"
                    },
                }
            }
        }
    }
}

/// Whether the agent of a node's system has a command that drains it.
fn may_drain(node: &NodeStatus) -> bool {
    node.agent.as_ref().is_some_and(|agent| agent.tasks.iter().any(|task| task == DRAIN))
}

/// Whether the newest run of a node may be tried again.
fn may_retry(node: &NodeStatus) -> bool {
    node.state != NodeState::Decommissioned && node.run.as_ref().is_some_and(|run| run.state == RunState::Failed)
}

/// What the page said of an act on a node, in short: the same only as long as it would say the same. `None` for what
/// does not depend on runs and disks.
fn said(act: Act, node: &NodeStatus, system: Option<&System>) -> Option<String> {
    if matches!(act, Act::Label | Act::Release) {
        return None;
    }
    let run = node.run.as_ref().map(|run| (&run.id, state::is_open(run.state)));
    let possible = |hints| possible(&hints, disks_of(node)).into_iter().map(Disk::in_words).collect();
    let disks: Option<Vec<String>> = erased_hints(act, node, system).map(possible);
    let mut hash =
        token_hash(&to_json(&(act.word(), name(node), run, disks, system, (is_switched(node), is_rebooted(node)))));
    hash.truncate(16);
    Some(format!("{}:{hash}", act.reference(node)))
}

/// Returns the hints for the disks that an act erases, if it erases any.
fn erased_hints(act: Act, node: &NodeStatus, system: Option<&System>) -> Option<DiskHints> {
    match act {
        Act::Erase => Some(DiskHints::all()),
        _ => system.map(|system| node.disk.as_ref().unwrap_or(&system.disk).clone()),
    }
}

/// Nodes that are meant, and those that cannot be found.
struct Meant {
    /// Each as it was referred to.
    nodes: Vec<(String, NodeStatus)>,
    missing: Vec<String>,
}

impl Meant {
    async fn find(store: &Store, references: &[String]) -> Result<Self, Error> {
        if references.is_empty() {
            return Err(Error::refused(
                ErrorCode::InvalidRequest,
                "no machine is selected; select some, and try again",
            ));
        }
        if references.len() > MOST {
            let message = format!("{} machines are selected; at most {MOST} at a time", references.len());
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        let known = if references.len() > FEW { known(store, references).await? } else { HashMap::new() };
        let (mut nodes, mut missing) = (Vec::new(), Vec::new());
        for reference in references {
            let node = match known.get(reference) {
                Some(node) => Ok(node.clone()),
                None => operate::show_node(store, reference).await,
            };
            match node {
                Ok(node) => nodes.push((reference.clone(), node)),
                Err(Error::Refused { message, .. }) if references.len() > 1 => missing.push(message),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { nodes, missing })
    }
}

/// Returns the nodes and waiting machines with these ids or claim codes, by them.
async fn known(store: &Store, references: &[String]) -> Result<HashMap<String, NodeStatus>, Error> {
    let wanted: HashSet<&String> = references.iter().collect();
    let mut known = HashMap::new();
    for node in status::all(store).await? {
        let names = [Some(reference(&node)), node.claim_code.clone()].into_iter().flatten();
        known.extend(names.filter(|name| wanted.contains(name)).map(|name| (name, node.clone())));
    }
    Ok(known)
}

/// What has to be typed so that data is lost: the name of a single node, or the number of nodes.
fn phrase(nodes: &[&NodeStatus]) -> String {
    match nodes {
        // A waiting machine has no name but those that it gives itself.
        [node] if is_stranger(node) => reference(node),
        [node] => name(node),
        nodes => nodes.len().to_string(),
    }
}

/// Asks before anything is done.
pub async fn ask(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(act): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failed> {
    let act = Act::from_word(&act)?;
    let query = query.unwrap_or_default();
    let fields = Fields::read(query.as_bytes());
    let frame = Frame::new(visitor, &live).await?;
    // All that match: those that the view shows now. What is sent later has their ids, and not the view.
    let view = fields.ticked("all").then(|| View { page: 1, ..View::read(&query) });
    let references: Vec<String> = if let Some(view) = &view {
        view.select(&frame.snapshot).into_iter().map(|index| frame.snapshot.rows[index].reference.clone()).collect()
    } else {
        fields.all("node").map(str::to_owned).collect()
    };
    let store = &frame.visitor.store;
    let meant = Meant::find(store, &references).await?;
    let systems = match act {
        Act::Start => systems::all(&mut *store.read().await?).await?,
        _ => Vec::new(),
    };
    let system = systems.iter().find(|system| system.name == fields.text("os"));
    let content = match (act, system) {
        (Act::Start, None) => {
            let last = match meant.nodes.as_slice() {
                [(_, node)] => node.run.as_ref().and_then(|run| run.os.as_deref()),
                _ => None,
            };
            choose(&meant, view.as_ref(), &systems, last)
        }
        _ => confirm(&frame.visitor, act, &meant, system),
    };
    Ok(frame.page("/fleet", act.verb(), Follows::Nothing, content).into_response())
}

/// Asks which operating system to install. All nodes of a view are still a view on the next page, because a URL has no
/// room for their ids.
fn choose(meant: &Meant, view: Option<&View>, systems: &[System], last: Option<&str>) -> Markup {
    html! {
        h1 { "Start a run on " (subject(&meant.nodes)) }
        @if systems.is_empty() {
            p.teach {
                "There is no operating system yet. " a href="/add/system" { "Add an operating system" } "."
            }
        } @else {
            form.edit method="get" action="/act/start" {
                @match view {
                    Some(view) => {
                        input type="hidden" name="all" value="1";
                        (view.hidden())
                    },
                    None => @for (_, node) in &meant.nodes { input type="hidden" name="node" value=(reference(node)); },
                }
                label { "Operating system"
                    select name="os" required autofocus {
                        @for system in systems {
                            option value=(system.name) selected[last == Some(&*system.name)] { (system.name) }
                        }
                    }
                }
                @if let Some(last) = last { p.hint { "The last run was of " (last) ": to try again, go on with it." } }
                div { button.first type="submit" { "Go on" } " " a href="/fleet" { "Back" } }
                p.hint { "The next page says which disk is erased, and asks." }
            }
        }
    }
}

fn subject(nodes: &[(String, NodeStatus)]) -> String {
    match nodes {
        [(_, node)] => name(node),
        nodes => format!("{} machines", nodes.len()),
    }
}

/// Says what will be done to which disk, and asks.
fn confirm(visitor: &Visitor, act: Act, meant: &Meant, system: Option<&System>) -> Markup {
    let nodes = || meant.nodes.iter().map(|(_, node)| node);
    let able: Vec<&NodeStatus> = nodes().filter(|node| act.obstacle(node).is_none()).collect();
    let replaced = |node: &NodeStatus| matches!(act, Act::Start | Act::Erase) && has_open_run(node);
    let phrase = phrase(&able);
    let switches = matches!(act, Act::Decommission | Act::Erase) && able.iter().any(|node| is_switched(node));
    html! {
        h1 { (act.verb()) ": " (subject(&meant.nodes)) @if let Some(system) = system { " with " (system.name) } }
        form.edit method="post" action={ "/act/" (act.word()) } {
            (visitor.proof_field())
            @if let Some(system) = system { input type="hidden" name="os" value=(system.name); }
            ul.plan {
                @for node in nodes() {
                    li {
                        strong { (name(node)) } " " (words::state(&node.state, words::of_node(node.state))) ": "
                        @match act.obstacle(node) {
                            Some(obstacle) => span.muted { "nothing, because " (obstacle) },
                            None => {
                                input type="hidden" name="node" value=(act.reference(node));
                                @if let Some(said) = said(act, node, system) {
                                    input type="hidden" name="said" value=(said);
                                }
                                (act.effect(node)) " "
                                @if let Some(hints) = erased_hints(act, node, system) {
                                    (erases(&erased(&hints, disks_of(node))))
                                }
                                @if switches && !is_switched(node) { " Nothing can switch it off." }
                                @if replaced(node) { span.warn { " ▲ Its unfinished run ends as failed." } }
                            },
                        }
                    }
                }
                @for missing in &meant.missing { li.muted { (line(missing)) } }
            }
            @if able.is_empty() {
                p { "There is nothing to do. " a href="/fleet" { "Back" } }
            } @else {
                @if act == Act::Release && able.len() == 1 {
                    @if let [node] = able.as_slice() && is_stranger(node) && let Some(code) = &node.claim_code {
                        p.hint {
                            "Is it the machine of a node, after a repair? "
                            a href={ "/replace?by=" (code) } { "Put it in the place of that node's machine…" }
                        }
                    }
                    label { "Name (may be left out)"
                        input type="text" name="name" value=[able.first().and_then(|node| node.name.as_deref())]
                            autocomplete="off" spellcheck="false";
                    }
                }
                @if act == Act::Label { (label_fields()) }
                @if switches {
                    (forms::tick("power_off", "Switch the machine off when it is out of service", false))
                }
                @if act.loses_data() {
                    label {
                        span {
                            @if able.len() == 1 { "Type the name " } @else { "Type the number of machines, " }
                            strong { (phrase) }
                            @if able.len() == 1 { ", so that it is this machine and no other" }
                            @else { ", so that it is all of these and no others" }
                        }
                        input type="text" name="confirm" required autocomplete="off" spellcheck="false" autofocus;
                    }
                }
                div {
                    button type="submit" class=(if act.loses_data() { "danger" } else { "first" }) {
                        (act.verb()) @if able.len() > 1 { " on " (able.len()) " machines" }
                    }
                    " " a href="/fleet" { "Back" }
                }
            }
        }
    }
}

fn label_fields() -> Markup {
    html! {
        (forms::field("site", "Site", "Where they are. Left out, it stays as it is.", &Fields::default()))
        (forms::tick("no_site", "No site", false))
        (forms::field("labels", "Labels to set", "Such as rack=12 role=web. Others stay.", &Fields::default()))
        (forms::field("forget", "Labels to remove", "Their keys, such as rack role.", &Fields::default()))
    }
}

/// What the form about site and labels changes on a node that has these labels.
fn label_change(node: &NodeStatus, fields: &Fields) -> Result<NodeChange, Error> {
    let mut labels = node.labels.clone();
    forms::listed(fields, "forget").iter().for_each(|key| drop(labels.remove(key)));
    labels.extend(forms::labels(fields)?);
    let labels = Some(labels).filter(|labels| *labels != node.labels);
    let (site, no_site) = (fields.given("site"), fields.ticked("no_site"));
    if site.is_some() && no_site {
        return Err(Error::refused(ErrorCode::InvalidRequest, "a site is given, and none is to be set; choose one"));
    }
    Ok(NodeChange { site, no_site, labels, ..NodeChange::default() })
}

/// Does what was asked, and says what came of it.
pub async fn carry_out(
    Extension(live): Extension<Arc<Live>>,
    UrlPath(act): UrlPath<String>,
    sent: Sent,
) -> Result<Response, Failed> {
    let act = Act::from_word(&act)?;
    let Sent { visitor, fields } = sent;
    let references: Vec<String> = fields.all("node").map(str::to_owned).collect();
    let meant = Meant::find(&visitor.store, &references).await?;
    let nodes: Vec<&NodeStatus> = meant.nodes.iter().map(|(_, node)| node).collect();
    let phrase = phrase(&nodes);
    if act.loses_data() && !meant.missing.is_empty() {
        let message =
            format!("nothing was done: {} of the machines are gone; open the page again", meant.missing.len());
        return Err(Error::refused(ErrorCode::Conflict, message).into());
    }
    if act.loses_data() && fields.text("confirm") != phrase {
        let message = format!("nothing was done: {phrase:?} has to be typed to confirm; go back and type it");
        return Err(Error::refused(ErrorCode::InvalidRequest, message).into());
    }
    if act == Act::Label {
        // What cannot be understood is refused once, and not for each.
        meant.nodes.first().map(|(_, node)| label_change(node, &fields)).transpose()?;
    }
    let count = references.len();
    // It goes on to the end also if the browser does not wait for it.
    let doing = tokio::spawn(async move {
        let system = match act {
            Act::Start => systems::get_by_name(&mut *visitor.store.read().await?, fields.text("os")).await?,
            _ => None,
        };
        let mut results = Vec::new();
        for (reference, node) in &meant.nodes {
            let was_said = said(act, node, system.as_ref()).is_none_or(|said| fields.all("said").any(|it| it == said));
            let result = match was_said {
                true => one(&visitor, act, (reference, node), &fields).await,
                false => Err(Error::refused(ErrorCode::Conflict, CHANGED)),
            };
            results.push((name(node), reference.clone(), result));
        }
        live.has_changed();
        Ok::<_, Error>((visitor, live, meant.missing, results))
    });
    let (visitor, live, missing, mut results) = doing.await.map_err(|_| failed())??;
    let frame = Frame::new(visitor, &live).await?;
    if results.len() == 1
        && missing.is_empty()
        && let Some((name, reference, result)) = results.pop()
    {
        return match result {
            Ok(node) => Ok(see_other(&node.map_or("/fleet".to_owned(), |node| format!("/nodes/{node}")), None)),
            Err(error) => forms::again(error, |error| {
                let content = html! {
                    h1 { (act.verb()) ": not done on " (name) }
                    (forms::refused(Some(error)))
                    p { a href={ "/nodes/" (reference) } { "Back to " (name) } }
                };
                frame.page("/fleet", act.verb(), Follows::Nothing, content)
            }),
        };
    }
    let done = results.iter().filter(|(_, _, result)| result.is_ok()).count();
    let content = html! {
        h1 { (act.verb()) ": done on " (done) " of " (count) " machines" }
        ul {
            @for (name, reference, result) in &results {
                li {
                    a href={ "/nodes/" (reference) } { (name) } ": "
                    @match result {
                        Ok(_) => span.good { "done" },
                        Err(error) => span.bad { "■ " (words::prose(&error.body().message)) },
                    }
                }
            }
            @for missing in &missing { li.bad { "■ " (line(missing)) } }
        }
        p { a href="/fleet" { "Back to the fleet" } }
    };
    Ok(frame.page("/fleet", act.verb(), Follows::Nothing, content).into_response())
}

/// Why nothing is done where the page said something else.
const CHANGED: &str = "nothing was done: the machine, its run, its disks or the operating system changed after the \
                       page was opened; open it again";

fn failed() -> Error {
    Error::refused(ErrorCode::Unavailable, "the server ended while it did this; open the fleet to see what was done")
}

/// Does something to one node. Returns how the page names it afterwards, if it is still there.
async fn one(
    visitor: &Visitor,
    act: Act,
    (reference, node): (&str, &NodeStatus),
    fields: &Fields,
) -> Result<Option<String>, Error> {
    let store = &visitor.store;
    // Of many machines, those are switched off that can be.
    let power_off = fields.ticked("power_off") && is_switched(node);
    match act {
        Act::Start => {
            let task = Task::Os(fields.text("os").to_owned());
            let new = NewRun { replace: has_open_run(node), ..NewRun::new(task) };
            operate::start_run(store, visitor.keys().authority.pem(), reference, new).await?;
        }
        Act::Cancel => drop(operate::cancel_run(store, run_of(node, reference)).await?),
        Act::Confirm => drop(operate::confirm_run(store, run_of(node, reference)).await?),
        Act::Release => {
            return Ok(Some(operate::release_node(store, reference, fields.given("name")).await?.id));
        }
        Act::Decommission if power_off => drop(operate::decommission_node_and_switch_off(store, reference).await?),
        Act::Decommission => drop(operate::decommission_node(store, reference).await?),
        Act::Erase => {
            let erasing = NewRun::erasing(EraseMode::Secure, Afterwards::decommission(power_off));
            let new = NewRun { replace: has_open_run(node), ..erasing };
            operate::start_run(store, visitor.keys().authority.pem(), reference, new).await?;
        }
        Act::Recommission => drop(operate::recommission_node(store, reference, false).await?),
        Act::Label => drop(operate::change_node(store, reference, label_change(node, fields)?).await?),
        Act::Remove => {
            operate::remove_node(store, reference).await?;
            return Ok(None);
        }
    }
    Ok(Some(reference.to_owned()))
}

/// The run that the page spoke of.
fn run_of<'a>(node: &'a NodeStatus, reference: &'a str) -> &'a str {
    node.run.as_ref().map_or(reference, |run| &run.id)
}
