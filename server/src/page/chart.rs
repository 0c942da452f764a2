//! How long the steps of a run took, as a drawing.

use maud::{Markup, html};
use slipway_protocol::RunStatus;
use slipway_protocol::shared::printable::line;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::page::words::age;
use crate::rules::trouble;
use crate::store::Store;
use crate::store::step_times::{self, Kind};

/// Width and height of a bar in pixels.
const WIDTH: u64 = 480;
const HEIGHT: u64 = 12;

/// Steps with the time that each took, in milliseconds.
pub type Times = Vec<(String, Millis)>;

/// Returns how long each step of a run took that ended.
pub fn times(run: &RunStatus) -> Times {
    let took = |step: &slipway_protocol::StepStatus| {
        Some((line(&step.name).into_owned(), step.finished_at?.saturating_sub(step.started_at?)))
    };
    run.steps.iter().filter_map(took).collect()
}

/// Returns how long the steps of a run usually take on machines of the site: the median of those that wrote its image.
/// Steps that no machine has done yet are left out.
pub async fn usual(store: &Store, run: &RunStatus) -> Result<Times, Error> {
    let mut connection = store.read().await?;
    let mut times = Times::new();
    for step in &run.steps {
        let known = step_times::of(&mut connection, &Kind::of(run.image.as_ref(), step)).await?;
        let usual = trouble::usual(&known);
        times.extend(usual.map(|usual| (line(&step.name).into_owned(), usual.millis)));
    }
    Ok(times)
}

/// Returns the sum of times.
pub fn total(times: &[(String, Millis)]) -> Millis {
    times.iter().fold(0, |sum, (_, millis)| sum.saturating_add(*millis))
}

/// Draws a bar with a part for each step. A bar as long as `longest` fills the width.
pub fn bar(times: &[(String, Millis)], longest: Millis) -> Markup {
    let scale = |millis: Millis| {
        u64::try_from(u128::from(millis) * u128::from(WIDTH) / u128::from(longest.max(1))).unwrap_or(WIDTH).min(WIDTH)
    };
    let mut began = 0;
    let parts: Vec<(u64, u64)> = times
        .iter()
        .map(|(_, millis)| {
            let from = scale(began);
            began = began.saturating_add(*millis);
            (from, scale(began).saturating_sub(from))
        })
        .collect();
    let words: Vec<String> = times.iter().map(|(name, millis)| format!("{name} {}", age(*millis))).collect();
    html! {
        svg.chart role="img" aria-label=(words.join(", ")) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } {
            @for ((from, width), words) in parts.iter().zip(&words) {
                rect x=(from) y="2" width=(width) height="8" { title { (words) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_the_bar_whatever_machines_say() {
        let times = vec![("a".to_owned(), 1000), ("b".to_owned(), 3000)];
        let drawn = bar(&times, total(&times)).into_string();
        assert!(
            drawn.contains("x=\"0\" y=\"2\" width=\"120\"") && drawn.contains("x=\"120\" y=\"2\" width=\"360\""),
            "{drawn}"
        );
        assert!(drawn.contains("aria-label=\"a 1 s, b 3 s\""), "{drawn}");
        let huge = vec![("a".to_owned(), u64::MAX), ("b".to_owned(), u64::MAX)];
        assert_eq!(total(&huge), u64::MAX);
        assert!(bar(&huge, 0).into_string().contains("width=\"480\""));
    }
}
