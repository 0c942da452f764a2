//! What comes next to switch a machine, derived from what was asked for and whether the machine is on.

use slipway_protocol::{PowerAct, PowerActState, PowerState};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The act gets this state, in which the machine was not told anything yet.
    Enter(PowerActState),
    /// The machine is told to be on or off.
    Tell(PowerState),
    /// The machine was told, and is not yet as it was told to be.
    Wait(PowerState),
    /// The act is done.
    Done,
}

/// Returns what comes next for an act in this state. `is` says whether the machine is on, as far as its provider can
/// tell. `is_told` says whether the machine was told since the act got this state.
pub fn next(act: PowerAct, state: PowerActState, is: Option<PowerState>, is_told: bool) -> Next {
    match state {
        PowerActState::Asked => first(act, is),
        PowerActState::SwitchingOff => match (is, is_told) {
            (Some(PowerState::Off), _) | (None, true) => match act {
                PowerAct::Off | PowerAct::Status => Next::Done,
                PowerAct::On | PowerAct::Cycle | PowerAct::Boot => Next::Enter(PowerActState::SwitchingOn),
            },
            (Some(PowerState::On), true) => Next::Wait(PowerState::Off),
            (_, false) => Next::Tell(PowerState::Off),
        },
        PowerActState::SwitchingOn => match (is, is_told) {
            // A server that was killed may have told it.
            (Some(PowerState::On), _) | (None, true) => Next::Done,
            (Some(PowerState::Off), true) => Next::Wait(PowerState::On),
            (_, false) => Next::Tell(PowerState::On),
        },
        PowerActState::Done | PowerActState::Failed | PowerActState::Withdrawn => Next::Done,
    }
}

fn first(act: PowerAct, is: Option<PowerState>) -> Next {
    match (act, is) {
        (PowerAct::Status, _) => Next::Done,
        (PowerAct::Off, _) => Next::Enter(PowerActState::SwitchingOff),
        // What cannot tell whether the machine is on, such as wake-on-LAN, cannot switch it off either.
        (PowerAct::Cycle, Some(PowerState::On) | None) | (PowerAct::Boot, Some(PowerState::On)) => {
            Next::Enter(PowerActState::SwitchingOff)
        }
        (PowerAct::On, _) | (PowerAct::Cycle, Some(PowerState::Off)) | (PowerAct::Boot, _) => {
            Next::Enter(PowerActState::SwitchingOn)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does an act on a machine that obeys at once, and returns what the machine was told. `can_tell` says whether its
    /// provider knows whether it is on.
    fn told(act: PowerAct, mut is: PowerState, can_tell: bool) -> Vec<PowerState> {
        let (mut state, mut is_told, mut told) = (PowerActState::Asked, false, Vec::new());
        for _ in 0..20 {
            match next(act, state, Some(is).filter(|_| can_tell), is_told) {
                Next::Enter(entered) => (state, is_told) = (entered, false),
                Next::Tell(to) => {
                    told.push(to);
                    (is, is_told) = (to, true);
                }
                Next::Wait(_) => panic!("it obeys at once"),
                Next::Done => return told,
            }
        }
        panic!("{act:?} does not end");
    }

    #[test]
    fn a_machine_is_told_no_more_than_it_takes() {
        use PowerAct::{Boot, Cycle, Status};
        use PowerState::{Off, On};
        let table: [(PowerAct, PowerState, &[PowerState], &[PowerState]); 10] = [
            (PowerAct::On, Off, &[On], &[On]),
            (PowerAct::On, On, &[], &[On]),
            (PowerAct::Off, Off, &[], &[Off]),
            (PowerAct::Off, On, &[Off], &[Off]),
            (Cycle, Off, &[On], &[Off, On]),
            (Cycle, On, &[Off, On], &[Off, On]),
            (Boot, Off, &[On], &[On]),
            (Boot, On, &[Off, On], &[On]),
            (Status, Off, &[], &[]),
            (Status, On, &[], &[]),
        ];
        for (act, is, known, unknown) in table {
            assert_eq!(told(act, is, true), known, "{act:?} of a machine that is {is}");
            assert_eq!(told(act, is, false), unknown, "{act:?} of a machine of which nobody can tell");
        }
    }

    #[test]
    fn a_machine_that_does_not_obey_at_once_is_waited_for() {
        let (off, on) = (PowerActState::SwitchingOff, PowerActState::SwitchingOn);
        assert_eq!(next(PowerAct::Cycle, off, Some(PowerState::On), true), Next::Wait(PowerState::Off));
        assert_eq!(next(PowerAct::Cycle, on, Some(PowerState::Off), true), Next::Wait(PowerState::On));
        assert_eq!(next(PowerAct::Cycle, on, Some(PowerState::On), false), Next::Done, "told by a server that is gone");
    }
}
