//! Machines are switched by hooks, one act at a time, and no server that is killed loses or repeats one.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};
use slipway_protocol::{FlagKind, NodePower, NodeState, PowerAct, PowerActState, PowerMode, PowerState};
use slipway_server::operate::{self, PowerRequest};
use slipway_server::store::{self, nodes};

use crate::installing::{add_system, debian, start, web1};
use crate::page::Browser;
use crate::program::{Ended, command, fail, started, succeed};
use crate::secrets::stored;
use crate::support::{Machine, Node, TestServer, UUID};

/// A hook whose machine is a file. What it was told is in `told`, apart from questions. A file `on`, `off` or `status`
/// is run in the middle, so that a test can have it fail or hang; `before-on` and `before-off` before it does anything.
const HOOK: &str = r#"#!/bin/sh
cd "$(dirname "$0")/machine" || exit 1
cat > input
action=$(sed -n 's/^action=//p' input)
boot=$(sed -n 's/^boot=/ /p' input)
password=$(sed -n 's/^password=//p' input)
[ "$action" = status ] || { echo "$action$boot" >> told; cp input "input-$action"; }
[ -f "before-$action" ] && . "./before-$action"
case $action in
on|off) [ -f disobeys ] || echo "$action" > is ;;
esac
[ -f "$action" ] && . "./$action"
[ "$action" = status ] || exit 0
case $(cat is) in on) exit 0 ;; off) exit 2 ;; esac
exit 3
"#;

/// The machine that the hook of a folder switches.
struct Switched(PathBuf);

impl Switched {
    /// Puts a hook called `test` into a folder of hooks. Its machine is off.
    fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder.join("power/machine")).unwrap();
        let hook = folder.join("power/test");
        std::fs::write(&hook, HOOK).unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        let machine = Self(folder.join("power/machine"));
        machine.write("is", "off\n");
        machine
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// What it was told so far: `off, on network`.
    fn told(&self) -> String {
        self.read("told").lines().collect::<Vec<_>>().join(", ")
    }
}

const SET: [&str; 10] =
    ["node", "power", "set", "web1", "--hook", "test", "--option", "ip=192.0.2.71", "--option", "plug=7 b"];

async fn power(server: &TestServer) -> NodePower {
    operate::show_power(&server.store().await, "web1").await.unwrap()
}

/// Waits until a server has done what was asked for, or could not.
async fn ended(server: &TestServer) -> NodePower {
    until(server, |power| power.act.as_ref().is_some_and(|act| !act.state.is_open())).await
}

async fn until(server: &TestServer, is_it: impl Fn(&NodePower) -> bool) -> NodePower {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let power = power(server).await;
        if is_it(&power) {
            return power;
        }
        assert!(Instant::now() < deadline, "{power:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn state_of(power: &NodePower) -> PowerActState {
    power.act.as_ref().unwrap().state
}

fn reason_of(power: &NodePower) -> String {
    power.act.as_ref().unwrap().reason.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_switched_by_its_hook() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    let none = fail(&data, &["node", "power", "on", "web1"]);
    assert!(
        none.contains("nothing switches the power of node web1: name what does with `node power set web1`"),
        "{none}"
    );
    let password = server.folder.path().join("password");
    std::fs::write(&password, "hunter2 \"$(id)=\n").unwrap();
    let with_password = ["--password-file", password.to_str().unwrap()];
    let set = succeed(&data, &[&SET[..], &with_password].concat());
    assert!(set.contains("Hook:     test\nOption:   ip=192.0.2.71\n") && set.contains("Password: kept\n"), "{set}");
    assert!(!stored(&server, "hunter2").await, "the password is encrypted");

    assert_eq!(succeed(&data, &["node", "power", "status", "web1"]), "web1 is off\n");
    assert_eq!(succeed(&data, &["node", "power", "on", "web1"]), "web1 is on\n");
    assert_eq!(succeed(&data, &["node", "power", "on", "web1"]), "web1 is on\n");
    assert_eq!(machine.told(), "on", "a machine that is on is not told again");
    let input = machine.read("input-on");
    for line in ["action=on", "node_name=web1", &format!("machine_uuid={UUID}"), "ip=192.0.2.71", "plug=7 b"] {
        assert!(input.lines().any(|it| it == line), "{line}: {input}");
    }
    assert!(input.ends_with("\npassword=hunter2 \"$(id)=\n") && !input.contains("boot="), "{input}");
    assert_eq!(succeed(&data, &["node", "power", "cycle", "--yes", "web1"]), "web1 is on\n");
    let asked = fail(&data, &["node", "power", "off", "web1"]);
    assert!(asked.ends_with("standard input is not a terminal; give --yes to continue without asking"), "{asked}");
    assert_eq!(succeed(&data, &["node", "power", "off", "--yes", "web1"]), "web1 is off\n");
    assert_eq!(machine.told(), "on, off, on, off");
    let status = succeed(&data, &["status", "web1"]);
    assert!(status.contains("\nPower: off, asked "), "{status}");
    let events = succeed(&data, &["events", "--node", "web1", "--kind", "power"]);
    for message in [
        "the machine is to be switched off and on again",
        "the machine was switched on",
        "done: switched off and on again",
    ] {
        assert!(events.contains(message), "{message}: {events}");
    }

    let url = server.url("/v1/operator/nodes/web1/power");
    let token = server.operator_token();
    let asked = server.client().post(&url).bearer_auth(&token).json(&json!({ "act": "on" })).send().await.unwrap();
    assert_eq!(asked.status(), StatusCode::ACCEPTED);
    assert_eq!(ended(&server).await.state, Some(PowerState::On));
    let shown = server.client().get(&url).bearer_auth(&token).send().await.unwrap().text().await.unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["has_password"] == true && !shown.to_string().contains("hunter2"), "{shown}");
    assert_eq!(shown["act"]["state"], "done", "{shown}");

    // The password goes nowhere else than its owner meant.
    let moved = fail(&data, &["node", "power", "set", "web1", "--option", "ip=198.51.100.1"]);
    assert!(moved.contains("give the password again (--password-file)"), "{moved}");
    for (bad, expect) in [
        (["--hook", "../../bin/sh"], "is not the name of a hook"),
        (["--option", "password=x"], "would be shown: give the password as a file"),
        (["--option", "action=off"], "the server sets the option action itself"),
        (["--option", "a=b\nc=d"], "has a line break"),
        (["--limit", "301s"], "the limit is 1 to 300 seconds"),
    ] {
        let refused = fail(&data, &[&["node", "power", "set", "web1"][..], &bad].concat());
        assert!(refused.contains(expect), "{refused}");
    }
    succeed(&data, &["node", "power", "set", "web1", "--provider", "none"]);
    assert_eq!(power(&server).await, NodePower::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_fails_gives_its_reason_without_the_password() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    let password = server.folder.path().join("password");
    std::fs::write(&password, "hunter2").unwrap();
    succeed(&data, &[&SET[..], &["--password-file", password.to_str().unwrap(), "--limit=2"]].concat());

    machine.write("before-on", "echo first >&2; echo \"login with $password \x1b[31mfailed\" >&2; exit 7\n");
    let failed = fail(&data, &["node", "power", "on", "web1"]);
    let reason = "the hook failed with status 7 for `action=on`: login with (secret) \\u{1b}[31mfailed";
    assert!(failed.ends_with(&format!("web1 could not be switched on: {reason}")), "{failed}");
    assert_eq!(machine.told(), "on, on, on", "BMCs are busy now and then");
    let node = web1(&server).await;
    let flag = node.flags.iter().find(|flag| flag.kind == FlagKind::Power).unwrap();
    assert!(
        flag.reason.contains("login with (secret)") && flag.command == "slipway-server node power on web1",
        "{flag:?}"
    );
    let events = succeed(&data, &["events", "--node", "web1", "--kind", "power-failed"]);
    assert!(events.contains("the machine could not be switched on: the hook failed with status 7"), "{events}");
    assert!(!stored(&server, "hunter2").await);

    // Gigabytes, and a child that stays.
    machine.write("before-on", "sleep 600 & echo $! > child; head -c 100M /dev/zero; echo; echo late; sleep 600\n");
    let began = Instant::now();
    let failed = fail(&data, &["node", "power", "on", "web1"]);
    assert!(failed.contains("the hook \"test\" did not end within 2 s"), "{failed}");
    assert!(began.elapsed() < Duration::from_secs(30), "it is not tried again");
    let child = PathBuf::from(format!("/proc/{}", machine.read("child").trim()));
    assert!(!child.exists() || std::fs::read_to_string(child.join("stat")).unwrap().contains(") Z "));

    machine.remove("before-on");
    assert_eq!(succeed(&data, &["node", "power", "on", "web1"]), "web1 is on\n");
    let flags = web1(&server).await.flags;
    assert!(flags.iter().all(|flag| flag.kind != FlagKind::Power), "{flags:?}");

    let hook = server.folder.path().join("power/test");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o775)).unwrap();
    let unsafe_hook = fail(&data, &["node", "power", "status", "web1"]);
    assert!(unsafe_hook.contains("may be written by anybody or by a group"), "{unsafe_hook}");
    std::fs::remove_file(&hook).unwrap();
    let missing = fail(&data, &["node", "power", "status", "web1"]);
    assert!(missing.contains("has no hook \"test\" in "), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_last_counts() {
    let server = TestServer::start().await;
    let machine = Switched::new(server.folder.path());
    server.add_released("web1").await;
    succeed(&server.data_path(), &SET);
    machine.write("before-on", "while [ ! -f go ]; do sleep 0.1; done\n");
    let store = server.store().await;
    operate::switch_power(&store, "web1", PowerRequest::On).await.unwrap();
    until(&server, |_| machine.told() == "on").await;
    operate::switch_power(&store, "web1", PowerRequest::Off).await.unwrap();
    machine.write("go", "");
    let off = ended(&server).await;
    assert_eq!(
        (off.act.as_ref().unwrap().act, state_of(&off), off.state),
        (PowerAct::Off, PowerActState::Done, Some(PowerState::Off))
    );
    assert_eq!((machine.told().as_str(), machine.read("is").trim()), ("on, off", "off"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_boots_slipway_on_a_machine_that_does_not_run_it() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    succeed(&data, &SET);
    add_system(&server, |_| {}).await.unwrap();
    machine.write("before-on", "while [ ! -f go ]; do sleep 0.1; done\n");
    let run = succeed(&data, &["run", "start", "--yes", "web1", "--os", "debian"]);
    until(&server, |power| state_of(power) == PowerActState::SwitchingOn).await;
    let status = succeed(&data, &["status", "--all"]);
    assert!(status.contains("waiting for the machine to boot slipway; it is being switched on"), "{status}");
    machine.write("go", "");
    let booted = ended(&server).await;
    assert_eq!(
        (state_of(&booted), booted.act.as_ref().unwrap().run.as_deref()),
        (PowerActState::Done, Some(run.trim()))
    );
    assert_eq!(machine.told(), "on network");

    // A machine that runs slipway needs no power.
    let node = Node::enrol(&server, Machine::with_uuid(UUID)).await;
    let again = succeed(&data, &["run", "start", "--yes", "--replace", "web1", "--os", "debian"]);
    assert_eq!(node.workflow(&server).await.unwrap().run, again.trim());
    assert_eq!(state_of(&ended(&server).await), PowerActState::Withdrawn);
    let boot = fail(&data, &["node", "power", "boot", "--yes", "web1"]);
    assert!(boot.contains(&format!("run {} is going on; `node power cycle` switches it", again.trim())), "{boot}");
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    let boot = fail(&data, &["node", "power", "boot", "--yes", "web1"]);
    assert!(boot.ends_with("web1 is not switched on to boot slipway once: it runs slipway already"), "{boot}");
    assert_eq!(machine.told(), "on network");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_to_boot_slipway_does_not_go_on_to_its_disk() {
    let server = TestServer::start().await;
    let (data, _machine) = (server.data_path(), Switched::new(server.folder.path()));
    // The system was installed a while ago: a machine that was heard from is not switched at once.
    let id = server.add_released("web1").await;
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let mut installed = nodes::get_by_id(&mut transaction, &id).await.unwrap().unwrap();
    installed.state = NodeState::Running;
    nodes::save(&mut transaction, &installed).await.unwrap();
    store::commit(transaction).await.unwrap();
    succeed(&data, &SET);
    let goes_to_disk = async || {
        let url = server.boot_url(&format!("/boot/ipxe?uuid={UUID}&arch=x86_64"));
        let script = server.client().get(url).send().await.unwrap().text().await.unwrap();
        assert_ne!(script.contains("\nkernel "), script.contains("\nexit 1\n"), "{script}");
        script.contains("\nexit 1\n")
    };
    assert!(goes_to_disk().await);
    for (act, expect) in [("boot", false), ("cycle", true), ("boot", false)] {
        succeed(&data, &["node", "power", act, "--yes", "web1"]);
        ended(&server).await;
        assert_eq!(goes_to_disk().await, expect, "{act}");
    }
    // Once it has booted slipway, it goes on to its disk again.
    Node::enrol(&server, Machine::with_uuid(UUID)).await;
    assert!(goes_to_disk().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_over_boots_nothing() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    succeed(&data, &SET);
    add_system(&server, |_| {}).await.unwrap();
    machine.write("before-status", "while [ ! -f go ]; do sleep 0.1; done\n");
    machine.write("is", "on\n");
    start(&server, debian()).await.unwrap();
    succeed(&data, &["run", "cancel", "--yes", "web1"]);
    machine.write("go", "");
    let power = ended(&server).await;
    assert_eq!(state_of(&power), PowerActState::Withdrawn);
    assert_eq!((reason_of(&power).as_str(), machine.told().as_str()), ("its run does not wait for it any more", ""));

    succeed(&data, &["run", "start", "--yes", "--no-power", "web1", "--os", "debian"]);
    assert_eq!(self::power(&server).await.act, power.act, "its power is left alone");
    // The reason is one like any other.
    machine.write("before-off", "echo no route to host >&2; exit 1\n");
    succeed(&data, &["run", "start", "--yes", "--replace", "web1", "--os", "debian"]);
    until(&server, |power| state_of(power) == PowerActState::Failed).await;
    let status = succeed(&data, &["status", "web1"]);
    let said = "the machine could not be switched on to boot slipway once: the hook failed with status 1 for \
                `action=off`: no route to host";
    assert!(status.contains(said) && status.contains("next: slipway-server node power boot web1"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorder_switches_nothing_and_disabled_refuses() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    succeed(&data, &[&SET[..], &["--mode", "recorder"]].concat());
    add_system(&server, |_| {}).await.unwrap();
    assert_eq!(succeed(&data, &["node", "power", "on", "web1"]), "web1 is on, as recorded; nothing was switched\n");
    start(&server, debian()).await.unwrap();
    let power = ended(&server).await;
    assert_eq!((power.mode, state_of(&power)), (PowerMode::Recorder, PowerActState::Done));
    let recorded = succeed(&data, &["events", "--node", "web1", "--kind", "power"]);
    for expect in ["on", "off", "on, to boot slipway once"] {
        let message = format!("recorded only: the machine would be switched {expect}");
        assert!(recorded.lines().any(|line| line.ends_with(&message)), "{message}: {recorded}");
    }
    succeed(&data, &["node", "power", "set", "web1", "--mode", "disabled"]);
    let refused = fail(&data, &["node", "power", "on", "web1"]);
    assert!(refused.contains("is disabled: `node power set web1 --mode real` enables it"), "{refused}");
    assert_eq!(machine.told() + &machine.read("input"), "", "the hook was never called");
}

/// A server on a folder that uses its hooks.
fn serve(data: &Path, hooks: &Path) -> Ended {
    let hooks = hooks.to_str().unwrap();
    started(command(
        data,
        &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--power-hooks", hooks],
    ))
    .0
}

/// Waits until something is so.
fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_that_is_killed_loses_nothing_and_repeats_nothing() {
    // Where the server is killed: file that has the hook hang, what the machine was told by then, and in all.
    let table = [
        ("before-off", "off", "off, off, on"),
        ("off", "off", "off, on"),
        ("disobeys", "off", "off, on"),
        ("before-on", "off, on", "off, on, on"),
        ("on", "off, on", "off, on"),
    ];
    for (place, by_then, in_all) in table {
        let folder = tempfile::tempdir().unwrap();
        let (data, machine) = (folder.path().join("data"), Switched::new(folder.path()));
        let hooks = folder.path().join("power");
        machine.write("is", "on\n");
        // The hook of a killed server hangs for longer than its limit, and must not act once it is over.
        machine
            .write(place, if place == "disobeys" { "" } else { "[ -f alive ] || { touch alive; sleep 5; exit 1; }\n" });
        let server = serve(&data, &hooks);
        succeed(&data, &["node", "add", "--name", "web1", "--uuid", UUID, "--release"]);
        succeed(&data, &["node", "power", "set", "web1", "--hook", "test", "--limit", "1"]);
        succeed(&data, &["node", "power", "cycle", "--yes", "--no-wait", "web1"]);
        let show = || -> Value {
            serde_json::from_str(&succeed(&data, &["node", "power", "show", "--json", "web1"])).unwrap()
        };
        wait(place, || machine.told() == by_then && (place == "disobeys" || machine.0.join("alive").exists()));
        drop(server);
        let stands = show();
        let expect = if by_then == "off" { "switching-off" } else { "switching-on" };
        assert_eq!(stands["act"]["state"], expect, "{place}: {stands}");
        let server = serve(&data, &hooks);
        if place == "disobeys" {
            // It goes off late.
            machine.remove("disobeys");
            machine.write("is", "off\n");
        }
        wait(place, || show()["act"]["state"] == "done");
        assert_eq!((machine.told().as_str(), machine.read("is").trim()), (in_all, "on"), "{place}");
        drop(server);
    }
}

/// A machine gives its serial number itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_machine_says_of_itself_is_no_order_to_a_hook() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    let mut request = Machine::with_uuid(UUID).request();
    request.identity.serial = Some("7CZ1\naction=off\npassword=none".to_owned());
    let enrolled = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(enrolled.status(), StatusCode::OK);
    succeed(&data, &SET);
    assert_eq!(succeed(&data, &["node", "power", "on", "web1"]), "web1 is on\n");
    let input = machine.read("input-on");
    assert_eq!((machine.told().as_str(), input.matches("action=").count()), ("on", 1), "{input}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_being_done_ends_with_what_it_was_for() {
    let server = TestServer::start().await;
    let (data, machine) = (server.data_path(), Switched::new(server.folder.path()));
    server.add_released("web1").await;
    succeed(&data, &SET);
    machine.write("is", "on\n");
    machine.write("disobeys", "");
    let cycle = ["node", "power", "cycle", "--yes", "--no-wait", "web1"];
    succeed(&data, &cycle);
    until(&server, |power| state_of(power) == PowerActState::SwitchingOff && machine.told() == "off").await;
    // To ask meanwhile does not keep it from being switched on again.
    succeed(&data, &["node", "power", "status", "--no-wait", "web1"]);
    machine.remove("disobeys");
    machine.write("is", "off\n");
    assert_eq!(state_of(&ended(&server).await), PowerActState::Done);
    assert_eq!((machine.told().as_str(), machine.read("is").trim()), ("off, on", "on"));

    // An operator who stops it in the middle learns that it may be off.
    machine.write("disobeys", "");
    succeed(&data, &cycle);
    until(&server, |_| machine.told() == "off, on, off").await;
    succeed(&data, &["node", "power", "set", "web1", "--mode", "disabled"]);
    let power = power(&server).await;
    assert_eq!((state_of(&power), power.state), (PowerActState::Failed, None));
    assert_eq!(reason_of(&power), "what switches the machine was changed");
    assert!(web1(&server).await.flags.iter().any(|flag| flag.kind == FlagKind::Power));

    succeed(&data, &["node", "power", "set", "web1", "--mode", "real"]);
    succeed(&data, &["node", "power", "cycle", "--yes", "--no-wait", "web1"]);
    succeed(&data, &["node", "decommission", "--yes", "web1"]);
    let power = self::power(&server).await;
    assert!(!power.act.as_ref().unwrap().state.is_open(), "{power:?}");
    let on = fail(&data, &["node", "power", "on", "web1"]);
    assert!(on.contains("node web1 is out of service: it can only be switched off"), "{on}");
    machine.remove("disobeys");
    assert_eq!(succeed(&data, &["node", "power", "off", "--yes", "web1"]), "web1 is off\n");
    machine.write("is", "on\n");
    succeed(&data, &["node", "recommission", "web1"]);
    let said = succeed(&data, &["node", "decommission", "--yes", "--power-off", "web1"]);
    assert!(said.starts_with("web1 is out of service, and is being switched off"), "{said}");
    assert_eq!(ended(&server).await.state, Some(PowerState::Off));
    succeed(&data, &["node", "power", "set", "web1", "--provider", "none"]);
    succeed(&data, &["node", "recommission", "web1"]);
    let refused = fail(&data, &["node", "decommission", "--yes", "--power-off", "web1"]);
    assert!(refused.contains("nothing switches the power of node web1"), "{refused}");
    assert_ne!(web1(&server).await.state, slipway_protocol::NodeState::Decommissioned, "all or nothing");
    succeed(&data, &SET);
    let power = self::power(&server).await;
    assert_eq!((power.act, power.hook.as_deref()), (None, Some("test")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_switches_a_machine_and_sets_what_does() {
    let server = TestServer::start().await;
    let machine = Switched::new(server.folder.path());
    server.add_released("web1").await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let id = web1(&server).await.id;
    let path = format!("/nodes/{id}/power");
    assert!(browser.page(&format!("/nodes/{id}")).await.contains(&format!("href=\"{path}\"")));
    assert!(browser.page(&path).await.contains("Nothing switches this machine yet."));
    let proof = browser.proof().await;
    let post =
        async |path: &str, fields: &[(&str, &str)]| browser.post(path, &[fields, &[("proof", &proof)]].concat()).await;
    let settings = format!("{path}/settings");
    let fields =
        [("provider", "command"), ("hook", "test"), ("mode", "real"), ("options", "ip=192.0.2.71\r\nplug = 7\r\n")];
    let wrong = post(&settings, &fields).await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    let wrong = wrong.text().await.unwrap();
    assert!(wrong.contains("&quot;plug &quot; is not a valid option") && wrong.contains("plug = 7"), "{wrong}");
    let fields = [&fields[..3], &[("options", "ip=192.0.2.71"), ("password", " hunter2 ")]].concat();
    assert!(post(&settings, &fields).await.status().is_redirection());
    let page = browser.page(&path).await;
    assert!(page.contains("One is kept.") && page.contains("ip=192.0.2.71") && !page.contains("hunter2"), "{page}");

    assert_eq!(post(&path, &[("act", "on")]).await.status(), StatusCode::SEE_OTHER);
    assert_eq!(ended(&server).await.state, Some(PowerState::On));
    assert!(machine.read("input-on").ends_with("\npassword= hunter2 \n"), "{}", machine.read("input-on"));
    for confirm in ["", "web2"] {
        let refused = post(&path, &[("act", "off"), ("confirm", confirm)]).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        assert!(refused.text().await.unwrap().contains("&quot;web1&quot; has to be typed to confirm"));
    }
    assert_eq!(post(&path, &[("act", "off"), ("confirm", "web1")]).await.status(), StatusCode::SEE_OTHER);
    assert_eq!((ended(&server).await.state, machine.told().as_str()), (Some(PowerState::Off), "on, off"));
    assert!(browser.page(&format!("/nodes/{id}")).await.contains("<dt>Power</dt>"));
    let without = browser.post(&path, &[("act", "on")]).await;
    assert_eq!(without.status(), StatusCode::FORBIDDEN, "another site sends no proof");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_switches_nothing() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    succeed(&server.data_path(), &SET);
    let store = server.store().await;
    operate::switch_power(&store, "web1", PowerRequest::On).await.unwrap();
    let mut transaction = store.write().await.unwrap();
    slipway_server::store::runs::hold_restored(&mut transaction).await.unwrap();
    slipway_server::store::commit(transaction).await.unwrap();
    assert_eq!(power(&server).await.act, None);
}
