//! What happened to a node.

use maud::{Markup, html};
use slipway_protocol::SiteEvent;
use slipway_protocol::shared::printable::line;

use crate::base::time::Millis;
use crate::page::words;

/// What happened, newest first, in groups of one run, and in these of one step.
pub fn section(events: &[SiteEvent], now: Millis) -> Markup {
    let groups = events.chunk_by(|one, other| one.run == other.run);
    let newest = events.iter().find_map(|event| event.run.as_ref());
    html! {
        section {
            h2 { "Timeline" }
            @if events.is_empty() { p.muted { "Nothing has happened yet." } }
            @for group in groups {
                @match group.first().and_then(|event| event.run.as_ref()) {
                    None => (group_of_steps(group, now)),
                    Some(run) if Some(run) == newest => {
                        h3 { "Run " span.mono { (run) } }
                        (group_of_steps(group, now))
                    },
                    // Of the runs before, only what an operator opens.
                    Some(run) => details data-id={ "of-" (run) "-" (group[group.len() - 1].number) } {
                        summary { "Run " span.mono { (run) } span.muted { ", " (group.len()) " events" } }
                        (group_of_steps(group, now))
                    },
                }
            }
        }
    }
}

fn group_of_steps(events: &[SiteEvent], now: Millis) -> Markup {
    html! {
        @for part in events.chunk_by(|one, other| one.step == other.step) {
            @if let Some(step) = part.first().and_then(|event| event.step.as_ref()) { h4 { (line(step)) } }
            ol.timeline {
                @for event in part { (happened(event, now)) }
            }
        }
    }
}

fn happened(event: &SiteEvent, now: Millis) -> Markup {
    html! {
        li data-id=(event.number) {
            span { (words::when(event.at, now)) }
            span {
                (line(&event.message))
                @if let Some(operator) = &event.operator { span.muted { " · " (line(operator)) } }
            }
        }
    }
}
