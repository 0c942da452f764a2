use std::collections::BTreeMap;

use slipway_protocol::node::boot_report::MAINTENANCE;
use slipway_protocol::{
    BootFetch, BootFilesFetched, BootReport, BootStage, BootStatus, BootWay, Identity, Progress, Stage,
};

use super::*;
use crate::rules::limits::{Change, LIMITS};

const SECOND: Millis = 1000;
const MINUTE: Millis = 60 * SECOND;
/// When everything in these tests began. Servers have listened since before.
const BEGAN: Millis = 1_000_000_000;

fn step(name: &str, state: StepState) -> StepStatus {
    StepStatus {
        name: name.to_owned(),
        action: name.to_owned(),
        state,
        attempt: u32::from(state != StepState::Pending),
        started_at: (state != StepState::Pending).then_some(BEGAN),
        finished_at: None,
        progressed_at: None,
        usual: None,
        progress: None,
        notes: Vec::new(),
        outcome: None,
        failure: None,
    }
}

/// A run of one step in this state.
fn run(state: RunState, first: StepState) -> RunStatus {
    RunStatus {
        id: "r".to_owned(),
        node: "0123".to_owned(),
        state,
        percent: 0,
        created_at: BEGAN,
        started_at: (state != RunState::Pending).then_some(BEGAN),
        restored: false,
        finished_at: (state == RunState::Succeeded).then_some(BEGAN),
        phoned_home_at: None,
        last_contact_at: None,
        begins: 1,
        phone_home: BTreeMap::new(),
        os: None,
        afterwards: None,
        done: 0,
        image: None,
        steps: vec![step("stream-image", first)],
        external_steps: Vec::new(),
        boot: None,
    }
}

/// A node that was last heard from when everything began.
fn node(state: NodeState, run: Option<RunStatus>) -> NodeStatus {
    let (name, last_seen) = (Some("web1".to_owned()), Some(BEGAN));
    NodeStatus { name, last_seen, run, ..NodeStatus::new("0123".to_owned(), state, Identity::default()) }
}

fn pending() -> NodeStatus {
    node(NodeState::Enrolled, Some(run(RunState::Pending, StepState::Pending)))
}

/// A node in a step. It is heard from all the time.
fn installing() -> NodeStatus {
    let node = node(NodeState::Installing, Some(run(RunState::Running, StepState::Running)));
    NodeStatus { last_seen: Some(BEGAN + 1000 * MINUTE), ..node }
}

fn booting() -> NodeStatus {
    node(NodeState::Booting, Some(run(RunState::Succeeded, StepState::Succeeded)))
}

fn with_run(mut node: NodeStatus, change: impl FnOnce(&mut RunStatus)) -> NodeStatus {
    change(node.run.as_mut().expect("a run"));
    node
}

/// A node that has fetched boot files since it was last heard from.
fn fetched(node: NodeStatus) -> NodeStatus {
    let file = BootFetch {
        at: BEGAN,
        file: "x86_64/slipway.efi".to_owned(),
        bytes: 1,
        way: BootWay::Tftp,
        address: "192.0.2.7".to_owned(),
    };
    NodeStatus { boot_files_fetched: Some(BootFilesFetched { files: vec![file], silent_since: None }), ..node }
}

fn boot(boots: u32, state: &str, failed: &[&str]) -> BootStatus {
    let report = BootReport {
        stage: BootStage::Booting,
        boot_id: "b".to_owned(),
        system_state: Some(state.to_owned()),
        failed_units: failed.iter().map(|unit| (*unit).to_owned()).collect(),
    };
    BootStatus { report, boots, first_at: BEGAN, at: BEGAN }
}

fn external(status: ExternalStepStatus, begins: u32) -> ExternalStep {
    ExternalStep {
        name: "packages".to_owned(),
        label: None,
        priority: 100,
        status: Some(status),
        percent: None,
        unknown: false,
        reports: 9,
        begins,
        first_at: BEGAN,
        updated_at: BEGAN,
        logs: String::new(),
    }
}

fn claim(reason: ClaimReason, asked: Millis) -> Claim {
    Claim {
        code: "ABC123".to_owned(),
        reason,
        node: Some("web1".to_owned()),
        address: "192.0.2.7".to_owned(),
        identity: Identity::default(),
        shared: Vec::new(),
        tpm: None,
        first_asked: BEGAN,
        last_asked: asked,
    }
}

fn found(node: &NodeStatus, known: &Known, now: Millis) -> Vec<Flag> {
    flags(node, known, &Limits::default(), now)
}

/// Checks that there is no trouble until `after` milliseconds have passed, and then just this: kind, severity, reason,
/// a part of the cause, and the command.
fn check(node: &NodeStatus, known: &Known, after: Millis, expect: (FlagKind, Severity, &str, &str, &str)) {
    assert_eq!(found(node, known, BEGAN + after - 1), [], "before");
    check_now(node, known, BEGAN + after, expect);
}

fn check_now(node: &NodeStatus, known: &Known, now: Millis, expect: (FlagKind, Severity, &str, &str, &str)) {
    let (kind, severity, reason, cause, command) = expect;
    let flags = found(node, known, now);
    let [flag] = flags.as_slice() else { panic!("{reason}: {flags:#?}") };
    assert_eq!((flag.kind, flag.severity, flag.reason.as_str(), flag.since), (kind, severity, reason, BEGAN));
    assert!(flag.cause.contains(cause), "{flag:?}");
    assert_eq!(flag.command, format!("slipway-server {command}"));
    let is_measured = matches!(kind, FlagKind::Silent | FlagKind::Stuck | FlagKind::Looping | FlagKind::Slow);
    let limit = flag.limit.as_deref();
    assert_eq!(LIMITS.iter().any(|known| Some(known.name) == limit), is_measured, "{limit:?}");
}

const NOTHING: &Known = &Known {
    heard_since: 0,
    has_left: false,
    boots: Often { times: 0, since: 0 },
    runs: 0,
    keys: Often { times: 0, since: 0 },
    refused: None,
    usual: None,
};

#[test]
fn an_ephemeral_node_that_is_installed_again_and_again_is_looping() {
    let known = |runs| Known { runs, boots: Often { times: runs, since: BEGAN }, ..Known::default() };
    let up = node(NodeState::Running, Some(run(RunState::Succeeded, StepState::Succeeded)));
    let ephemeral = NodeStatus { class: NodeClass::Ephemeral, ..up.clone() };
    assert_eq!(found(&ephemeral, &known(2), BEGAN + MINUTE), []);
    assert_eq!(found(&up, &known(3), BEGAN + MINUTE), []);
    let command = "events --node web1 --kind enrolled,run-started";
    let expect = (FlagKind::Looping, Severity::Bad, "took 3 runs within an hour", "check the boot order", command);
    check_now(&ephemeral, &known(3), BEGAN + MINUTE, expect);

    let back = NodeStatus { came_back_at: Some(BEGAN), ..ephemeral };
    let reason = "booted slipway again, and was not reinstalled";
    let command = "events --node web1 --kind run-refused,state";
    let expect = (FlagKind::CameBack, Severity::Bad, reason, "it proved too little", command);
    check_now(&back, &known(1), BEGAN + MINUTE, expect);
}

#[test]
fn the_silence_of_a_spot_node_is_no_trouble() {
    let silent = NodeStatus { last_seen: Some(BEGAN), ..installing() };
    for node in [silent, booting(), fetched(node(NodeState::Enrolled, None))] {
        let later = BEGAN + 100 * MINUTE;
        assert_ne!(found(&node, &Known::default(), later), [], "{:?}", node.state);
        let spot = NodeStatus { class: NodeClass::Spot, ..node };
        assert_eq!(found(&spot, &Known::default(), later), [], "{:?}", spot.state);
    }
    // Somebody waits for its run.
    let waits = NodeStatus { class: NodeClass::Spot, ..pending() };
    assert_eq!(found(&waits, &Known::default(), BEGAN + 1000 * MINUTE).len(), 1);
}

#[test]
fn a_machine_that_should_be_heard_from_is_silent() {
    use FlagKind::Silent;
    let log = "node log web1";
    let in_step = node(NodeState::Installing, Some(run(RunState::Running, StepState::Running)));
    let reason = "has been silent in step 1/1 stream-image";
    check(&in_step, NOTHING, 17 * SECOND, (Silent, Severity::Bad, reason, "power-cycle it", log));
    // Its step is not said to be stuck, too.
    check_now(&in_step, NOTHING, BEGAN + 500 * MINUTE, (Silent, Severity::Bad, reason, "power-cycle it", log));
    let events = "events --node web1";
    let waits = "has been silent while it waited for work";
    for state in [NodeState::Enrolled, NodeState::Failed, NodeState::Installed] {
        check(&node(state, None), NOTHING, 5 * MINUTE, (Silent, Severity::Warn, waits, "switched off", events));
    }
    let failed = run(RunState::Failed, StepState::Failed);
    let failed = node(NodeState::Failed, Some(failed));
    check(&failed, NOTHING, 5 * MINUTE, (Silent, Severity::Warn, waits, "switched off", events));
    let held = NodeStatus { claims: vec![claim(ClaimReason::NotReleased, BEGAN)], ..node(NodeState::Held, None) };
    let waits = "has been silent while it waited to be let in";
    check(&held, NOTHING, 5 * MINUTE, (Silent, Severity::Warn, waits, "switched off", events));
    let waits = "has been silent between two steps";
    let between = run(RunState::Running, StepState::Succeeded);
    let between = node(NodeState::Installing, Some(between));
    check(&between, NOTHING, 5 * MINUTE, (Silent, Severity::Warn, waits, "switched off", events));
}

#[test]
fn nobody_waits_for_a_machine_that_left_or_was_never_there() {
    let long = BEGAN + 10_000 * MINUTE;
    let left = Known { has_left: true, ..NOTHING.clone() };
    assert_eq!(found(&node(NodeState::Installed, None), &left, long), []);
    // A run that was started on a running system, and cancelled.
    let cancelled = run(RunState::Failed, StepState::Failed);
    assert_eq!(found(&node(NodeState::Enrolled, Some(cancelled)), &left, long), []);
    let rebooted = with_run(node(NodeState::Installed, booting().run), |run| {
        run.steps.push(step("reboot", StepState::Succeeded));
    });
    assert_eq!(found(&rebooted, NOTHING, long), [], "it came back once, and may run its system by now");
    for state in [NodeState::Registered, NodeState::Running, NodeState::Decommissioned] {
        assert_eq!(found(&node(state, None), NOTHING, long), [], "{state:?}");
    }
    let deaf = Known { heard_since: long - SECOND, ..NOTHING.clone() };
    for node in [node(NodeState::Enrolled, None), pending(), booting()] {
        assert_eq!(found(&node, &deaf, long), [], "no server ran");
    }
}

#[test]
fn what_does_not_get_on_is_stuck() {
    use FlagKind::Stuck;
    const BAD: Severity = Severity::Bad;
    let show = "node show web1";
    let reason = "has not fetched its run";
    check(&pending(), NOTHING, 15 * MINUTE, (Stuck, BAD, reason, "was not restarted", show));
    let there = NodeStatus { last_seen: Some(BEGAN + 14 * MINUTE + MINUTE / 2), ..pending() };
    check(&there, NOTHING, 15 * MINUTE, (Stuck, BAD, reason, "proved less than its run requires", show));
    for node in [pending(), installing(), node(NodeState::Installing, Some(run(RunState::Running, StepState::Running)))]
    {
        let restored = with_run(node, |run| run.restored = true);
        assert_eq!(found(&restored, NOTHING, BEGAN + 60 * MINUTE), [], "an operator must confirm it");
    }

    let fetched = fetched(pending());
    let reason = "has been silent after fetching its boot files";
    check(&fetched, NOTHING, 15 * MINUTE, (Stuck, BAD, reason, "look at its console", "status web1"));

    let log = "node log web1";
    let unbegun = with_run(installing(), |run| run.steps = vec![step("stream-image", StepState::Pending)]);
    check(&unbegun, NOTHING, 5 * MINUTE, (Stuck, BAD, "has not begun its run", "looks for disks", log));

    let reason = "has made no progress in step 1/1 stream-image";
    let streaming = with_run(installing(), |run| {
        let progress = Progress { waiting_for: Some(Stage::Fetch), ..Progress::default() };
        (run.steps[0].progress, run.steps[0].progressed_at) = (Some(progress), Some(BEGAN));
    });
    check(&streaming, NOTHING, 5 * MINUTE, (Stuck, BAD, reason, "waits for the download", log));
    let flags = found(&streaming, NOTHING, BEGAN + 5 * MINUTE);
    assert_eq!(flags[0].step.as_deref(), Some("stream-image"));
    for (action, minutes) in [("partition", 10), ("erase-disk", 60), ("run-in-target", 30), ("encrypt-root", 60)] {
        let other = with_run(installing(), |run| run.steps = vec![step(action, StepState::Running)]);
        let reason = format!("has made no progress in step 1/1 {action}");
        check(&other, NOTHING, minutes * MINUTE, (Stuck, BAD, &reason, "waits for a disk", log));
    }

    let reason = "has not reported from its installed system";
    let events = "events --node web1";
    check(&booting(), NOTHING, 15 * MINUTE, (Stuck, BAD, reason, "did not start from the disk", events));
    let host_log = "node log web1 --kind host_boot";
    let starting = with_run(booting(), |run| run.boot = Some(boot(1, "starting", &[])));
    let reason = "has not finished starting its installed system";
    check(&starting, NOTHING, 15 * MINUTE, (Stuck, BAD, reason, "a unit takes long", host_log));

    let begun = with_run(node(NodeState::Running, booting().run), |run| {
        run.external_steps = vec![external(ExternalStepStatus::Init, 1)];
    });
    let reason = "has not reported the external step packages again";
    let events = "events --node web1 --kind external-step,report-refused";
    check(&begun, NOTHING, 15 * MINUTE, (Stuck, Severity::Warn, reason, "hangs", events));
    let done = with_run(begun, |run| run.external_steps = vec![external(ExternalStepStatus::Done, 1)]);
    assert_eq!(found(&done, NOTHING, BEGAN + 60 * MINUTE), []);
}

#[test]
fn what_happens_again_and_again_loops() {
    use FlagKind::Looping;
    const BAD: Severity = Severity::Bad;
    let begun = |begins| with_run(installing(), |run| run.begins = begins);
    assert_eq!(found(&begun(2), NOTHING, BEGAN), []);
    let events = "events --node web1 --kind restarted,step-started";
    check_now(&begun(3), NOTHING, BEGAN, (Looping, BAD, "began its run 3 times", "restarts in the middle", events));

    let often = |times| Often { times, since: BEGAN };
    let keys = |times| Known { keys: often(times), boots: often(times), ..NOTHING.clone() };
    assert_eq!(found(&installing(), &keys(2), BEGAN), []);
    let events = "events --node web1 --kind key-changed,enrolled";
    let expect = (Looping, BAD, "had 3 new keys within an hour", "two machines have the same identifiers", events);
    check_now(&installing(), &keys(3), BEGAN, expect);
    let boots = |times| Known { boots: often(times), ..NOTHING.clone() };
    assert_eq!(found(&installing(), &boots(2), BEGAN), []);
    let events = "events --node web1 --kind enrolled,run-ended";
    let expect = (Looping, BAD, "started slipway 3 times within an hour", "boot order", events);
    check_now(&installing(), &boots(3), BEGAN, expect);
    // Each run that is fetched explains a start.
    let for_runs = |times| Known { runs: 2, ..keys(times) };
    assert_eq!(found(&installing(), &for_runs(4), BEGAN), []);
    let for_runs = |times| Known { runs: 2, ..boots(times) };
    let expect = (Looping, BAD, "started slipway 5 times within an hour, 2 of them for runs", "boot order", events);
    check_now(&installing(), &for_runs(5), BEGAN, expect);

    let booted = |boots| with_run(booting(), |run| run.boot = Some(boot(boots, "starting", &[])));
    assert_eq!(found(&booted(2), NOTHING, BEGAN), []);
    let host_log = "node log web1 --kind host_boot";
    let expect = (Looping, BAD, "started its installed system 3 times", "restarts before it is up", host_log);
    check_now(&booted(3), NOTHING, BEGAN, expect);
    let slowly = with_run(booted(3), |run| {
        let boot = run.boot.as_mut().expect("a boot");
        boot.first_at = BEGAN - 2 * WINDOW;
    });
    assert_eq!(found(&slowly, NOTHING, BEGAN), [], "not so many in an hour");

    let repeated =
        |begins| with_run(booting(), |run| run.external_steps = vec![external(ExternalStepStatus::Init, begins)]);
    assert_eq!(found(&repeated(2), NOTHING, BEGAN), []);
    let events = "events --node web1 --kind external-step";
    let reason = "began the external step packages 3 times";
    check_now(&repeated(3), NOTHING, BEGAN, (Looping, Severity::Warn, reason, "started again", events));
    let daily = with_run(repeated(3), |run| run.external_steps[0].status = Some(ExternalStepStatus::Done));
    assert_eq!(found(&daily, NOTHING, BEGAN), [], "it ends each time");
}

#[test]
fn a_machine_whose_system_runs_is_out_of_its_loop() {
    let many = Often { times: 100, since: BEGAN };
    let known = Known { boots: many, keys: many, ..NOTHING.clone() };
    assert_eq!(found(&node(NodeState::Enrolled, None), &known, BEGAN).len(), 1);
    assert_eq!(found(&node(NodeState::Running, None), &known, BEGAN), []);
}

#[test]
fn a_step_that_takes_twice_the_median_is_slow() {
    let times: Vec<(Millis, u64)> = [10, 30, 20, 50, 40].map(|seconds| (seconds * SECOND, 60_000_000)).into();
    let median = usual(&times);
    assert_eq!(median, Some(Usual { runs: 5, millis: 30 * SECOND, rate: Some(2_000_000) }));
    assert_eq!(usual(&[]), None);
    assert_eq!(usual(&[(5, 0)]), Some(Usual { runs: 1, millis: 5, rate: None }));
    let known = Known { usual: median, ..NOTHING.clone() };
    let moving = |bytes| {
        with_run(installing(), |run| {
            let step = &mut run.steps[0];
            step.progress = Some(Progress { bytes, ..Progress::default() });
            step.progressed_at = Some(BEGAN + 1000 * MINUTE);
        })
    };
    let now = BEGAN + 100 * SECOND;
    assert_eq!(found(&moving(100_000_000), &known, now), [], "half of the usual rate");
    let reason = "is slow in step 1/1 stream-image: 976.6 KiB/s, where 1.9 MiB/s is usual";
    let expect = (FlagKind::Slow, Severity::Warn, reason, "slower than those of other machines", "run compare web1");
    check_now(&moving(99_999_900), &known, now, expect);
    assert_eq!(found(&moving(1), &known, BEGAN + 30 * SECOND), [], "it has only begun");
    let again = with_run(moving(1), |run| run.steps[0].attempt = 2);
    assert_eq!(found(&again, &known, now), [], "the times are of all attempts");
    let four = Known { usual: usual(&times[..4]), ..NOTHING.clone() };
    assert_eq!(found(&moving(1), &four, now), [], "four runs are too few");

    let still = Known { usual: Some(Usual { runs: 5, millis: MINUTE, rate: None }), ..NOTHING.clone() };
    assert_eq!(found(&installing(), &still, BEGAN + 2 * MINUTE), []);
    let reason = "is slow in step 1/1 stream-image, which usually takes 1 min 0 s";
    let expect = (FlagKind::Slow, Severity::Warn, reason, "slower", "run compare web1");
    check_now(&installing(), &still, BEGAN + 2 * MINUTE + 1, expect);
}

#[test]
fn other_trouble_is_told_as_long_as_it_lasts() {
    let came_back = NodeStatus { came_back_at: Some(BEGAN), ..booting() };
    let reason = "booted slipway again instead of the installed system";
    let expect = (FlagKind::CameBack, Severity::Bad, reason, "boot order", "status web1");
    check_now(&came_back, NOTHING, BEGAN + 500 * MINUTE, expect);

    let claimed = |reason, asked| NodeStatus { claims: vec![claim(reason, asked)], ..installing() };
    let now = BEGAN + 10 * MINUTE;
    let long = Known { usual: None, ..NOTHING.clone() };
    let progressing = |node| with_run(node, |run| run.steps[0].progressed_at = Some(now));
    let contested = progressing(claimed(ClaimReason::KeyInUse, now - WAITS));
    let reason = "is claimed by a machine at 192.0.2.7 with claim code ABC123, which is not let in: the node's current \
                  machine was heard from a moment ago";
    let expect = (FlagKind::Contested, Severity::Bad, reason, "compare both", "status web1");
    check_now(&contested, &long, now, expect);
    for calm in [claimed(ClaimReason::KeyInUse, now - WAITS - 1), claimed(ClaimReason::NotReleased, now)] {
        assert_eq!(found(&progressing(calm), &long, now), []);
    }

    let running = |failed: &[&str], state| {
        with_run(node(NodeState::Running, booting().run), |run| run.boot = Some(boot(1, state, failed)))
    };
    assert_eq!(found(&running(&[], "running"), NOTHING, now), []);
    let reason = "has failed units in its installed system: a.service, b.mount, c.socket and 1 more";
    let host_log = "node log web1 --kind host_boot";
    let four = running(&["a.service", "b.mount", "c.socket", "d.timer"], "degraded");
    check_now(&four, NOTHING, now, (FlagKind::Degraded, Severity::Warn, reason, "the log of the boot", host_log));
    let reason = "stopped in the emergency or rescue shell";
    let shell = running(&["b.mount"], MAINTENANCE);
    check_now(&shell, NOTHING, now, (FlagKind::Degraded, Severity::Bad, reason, "the log of the boot", host_log));

    let refused = Refused { since: BEGAN, at: BEGAN + 5, message: "phone home: the run is over".to_owned() };
    let known = Known { refused: Some(refused), ..NOTHING.clone() };
    let reason = "sent a report that was not accepted: phone home: the run is over";
    let events = "events --node web1 --kind report-refused";
    let expect = (FlagKind::ReportRefused, Severity::Warn, reason, "earlier run", events);
    check_now(&booting(), &known, BEGAN + 6, expect);
    let accepted = with_run(booting(), |run| run.last_contact_at = Some(BEGAN + 5));
    assert_eq!(found(&accepted, &known, BEGAN + 6), []);
}

#[test]
fn the_worst_comes_first() {
    let node = with_run(node(NodeState::Installing, Some(run(RunState::Running, StepState::Running))), |run| {
        run.external_steps = vec![external(ExternalStepStatus::Init, 5)];
        run.begins = 5;
    });
    let kinds: Vec<_> =
        found(&node, NOTHING, BEGAN + 60 * MINUTE).iter().map(|flag| (flag.severity, flag.kind)).collect();
    use FlagKind as K;
    use Severity as S;
    let expect = [(S::Bad, K::Silent), (S::Bad, K::Looping), (S::Warn, K::Stuck), (S::Warn, K::Looping)];
    assert_eq!(kinds, expect);
}

#[test]
fn a_run_ends_only_by_a_limit_that_was_set() {
    let now = BEGAN + 60 * MINUTE;
    let unbegun = with_run(installing(), |run| run.steps = vec![step("stream-image", StepState::Pending)]);
    let silent = node(NodeState::Installing, Some(run(RunState::Running, StepState::Running)));
    let table = [
        (pending(), "stuck.pending", "the machine did not fetch the run within 1 h 0 min"),
        (unbegun, "stuck.enrolled", "the run did not begin within 1 h 0 min after it was fetched"),
        (installing(), "stuck.step", "the step made no progress for 1 h 0 min"),
        (installing(), "stuck.step.stream-image", "the step made no progress for 1 h 0 min"),
        (silent, "silent.step", "nothing was heard from the machine for 1 h 0 min"),
    ];
    for (node, name, reason) in table {
        assert_eq!(end(&node, NOTHING, &Limits::default(), now), None, "{name}");
        let change = Change { flag_after: None, end_after: Some(60 * 60) };
        let limits = Limits { site: [(name.to_owned(), change)].into(), ..Limits::default() };
        assert_eq!(end(&node, NOTHING, &limits, now - 1), None, "{name}");
        assert_eq!(end(&node, NOTHING, &limits, now).as_deref(), Some(reason), "{name}");
        let deaf = Known { heard_since: now - 1, ..NOTHING.clone() };
        assert_eq!(end(&node, &deaf, &limits, now), None, "{name}");
        let restored = with_run(node, |run| run.restored = true);
        assert_eq!(end(&restored, NOTHING, &limits, now), None, "{name}");
    }
}
