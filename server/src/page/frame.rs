//! What is around the content of each page: navigation, who is signed in, and how old it is.

use std::sync::Arc;

use maud::{DOCTYPE, Markup, html};

use crate::api::App;
use crate::base::error::Error;
use crate::base::time::{rfc3339, utc};
use crate::page::answer::{self, Html};
use crate::page::assets;
use crate::page::live::{Live, Snapshot};
use crate::page::session::Visitor;

/// Pages in the navigation: path, title.
const PAGES: [(&str, &str); 8] = [
    ("/fleet", "Fleet"),
    ("/waiting", "Machines waiting"),
    ("/runs", "Runs"),
    ("/systems", "Systems"),
    ("/images", "Images"),
    ("/boot-files", "Boot files"),
    ("/tokens", "Tokens"),
    ("/events", "Events"),
];

/// How the script keeps a page live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows<'a> {
    /// It patches rows of the table.
    Rows,
    /// It reads the page again when anything happened.
    Events,
    /// It reads the page again when anything happened to this node.
    Node(&'a str),
    /// It leaves the page alone, because somebody fills in a form.
    Nothing,
}

/// A page to be made.
pub struct Frame {
    /// The operator.
    pub visitor: Visitor,
    /// All rows.
    pub snapshot: Arc<Snapshot>,
}

impl Frame {
    /// Reads what each page shows.
    pub async fn new(visitor: Visitor, live: &Live) -> Result<Self, Error> {
        let app: &App = &visitor.app;
        let snapshot = live.rows_of_page(app).await?;
        Ok(Self { visitor, snapshot })
    }

    /// Makes a page. `path` is the one in the navigation that it belongs to.
    pub fn page(&self, path: &str, title: &str, follows: Follows<'_>, content: Markup) -> Html {
        let (snapshot, visitor) = (&self.snapshot, &self.visitor);
        let (way, node) = match follows {
            Follows::Rows => ("rows", None),
            Follows::Events => ("events", None),
            Follows::Node(node) => ("node", Some(node)),
            Follows::Nothing => ("nothing", None),
        };
        let count = |path: &str| match path {
            "/fleet" => Some(("all", snapshot.head.all)),
            "/waiting" => Some(("waiting", snapshot.head.waiting)),
            _ => None,
        };
        Html(html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    (answer::head(title))
                    script type="module" src=(assets::script()) {}
                }
                body data-follows=(way) data-node=[node] data-shown=(snapshot.name) data-at=(snapshot.at)
                    data-event=(snapshot.head.event) {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        a.brand href="/fleet" { "slipway" }
                        nav aria-label="Pages" {
                            ul {
                                @for (target, title) in PAGES {
                                    li {
                                        a href=(target) aria-current=[(target == path).then_some("page")] {
                                            (title)
                                            @if let Some((what, count)) = count(target) {
                                                " " span.count data-head=(what) { (count) }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                        div.who {
                            span { (visitor.app.site) " · operator " (visitor.operator) " · " }
                            span #live {
                                "as of " time datetime=[rfc3339(snapshot.at)] { (time_of_day(&utc(snapshot.at))) }
                            }
                            form method="post" action="/logout" {
                                (visitor.proof_field())
                                button.plain type="submit" { "Sign out" }
                            }
                        }
                    }
                    main #main tabindex="-1" { (content) }
                    p #said .unseen role="status" aria-live="polite" {}
                }
            }
        })
    }
}

/// The time of day in a date with time: `12:04:31 UTC`.
fn time_of_day(utc: &str) -> &str {
    utc.split_once(' ').map_or(utc, |(_, time)| time)
}
