use slipway_protocol::{Failure, Identity, Stage};

use super::*;

fn step(action: &str, state: StepState) -> StepStatus {
    StepStatus {
        name: action.to_owned(),
        action: action.to_owned(),
        state,
        attempt: 1,
        started_at: None,
        finished_at: None,
        progressed_at: None,
        usual: None,
        progress: None,
        notes: Vec::new(),
        outcome: None,
        failure: None,
    }
}

fn node(state: NodeState, steps: Vec<StepStatus>) -> NodeStatus {
    NodeStatus {
        name: Some("web1".to_owned()),
        released: true,
        last_seen: Some(100_000),
        run: Some(RunStatus {
            id: "r".to_owned(),
            node: "0123".to_owned(),
            state: match state {
                NodeState::Installing => RunState::Running,
                NodeState::Enrolled | NodeState::Failed => RunState::Failed,
                _ => RunState::Succeeded,
            },
            percent: 0,
            created_at: 10_000,
            started_at: None,
            restored: false,
            finished_at: None,
            phoned_home_at: None,
            last_contact_at: None,
            begins: 1,
            phone_home: Default::default(),
            os: None,
            afterwards: None,
            done: 0,
            image: None,
            steps,
            external_steps: Vec::new(),
            boot: None,
        }),
        ..NodeStatus::new("0123".to_owned(), state, Identity::default())
    }
}

fn check(node: NodeStatus, expect: &[&str]) {
    let table = status_table(&[&node], in_words, 200, 103_000);
    let row = table.lines().nth(1).expect("one row");
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells, expect, "{table}");
}

#[test]
fn the_table_shows_the_step_a_machine_is_in() {
    let mut stream = step("stream-image", StepState::Running);
    stream.progress = Some(Progress { bytes: 3 << 19, total: Some(3 << 20), rate: 250 << 10, ..Progress::default() });
    stream.notes.push("/dev/sda, the only disk".to_owned());
    let mut node = node(NodeState::Installing, vec![step("erase-disk", StepState::Succeeded), stream]);
    node.run.as_mut().unwrap().percent = 7;
    let progress = "7 % · 2/2 50 % of 3 MiB, 250 KiB/s";
    let expect = ["web1", "installing", "stream-image", progress, "3 s ago", "1 min 33 s", "/dev/sda, the only disk"];
    check(node, &expect);
}

#[test]
fn progress_shows_what_is_known() {
    let check = |progress: &Progress, expect: &str| assert_eq!(in_words(progress), expect);
    let mut progress = Progress { bytes: 3 << 19, rate: 250 << 10, ..Progress::default() };
    check(&progress, "1.5 MiB, 250 KiB/s");
    (progress.fetched, progress.waiting_for) = (400 << 10, Some(Stage::Fetch));
    check(&progress, "1.5 MiB, transferred 400 KiB, 250 KiB/s, waiting for the download");
    (progress.fetch_total, progress.seconds_left) = (Some(1000 << 10), Some(75));
    let words = "1.5 MiB, transferred 40 % of 1000 KiB, 250 KiB/s, 1 min 15 s left, waiting for the download";
    check(&progress, words);
    progress.total = Some(3 << 20);
    check(&progress, &words.replacen("1.5 MiB", "50 % of 3 MiB", 1));
    // A node may send any value.
    progress.seconds_left = Some(u64::MAX);
    assert!(in_words(&progress).contains(" d "), "{}", in_words(&progress));
}

#[test]
fn a_machine_by_itself_is_shown_with_its_reports() {
    let mut node = node(NodeState::Running, Vec::new());
    assert_eq!(contacts(&node, 103_000), None);
    let run = node.run.as_mut().expect("a run");
    (run.phoned_home_at, run.last_contact_at) = (Some(40_000), Some(100_000));
    run.phone_home.insert("pub_key_rsa".to_owned(), "x".to_owned());
    let expect =
        "\nThe system first reported 1 min 3 s ago and last reported 3 s ago.\n  pub_key_rsa: not a public key\n";
    assert_eq!(contacts(&node, 103_000).as_deref(), Some(expect));
}

#[test]
fn the_table_shows_why_a_run_failed() {
    let mut erase = step("erase-disk", StepState::Failed);
    let causes = vec!["opening /dev/sda".to_owned(), "no such device".to_owned()];
    erase.failure = Some(Failure { reason: "erasing".to_owned(), causes, log_tail: Vec::new() });
    let node = node(NodeState::Failed, vec![erase, step("reboot", StepState::Skipped)]);
    let text = one(&node, None, 103_000);
    assert!(
        text.contains("\nStep 1/2 erase-disk: erasing\n  because: opening /dev/sda\n  because: no such device\n"),
        "{text}"
    );
    check(node, &["web1", "failed", "erase-disk", "1/2", "3 s ago", "1 min 33 s", "erasing: no such device"]);
}

#[test]
fn a_run_that_was_cancelled_before_its_first_step_shows_none() {
    let mut erase = StepStatus { attempt: 0, ..step("erase-disk", StepState::Failed) };
    erase.failure = Some(Failure { reason: "cancelled".to_owned(), causes: Vec::new(), log_tail: Vec::new() });
    let node = node(NodeState::Enrolled, vec![erase, step("reboot", StepState::Skipped)]);
    check(node, &["web1", "enrolled", "-", "0/2", "3 s ago", "1 min 33 s", "cancelled"]);
}

#[test]
fn the_table_shows_the_installed_system_once_the_installer_is_left() {
    let mut reboot = step("reboot", StepState::Succeeded);
    reboot.notes.push("ready to leave".to_owned());
    let said = |state| status_table(&[&node(state, vec![reboot.clone()])], in_short, 200, 103_000);
    assert!(said(NodeState::Installing).contains("ready to leave"));
    assert!(said(NodeState::Booting).contains("waiting for the installed system to report"));
    assert!(said(NodeState::Running).contains("the installed system has reported"));
}

#[test]
fn a_run_that_no_machine_has_fetched_is_not_said_to_be_in_a_step() {
    let mut waiting = node(NodeState::Enrolled, vec![step("erase-disk", StepState::Pending)]);
    waiting.run.as_mut().unwrap().state = RunState::Pending;
    // The machine asked for work a moment ago, or long ago.
    for (later, expect) in [(3_000, "the machine is in slipway"), (90_000, "waiting for the machine to boot slipway")] {
        let table = status_table(&[&waiting], in_short, 300, 100_000 + later);
        assert!(table.contains(" 0/1 ") && table.contains(expect), "{table}");
        assert!(!table.contains("erase-disk"), "{table}");
    }
    waiting.state = NodeState::Installed;
    let table = status_table(&[&waiting], in_short, 300, 103_000);
    assert!(table.contains("waiting for the machine to boot slipway"), "{table}");
}

#[test]
fn the_table_fits_the_terminal_and_leaves_out_what_is_out_of_service() {
    let mut stream = step("stream-image", StepState::Running);
    let progress = Progress { bytes: 1_500_000, total: Some(3_000_000), seconds_left: Some(12), ..Progress::default() };
    stream.progress = Some(Progress { rate: 250_000, fetched: 7, fetch_total: Some(9), ..progress });
    stream.notes.push("a".repeat(300));
    let machine = node(NodeState::Installing, vec![stream]);
    for width in [80, 120] {
        let table = status_table(&[&machine], in_short, width, 103_000);
        assert!(table.lines().all(|line| line.chars().count() <= width), "{table}");
        assert!(table.contains("0 % · 1/1 50 %, 12 s left ") && table.contains("aaa…"), "{table}");
    }
    let long = NodeStatus { name: Some("web1.rack12.fra.example".to_owned()), ..machine.clone() };
    let table = status_table(&[&long], in_short, 80, 103_000);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("installing  0 % · 1/1  aaa"), "{table}");
    let table = status_table(&[&machine], in_short, usize::MAX, 103_000);
    assert!(table.contains(&"a".repeat(300)), "{table}");
    let gone = NodeStatus { name: Some("gone".to_owned()), state: NodeState::Decommissioned, ..machine.clone() };
    let nodes = [machine, gone];
    let text = many(&nodes, false, 103_000);
    assert!(!text.contains("gone") && text.ends_with("not shown: 1 out of service (--all)\n"), "{text}");
    assert!(many(&nodes, true, 103_000).contains("gone"));
}

#[test]
fn a_machine_that_is_silent_or_came_back_is_said_to_be_so() {
    let mut machine = node(NodeState::Installing, vec![step("stream-image", StepState::Running)]);
    machine.silent_since = Some(88_000);
    let said = |node: &NodeStatus| status_table(&[node], in_short, 300, 103_000).contains("has been silent for 15 s");
    assert!(said(&machine));
    machine.silent_since = None;
    assert!(!said(&machine));
    let flag = |kind, severity, reason: &str| Flag {
        kind,
        severity,
        since: 43_000,
        step: None,
        limit: None,
        reason: reason.to_owned(),
        cause: "look".to_owned(),
        command: "slipway-server x web1".to_owned(),
    };
    let last = |node: &NodeStatus| status_table(&[node], in_short, 300, 103_000);
    let stuck = flag(FlagKind::Stuck, Severity::Bad, "has not begun");
    let came_back = flag(FlagKind::CameBack, Severity::Bad, "is back");
    let degraded = flag(FlagKind::Degraded, Severity::Warn, "has failed units");
    for (flag, expect) in [
        (&stuck, "  has not begun for 1 min 0 s → slipway-server x web1\n"),
        (&came_back, "  is back: look → slipway-server x web1\n"),
        (&degraded, "  has failed units → slipway-server x web1\n"),
    ] {
        machine.flags = vec![flag.clone()];
        assert!(last(&machine).ends_with(expect), "{}", last(&machine));
    }
    machine.flags = vec![stuck, degraded];
    let text = one(&machine, None, 103_000);
    let expect = "\nstuck, for 1 min 0 s: the machine has not begun\n  likely cause: look\n  \
                  next: slipway-server x web1\n\ndegraded, for ";
    assert!(text.contains(expect), "{text}");
    // The failure of a run is not hidden by what is less bad.
    machine.state = NodeState::Failed;
    machine.flags.remove(0);
    assert!(!last(&machine).contains("failed units"), "{}", last(&machine));
}

#[test]
fn what_a_machine_says_does_not_reach_the_terminal_as_it_is() {
    let mut stream = step("stream-image", StepState::Failed);
    let causes = vec!["a\x1b[2Jb\nforged: line".to_owned()];
    stream.failure = Some(Failure { reason: "c\x1b]0;d\x07".to_owned(), causes, log_tail: Vec::new() });
    let text = one(&node(NodeState::Failed, vec![stream]), None, 103_000);
    assert!(text.contains("because: a\\u{1b}[2Jb\\nforged: line\n"), "{text}");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}
