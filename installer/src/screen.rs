//! What the installer tells the machine's own screen, which another process draws (`slipway screen`).
//!
//! The state is a file in /run, replaced as a whole. So the one who draws needs nothing from the installer, and the
//! installer never waits for a terminal.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use slipway_protocol::{Failure, Progress};

use crate::files;

/// File with the [`State`].
pub const PATH: &str = "/run/slipway/screen.json";

/// Longest text of a state in characters. Reasons may have parts of the size of a server's answer.
const LONGEST: usize = 1000;

/// What is known of the machine, and what it does. Texts may come from anybody and are not safe for a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The node's name, else the name that the boot medium gives the machine.
    pub name: Option<String>,
    /// Serial number of the machine.
    pub serial: Option<String>,
    /// Base URL of the server.
    pub server: Option<String>,
    /// URL of the server's page for this machine: of the node, or of the machine with this claim code.
    pub page: Option<String>,
    /// Whether a disk has partitions while there is nothing to do, so that the machine may be here by mistake.
    pub has_system: bool,
    /// What the machine does.
    pub doing: Doing,
    /// Why the server cannot be used now. It is tried again.
    pub trouble: Option<String>,
}

/// What the machine does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doing {
    /// Looks at its hardware and for its server.
    #[default]
    Starting,
    /// Asks the server to let it in.
    Enrolling,
    /// Waits until an operator lets in the machine with this code.
    Held {
        /// The claim code.
        code: String,
    },
    /// Is a node, and waits for a run.
    Idle,
    /// Runs a step of a run.
    Step(Step),
    /// A run failed.
    Failed {
        /// The step that failed, if one did: its number from 1, the number of all steps, its name.
        step: Option<(u32, u32, String)>,
        /// What failed, and why.
        reason: String,
    },
    /// Cannot do anything, for a reason that waiting does not change.
    Broken {
        /// What failed, and why.
        reason: String,
    },
    /// Every step of a run succeeded, and the machine stays as it is.
    Done,
    /// Every step of a run succeeded, and the installed system starts next.
    Leaving,
}

/// A step of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number of the step, from 1.
    pub number: u32,
    /// Number of steps.
    pub of: u32,
    /// Name of the step.
    pub name: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Why the attempt before this one failed.
    pub earlier: Option<String>,
    /// The newest fact, such as the chosen disk and the reason.
    pub note: Option<String>,
    /// The progress, if the step has any.
    pub progress: Option<Progress>,
}

/// Tells the screen. Clones tell the same one.
#[derive(Clone, Debug, Default)]
pub struct Screen(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    file: Option<PathBuf>,
}

impl Screen {
    /// A screen that reads this file.
    pub fn at(file: &Path) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), file: Some(file.to_owned()) }))
    }

    /// Changes the state and tells the screen. Without a screen, it tells nobody.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.clone();
        change(&mut state);
        if let Some(file) = self.0.file.as_ref().filter(|_| *state != before) {
            // Written under the lock, so that an older state never replaces a newer one. Without the file, only the
            // drawing is missing.
            let _ = serde_json::to_vec(&*state).map(|text| files::write_whole(file, &text));
        }
    }

    /// Says what the machine does now.
    pub fn doing(&self, doing: Doing) {
        self.change(|state| state.doing = doing);
    }

    /// Changes the step that runs. Does nothing if none does.
    pub fn step(&self, change: impl FnOnce(&mut Step)) {
        self.change(|state| {
            if let Doing::Step(step) = &mut state.doing {
                change(step);
            }
        });
    }

    /// Says why the server cannot be used now, or that it can.
    pub fn trouble(&self, trouble: Option<&str>) {
        self.change(|state| state.trouble = trouble.map(shortened));
    }
}

/// Returns what failed and why, in one line that a screen has room for.
pub fn reason(failure: &Failure) -> String {
    shortened(&failure.in_one_line())
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_reads_what_the_installer_said_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("screen.json");
        let screen = Screen::at(&file);
        let read = || serde_json::from_slice::<State>(&std::fs::read(&file).unwrap()).unwrap();
        screen.step(|step| step.note = Some("no step runs yet".to_owned()));
        assert!(!file.exists(), "nothing was said");
        screen.doing(Doing::Step(Step { number: 1, of: 2, name: "write".to_owned(), ..Step::default() }));
        screen.clone().step(|step| step.note = Some("the only disk".to_owned()));
        screen.trouble(Some(&"x".repeat(5000)));
        let state = read();
        assert_eq!(state.trouble.map(|trouble| trouble.len()), Some(LONGEST));
        assert!(
            matches!(state.doing, Doing::Step(Step { note: Some(note), number: 1, .. }) if note == "the only disk")
        );
        screen.trouble(None);
        assert_eq!(read().trouble, None);
    }
}
