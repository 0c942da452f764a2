//! What happened, newest first.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use maud::{Markup, html};
use slipway_protocol::shared::printable::line;
use slipway_protocol::{SiteEvent, SiteEventKind};

use crate::base::error::Error;
use crate::base::time::now;
use crate::operate;
use crate::page::answer::{Failed, Html};
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::session::{Fields, Visitor};
use crate::page::words;
use crate::store::history::Place;
use crate::store::to_word;

/// Events on one page.
const MOST: u32 = 100;

/// Shows the newest events, or those before one.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    RawQuery(query): RawQuery,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let fields = Fields::read(query.unwrap_or_default().as_bytes());
    let kind = SiteEventKind::ALL.into_iter().find(|kind| to_word(kind) == fields.text("kind"));
    let before = fields.text("before").parse().ok();
    let mut connection = frame.visitor.store.read().await?;
    let node = fields.given("node");
    let filter = operate::event_filter(&mut connection, node.as_deref(), None, kind.map(|kind| vec![kind])).await?;
    let place = before.map(Place::Before);
    let mut events = operate::list_events(&mut connection, &filter, place, MOST).await?;
    drop(connection);
    events.reverse();
    let older = events.last().filter(|_| events.len() == MOST as usize).map(|last| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("before", &last.number.to_string());
        query.extend_pairs(kind.map(|kind| ("kind", to_word(&kind))));
        query.extend_pairs(node.as_deref().map(|node| ("node", node)));
        format!("/events?{}", query.finish())
    });
    let content = html! {
        h1 { "Events" }
        form.filters method="get" action="/events" {
            label { "Node " input type="text" name="node" value=[&node] spellcheck="false"; }
            label { "Kind " select name="kind" {
                option value="" { "all" }
                @for each in SiteEventKind::ALL {
                    option value=(to_word(&each)) selected[kind == Some(each)] { (to_word(&each).replace('-', " ")) }
                }
            } }
            button type="submit" { "Show" }
        }
        div.wide data-sync="events" {
            table {
                caption.unseen { "Events, newest first" }
                thead {
                    tr {
                        @for title in ["Time (UTC)", "Node", "Kind", "What happened", "By"] {
                            th scope="col" { (title) }
                        }
                    }
                }
                tbody { @for event in &events { (row(event)) } }
            }
            @if events.is_empty() { p.teach { "Nothing of this kind has happened." } }
        }
        @if let Some(older) = older { nav.pages aria-label="Older events" { a href=(older) rel="next" { "Older" } } }
    };
    let follows = if before.is_none() { Follows::Events } else { Follows::Nothing };
    Ok(frame.page("/events", "Events", follows, content))
}

fn row(event: &SiteEvent) -> Markup {
    html! {
        tr data-id=(event.number) {
            td.number { (words::when(event.at, now())) }
            td {
                @if let Some(node) = &event.node {
                    a href={ "/nodes/" (node) } { (line(event.name.as_deref().unwrap_or(node))) }
                }
            }
            td.muted { (to_word(&event.kind).replace('-', " ")) }
            td { (line(&event.message)) }
            td.muted { (event.operator.as_deref().map(line).unwrap_or_default()) }
        }
    }
}

/// Returns the newest events of a node, newest first.
pub async fn of_node(visitor: &Visitor, node: &str, most: u32) -> Result<Vec<SiteEvent>, Error> {
    let mut connection = visitor.store.read().await?;
    let filter = operate::event_filter(&mut connection, Some(node), None, None).await?;
    let mut events = operate::list_events(&mut connection, &filter, None, most).await?;
    events.reverse();
    Ok(events)
}
