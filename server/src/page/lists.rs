//! Lists of what a site has.

use std::sync::Arc;

use axum::Extension;
use axum::extract::RawQuery;
use maud::{Markup, html};
use slipway_media::Manifest;
use slipway_protocol::RunState;
use slipway_protocol::shared::printable::{line, size};

use crate::base::error::Error;
use crate::base::time::now;
use crate::boot_files::builds;
use crate::image::stored;
use crate::node::status;
use crate::operate;
use crate::page::adding::Additions;
use crate::page::answer::{Failed, Html};
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::new_image;
use crate::page::reasons;
use crate::page::session::{Fields, Visitor};
use crate::page::words::{self, Tone};
use crate::store::runs as stored_runs;

/// Runs on one page.
const RUNS: usize = 100;

/// A table with titles. On a phone, each cell has its title before it.
fn table(what: &str, titles: &[&str], rows: Vec<(String, Vec<Markup>)>, nothing: Markup) -> Markup {
    html! {
        div.wide data-sync=(what) {
            @if rows.is_empty() { div.teach { (nothing) } } @else {
                table {
                    caption.unseen { (what) }
                    thead { tr { @for title in titles { th scope="col" { (title) } } } }
                    tbody {
                        @for (id, cells) in rows {
                            tr data-id=(id) {
                                @for (index, cell) in cells.iter().enumerate() {
                                    @if index == 0 { th scope="row" { (cell) } } @else {
                                        td data-title=[titles.get(index)] { (cell) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn dash() -> Markup {
    html! { span.muted { "–" } }
}

/// Shows the runs, newest first.
pub async fn runs(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    RawQuery(query): RawQuery,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let page: usize = Fields::read(query.unwrap_or_default().as_bytes()).text("page").parse().unwrap_or(1).max(1);
    let mut connection = frame.visitor.store.read().await?;
    let mut runs = stored_runs::latest(&mut connection, RUNS + 1, (page - 1) * RUNS).await?;
    drop(connection);
    let more = runs.len() > RUNS;
    runs.truncate(RUNS);
    let now = now();
    let names: std::collections::HashMap<&str, &str> =
        frame.snapshot.rows.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
    let rows = runs.into_iter().map(|run| {
        let run = status::of_run(run, now);
        let (index, step) = reasons::current(&run).map_or((0, None), |(index, step)| (index, Some(step)));
        let failure = step.and_then(|step| step.failure.as_ref());
        let took = run.finished_at.map(|end| words::age(end.saturating_sub(run.started_at.unwrap_or(run.created_at))));
        let cells = vec![
            html! { a href={ "/nodes/" (run.node) } { (names.get(run.node.as_str()).copied().unwrap_or(&run.node)) } },
            words::of_run(&run),
            html! {
                @if let Some(step) = step { (index + 1) "/" (run.steps.len()) " " (line(&step.name)) }
                @if run.state == RunState::Running { ", " (run.percent) " % of the run" }
                @if let Some(failure) = failure { div.muted { (failure.in_one_line()) } }
            },
            html! { (words::since(Some(run.created_at), now)) " ago" },
            html! { @match took { Some(took) => span.number { (took) }, None => (dash()) } },
            html! { a.mono href={ "/runs/" (run.id) } { (run.id) } },
        ];
        (run.id.clone(), cells)
    });
    let nothing =
        html! { "No run was started yet. Select machines in the " a href="/fleet" { "fleet" } ", and start one." };
    let titles = ["Node", "State", "Step", "Started", "Took", "Run"];
    let content = html! {
        h1 { "Runs" }
        (table("Runs", &titles, rows.collect(), nothing))
        nav.pages aria-label="Older runs" {
            @if page > 1 { a href={ "/runs?page=" (page - 1) } rel="prev" { "Newer" } }
            @if more { a href={ "/runs?page=" (page + 1) } rel="next" { "Older" } }
        }
    };
    Ok(frame.page("/runs", "Runs", Follows::Events, content))
}

/// Shows the operating systems.
pub async fn systems(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let (systems, images) = (stored::systems(store).await?, stored::list(store).await?);
    let rows = systems.iter().map(|stored::SystemStatus { system, image_problem }| {
        let image = images.iter().find(|status| status.image.digest == system.image);
        let reports =
            [(system.phone_home, "phone home"), (system.boot_reporter, "boots"), (system.agent.is_some(), "agent")];
        let reports: Vec<&str> = reports.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        let cells = vec![
            html! { (line(&system.name)) },
            html! {
                @match image { Some(status) => (line(&status.image.file_name)), None => (dash()) }
                @if let Some(problem) = image_problem { div.warn { "▲ the image " (problem.in_words()) } }
            },
            html! { @match system.raw_size { Some(bytes) => span.number { (size(bytes)) }, None => (dash()) } },
            html! { @if reports.is_empty() { (dash()) } @else { (reports.join(", ")) } },
            html! { span.mono { (system.image) } },
        ];
        (system.name.clone(), cells)
    });
    let nothing = html! {
        p { "No operating system is known yet. One consists of an image and its settings." }
        @if images.is_empty() { p { "First " a href="/add/image" { "add an image" } "." } }
        p { (words::command("slipway-server os add debian-12 --image DIGEST")) }
    };
    let content = html! {
        div.title { h1 { "Operating systems" } a.button href="/add/system" { "Add an operating system" } }
        (table("Operating systems", &["Name", "Image", "Size on disk", "Reports", "Digest"], rows.collect(), nothing))
    };
    Ok(frame.page("/systems", "Operating systems", Follows::Events, content))
}

/// Shows the images.
pub async fn images(
    visitor: Visitor,
    Extension(live): Extension<Arc<Live>>,
    Extension(additions): Extension<Arc<Additions>>,
) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let store = &frame.visitor.store;
    let images = stored::list(store).await?;
    let now = now();
    let rows = images.iter().map(|stored::ImageStatus { image, problem }| {
        let cells = vec![
            html! { (line(&image.file_name)) @if image.captured { span.muted { " captured" } } },
            html! { @match problem {
                Some(problem) => span.warn { "▲ " (problem.in_words()) },
                None => span.good { "there" },
            } },
            html! { span.number { (size(image.size)) } },
            html! { @match image.raw_size { Some(bytes) => span.number { (size(bytes)) }, None => (dash()) } },
            html! { (words::since(Some(image.added_at), now)) " ago" },
            html! { span.mono { (image.digest) } },
        ];
        (image.digest.to_string(), cells)
    });
    let nothing = html! {
        p { "There is no image yet. " a href="/add/image" { "Add an image" } ", or on the server:" }
        p { (words::command("slipway-server image add debian-12.qcow2")) }
    };
    let content = html! {
        div.title { h1 { "Images" } a.button href="/add/image" { "Add an image" } }
        (new_image::adding(&additions, now))
        (table("Images", &["Name", "File", "Size", "Size on disk", "Added", "Digest"], rows.collect(), nothing))
    };
    Ok(frame.page("/images", "Images", Follows::Events, content))
}

/// Shows the bootstrap tokens.
pub async fn tokens(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let tokens = operate::list_tokens(&frame.visitor.store).await?;
    let now = now();
    let rows = tokens.iter().rev().map(|token| {
        let expired = token.expires_at.is_some_and(|at| at <= now);
        let (word, tone) = match (token.used_at, expired) {
            (Some(_), _) => ("used", Tone::Quiet),
            (None, true) => ("expired", Tone::Quiet),
            (None, false) => ("unused", Tone::Good),
        };
        let node = |id: &Option<String>| {
            html! {
                @match id { Some(id) => a href={ "/nodes/" (id) } { (line(id)) }, None => (dash()) }
            }
        };
        let cells = vec![
            html! { span.mono { (token.id) } },
            html! { span class=(tone.class()) { (word) } },
            node(&token.made_for),
            node(&token.node),
            html! { (words::since(Some(token.created_at), now)) " ago" },
            html! { @match token.expires_at {
                Some(at) => span.number { (crate::base::time::utc(at)) },
                None => "never",
            } },
        ];
        (token.id.clone(), cells)
    });
    let nothing = html! { "There is no bootstrap token. One lets an unknown machine in, or proves a node." };
    let content = html! {
        div.title { h1 { "Tokens" } a.button href="/add/token" { "Add a token" } }
        (table("Tokens", &["Id", "State", "Made for", "Used by", "Made", "Expires"], rows.collect(), nothing))
    };
    Ok(frame.page("/tokens", "Tokens", Follows::Events, content))
}

/// Shows what machines boot, and how to make it.
pub async fn boot_files(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let known = builds::known(&frame.visitor.store).await?;
    let newest = match frame.visitor.boot_files.newest().await {
        Ok(manifest) => Ok(manifest),
        Err(Error::Refused { message, .. }) => Err(message),
        Err(error) => return Err(error.into()),
    };
    let now = now();
    let content = html! {
        h1 { "Boot files" }
        div data-sync="boot-files" {
            section {
                @match &newest {
                    Err(message) => {
                        p { (line(message)) }
                        p { "To make them, on the server: " (words::command("slipway-server media build")) }
                    },
                    Ok(manifest) => {
                        h2 { "Newest: " span.mono { (manifest.id) } }
                        dl {
                            dt { "Version" } dd {
                                (line(&manifest.version))
                                @if manifest.version != env!("CARGO_PKG_VERSION") {
                                    span.warn { " ▲ the server is " (env!("CARGO_PKG_VERSION")) }
                                }
                            }
                            @if let Some(build) = known.builds.iter().find(|build| build.id == manifest.id) {
                                dt { "Made" } dd { (words::when(build.at, now)) }
                            }
                            dt { "Server" } dd {
                                (line(manifest.server.as_deref().unwrap_or(builds::SAID_BY_METADATA)))
                            }
                            dt { "Token" } dd { @if manifest.has_token { "has a bootstrap token" } @else { "none" } }
                            dt { "Signed by" } dd { @match &manifest.signed_by {
                                Some(signer) => (line(&signer.subject)),
                                None => "nobody: not for Secure Boot",
                            } }
                        }
                        (boot_commands(manifest))
                        h3 { "Files" }
                        ul { @for asset in &manifest.assets {
                            li {
                                a.mono href={ "/boot/" (asset.path) } download { (line(&asset.path)) }
                                span.muted { " " (size(asset.size)) ", SHA-256 " span.mono { (line(&asset.sha256)) } }
                            }
                        } }
                    },
                }
            }
            @if !known.builds.is_empty() {
                section {
                    h2 { "Builds that attested machines may have booted" }
                    @if !known.required { p.warn { "▲ Machines are admitted whatever they booted." } }
                    ul { @for build in &known.builds {
                        li data-id=(build.id) {
                            span.mono { (build.id) } ", built " (words::since(Some(build.at), now)) " ago"
                        }
                    } }
                }
            }
        }
    };
    Ok(frame.page("/boot-files", "Boot files", Follows::Events, content))
}

/// What to run so that machines start these files.
fn boot_commands(manifest: &Manifest) -> Markup {
    let server = manifest.server.as_deref().unwrap_or("https://SERVER:8443");
    let has = |path: &str| manifest.assets.iter().any(|asset| asset.path == path);
    let efi = manifest.assets.iter().find(|asset| asset.path.ends_with("/slipway.efi"));
    let fetch = |file: &str| format!("curl --cacert ca.pem --remote-name {server}/boot/{file}");
    html! {
        h3 { "How machines start them" }
        dl {
            @if has("slipway.img") {
                dt { "USB stick, on the server" } dd { (words::command("slipway-server media write --disk /dev/sdX")) }
                dt { "USB stick, elsewhere" } dd { (words::command(&fetch("slipway.img"))) }
            }
            @if has("slipway.iso") { dt { "Virtual disc" } dd { (words::command(&fetch("slipway.iso"))) } }
            dt { "iPXE" } dd { (words::command(&format!("chain {server}/boot/ipxe"))) }
            @if let Some(efi) = efi {
                dt { "Firmware, by HTTPS" } dd { (words::command(&format!("{server}/boot/{}", efi.path))) }
            }
            dt { "The CA, on the server" } dd { (words::command("slipway-server ca > ca.pem")) }
            dt { "To make them again" } dd { (words::command("slipway-server media build")) }
        }
    }
}
