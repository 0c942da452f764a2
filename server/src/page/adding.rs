//! Images that are being added by this server: who sent them, how far they are, and what came of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use maud::{Markup, html};
use slipway_protocol::shared::printable::{line, size};
use slipway_protocol::{Digest, ErrorCode};

use crate::base::error::{Error, chain};
use crate::base::time::{Millis, now};
use crate::image::{Added, Progress};
use crate::page::words;

/// Most images that are added at once: each may take a processor and the speed of the disk.
const AT_ONCE: usize = 4;
/// Images that stay in the list after they were added, or were not.
const KEPT: usize = 10;

/// All images that this server adds, newest first. They end with the process: what is not added by then is sent again.
#[derive(Debug, Default)]
pub struct Additions(Mutex<VecDeque<Arc<Addition>>>);

/// An image that is being added.
#[derive(Debug)]
pub struct Addition {
    file_name: String,
    operator: String,
    began: Millis,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
enum State {
    Working(Progress),
    Added(Digest, Vec<String>),
    Failed(String),
}

impl Additions {
    /// Begins to add an image. Refuses it if too many are being added.
    pub fn begin(&self, file_name: &str, operator: &str) -> Result<Arc<Addition>, Error> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.iter().filter(|addition| addition.is_working()).count() >= AT_ONCE {
            let message = format!("{AT_ONCE} images are being added; wait until one of them is there");
            return Err(Error::refused(ErrorCode::Unavailable, message));
        }
        let state = State::Working(Progress { doing: "receiving", done: 0, total: 0 });
        let (file_name, operator) = (file_name.to_owned(), operator.to_owned());
        let addition = Arc::new(Addition { file_name, operator, began: now(), state: Mutex::new(state) });
        all.push_front(Arc::clone(&addition));
        let mut ended = 0;
        all.retain(|addition| {
            ended += usize::from(!addition.is_working());
            addition.is_working() || ended <= KEPT
        });
        Ok(addition)
    }

    /// Shows all, as a section of the page of images.
    pub fn show(&self, now: Millis) -> Markup {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        html! {
            @if !all.is_empty() {
                section {
                    h2 { "Being added by this server" }
                    ol.steps { @for addition in &all { (addition.show(now)) } }
                }
            }
        }
    }
}

impl Addition {
    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn is_working(&self) -> bool {
        matches!(self.state(), State::Working(_))
    }

    /// Notes how far it is.
    pub fn progress(&self, progress: Progress) {
        self.set(State::Working(progress));
    }

    /// Notes what came of it.
    pub fn end(&self, added: &Result<Added, Error>) {
        match added {
            Ok(added) => self.set(State::Added(added.image.digest.clone(), added.warnings.clone())),
            Err(error) => self.fail(error),
        }
    }

    /// Notes why it was not added.
    pub fn fail(&self, error: &Error) {
        tracing::warn!(file = %line(&self.file_name), error = chain(error), "an image was not added");
        self.set(State::Failed(error.body().message));
    }

    fn show(&self, now: Millis) -> Markup {
        let state = self.state();
        html! {
            li data-busy[matches!(state, State::Working(_))] {
                span {
                    (line(&self.file_name)) " "
                    @match &state {
                        State::Working(progress) => span.state.work { (progress.doing) },
                        State::Added(..) => span.state.good { "added" },
                        State::Failed(_) => span.state.bad { "■ not added" },
                    }
                }
                span.muted { "sent by " (line(&self.operator)) " " (words::since(Some(self.began), now)) " ago" }
                div.more {
                    @match &state {
                        State::Working(Progress { done, total, .. }) => {
                            (words::bar(share(*done, *total), &self.file_name)) " "
                            (size(*done)) @if *total > 0 { " of " (size((*total).max(*done))) }
                        },
                        State::Added(digest, warnings) => {
                            span.mono { (digest) }
                            @for warning in warnings { br; span.warn { "▲ " (line(warning)) } }
                        },
                        State::Failed(message) => span.bad { (line(message)) },
                    }
                }
            }
        }
    }
}

fn share(done: u64, total: u64) -> Option<u8> {
    let share = (u128::from(done) * 100).checked_div(u128::from(total))?;
    u8::try_from(share.min(100)).ok()
}

/// An image that was begun and whose sender went away, or whose work was given up, is not shown as if it went on.
pub struct Ending(pub Arc<Addition>);

impl Drop for Ending {
    fn drop(&mut self) {
        if self.0.is_working() {
            self.0.set(State::Failed("it did not arrive; send it again".to_owned()));
        }
    }
}
