//! Trying a failed run again. The page says what is done to which disk and asks, as for other acts.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use maud::html;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{Disk, ErrorCode, NodeStatus, RunStatus, StepState};

use crate::api::answer::UrlPath;
use crate::api::operator::signed;
use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::operate::{self, Plan};
use crate::page::acts::erases;
use crate::page::answer::{Failed, Html, see_other};
use crate::page::forms;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::rows::{name, path, reference};
use crate::page::session::{Act, Fields, Visitor};
use crate::page::words;
use crate::store::to_json;

/// Asks before the newest run of a node is tried again.
pub async fn ask(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(node): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failed> {
    let fields = Fields::read(query.unwrap_or_default().as_bytes());
    let frame = Frame::new(visitor, &live).await?;
    let node = operate::show_node(&frame.visitor.store, &node).await?;
    Ok(match planned(&frame.visitor, &node, &fields).await {
        Ok((run, plan)) => form(&frame, &node, run, &plan, fields.given("from").as_deref()).into_response(),
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
        let (_, plan) = planned(visitor, &node, &fields).await?;
        if fields.text("confirm") != name(&node) {
            let message =
                format!("nothing was done: {:?} has to be typed to confirm; go back and type it", name(&node));
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        if fields.text("said") != said(&plan) {
            return Err(Error::refused(ErrorCode::Conflict, CHANGED));
        }
        let mut retry = retry_of(visitor, &node, &fields).await?;
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

/// Why nothing is done where the page said something else.
const CHANGED: &str = "nothing was done: the run, the machine's disks or the operating system changed after the page \
                       was opened; open it again";

async fn retry_of(visitor: &Visitor, node: &NodeStatus, fields: &Fields) -> Result<operate::Retry, Error> {
    let retry = operate::retry_of(&visitor.store, &node.id).await?;
    match fields.given("from") {
        Some(step) => retry.from(&step),
        None => Ok(retry),
    }
}

/// Returns the run that would be tried again, and what that would do.
async fn planned<'a>(visitor: &Visitor, node: &'a NodeStatus, fields: &Fields) -> Result<(&'a RunStatus, Plan), Error> {
    let retry = retry_of(visitor, node, fields).await?;
    let run = node.run.as_ref().filter(|run| run.id == retry.run());
    let run = run.ok_or_else(|| Error::refused(ErrorCode::Conflict, CHANGED))?;
    Ok((run, operate::plan_retry(&visitor.store, visitor.keys().authority.pem(), retry).await?))
}

/// What the page said, in short: the same only as long as it would say the same.
fn said(plan: &Plan) -> String {
    let disks: Vec<(&[String], &[Disk])> =
        plan.destroyed.iter().map(|destroyed| (destroyed.steps.as_slice(), destroyed.disks.as_slice())).collect();
    let mut hash = token_hash(&to_json(&(&plan.node.id, plan.node.run.as_ref().map(|run| &run.id), disks)));
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

fn form(frame: &Frame, node: &NodeStatus, run: &RunStatus, plan: &Plan, from: Option<&str>) -> Html {
    let here = format!("/nodes/{}/retry", reference(node));
    let done = run.steps.iter().take_while(|step| step.state == StepState::Succeeded).count();
    let first = from.and_then(|from| from.parse::<usize>().ok()).unwrap_or(1);
    let is_known = node.inventory.as_ref().is_some_and(|inventory| !inventory.disks.is_empty());
    let disks = |destroyed: &operate::Destroyed| erases(is_known, &destroyed.disks.iter().collect::<Vec<_>>());
    let content = html! {
        h1 { "Retry run: " (name(node)) @if let Some(os) = &run.os { " with " (line(os)) } }
        form.edit method="post" action=(here) {
            (frame.visitor.proof_field())
            input type="hidden" name="said" value=(said(plan));
            @if let Some(from) = from { input type="hidden" name="from" value=(from); }
            ul.plan {
                li {
                    strong { (name(node)) } " " (words::state(&node.state, words::of_node(node.state))) ": "
                    "Does again what run " span.mono { (run.id) } " was asked for"
                    @if first > 1 { ", from step " (first) " on" }
                    ". "
                    @for destroyed in &plan.destroyed { (disks(destroyed)) " " }
                    @if plan.destroyed.is_empty() { "No step of it erases anything." }
                }
            }
            @if done > 0 {
                p {
                    "Begin with step "
                    @for (number, step) in (1..).zip(run.steps.iter().take(done + 1)) {
                        @if number > 1 { " · " }
                        @if number == first { strong { (number) " " (line(&step.name)) } }
                        @else { a href={ (here) "?from=" (number) } { (number) " " (line(&step.name)) } }
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
