//! What changed since the last good run, for a run that failed or is slow.

use maud::{Markup, html};
use slipway_protocol::shared::printable::line;
use slipway_protocol::{Chosen, ComparedFact, Comparison, FlagKind, NodeStatus, RunState};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::operate;
use crate::page::words;
use crate::store::Store;

/// Shows the newest run of a node beside the last good one, if the newest one failed or is slow.
pub async fn section(store: &Store, node: &NodeStatus, now: Millis) -> Result<Markup, Error> {
    let is_slow = || node.flags.iter().any(|flag| flag.kind == FlagKind::Slow);
    let bad = node.run.as_ref().filter(|run| run.state == RunState::Failed && run.begins > 0 || is_slow());
    let Some(run) = bad else { return Ok(html! {}) };
    let compared = operate::compare_runs(store, &run.id, None).await;
    Ok(html! {
        section {
            h2 { "What changed" }
            @match &compared {
                Ok(comparison) => (beside(comparison, now)),
                // There may be nothing to compare with.
                Err(error @ Error::Refused { .. }) => p.muted { (line(&error.to_string())) },
                Err(_) => p.warn { "▲ The runs could not be compared: the database did not answer." },
            }
        }
    })
}

fn beside(comparison: &Comparison, now: Millis) -> Markup {
    let with = &comparison.with;
    let why = match comparison.chosen {
        Chosen::SameNode => "the last good run of this machine",
        Chosen::SameModel => "the last good run of a machine of this model with the same operating system",
        Chosen::Given => "the run that was asked for",
    };
    let (differing, same): (Vec<_>, Vec<_>) = comparison.facts.iter().partition(|fact| fact.differs);
    html! {
        p.muted {
            "Beside " (why) ": run " span.mono { (with.id) } " of "
            a href={ "/nodes/" (with.node) } { (line(with.name.as_ref().unwrap_or(&with.node))) } ", "
            (words::since(Some(with.created_at), now)) " ago"
        }
        @if differing.is_empty() { p { "Nothing that the server knows of them differs." } }
        @else { (rows("Differences", &differing)) }
        @if !same.is_empty() {
            details { summary { (same.len()) " are the same" } (rows("The same", &same)) }
        }
    }
}

fn rows(title: &str, facts: &[&ComparedFact]) -> Markup {
    let value = |value: &Option<String>| {
        html! {
            @match value { Some(value) => (line(value)), None => span.muted { "–" } }
        }
    };
    html! {
        div.wide {
            table {
                caption.unseen { (title) }
                thead { tr { th scope="col" { "What" } th scope="col" { "Then" } th scope="col" { "Now" } } }
                tbody {
                    @for fact in facts {
                        tr data-id=(fact.what) {
                            th scope="row" { (line(&fact.what)) }
                            td data-title="Then" { (value(&fact.then)) }
                            td data-title="Now" { (value(&fact.now)) }
                        }
                    }
                }
            }
        }
    }
}
