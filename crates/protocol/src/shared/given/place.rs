//! Where a value is in its document, and whether it may be blank or empty there.

use std::fmt;

use serde::de::Error;

use super::{NO_VALUE, NOTHING, Rule, may_be_blank, selects};

/// The place of a value. The path consists of names from slipway's own types and of numbers, so it repeats no input.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    rule: Rule,
    parent: Option<&'a Place<'a>>,
    step: Step,
}

/// The last part of a path.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Root,
    /// A field, or a variant of an enum.
    Key(&'static str),
    /// An entry with any name, such as a variable's value, or a field of a type that has not been chosen yet.
    Entry,
    Index(usize),
}

impl<'a> Place<'a> {
    pub(super) fn root(rule: Rule) -> Self {
        Self { rule, parent: None, step: Step::Root }
    }

    pub(super) fn below(&'a self, step: Step) -> Self {
        Self { rule: self.rule, parent: Some(self), step }
    }

    /// Returns the error for a key without a value.
    pub(super) fn no_value<E: Error>(&self) -> E {
        match self.step {
            Step::Root => E::custom(NOTHING),
            _ => E::custom(format_args!("{self}{NO_VALUE}")),
        }
    }

    /// Whether the value is part of a machine's report.
    pub(super) fn is_in_report(&self) -> bool {
        self.rule == Rule::Report
    }

    /// Whether a blank text is a value here.
    pub(super) fn may_be_blank(&self) -> bool {
        self.is_in_report() || self.key().is_some_and(may_be_blank)
    }

    /// Whether an empty list or mapping is a value here.
    pub(super) fn may_be_empty(&self) -> bool {
        let Step::Key(key) = self.step else { return true };
        let is_removal = self.rule == Rule::Change && self.parent.is_some_and(|parent| parent.parent.is_none());
        is_removal || self.is_in_report() || !selects(key)
    }

    /// Returns the last key of the path, which an index or entry may follow.
    fn key(&self) -> Option<&'static str> {
        match self.step {
            Step::Key(key) => Some(key),
            _ => self.parent.and_then(Place::key),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = self.parent else { return f.write_str("it") };
        let is_first = parent.parent.is_none();
        if !is_first {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Key(key) if is_first => f.write_str(key),
            Step::Key(key) => write!(f, ".{key}"),
            Step::Entry if is_first => f.write_str("an entry"),
            Step::Entry => f.write_str("[...]"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}
