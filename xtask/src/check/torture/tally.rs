//! Results of many cuts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Cut, Found, Run};

/// Cuts by kind.
#[derive(Default)]
pub struct Tally(BTreeMap<Kind, Vec<Cut>>);

/// Cuts of the same kind: same run, same number of flushes before them, same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    run: usize,
    flushes: usize,
    found: Found,
}

impl Tally {
    /// Counts a cut.
    pub fn add(&mut self, cut: &Cut, found: Found) {
        self.0.entry(Kind { run: cut.run, flushes: cut.flushes, found }).or_default().push(cut.clone());
    }

    /// Returns the cuts after which neither system was whole.
    pub fn unverified(&self) -> Vec<&Cut> {
        let bad = self.0.iter().filter(|(kind, _)| matches!(kind.found, Found::Unverified { .. }));
        bad.flat_map(|(_, cuts)| cuts).collect()
    }

    /// Returns the cuts in an order that alternates between the results. For each result, one cut of each kind comes
    /// before the second of any kind. Cuts late in a run come first, because then the disk is about to become bootable.
    pub fn in_turn(&self) -> Vec<(Found, &Cut)> {
        let of_kind = |(kind, cuts): (&Kind, &Vec<Cut>)| (0..cuts.len()).map(|nth| (nth, *kind)).collect::<Vec<_>>();
        let mut ranked: Vec<(usize, Kind)> = self.0.iter().flat_map(of_kind).collect();
        ranked.sort_by_key(|(nth, kind)| (*nth, Reverse(kind.flushes)));
        let mut taken: BTreeMap<Found, usize> = BTreeMap::new();
        let mut turns = Vec::new();
        for (nth, kind) in ranked {
            let turn = taken.entry(kind.found).or_default();
            turns.push((*turn, kind.found, &self.0[&kind][nth]));
            *turn += 1;
        }
        turns.sort_by_key(|(turn, found, _)| (*turn, *found));
        turns.into_iter().map(|(_, found, cut)| (found, cut)).collect()
    }

    /// Returns lines for the terminal: each run, with the results for each period between two flushes.
    pub fn lines(&self, runs: &[Run]) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            lines.push(format!("{}:", run.name));
            let of_run = self.0.iter().filter(|(kind, _)| kind.run == index);
            lines.extend(of_run.map(|(kind, cuts)| {
                format!("  after {} flushes: {:5} times {}", kind.flushes, cuts.len(), kind.found.describe())
            }));
        }
        lines
    }
}
