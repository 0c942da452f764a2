//! `slipway-server events`: what happened at the site.

use std::time::Duration;

use clap::Args;
use slipway_protocol::shared::printable::{self, line};
use slipway_protocol::{SiteEvent, SiteEventKind};
use slipway_server::base::time::{dated, utc};
use slipway_server::operate;
use slipway_server::store::Store;
use slipway_server::store::history::{self, Place};

use super::print;
use super::words::word;

/// Interval at which `--follow` looks for events.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server events --node web1
  slipway-server events --kind run-ended,flagged --follow
  slipway-server events --after 1041 --json")]
pub struct EventsOptions {
    /// Only events of this machine, by id or name.
    #[arg(long)]
    node: Option<String>,
    /// Only events of the run with this id.
    #[arg(long)]
    run: Option<String>,
    /// Only events of this kind; may be given several times, or as a list with commas.
    #[arg(long, value_delimiter = ',', value_parser = kind)]
    kind: Vec<SiteEventKind>,
    /// Only events with higher numbers than this; 0 for all that are kept.
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Show at most this many of the newest events, or of those after --after.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Keep running, and show each event as it happens.
    #[arg(long)]
    follow: bool,
    /// Print one JSON object per event, each on its own line.
    #[arg(long)]
    json: bool,
}

fn kind(text: &str) -> Result<SiteEventKind, String> {
    let known = SiteEventKind::ALL.into_iter().find(|kind| word(kind) == text);
    known.ok_or_else(|| {
        let all = SiteEventKind::ALL.iter().map(word).collect::<Vec<_>>().join(", ");
        format!("there is no such kind of event; the kinds are {all}")
    })
}

pub async fn run(store: &Store, options: EventsOptions) -> anyhow::Result<()> {
    let EventsOptions { node, run, kind, after, limit, follow, json } = options;
    let mut connection = store.read().await?;
    let kinds = (!kind.is_empty()).then_some(kind);
    let filter = operate::event_filter(&mut connection, node.as_deref(), run, kinds).await?;
    let (_, newest) = history::range(&mut connection).await?;
    let events = operate::list_events(&mut connection, &filter, after.map(Place::After), limit).await?;
    drop(connection);
    events.iter().try_for_each(|event| show(event, json))?;
    // What was left out by the limit follows; other events up to the newest do not.
    let mut known = match (events.last(), after) {
        (Some(last), Some(_)) => last.number,
        // Some may have come since the newest was looked up.
        (Some(last), None) => last.number.max(newest),
        (None, _) => newest,
    };
    if !follow {
        return Ok(());
    }
    loop {
        let found = history::read(&mut *store.read().await?, &filter, Place::After(known), limit).await?;
        found.iter().try_for_each(|event| show(event, json))?;
        match found.last() {
            Some(last) => known = last.number,
            None => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

fn show(event: &SiteEvent, json: bool) -> anyhow::Result<()> {
    match json {
        true => print(&format!("{}\n", printable::json(&serde_json::to_string(&dated(event)?)?))),
        false => print(&in_line(event)),
    }
}

/// Formats an event as one line: time, node, kind, and what happened.
pub fn in_line(event: &SiteEvent) -> String {
    let node = event.name.as_ref().or(event.node.as_ref()).map_or("-", String::as_str);
    let by = event.operator.as_ref().map(|operator| format!(" (by {})", line(operator))).unwrap_or_default();
    format!("{}  {:<16}  {:<18}  {}{by}\n", utc(event.at), line(node), word(&event.kind), line(&event.message))
}
