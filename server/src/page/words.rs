//! Times, sizes and states in words and in HTML.

use maud::{Markup, html};
use serde::Serialize;
use slipway_protocol::shared::printable::{line, size};
use slipway_protocol::{NodeState, Progress, RunState, RunStatus, StepState};

use crate::base::time::{Millis, rfc3339, utc};
use crate::rules::state::is_cancelled;
use crate::store::to_word;

/// Formats a length of time in its largest unit. The script formats it in the same way.
pub fn age(millis: Millis) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A time as its age, which the script keeps right. A dash if there is none.
pub fn since(at: Option<Millis>, now: Millis) -> Markup {
    html! {
        @match at {
            Some(at) => time data-age datetime=[rfc3339(at)] title=(utc(at)) { (age(now.saturating_sub(at))) },
            None => span.muted { "–" },
        }
    }
}

/// A time of day with its age.
pub fn when(at: Millis, now: Millis) -> Markup {
    html! {
        time.number datetime=[rfc3339(at)] { (utc(at).trim_end_matches(" UTC")) } " · " (since(Some(at), now)) " ago"
    }
}

/// How a state looks, in addition to its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// Waits, or is over.
    Quiet,
    /// Works.
    Work,
    /// Is as it should be.
    Good,
    /// Somebody should look at it.
    Warn,
    /// Went wrong.
    Bad,
}

impl Tone {
    /// The class in the style sheet.
    pub fn class(self) -> String {
        to_word(&self)
    }

    /// A shape, so that colour is not all that tells it.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Warn => "▲ ",
            Self::Bad => "■ ",
            Self::Quiet | Self::Work | Self::Good => "",
        }
    }
}

/// How the state of a node looks.
pub fn of_node(state: NodeState) -> Tone {
    match state {
        NodeState::Registered | NodeState::Held | NodeState::Enrolled | NodeState::Decommissioned => Tone::Quiet,
        NodeState::Installing | NodeState::Booting | NodeState::Draining | NodeState::Terminating => Tone::Work,
        NodeState::Installed | NodeState::Running => Tone::Good,
        NodeState::Failed => Tone::Bad,
    }
}

/// The state of a run. What an operator cancelled is no failure to look into.
pub fn of_run(run: &RunStatus) -> Markup {
    match run.state {
        RunState::Pending => state(&run.state, Tone::Quiet),
        RunState::Running => state(&run.state, Tone::Work),
        RunState::Succeeded => state(&run.state, Tone::Good),
        RunState::Failed if is_cancelled(&run.steps) => state(&"cancelled", Tone::Quiet),
        RunState::Failed => state(&run.state, Tone::Bad),
    }
}

/// How the state of a step looks.
pub fn of_step(state: StepState) -> Tone {
    match state {
        StepState::Pending | StepState::Skipped => Tone::Quiet,
        StepState::Running => Tone::Work,
        StepState::Succeeded => Tone::Good,
        StepState::Failed | StepState::TimedOut => Tone::Bad,
    }
}

/// A state as its word, with shape and colour.
pub fn state<T: Serialize>(state: &T, tone: Tone) -> Markup {
    html! { span class={ "state " (tone.class()) } { (tone.mark()) (to_word(state).replace('-', " ")) } }
}

/// A sentence in one line. What is in backquotes is code.
pub fn prose(sentence: &str) -> Markup {
    let sentence = line(sentence);
    let parts: Vec<&str> = sentence.split('`').collect();
    // Without a partner, a backquote is one.
    let is_marked = parts.len() % 2 == 1;
    html! {
        @for (number, part) in parts.iter().enumerate() {
            @if is_marked && number % 2 == 1 { code { (part) } } @else {
                @if !is_marked && number > 0 { "`" }
                (part)
            }
        }
    }
}

/// How much is done, the rate, what the rest waits for, and what is left.
pub fn pace(progress: &Progress) -> String {
    let mut parts = vec![size(progress.bytes)];
    if progress.rate > 0 {
        parts.push(format!("{}/s", size(progress.rate)));
    }
    if let Some(stage) = &progress.waiting_for {
        parts.push(format!("waits for {}", stage.in_words()));
    }
    if let Some(left) = progress.seconds_left {
        parts.push(format!("{} left", age(left.saturating_mul(1000))));
    }
    parts.join(", ")
}

/// A bar with its percentage.
pub fn bar(percent: Option<u8>, of: &str) -> Markup {
    html! {
        @if let Some(percent) = percent {
            progress max="100" value=(percent) aria-label={ "progress of " (of) } {}
            " " span.number { (percent) " %" }
        }
    }
}

/// A command with a button that copies it.
pub fn command(command: &str) -> Markup {
    html! { span.command { code { (command) } " " button.copy type="button" hidden { "Copy" } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_backquotes_is_code() {
        assert_eq!(prose("end it (`run cancel <x>`)").into_string(), "end it (<code>run cancel &lt;x&gt;</code>)");
        assert_eq!(prose("it`s <b>").into_string(), "it`s &lt;b&gt;");
    }

    #[test]
    fn ages_have_one_unit() {
        for (seconds, expect) in [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7_300, "2 h"), (172_800, "2 d")] {
            assert_eq!(age(seconds * 1000), expect);
        }
    }
}
