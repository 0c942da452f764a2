//! Which rows the table shows, in which order, and with which columns. All of it is in the URL.

use std::cmp::Ordering;

use maud::{Markup, html};

use crate::page::live::Snapshot;
use crate::page::rows::Row;

/// Rows on one page of the table.
pub const ROWS: usize = 200;

/// A column that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Step, bar and percentage.
    Progress,
    /// Time in the state.
    Since,
    /// Time since it was last heard from.
    Heard,
    /// Operating system.
    System,
    /// Site.
    Site,
    /// Vendor and model.
    Model,
    /// Serial number.
    Serial,
    /// Address.
    Address,
}

impl Column {
    /// All columns, in their order.
    pub const ALL: [Self; 8] =
        [Self::Progress, Self::System, Self::Since, Self::Heard, Self::Site, Self::Model, Self::Serial, Self::Address];
    const DEFAULT: [Self; 5] = [Self::Progress, Self::System, Self::Since, Self::Heard, Self::Site];

    /// Its name in the URL.
    pub fn word(self) -> &'static str {
        match self {
            Self::Progress => "progress",
            Self::Since => "since",
            Self::Heard => "heard",
            Self::System => "system",
            Self::Site => "site",
            Self::Model => "model",
            Self::Serial => "serial",
            Self::Address => "address",
        }
    }

    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Self::Progress => "Progress",
            Self::Since => "In state",
            Self::Heard => "Heard",
            Self::System => "System",
            Self::Site => "Site",
            Self::Model => "Model",
            Self::Serial => "Serial number",
            Self::Address => "Address",
        }
    }
}

/// What the table shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Words to search for: text, or `field:value`.
    pub search: String,
    /// Only nodes in this state. Empty for all states in service.
    pub state: String,
    /// Only nodes that somebody should look at.
    pub flagged: bool,
    /// The columns, in addition to name and state.
    pub columns: Vec<Column>,
    /// What the rows are ordered by: `name`, `state`, or the word of a column.
    pub order: String,
    /// Whether the last comes first.
    pub descending: bool,
    /// Page of the table, from 1.
    pub page: usize,
}

impl Default for View {
    fn default() -> Self {
        Self {
            search: String::new(),
            state: String::new(),
            flagged: false,
            columns: Column::DEFAULT.into(),
            order: "name".to_owned(),
            descending: false,
            page: 1,
        }
    }
}

impl View {
    /// Reads a view from the query of a URL. What it does not know it ignores.
    pub fn read(query: &str) -> Self {
        let mut view = Self::default();
        let mut columns = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "q" => view.search = value.trim().to_owned(),
                "state" => view.state = value.into_owned(),
                "flagged" => view.flagged = !value.is_empty(),
                "column" => columns.extend(Column::ALL.into_iter().find(|column| column.word() == value)),
                "order" => {
                    view.descending = value.starts_with('-');
                    view.order = value.trim_start_matches('-').to_owned();
                }
                "page" => view.page = value.parse().unwrap_or(1).max(1),
                _ => {}
            }
        }
        if !columns.is_empty() {
            view.columns = columns;
        }
        view
    }

    /// Writes the query of a URL, without what is the default.
    pub fn query(&self) -> String {
        let default = Self::default();
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !self.search.is_empty() {
            query.append_pair("q", &self.search);
        }
        if !self.state.is_empty() {
            query.append_pair("state", &self.state);
        }
        if self.flagged {
            query.append_pair("flagged", "1");
        }
        if self.columns != default.columns && !self.columns.is_empty() {
            query.extend_pairs(self.columns.iter().map(|column| ("column", column.word())));
        }
        if self.order != default.order || self.descending {
            query.append_pair("order", &format!("{}{}", if self.descending { "-" } else { "" }, self.order));
        }
        if self.page > 1 {
            query.append_pair("page", &self.page.to_string());
        }
        query.finish()
    }

    /// Hidden fields of a form that goes on with the view.
    pub fn hidden(&self) -> Markup {
        let query = self.query();
        html! {
            @for (name, value) in form_urlencoded::parse(query.as_bytes()) {
                input type="hidden" name=(name) value=(value);
            }
        }
    }

    /// Path and query of the table with a change.
    pub fn with(&self, change: impl FnOnce(&mut Self)) -> String {
        let mut view = Self { page: 1, ..self.clone() };
        change(&mut view);
        let query = view.query();
        if query.is_empty() { "/fleet".to_owned() } else { format!("/fleet?{query}") }
    }

    /// Whether a row is in the view, on whatever page.
    fn shows(&self, row: &Row) -> bool {
        let in_state = if self.state.is_empty() { row.is_here() } else { row.state == self.state };
        in_state
            && (!self.flagged || row.is_flagged())
            && self.search.split_whitespace().all(|term| finds(row, &term.to_lowercase()))
    }

    /// Returns the numbers of all rows in the view, in order.
    pub fn select(&self, snapshot: &Snapshot) -> Vec<usize> {
        let rows = &snapshot.rows;
        let mut found: Vec<usize> = (0..rows.len()).filter(|index| self.shows(&rows[*index])).collect();
        // The rows are by name already, and sorting keeps that order among equals. What is not known comes last.
        let last = |time: Option<u64>| time.map_or((1, 0), |time| (0, u64::MAX - time));
        let by = |one: &usize, other: &usize| -> Ordering {
            let (a, b) = (&rows[*one], &rows[*other]);
            match self.order.as_str() {
                "state" => a.state.cmp(&b.state),
                "progress" => (&a.step, a.percent).cmp(&(&b.step, b.percent)),
                "since" => last(a.since).cmp(&last(b.since)),
                "heard" => last(snapshot.heard[*one]).cmp(&last(snapshot.heard[*other])),
                "system" => a.system.cmp(&b.system),
                "site" => a.site.cmp(&b.site),
                "model" => a.model.cmp(&b.model),
                "serial" => a.serial.cmp(&b.serial),
                "address" => a.address.cmp(&b.address),
                _ => Ordering::Equal,
            }
        };
        found.sort_by(by);
        if self.descending {
            found.reverse();
        }
        found
    }
}

/// Whether a row has a text, or a field with a text.
fn finds(row: &Row, term: &str) -> bool {
    let has = |text: &str, part: &str| text.to_lowercase().contains(part);
    let identifier =
        |kind: &str, part: &str| row.identifiers.iter().any(|(own, value)| own == kind && value.contains(part));
    match term.split_once(':') {
        Some(("name", part)) => has(&row.name, part),
        Some(("id", part)) => has(&row.id, part),
        Some(("state", part)) => has(&row.state, part),
        Some(("step", part)) => has(&row.step, part),
        Some(("system", part)) => has(&row.system, part),
        Some(("site", part)) => has(&row.site, part),
        Some(("model", part)) => has(&row.model, part),
        Some(("address", part)) => has(&row.address, part),
        Some(("reason", part)) => has(&row.reason, part),
        Some((kind @ ("uuid" | "serial" | "mac" | "label"), part)) => identifier(kind, part),
        _ => {
            let short = [&row.name, &row.id, &row.state, &row.step, &row.system, &row.site];
            let mut texts = short.into_iter().chain([&row.model, &row.serial, &row.address, &row.reason]);
            texts.any(|text| has(text, term)) || row.identifiers.iter().any(|(_, value)| value.contains(term))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_in_the_url_and_comes_back() {
        for query in ["", "q=mac%3A52%3A54+web", "state=failed&flagged=1", "column=model&order=-since&page=3"] {
            assert_eq!(View::read(query).query(), query);
        }
        // What nobody would write is as if it was not there.
        assert_eq!(View::read("column=x&page=0&y=1"), View::default());
        assert_eq!(View::read("page=3").with(|view| view.flagged = true), "/fleet?flagged=1");
    }
}
