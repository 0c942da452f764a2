//! The agent of an installed system: what it says, what it did, and the forms that have it do something.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::response::Response;
use maud::{Markup, html};
use slipway_protocol::shared::duration;
use slipway_protocol::shared::printable::{line, lines};
use slipway_protocol::workflow::agent::DRAIN;
use slipway_protocol::{AgentAct, AgentStatus, ErrorCode, NodeStatus, TaskOptions, TaskState, TaskStatus};

use crate::api::answer::UrlPath;
use crate::base::error::Error;
use crate::base::time::{Millis, now};
use crate::operate::{self, NewTask};
use crate::page::answer::{Failed, Html, see_other};
use crate::page::forms;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::rows::{name, reference};
use crate::page::session::{Act, Fields, Visitor};
use crate::page::words::{self, Tone};

/// Words in the form of what is not a task. No task has such a name.
const REMOVE: &str = "remove";
const CANCEL: &str = "cancel";

/// Shows the agent of a node's system.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let node = operate::show_node(store, &node).await?;
    let tasks = operate::list_tasks(store, &node.id).await?;
    Ok(page(&frame, &node, &tasks, &Fields::default(), None))
}

/// Has the agent do something, or removes it.
pub async fn act(
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
    sent: Act,
) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let node = operate::show_node(store, &node).await?;
    let done = async {
        let act = fields.text("act");
        let is_cut = act != CANCEL && act != AgentAct::Logs.name();
        if is_cut && fields.text("confirm") != name(&node) {
            let message = format!("nothing was done: {:?} has to be typed to confirm", name(&node));
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        match act {
            CANCEL => operate::cancel_task(store, &node.id).await.map(drop),
            REMOVE => operate::remove_agent(store, &node.id).await,
            task => operate::ask_task(store, &node.id, new_task(task, &fields)?).await.map(drop),
        }
    };
    match done.await {
        Ok(()) => {
            live.has_changed();
            Ok(see_other(&format!("/nodes/{}/agent", node.id), None))
        }
        Err(error) => {
            let tasks = operate::list_tasks(store, &node.id).await?;
            forms::again(error, |problem| page(&frame, &node, &tasks, &fields, Some(problem)))
        }
    }
}

fn new_task(task: &str, fields: &Fields) -> Result<NewTask, Error> {
    let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
    let limit = fields.given("limit").map(|text| duration::parse(&text)).transpose().map_err(invalid)?;
    let is_drain = task == DRAIN;
    let how = TaskOptions {
        cordon_only: is_drain && fields.text("how") == "cordon",
        force: is_drain && fields.text("how") == "force",
        undo: is_drain && fields.text("how") == "undo",
    };
    let limit_seconds = limit.map(|limit| u32::try_from(limit.as_secs()).unwrap_or(u32::MAX));
    Ok(NewTask { name: task.to_owned(), limit_seconds, how })
}

fn page(frame: &Frame, node: &NodeStatus, tasks: &[TaskStatus], fields: &Fields, problem: Option<&Error>) -> Html {
    let now = now();
    let content = html! {
        h1 { "Agent: " (name(node)) }
        (forms::refused(problem))
        div data-sync="agent" {
            @match &node.agent {
                None => p.teach {
                    "The installed system of this machine has no agent that reports. Install an operating system "
                    "that has one, and machines can be drained, rebooted and reinstalled from here."
                },
                Some(agent) => (facts(agent, node.last_seen, now)),
            }
            (history(tasks, now))
        }
        @if let Some(agent) = &node.agent { (acts(frame, node, agent, fields)) }
        p { a href={ "/nodes/" (reference(node)) } { "Back to " (name(node)) } }
    };
    frame.page("/fleet", "Agent", Follows::Node(&node.id), content)
}

fn facts(agent: &AgentStatus, heard: Option<Millis>, now: Millis) -> Markup {
    html! {
        dl {
            dt { "Last heard" } dd { (words::since(heard, now)) }
            dt { "Up" } dd { "since " (words::since(Some(agent.up_since), now)) }
            @if let Some(state) = &agent.system_state { dt { "System" } dd { (line(state)) } }
            @if !agent.failed_units.is_empty() {
                dt { "Failed units" } dd { span.warn { "▲ " (line(&agent.failed_units.join(", "))) } }
            }
            @if let Some(image) = &agent.image { dt { "Image" } dd { span.mono { (image) } } }
            dt { "Version" } dd { (line(&agent.version)) }
            dt { "May do" } dd { (line(&agent.tasks.join(", "))) }
        }
    }
}

/// How the state of a task looks.
fn tone(state: TaskState) -> Tone {
    match state {
        TaskState::Asked | TaskState::Withdrawn => Tone::Quiet,
        TaskState::Running => Tone::Work,
        TaskState::Succeeded => Tone::Good,
        TaskState::Failed => Tone::Bad,
    }
}

fn history(tasks: &[TaskStatus], now: Millis) -> Markup {
    html! {
        @if !tasks.is_empty() {
            h2 { "What it did" }
            ul {
                @for task in tasks {
                    li {
                        (words::state(&task.state, tone(task.state))) " "
                        strong { (line(&task.name)) } ": the machine " (line(&task.in_words())) " "
                        span.muted { (words::since(Some(task.asked_at), now)) }
                        @if let Some(output) = task.output.as_ref().filter(|output| !output.is_empty()) {
                            details { summary { "What it printed" } pre { (lines(output)) } }
                        }
                    }
                }
            }
        }
    }
}

fn acts(frame: &Frame, node: &NodeStatus, agent: &AgentStatus, fields: &Fields) -> Markup {
    let action = format!("/nodes/{}/agent", reference(node));
    let has_logs = agent.tasks.iter().any(|task| task == AgentAct::Logs.name());
    let is_open = node.task.as_ref().is_some_and(|task| task.state.is_open());
    let others = || agent.tasks.iter().filter(|task| !is_builtin(task) && *task != DRAIN);
    let drains = agent.tasks.iter().any(|task| task == DRAIN);
    let confirm = || {
        html! {
            label {
                span { "Type the name " strong { (name(node)) } ", so that it is this machine and no other" }
                input type="text" name="confirm" required autocomplete="off" spellcheck="false";
            }
        }
    };
    let limit = format!("Default: {}.", duration::words(Duration::from_secs(operate::LIMIT.into())));
    html! {
        @if has_logs || is_open {
            form.edit method="post" action=(action) {
                (frame.visitor.proof_field())
                div {
                    @if has_logs { button type="submit" name="act" value="logs" { "Collect its log" } " " }
                    @if is_open { button type="submit" name="act" value=(CANCEL) { "Stop what it does" } }
                }
            }
        }
        @if drains {
            h2 id="drain" { "Drain" }
            form.edit method="post" action=(action) {
                (frame.visitor.proof_field())
                label { "How"
                    select name="how" {
                        @for (word, title) in HOW {
                            option value=(word) selected[fields.text("how") == word] { (title) }
                        }
                    }
                }
                (forms::field("limit", "Time limit", &limit, fields))
                (confirm())
                div { button.danger type="submit" name="act" value=(DRAIN) { "Drain" } }
            }
        }
        h2 { "Other work" }
        form.edit method="post" action=(action) {
            (frame.visitor.proof_field())
            p { "Each of these works on the running system." }
            (confirm())
            div {
                @if agent.tasks.iter().any(|task| task == AgentAct::Reboot.name()) {
                    button.danger type="submit" name="act" value="reboot" { "Reboot" } " "
                }
                @if agent.tasks.iter().any(|task| task == AgentAct::BootSlipway.name()) {
                    button.danger type="submit" name="act" value="boot-slipway" { "Restart into slipway" } " "
                }
                @for task in others() {
                    button.danger type="submit" name="act" value=(task) { (line(task)) } " "
                }
                button.danger type="submit" name="act" value=(REMOVE) { "Remove the agent" }
            }
        }
    }
}

/// How a machine is drained: word in the form, and title.
const HOW: [(&str, &str); 4] = [
    ("", "take its work away, and stop at the limit if something still runs"),
    ("force", "take its work away, and end by force what still runs at the limit"),
    ("cordon", "only take no new work"),
    ("undo", "give it work again"),
];

fn is_builtin(task: &str) -> bool {
    AgentAct::ALL.iter().any(|act| act.name() == task)
}

/// Says in a few words that the agent reports, and what it does.
pub fn agent_words(node: &NodeStatus, agent: &AgentStatus, now: Millis) -> Markup {
    let open = node.task.as_ref().filter(|task| task.state.is_open());
    html! {
        "slipway " (line(&agent.version)) ", heard " (words::since(node.last_seen, now)) ", system up "
        (words::since(Some(agent.up_since), now))
        @if let Some(task) = open { " " span.warn { (line(&task.in_words())) } }
    }
}
