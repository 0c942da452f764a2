//! Trying a failed run again. The page says what is done to which disk and asks, as for other acts.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use form_urlencoded::byte_serialize;
use maud::html;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{ErrorCode, NodeStatus, StepState};

use crate::api::answer::UrlPath;
use crate::api::operator::runs::signed;
use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::operate::{self, Plan, Retry};
use crate::page::answer::{Failed, Html, see_other};
use crate::page::disks::{disks_of, erases};
use crate::page::forms;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::rows::{name, path, reference};
use crate::page::session::{Act, Fields, Visitor};
use crate::page::words;
use crate::run::foresee::erased;
use crate::store::to_json;

/// Why nothing is done where the page said something else.
const CHANGED: &str = "nothing was done: the run, the machine's disks or the operating system changed after the page \
                       was opened; open it again";

/// Asks before the newest run of a node is tried again.
pub async fn ask(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let node = operate::show_node(&frame.visitor.store, &node).await?;
    let from = Fields::read(query.unwrap_or_default().as_bytes()).given("from");
    Ok(match planned(&frame.visitor, &node, from).await {
        Ok((retry, plan)) => {
            let shorter = shorter(&frame.visitor, &node, &retry).await?;
            form(&frame, &retry, &plan, shorter.as_deref()).into_response()
        }
        Err(error) => not_possible(&frame, &node, error)?,
    })
}

/// Tries the newest run of a node again, if that would do what the page said.
pub async fn carry_out(
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
    sent: Act,
) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let frame = Frame::new(visitor, &live).await?;
    let visitor = &frame.visitor;
    let node = operate::show_node(&visitor.store, &node).await?;
    let started = async {
        let (mut retry, plan) = planned(visitor, &node, fields.given("from")).await?;
        if fields.text("confirm") != name(&node) {
            let message =
                format!("nothing was done: {:?} has to be typed to confirm; go back and type it", name(&node));
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        if fields.text("said") != said(&retry, &plan) {
            return Err(Error::refused(ErrorCode::Conflict, CHANGED));
        }
        retry.new = signed(&visitor.app, retry.new).await?;
        operate::retry_run(&visitor.store, visitor.keys().authority.pem(), retry).await
    };
    match started.await {
        Ok(_) => {
            live.has_changed();
            Ok(see_other(&format!("/nodes/{}", node.id), None))
        }
        Err(error) => Ok(not_possible(&frame, &node, error)?),
    }
}

/// Returns the run that would be tried again, and what that would do.
async fn planned(visitor: &Visitor, node: &NodeStatus, from: Option<String>) -> Result<(Retry, Plan), Error> {
    let mut retry = operate::retry_of(&visitor.store, &node.id).await?;
    retry.from = from;
    let plan = operate::plan_retry(&visitor.store, visitor.keys().authority.pem(), retry.clone()).await?;
    Ok((retry, plan))
}

/// Returns the name of the step that failed, if the run can be tried again from it on.
async fn shorter(visitor: &Visitor, node: &NodeStatus, retry: &Retry) -> Result<Option<String>, Error> {
    let steps = node.run.iter().flat_map(|run| &run.steps);
    let failed = steps.skip(1).find(|step| matches!(step.state, StepState::Failed | StepState::TimedOut));
    let Some(step) = failed.filter(|_| retry.from.is_none()) else { return Ok(None) };
    match planned(visitor, node, Some(step.name.clone())).await {
        Ok(_) => Ok(Some(step.name.clone())),
        Err(Error::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the page said, in short: the same only as long as it would say the same and do it in the same way.
fn said(retry: &Retry, plan: &Plan) -> String {
    let disks: Vec<_> = plan.destroyed.iter().map(|destroyed| (&destroyed.steps, &destroyed.disks)).collect();
    let mut hash = token_hash(&to_json(&(retry.run(), &retry.from, disks, &plan.settings)));
    hash.truncate(16);
    hash
}

fn not_possible(frame: &Frame, node: &NodeStatus, error: Error) -> Result<Response, Failed> {
    forms::again(error, |error| {
        let content = html! {
            h1 { "Retry run: not done on " (name(node)) }
            (forms::refused(Some(error)))
            p {
                a.button href=(path("start", &reference(node))) { "Start run…" } " "
                a href={ "/nodes/" (reference(node)) } { "Back to " (name(node)) }
            }
        };
        frame.page("/fleet", "Retry run", Follows::Nothing, content)
    })
}

fn form(frame: &Frame, retry: &Retry, plan: &Plan, shorter: Option<&str>) -> Html {
    let node = &plan.node;
    let content = html! {
        h1 { "Retry run: " (name(node)) }
        form.edit method="post" action={ "/nodes/" (reference(node)) "/retry" } {
            (frame.visitor.proof_field())
            input type="hidden" name="said" value=(said(retry, plan));
            @if let Some(from) = &retry.from { input type="hidden" name="from" value=(from); }
            ul.plan {
                li {
                    strong { (name(node)) } " " (words::state(&node.state, words::of_node(node.state))) ": "
                    "Does again what run " span.mono { (retry.run()) } " was asked for"
                    @if let Some(goes_on) = &plan.goes_on { ", from step " strong { (line(&goes_on.from)) } " on" }
                    ". "
                    @for destroyed in &plan.destroyed { (erases(&erased(&destroyed.hints, disks_of(node)))) " " }
                    @if plan.destroyed.is_empty() { "No step of it erases a disk." }
                    @if let Some(goes_on) = &plan.goes_on {
                        " If the machine is restarted before the end, the run begins with its first step: "
                        @for destroyed in &goes_on.again { (erases(&erased(&destroyed.hints, disks_of(node)))) " " }
                    }
                    @if let Some(then) = plan.afterwards { "When it succeeded, " (then.in_words()) "." }
                }
            }
            @if let Some(step) = shorter {
                @let from: String = byte_serialize(step.as_bytes()).collect();
                p.hint {
                    "The steps before " (line(step)) " need not be done again: "
                    a href={ "/nodes/" (reference(node)) "/retry?from=" (from) } {
                        "retry from that step"
                    }
                }
            }
            label {
                span { "Type the name " strong { (name(node)) } ", so that it is this machine and no other" }
                input type="text" name="confirm" required autocomplete="off" spellcheck="false" autofocus;
            }
            div {
                button.danger type="submit" { "Retry run" } " "
                a href={ "/nodes/" (reference(node)) } { "Back" }
            }
        }
    };
    frame.page("/fleet", "Retry run", Follows::Nothing, content)
}
