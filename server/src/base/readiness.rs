//! What keeps this server from doing its work now. The log says when that changes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use utoipa::ToSchema;

use crate::base::time::now;

/// What the server needs for its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A database that answers, accepts changes and has the schema of this version.
    Database,
    /// The keys of the site, as they are now, with certificates that are valid now.
    Keys,
    /// A clock by which the certificates that this server issues are valid at the other servers of the site.
    Clock,
    /// To go on: a server that stops is about to refuse connections.
    Running,
    /// A bucket that answers, if the images are in one. Without it, the server does all its other work.
    Objects,
    /// The boot files that are published in the bucket. Until it has them, the server hands out those before.
    BootFiles,
}

/// Why the server is not ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// What is missing.
    pub what: Need,
    /// What is the matter with it, in words that anybody may read. The server's log says more.
    pub message: &'static str,
    /// Since when, in milliseconds since 1970.
    pub since: u64,
}

/// The problems that there are now.
#[derive(Debug, Default)]
pub struct Readiness {
    problems: Mutex<BTreeMap<Need, Problem>>,
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Database, Self::Keys, Self::Clock, Self::Running, Self::Objects, Self::BootFiles];

    /// Whether the server should get no requests without it.
    pub fn is_vital(self) -> bool {
        !matches!(self, Self::Objects | Self::BootFiles)
    }
}

impl Readiness {
    /// Notes a problem. `log` is logged if the problem is new: the reason in full, and what to do.
    pub fn lack(&self, what: Need, message: &'static str, log: &str) {
        let mut problems = self.problems();
        let known = problems.get(&what).cloned();
        if known.as_ref().is_some_and(|known| known.message == message) {
            return;
        }
        let since = known.map_or_else(now, |known| known.since);
        problems.insert(what, Problem { what, message, since });
        match what {
            Need::Running => {}
            Need::Objects | Need::BootFiles => tracing::error!(error = log, "{message}"),
            Need::Database | Need::Keys | Need::Clock => tracing::error!(error = log, "not ready: {message}"),
        }
    }

    /// Notes that there is no such problem, or none any more.
    pub fn have(&self, what: Need) {
        let mut problems = self.problems();
        if problems.remove(&what).is_some() {
            match problems.values().find(|problem| problem.what.is_vital()) {
                _ if what == Need::Objects => tracing::info!("the bucket with the images answers again"),
                _ if what == Need::BootFiles => tracing::info!("the published boot files could be fetched"),
                None => tracing::info!("ready again"),
                Some(Problem { message, .. }) => tracing::info!("one problem is gone; still not ready: {message}"),
            }
        }
    }

    /// Returns the problems. The server is ready if none of them is vital.
    pub fn get(&self) -> Vec<Problem> {
        self.problems().values().cloned().collect()
    }

    fn problems(&self) -> MutexGuard<'_, BTreeMap<Need, Problem>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_keeps_its_time_until_it_is_gone() {
        let readiness = Readiness::default();
        assert_eq!(readiness.get(), []);
        readiness.have(Need::Database);
        readiness.lack(Need::Database, "it does not answer", "");
        let since = readiness.get()[0].since;
        readiness.lack(Need::Database, "it is read-only", "");
        readiness.lack(Need::Keys, "there are others", "");
        let found: Vec<_> = readiness.get().iter().map(|problem| (problem.what, problem.message)).collect();
        assert_eq!(found, [(Need::Database, "it is read-only"), (Need::Keys, "there are others")]);
        assert_eq!(readiness.get()[0].since, since, "also if the reason changes");
        readiness.have(Need::Database);
        readiness.have(Need::Keys);
        assert_eq!(readiness.get(), []);
    }
}
