//! All about one run.

use std::sync::Arc;

use axum::Extension;
use maud::html;
use slipway_protocol::shared::printable::lines;

use crate::api::answer::UrlPath;
use crate::base::time::now;
use crate::operate;
use crate::page::answer::{Failed, Html};
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::node::run_section;
use crate::page::rows::name;
use crate::page::session::Visitor;
use crate::page::words;

/// Shows a run: its steps, and the options that the machine got for them, without secrets.
pub async fn show(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    UrlPath(run): UrlPath<String>,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let (run, steps) = operate::show_run(store, &run).await?;
    let node = operate::show_node(store, &run.node).await?;
    let now = now();
    let steps: Vec<String> = steps.iter().map(|step| serde_json::to_string_pretty(step).unwrap_or_default()).collect();
    let content = html! {
        div.title {
            h1 { "Run " (run.id) }
            span { "of " a href={ "/nodes/" (run.node) } { (name(&node)) } }
        }
        div data-sync="run" {
            section { (run_section(&run, now)) }
        }
        @if let Some(image) = &run.image {
            section { h2 { "Image" } p { span.mono { (image) } } }
        }
        section {
            h2 { "Steps as the machine gets them, without secrets" }
            @for step in &steps { pre tabindex="0" { (lines(step)) } }
            p { (words::command(&format!("slipway-server run show {}", run.id))) }
        }
    };
    Ok(frame.page("/runs", "Run", Follows::Node(&run.node), content))
}
