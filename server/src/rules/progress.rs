//! How much of a run is done: each step counts by how long it usually takes.

use slipway_protocol::{Progress, RunState, StepState, StepStatus};

use crate::base::time::Millis;

/// A whole step, in the parts that are counted.
const WHOLE: u64 = 10_000;
/// The most that time alone counts of a step that has not ended.
const MOST_BY_TIME: u64 = 9_500;
/// The most per cent of a run that has not succeeded.
const MOST: u128 = 99;

/// Returns how much of a run is done at a time, in per cent: 100 if it succeeded, and never before.
///
/// It never gets less while the time goes on, unless a step or the run begins again: how long steps usually take was
/// noted when the run was fetched, and each step is measured by one thing from its beginning to its end.
pub fn percent(state: RunState, steps: &[StepStatus], now: Millis) -> u8 {
    if state == RunState::Succeeded {
        return 100;
    }
    let weights = weights(steps);
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let done = |(step, weight): (&StepStatus, &u64)| u128::from(*weight) * u128::from(done(step, now));
    let sum: u128 = steps.iter().zip(&weights).map(done).sum();
    let percent = sum * 100 / (all.max(1) * u128::from(WHOLE));
    u8::try_from(percent.min(MOST)).unwrap_or_default()
}

/// How long each step usually takes. One of which nothing is known counts as the median of the others.
fn weights(steps: &[StepStatus]) -> Vec<u64> {
    let mut known: Vec<u64> = steps.iter().filter_map(|step| Some(step.usual?.millis.max(1))).collect();
    known.sort_unstable();
    let other = known.get(known.len().saturating_sub(1) / 2).copied().unwrap_or(1);
    steps.iter().map(|step| step.usual.map_or(other, |usual| usual.millis.max(1))).collect()
}

/// How much of a step is done, in parts of [`WHOLE`].
fn done(step: &StepStatus, now: Millis) -> u64 {
    match step.state {
        StepState::Succeeded => return WHOLE,
        StepState::Pending | StepState::Skipped => return 0,
        StepState::Running | StepState::Failed | StepState::TimedOut => {}
    }
    let share = step.progress.as_ref().map(share);
    match (step.usual, share) {
        // A step that usually moves no bytes is measured by time, also if it moves some now.
        (Some(usual), _) if usual.rate.is_none() => by_time(step, usual.millis, now),
        (_, Some(Some(share))) => share,
        (Some(usual), Some(None)) => by_time(step, usual.millis, now),
        (_, None) | (None, Some(None)) => 0,
    }
}

fn by_time(step: &StepStatus, usual: Millis, now: Millis) -> u64 {
    let Some(began) = step.started_at else { return 0 };
    let elapsed = step.finished_at.unwrap_or(now).saturating_sub(began);
    parts(elapsed, usual.max(1)).min(MOST_BY_TIME)
}

/// Returns how much is done of what a step moves, in parts of [`WHOLE`], if it is known how much there is to do.
fn share(progress: &Progress) -> Option<u64> {
    let of = |done: u64, total: Option<u64>| Some(parts(done, total.filter(|total| *total > 0)?));
    of(progress.bytes, progress.total).or_else(|| of(progress.fetched, progress.fetch_total))
}

/// Returns how much is done of what a step moves, in per cent, if it is known how much there is to do.
pub fn of_step(progress: &Progress) -> Option<u8> {
    u8::try_from(share(progress)? * 100 / WHOLE).ok()
}

fn parts(done: u64, total: u64) -> u64 {
    let parts = u128::from(done) * u128::from(WHOLE) / u128::from(total);
    u64::try_from(parts).unwrap_or(WHOLE).min(WHOLE)
}

#[cfg(test)]
mod tests {
    use slipway_protocol::UsualStep;

    use super::*;

    const SECOND: Millis = 1000;

    /// A step in a state, with how long it usually takes and whether it then moves bytes.
    fn step(state: StepState, usual: Option<(Millis, bool)>) -> StepStatus {
        StepStatus {
            name: "s".to_owned(),
            action: "a".to_owned(),
            state,
            attempt: 1,
            started_at: Some(0),
            finished_at: None,
            progressed_at: None,
            usual: usual.map(|(millis, moves)| UsualStep { millis, rate: moves.then_some(1) }),
            progress: None,
            notes: Vec::new(),
            outcome: None,
            failure: None,
        }
    }

    fn moved(bytes: u64, total: Option<u64>, step: StepStatus) -> StepStatus {
        StepStatus { progress: Some(Progress { bytes, total, ..Progress::default() }), ..step }
    }

    #[test]
    fn steps_count_by_how_long_they_usually_take() {
        use StepState as S;
        let (short, long) = (Some((SECOND, false)), Some((99 * SECOND, true)));
        let of = |states: [(S, Option<(Millis, bool)>); 2]| states.map(|(state, usual)| step(state, usual));
        let check = |steps: &[StepStatus], now: Millis, expect: u8| {
            assert_eq!(percent(RunState::Running, steps, now), expect, "{steps:#?}");
        };
        check(&[], 0, 0);
        check(&of([(S::Pending, None), (S::Pending, None)]), 0, 0);
        // Without times, all steps are equal.
        check(&of([(S::Succeeded, None), (S::Running, None)]), 0, 50);
        check(&of([(S::Succeeded, short), (S::Running, long)]), 0, 1);
        check(&of([(S::Succeeded, long), (S::Running, short)]), 0, 99);
        // One of which nothing is known counts as the median of the others.
        check(&of([(S::Succeeded, None), (S::Running, long)]), 0, 50);
        // By its own bytes, whatever the time.
        let [first, second] = of([(S::Succeeded, short), (S::Running, long)]);
        check(&[first.clone(), moved(50, Some(100), second.clone())], 1000 * SECOND, 50);
        check(&[first.clone(), moved(500, Some(100), second.clone())], 0, 99);
        // It says nothing yet, or how much there is to do is not known.
        check(&[first.clone(), second.clone()], 50 * SECOND, 1);
        check(&[first, moved(5, None, second)], 49 * SECOND, 49);
        // By time, if it moves nothing; never all of it.
        let [first, second] = of([(S::Running, Some((10 * SECOND, false))), (S::Pending, Some((10 * SECOND, true)))]);
        check(&[first.clone(), second.clone()], 5 * SECOND, 25);
        check(&[first.clone(), second.clone()], 500 * SECOND, 47);
        // Where it stopped.
        let failed = StepStatus { state: S::Failed, finished_at: Some(5 * SECOND), ..first };
        assert_eq!(percent(RunState::Failed, &[failed, step(S::Skipped, None)], 900 * SECOND), 25);
        assert_eq!(percent(RunState::Succeeded, &of([(S::Succeeded, None), (S::Succeeded, None)]), 0), 100);
        check(&of([(S::Succeeded, None), (S::Succeeded, None)]), 0, 99);
        // Whatever machines say.
        check(&[moved(u64::MAX, Some(1), step(S::Running, Some((u64::MAX, true))))], u64::MAX, 99);
    }

    #[test]
    fn it_never_gets_less_until_something_begins_again() {
        use StepState as S;
        let of = |progress: Option<(u64, Option<u64>)>, usual| {
            let running = step(S::Running, usual);
            progress.map_or(running.clone(), |(bytes, total)| moved(bytes, total, running))
        };
        for usual in [None, Some((10 * SECOND, false)), Some((10 * SECOND, true))] {
            let reports = [None, None, Some((0, Some(100))), Some((7, Some(100))), Some((99, Some(100)))];
            let mut before = 0;
            for (seconds, progress) in (1..).zip(reports) {
                let steps = [of(progress, usual), step(S::Pending, Some((SECOND, false)))];
                let found = percent(RunState::Running, &steps, seconds * SECOND);
                assert!(found >= before, "{usual:?} {progress:?}: {found} after {before}");
                before = found;
            }
            let ended = [step(S::Succeeded, usual), step(S::Running, Some((SECOND, false)))];
            assert!(percent(RunState::Running, &ended, 6 * SECOND) >= before);
        }
    }
}
