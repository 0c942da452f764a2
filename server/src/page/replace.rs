//! A waiting machine that takes the place of a node's machine, after a repair. The page says which takes the place of
//! which, and asks.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use maud::html;
use slipway_protocol::ErrorCode;
use slipway_protocol::shared::printable::line;

use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::operate::{self, Replacement};
use crate::page::answer::{Failed, Html, see_other};
use crate::page::forms;
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::rows::name;
use crate::page::session::{Act, Fields, Visitor};
use crate::page::words;
use crate::store::to_json;

/// Asks for the machine and the node, and then whether the one is to take the other's place.
pub async fn ask(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failed> {
    let fields = Fields::read(query.unwrap_or_default().as_bytes());
    let frame = Frame::new(visitor, &live).await?;
    let (Some(code), Some(node)) = (fields.given("by"), fields.given("node")) else {
        return Ok(choose(&frame, &fields, None).into_response());
    };
    match operate::plan_replacement(&frame.visitor.store, &node, &code).await {
        Ok(plan) => Ok(confirm(&frame, &plan).into_response()),
        Err(error) => forms::again(error, |error| choose(&frame, &fields, Some(error))),
    }
}

/// Lets the machine take the place, if that is what the page said.
pub async fn carry_out(Extension(live): Extension<Arc<Live>>, sent: Act) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let replaced = async {
        let plan = operate::plan_replacement(store, fields.text("node"), fields.text("by")).await?;
        let refused = |code, message: &str| Err(Error::refused(code, format!("nothing was done: {message}")));
        if fields.text("confirm") != name(&plan.node) {
            return refused(ErrorCode::InvalidRequest, "the name of the node has to be typed to confirm");
        }
        if fields.text("said") != said(&plan) {
            return refused(ErrorCode::Conflict, "the node or the machine changed after the page was opened");
        }
        operate::replace_machine(store, &plan.node.id, &plan.code, Some(&plan)).await
    };
    match replaced.await {
        Ok(node) => {
            live.has_changed();
            Ok(see_other(&format!("/nodes/{}", node.id), None))
        }
        Err(error) => forms::again(error, |error| choose(&frame, &fields, Some(error))),
    }
}

/// What the page said, in short.
fn said(plan: &Replacement) -> String {
    let mut hash = token_hash(&to_json(&(plan.agreed(), &plan.code)));
    hash.truncate(16);
    hash
}

fn choose(frame: &Frame, fields: &Fields, problem: Option<&Error>) -> Html {
    let content = html! {
        h1 { "Replace a machine" }
        (forms::refused(problem))
        form.edit method="get" action="/replace" {
            (forms::field("node", "Node", "Name or id of the node whose machine was repaired or replaced.", fields))
            (forms::field("by", "Claim code", "On the screen of the machine that is the node from now on.", fields))
            (forms::submit("Go on"))
            p.hint { "The next page says what takes the place of what, and asks." }
        }
    };
    frame.page("/fleet", "Replace a machine", Follows::Nothing, content)
}

fn confirm(frame: &Frame, plan: &Replacement) -> Html {
    let node = &plan.node;
    let content = html! {
        h1 { "Replace the machine of " (name(node)) }
        form.edit method="post" action="/replace" {
            (frame.visitor.proof_field())
            input type="hidden" name="node" value=(node.id);
            input type="hidden" name="by" value=(plan.code);
            input type="hidden" name="said" value=(said(plan));
            ul.plan {
                li {
                    strong { (name(node)) } " " (words::state(&node.state, words::of_node(node.state))) ": "
                    @for (index, text) in plan.in_words().iter().enumerate() {
                        @if index > 0 { "; " } (line(text))
                    }
                    "."
                }
            }
            label {
                span { "Type the name " strong { (name(node)) } ", so that it is this node and no other" }
                input type="text" name="confirm" required autocomplete="off" spellcheck="false" autofocus;
            }
            div { button.danger type="submit" { "Replace" } " " a href={ "/nodes/" (node.id) } { "Back" } }
        }
    };
    frame.page("/fleet", "Replace a machine", Follows::Nothing, content)
}
