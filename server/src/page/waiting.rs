//! Machines that wait to be let in.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use axum::response::{IntoResponse, Response};
use maud::html;
use slipway_protocol::shared::printable::line;

use crate::base::time::now;
use crate::node::status;
use crate::operate;
use crate::page::answer::{Failed, see_other};
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::node::claims;
use crate::page::rows::{name, reference};
use crate::page::session::{Fields, Visitor};
use crate::page::words;

/// Shows every claim, or goes to the machine with a claim code.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let fields = Fields::read(query.unwrap_or_default().as_bytes());
    if let Some(code) = fields.given("code") {
        let code = code.to_uppercase().replace([' ', '-'], "");
        let node = operate::show_node(&frame.visitor.store, &code).await?;
        return Ok(see_other(&format!("/nodes/{}", reference(&node)), None));
    }
    let now = now();
    let waiting = status::waiting(&frame.visitor.store).await?;
    let strange = status::strange_fetches(&frame.visitor.store).await?;
    let content = html! {
        h1 { "Machines waiting" }
        form.filters method="get" action="/waiting" {
            label {
                "Claim code on the machine's screen "
                input type="text" name="code" required size="10" autocomplete="off" spellcheck="false"
                    autocapitalize="characters";
            }
            button type="submit" { "Find" }
        }
        div data-sync="waiting" {
            @for node in &waiting {
                div data-id=(node.id) {
                    h2 { a href={ "/nodes/" (reference(node)) } { (name(node)) } }
                    (claims(node, now))
                }
            }
            @if waiting.is_empty() {
                p.teach {
                    "No machine asks to be let in. One that boots this server's boot files and is not registered \
                     appears here, with the code on its screen."
                }
            }
            @if !strange.is_empty() {
                section {
                    h2 { "Fetched boot files, and have not asked" }
                    ul {
                        @for fetch in &strange {
                            li {
                                span.mono { (fetch.address) } ": " (line(&fetch.file)) ", "
                                (words::since(Some(fetch.at), now)) " ago"
                            }
                        }
                    }
                }
            }
        }
    };
    Ok(frame.page("/waiting", "Machines waiting", Follows::Events, content).into_response())
}
