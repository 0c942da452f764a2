//! The table of all nodes.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use maud::{Markup, html};
use slipway_protocol::Flag;

use crate::base::time::{Millis, rfc3339};
use crate::operate;
use crate::page::answer::{Failed, Html};
use crate::page::frame::{Follows, Frame};
use crate::page::live::{Live, Snapshot};
use crate::page::offers::Act;
use crate::page::reasons::{self, Reason};
use crate::page::rows::Row;
use crate::page::session::Visitor;
use crate::page::view::{Column, ROWS, View};
use crate::page::words;

/// Shows the table.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    RawQuery(query): RawQuery,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let view = View::read(&query.unwrap_or_default());
    let site = operate::site_status(&frame.visitor.store).await?;
    let content = html! {
        @if frame.snapshot.rows.is_empty() { (nothing_yet()) } @else { (table(&frame.snapshot, &view, &site.flags)) }
    };
    Ok(frame.page("/fleet", "Fleet", Follows::Rows, content))
}

/// A sentence about a node or the site.
pub fn note(reason: &Reason, now: Millis) -> Markup {
    html! {
        p class={ "note " (reason.tone.class()) } {
            span class=(reason.tone.class()) { (reason.tone.mark()) (reason.text) }
            @if let Some(since) = reason.since { " for " (words::since(Some(since), now)) }
            @if !reason.cause.is_empty() { br; (words::prose(&reason.cause)) }
            @if let Some(command) = &reason.command { " " (words::command(command)) }
        }
    }
}

/// What to do at a new site.
fn nothing_yet() -> Markup {
    html! {
        h1 { "Fleet" }
        div.teach {
            p { "No machine is known yet. There are three ways to add one:" }
            ol {
                li {
                    "Boot it from a stick, a disc or the network, with boot files of this server. It then asks to be \
                     let in, and appears here with its claim code. "
                    a href="/boot-files" { "Boot files" }
                }
                li {
                    "Register it before it comes, by UUID, serial number or MAC address. "
                    a href="/add/node" { "Add a node" } ", or "
                    (words::command("slipway-server node add --name web1 --uuid UUID --release"))
                }
                li {
                    "Give it a token that lets one unknown machine in. "
                    a href="/add/token" { "Add a token" } ", or " (words::command("slipway-server token add"))
                }
            }
        }
    }
}

fn table(snapshot: &Snapshot, view: &View, flags: &[Flag]) -> Markup {
    let found = view.select(snapshot);
    let pages = found.len().div_ceil(ROWS).max(1);
    let page = view.page.min(pages);
    let shown = found.iter().skip((page - 1) * ROWS).take(ROWS);
    let headers = [("name", "Name"), ("state", "State")].into_iter();
    let headers = headers.chain(view.columns.iter().map(|column| (column.word(), column.title())));
    html! {
        div.title { h1 { "Fleet" } (sums(snapshot, view)) a.button href="/add/node" { "Add a node" } }
        div data-sync="site" {
            @for reason in flags.iter().map(reasons::of_flag) { (note(&reason, snapshot.at)) }
        }
        (filters(snapshot, view))
        form #act method="get" action="/act/start" {
            div.bulk {
                span #selected data-sync="selected" data-of=(found.len()) { (found.len()) " shown" }
                span data-sync="everything" {
                    label hidden[found.len() < 2] {
                        input #everything type="checkbox" name="all" value="1"; " all " (found.len()) " that match"
                    }
                }
                span role="group" aria-label="For the selected machines" {
                    @for act in Act::OF_MANY {
                        button type="submit" formaction={ "/act/" (act.word()) } { (act.verb()) "…" }
                    }
                }
                (View { page: 1, columns: Vec::new(), ..view.clone() }.hidden())
            }
        }
        div.wide data-sync="table" {
            table.fleet {
                caption.unseen { "Machines" }
                thead {
                    tr {
                        td.check { input #all type="checkbox" aria-label="Select all on this page" hidden; }
                        @for (word, title) in headers {
                            (header(view, word, title))
                        }
                    }
                }
                @for index in shown {
                    (row(&snapshot.rows[*index], snapshot.heard[*index], view, snapshot.at))
                }
            }
            @if found.is_empty() {
                p.teach {
                    "No machine matches. " a href="/fleet" { "Show all " (snapshot.head.all) }
                }
            }
        }
        div data-sync="pages" {
            @if pages > 1 {
                nav.pages aria-label="Pages of the table" {
                    @if page > 1 { a href=(view.with(|view| view.page = page - 1)) rel="prev" { "Previous " (ROWS) } }
                    span { "page " (page) " of " (pages) }
                    @if page < pages { a href=(view.with(|view| view.page = page + 1)) rel="next" { "Next " (ROWS) } }
                }
            }
        }
    }
}

/// Links to the nodes in each state.
fn sums(snapshot: &Snapshot, view: &View) -> Markup {
    let head = &snapshot.head;
    let link = |target: &str, is_current: bool, text: Markup| {
        html! { li { a href=(target) aria-current=[is_current.then_some("true")] { (text) } } }
    };
    html! {
        ul.sums data-sync="sums" aria-label="Filters by state" {
            (link("/fleet", view.state.is_empty() && !view.flagged, html! { (head.all) " in service" }))
            @if head.flagged > 0 {
                (link("/fleet?flagged=1", view.flagged, html! { span.warn { "▲ " (head.flagged) " flagged" } }))
            }
            @for (state, count) in &head.states {
                (link(&format!("/fleet?state={state}"), view.state == *state, html! { (count) " " (state) }))
            }
        }
    }
}

fn filters(snapshot: &Snapshot, view: &View) -> Markup {
    let states = snapshot.head.states.iter().map(|(state, _)| state.as_str()).chain(["decommissioned"]);
    html! {
        form.filters method="get" action="/fleet" role="search" {
            label.unseen for="q" { "Search" }
            input #q type="search" name="q" value=(view.search) placeholder="text, or field:value"
                aria-describedby="fields" spellcheck="false";
            span #fields .unseen {
                "Fields: name, id, state, step, system, site, label, model, address, reason, uuid, serial, mac"
            }
            label { "State " select name="state" {
                option value="" selected[view.state.is_empty()] { "in service" }
                @for state in states { option value=(state) selected[view.state == state] { (state) } }
            } }
            label { input type="checkbox" name="flagged" value="1" checked[view.flagged]; " flagged only" }
            details.columns {
                summary { "Columns" }
                fieldset {
                    legend.unseen { "Columns" }
                    @for column in Column::ALL {
                        label {
                            input type="checkbox" name="column" value=(column.word())
                                checked[view.columns.contains(&column)];
                            " " (column.title())
                        }
                    }
                }
            }
            @if view.order != "name" || view.descending {
                input type="hidden" name="order" value={ @if view.descending { "-" } (view.order) };
            }
            button type="submit" { "Show" }
        }
    }
}

fn header(view: &View, word: &str, title: &str) -> Markup {
    let is_order = view.order == word;
    let sort = is_order.then_some(if view.descending { "descending" } else { "ascending" });
    let target = view.with(|view| {
        view.descending = is_order && !view.descending;
        view.order = word.to_owned();
    });
    html! {
        th scope="col" class=(word) aria-sort=[sort] {
            a href=(target) { (title) @if is_order { @if view.descending { " ↓" } @else { " ↑" } } }
        }
    }
}

/// A row of the table, with its reason below. The script patches what has `data-f`.
fn row(row: &Row, heard: Option<Millis>, view: &View, now: Millis) -> Markup {
    let time = |name: &str, at: Option<Millis>| {
        html! {
            time data-f=(name) data-age datetime=[at.and_then(rfc3339)] {
                @match at { Some(at) => (words::age(now.saturating_sub(at))), None => "–" }
            }
        }
    };
    let cell = |column: &Column| {
        html! {
            @match column {
                Column::Progress => td.progress {
                    span data-f="step" { (row.step) } " "
                    progress data-f="bar" max="100" value=(row.percent.unwrap_or_default())
                        aria-label={ "progress of " (row.name) } hidden[row.percent.is_none()] {}
                    " " span.number data-f="percent" {
                        @if let Some(percent) = row.percent { (percent) " %" }
                    }
                },
                Column::Since => td.number { (time("since", row.since)) },
                Column::Heard => td.number { (time("heard", heard)) },
                Column::System => td data-f="system" { (row.system) },
                Column::Site => td data-f="site" { (row.site) },
                Column::Model => td data-f="model" { (row.model) },
                Column::Serial => td.number data-f="serial" { (row.serial) },
                Column::Address => td.number data-f="address" { (row.address) },
            }
        }
    };
    html! {
        tbody.row data-id=(row.id) {
            tr {
                td.check {
                    input type="checkbox" name="node" form="act" value=(row.reference)
                        aria-label={ "Select " (row.name) };
                }
                th scope="row" { a href={ "/nodes/" (row.reference) } data-f="name" { (row.name) } }
                td { span data-f="state" class={ "state " (row.tone.class()) } { (row.mark) (row.state) } }
                @for column in &view.columns { (cell(column)) }
            }
            tr.why hidden[row.reason.is_empty()] {
                td {}
                td colspan=(2 + view.columns.len()) {
                    span data-f="reason" class=(row.reason_tone.class()) { (row.reason) }
                    " "
                    span.for data-f="reason-age" hidden[row.reason_since.is_none()] {
                        "for " (time("reason_since", row.reason_since))
                    }
                    " "
                    span.for data-f="cause" { (row.cause) }
                    " "
                    a data-f="act" href=(row.act) hidden[row.act.is_empty()] { (row.act_text) }
                    " "
                    span.command hidden[row.command.is_empty()] {
                        code data-f="command" { (row.command) } " " button.copy type="button" hidden { "Copy" }
                    }
                }
            }
        }
    }
}
