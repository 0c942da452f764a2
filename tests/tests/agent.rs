//! The agent of an installed system against the server: heartbeats, tasks, credentials. The system is a folder.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slipway_installer::agent::{self, Pace};
use slipway_installer::boot_report::{self, End, Surroundings};
use slipway_protocol::node::boot_report::places;
use slipway_protocol::{
    Agent, AgentAct, BootReporterConfig, FlagKind, NodeState, NodeStatus, Reboot, RunState, Step, TaskOptions,
    TaskState, TaskStatus,
};
use slipway_server::operate::{self, LogType, NewTask};
use slipway_server::rules::drain::{self, Recipe};
use slipway_server::store::{self, agents};
use slipway_tests::Lab;
use slipway_tests::system::{booting, program, system, with_units};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const PACE: Pace = Pace { second: Duration::from_millis(20) };

/// A machine whose system runs and has an agent with these commands.
struct Site {
    lab: Lab,
    root: PathBuf,
    surroundings: Surroundings,
    config: BootReporterConfig,
    agent: JoinHandle<()>,
}

impl Site {
    async fn with(tasks: &[(&str, &str)]) -> Self {
        let tasks = tasks.iter().map(|(name, command)| ((*name).to_owned(), (*command).to_owned())).collect();
        Self::of(Agent { tasks, ..Agent::default() }).await
    }

    async fn of(settings: Agent) -> Self {
        let lab = Lab::start().await;
        let config = booting(&lab, Some(settings)).await;
        let root = lab.folder.path().join("root");
        let surroundings = system(&root, &config);
        with_units(&root);
        fs::write(root.join("proc/uptime"), "100.00 200.00\n").unwrap();
        fs::write(root.join("state/system"), "running\n").unwrap();
        let pace = boot_report::Pace {
            look: Duration::from_millis(50),
            log: Duration::from_secs(600),
            lifetime: Duration::from_secs(60),
        };
        assert_eq!(boot_report::run(&config, &surroundings, pace).await.unwrap(), End::Healthy);
        assert!(!agent::has_begun(&config, &surroundings));
        let agent = start(&config, &surroundings);
        let site = Self { lab, root, surroundings, config, agent };
        site.lab.wait_for("heard of", |node| node.agent.is_some()).await;
        site
    }

    async fn stop(&self) {
        self.agent.abort();
        self.ended().await;
    }

    /// Waits until the agent has ended.
    async fn ended(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.agent.is_finished() {
            assert!(Instant::now() < deadline, "the agent goes on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts the agent again, as a service manager would.
    async fn restart(&mut self) {
        self.stop().await;
        self.agent = start(&self.config, &self.surroundings);
    }

    async fn ask(&self, name: &str, how: TaskOptions, limit: u32) -> TaskStatus {
        let new = NewTask { name: name.to_owned(), limit_seconds: Some(limit), how };
        operate::ask_task(&self.lab.store().await, "m1", new).await.unwrap()
    }

    async fn do_task(&self, name: &str) -> NodeStatus {
        let asked = self.ask(name, TaskOptions::default(), 20).await;
        self.lab.wait_for("done", |node| is_over(node, &asked)).await
    }

    async fn tasks(&self) -> Vec<TaskStatus> {
        operate::list_tasks(&self.lab.store().await, "m1").await.unwrap()
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.root.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

fn start(config: &BootReporterConfig, surroundings: &Surroundings) -> JoinHandle<()> {
    let (config, surroundings) = (config.clone(), surroundings.clone());
    tokio::spawn(async move {
        let settings = config.agent.clone().unwrap();
        agent::run(config, &settings, &surroundings, PACE).await.unwrap();
    })
}

fn is_over(node: &NodeStatus, asked: &TaskStatus) -> bool {
    node.task.as_ref().is_some_and(|task| task.id == asked.id && !task.state.is_open())
}

fn task(node: &NodeStatus) -> &TaskStatus {
    node.task.as_ref().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_says_that_the_system_runs_and_does_what_its_settings_name() {
    let site = Site::with(&[
        ("greet", "x=hello; echo ${x}; echo $SLIPWAY_SECONDS"),
        ("fail", "echo broken; exit 3"),
        ("noise", "head -c 40000 /dev/zero"),
    ])
    .await;
    let node = site.lab.status().await;
    let agent = node.agent.clone().unwrap();
    assert_eq!((node.state, agent.boot_id.as_str()), (NodeState::Running, "boot-1"));
    assert_eq!(agent.tasks, ["logs", "reboot", "boot-slipway", "fail", "greet", "noise"]);
    assert_eq!(agent.system_state.as_deref(), Some("running"));

    let node = site.do_task("greet").await;
    assert_eq!((task(&node).state, task(&node).line.as_deref()), (TaskState::Succeeded, Some("20")));
    assert_eq!(site.tasks().await[0].output.as_deref(), Some("hello\n20\n"));
    assert_eq!(node.flags, []);

    let node = site.do_task("fail").await;
    assert_eq!(task(&node).state, TaskState::Failed);
    assert_eq!(task(&node).reason.as_deref(), Some("it ended with status 3: broken"));
    assert_eq!(node.flags[0].kind, FlagKind::Task);
    assert_eq!(node.flags[0].reason, "failed to do fail: it ended with status 3: broken");

    // Whatever it prints, the server hears that it is done.
    let node = site.do_task("noise").await;
    assert_eq!(task(&node).state, TaskState::Succeeded, "{:?}", node.task);

    // What is over is not begun again, and another task ends the flag.
    let node = site.do_task("logs").await;
    assert_eq!((task(&node).state, node.flags.len()), (TaskState::Succeeded, 0));
    let log = operate::node_log(&site.lab.store().await, "m1", LogType::HostBoot, None).await.unwrap();
    assert!(log.contains("==== journal ====\n"), "{log}");
    assert_eq!(site.lines("started").len(), 3);

    let new = NewTask { name: "shell".to_owned(), limit_seconds: None, how: TaskOptions::default() };
    let refused = operate::ask_task(&site.lab.store().await, "m1", new).await.unwrap_err().to_string();
    assert!(
        refused.contains("the agent of node m1 may not do \"shell\", but logs, reboot, boot-slipway, fail"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_hangs_stops_a_drain_at_its_limit_with_what_still_runs() {
    let recipe: Recipe = "systemd=app.service,hang.service".parse().unwrap();
    let mut settings = Agent::default();
    drain::add(&mut settings, &[recipe]);
    let site = Site::of(settings).await;
    // The units that are drained: one stops, the other does not before it is killed.
    let folder = site.root.join("drained");
    fs::create_dir(&folder).unwrap();
    for unit in ["app.service", "hang.service"] {
        fs::write(folder.join(unit), "").unwrap();
    }
    let script = format!(
        "cd {}\ncase $1 in stop) rm -f app.service ;; kill) rm -f hang.service ;; \
         start) touch app.service hang.service ;; \
         show) for unit; do :; done; [ -e $unit ] && echo active || echo inactive ;; esac",
        folder.display()
    );
    let programs = site.root.join("inner");
    fs::create_dir(&programs).unwrap();
    program(&programs, "systemctl", &script);
    let real = fs::read_to_string(site.root.join("bin/systemd-run")).unwrap();
    let path = format!("PATH={}:$PATH\n", programs.join("bin").display());
    program(&site.root, "systemd-run", &(path + real.split_once('\n').unwrap().1));

    let asked = site.ask("drain", TaskOptions::default(), 2).await;
    let node = site.lab.wait_for("being drained", |node| node.state == NodeState::Draining).await;
    assert!(!is_over(&node, &asked));
    let node = site.lab.wait_for("done", |node| is_over(node, &asked)).await;
    assert_eq!((node.state, task(&node).state), (NodeState::Running, TaskState::Failed));
    assert_eq!(task(&node).reason.as_deref(), Some("it ended with status 1: still runs: hang.service"));
    assert_eq!(node.flags[0].kind, FlagKind::Task);
    assert!(!folder.join("app.service").exists() && folder.join("hang.service").exists());

    let force = TaskOptions { force: true, ..TaskOptions::default() };
    let asked = site.ask("drain", force, 2).await;
    let node = site.lab.wait_for("done", |node| is_over(node, &asked)).await;
    assert_eq!((node.state, task(&node).state), (NodeState::Draining, TaskState::Succeeded), "{:?}", node.task);
    assert_eq!((fs::read_dir(&folder).unwrap().count(), node.flags.len()), (0, 0));

    let undo = TaskOptions { undo: true, ..TaskOptions::default() };
    let asked = site.ask("drain", undo, 5).await;
    let node = site.lab.wait_for("done", |node| is_over(node, &asked)).await;
    assert_eq!((node.state, task(&node).state), (NodeState::Running, TaskState::Succeeded));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_twice_when_the_server_or_the_agent_is_started_again() {
    let mut site = Site::with(&[("work", "echo begun; while [ ! -e $GO ]; do sleep 0.05; done; echo done")]).await;
    let go = site.root.join("go");
    let real = fs::read_to_string(site.root.join("bin/systemd-run")).unwrap();
    let set = format!("export GO={}\n", go.display());
    program(&site.root, "systemd-run", &(set + real.split_once('\n').unwrap().1));

    let asked = site.ask("work", TaskOptions::default(), 30).await;
    site.lab.wait_for("at work", |node| task(node).line.as_deref() == Some("begun")).await;
    site.lab.stop_server().await;
    site.restart().await;
    site.lab.start_server().await;
    site.restart().await;
    let node = site.lab.wait_for("at work", |node| task(node).state == TaskState::Running).await;
    assert!(!is_over(&node, &asked));
    site.lab.stop_server().await;
    fs::write(&go, "").unwrap();
    site.lab.start_server().await;
    let node = site.lab.wait_for("done", |node| is_over(node, &asked)).await;
    assert_eq!((task(&node).state, task(&node).line.as_deref()), (TaskState::Succeeded, Some("done")));
    assert_eq!(site.lines("started").len(), 1);

    // One that is cancelled is stopped.
    fs::remove_file(&go).unwrap();
    site.ask("work", TaskOptions::default(), 30).await;
    site.lab.wait_for("at work", |node| task(node).state == TaskState::Running).await;
    operate::cancel_task(&site.lab.store().await, "m1").await.unwrap();
    let units = site.root.join("units");
    for _ in 0..600 {
        if fs::read_dir(&units).unwrap().count() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fs::read_dir(&units).unwrap().count(), 0, "its unit is stopped and removed");
    assert_eq!(site.tasks().await[0].state, TaskState::Withdrawn);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reboot_is_done_once_the_system_is_in_another_boot() {
    let mut site = Site::with(&[]).await;
    let store = site.lab.store().await;
    let operate::Reboot::Task(asked) = operate::reboot(&store, "m1", Some(true)).await.unwrap() else {
        panic!("its agent reboots it");
    };
    site.lab.wait_for("being rebooted", |node| task(node).state == TaskState::Running).await;
    while site.lines("reboots").is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The folder of the state is lost, and the boot has another id.
    site.stop().await;
    fs::remove_file(site.root.join("state/task.json")).unwrap();
    fs::write(site.root.join("proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    fs::write(site.root.join("proc/uptime"), "5.00 1.00\n").unwrap();
    site.restart().await;
    let node = site.lab.wait_for("rebooted", |node| is_over(node, &asked)).await;
    assert_eq!((task(&node).state, node.state), (TaskState::Succeeded, NodeState::Running));
    assert_eq!(node.agent.unwrap().boot_id, "boot-2");
    assert_eq!(site.lines("reboots"), ["reboot"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_on_a_running_system_restarts_it_into_slipway_and_ends_its_agent() {
    let site = Site::with(&[]).await;
    // In place of the program that loads slipway: it only says that it was called.
    program(&site.root.join("usr/local/lib/slipway"), "x", "");
    let place = site.root.join(places::USR_LOCAL);
    program(&place, "slipway", "echo \"$1\" >>\"$0.called\"");
    fs::rename(place.join("bin/slipway"), place.join(places::PROGRAM)).unwrap();
    let step = Step {
        name: "reboot".to_owned(),
        action: slipway_protocol::Action::Reboot(Reboot::default()),
        retries: 0,
        timeout: None,
    };
    site.lab.start_run(vec![step]).await;
    let node = site.lab.wait_for("leaving", |node| task(node).state == TaskState::Running).await;
    assert_eq!((node.state, task(&node).name.as_str()), (NodeState::Running, "boot-slipway"));
    let called = place.join("slipway.called");
    while !called.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The machine is in slipway. The server ends the agent of the old system.
    site.lab.install().await.unwrap();
    let node = site.lab.status().await;
    let run = node.run.as_ref().unwrap();
    assert_eq!((run.state, node.agent.as_ref()), (RunState::Succeeded, None));
    assert_eq!(task(&node).state, TaskState::Succeeded, "{:?}", node.task);
    site.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_renewed_and_a_stolen_token_of_the_run_is_worth_nothing() {
    let mut site = Site::with(&[]).await;
    let token = || fs::read_to_string(site.root.join(places::USR_LOCAL).join(places::AGENT)).unwrap();
    let before = token();
    let store = site.lab.store().await;
    let node = site.lab.status().await.id;
    // As if half a day had passed.
    let mut transaction = store.write().await.unwrap();
    let mut known = agents::get_by_node(&mut transaction, &node).await.unwrap().unwrap();
    assert!(known.is_used);
    known.issued_at -= 13 * 60 * 60 * 1000;
    agents::save(&mut transaction, &known).await.unwrap();
    store::commit(transaction).await.unwrap();
    while token() == before {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The new one is used, and the old one ends.
    let is_renewed = async || {
        let agent = agents::get_by_node(&mut store.read().await.unwrap(), &node).await.unwrap().unwrap();
        agent.token_hash != known.token_hash && agent.next_hash.is_none()
    };
    while !is_renewed().await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Whoever has the run's token and another folder gets no credentials.
    let thief = site.root.join("thief");
    let stolen = system(&thief, &site.config);
    let theft = start(&site.config, &stolen);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!agent::has_begun(&site.config, &stolen) && !theft.is_finished());
    theft.abort();
    // An agent that an operator removes ends, and does not come back.
    operate::remove_agent(&store, "m1").await.unwrap();
    site.ended().await;
    assert_eq!(site.lab.status().await.agent, None);
    site.restart().await;
    site.ended().await;
    boot_report::remove(&site.root);
    assert!(!site.root.join(places::USR_LOCAL).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_may_do_nothing_does_nothing_whatever_is_asked_for() {
    let settings = Agent { may: BTreeSet::from([AgentAct::Logs]), tasks: BTreeMap::new(), image: None };
    let site = Site::of(settings).await;
    assert_eq!(site.lab.status().await.agent.unwrap().tasks, ["logs"]);
    // A server that was broken into asks all the same.
    let store = site.lab.store().await;
    let node = site.lab.status().await.id;
    let mut transaction = store.write().await.unwrap();
    for (id, name) in [("0a", "reboot"), ("0b", "drain")] {
        let asked = TaskStatus {
            id: id.to_owned(),
            name: name.to_owned(),
            how: TaskOptions::default(),
            state: TaskState::Asked,
            limit_seconds: 5,
            asked_at: 1,
            started_at: None,
            boot_id: None,
            ended_at: None,
            run: None,
            line: None,
            reason: None,
            output: None,
        };
        store::tasks::save(&mut transaction, &node, &asked).await.unwrap();
        store::commit(transaction).await.unwrap();
        let node = site.lab.wait_for("done", |node| is_over(node, &asked)).await;
        let reason = Some("the settings of the agent on this machine do not name this task");
        assert_eq!(task(&node).reason.as_deref(), reason);
        transaction = store.write().await.unwrap();
    }
    assert_eq!((site.lines("reboots").len(), site.lines("started").len()), (0, 0));
    assert!(Path::new(&site.root).exists());
}
