//! An installed system in a folder, with a boot reporter.

use std::fs;
use std::path::Path;
use std::process::Command;

use slipway_installer::boot_report::Surroundings;
use slipway_protocol::node::boot_report::places;
use slipway_protocol::{Action, Agent, BootReporter, BootReporterConfig, NodeState, RunState, Step};
use slipway_server::store;
use slipway_server::store::{nodes, runs};

use crate::lab::Lab;

/// Prepares a machine whose run has left a reporter in its system, and is over if that stays as its agent.
pub async fn booting(lab: &Lab, agent: Option<Agent>) -> BootReporterConfig {
    lab.register(true).await;
    let action = Action::BootReporter(BootReporter { agent: agent.clone(), ..BootReporter::default() });
    lab.start_run(vec![Step { name: "report".to_owned(), action, retries: 0, timeout: None }]).await;
    let mut transaction = lab.store().await.write().await.unwrap();
    let mut node = nodes::find(&mut transaction, "m1").await.unwrap().unwrap();
    node.state = NodeState::Booting;
    nodes::save(&mut transaction, &node).await.unwrap();
    let mut run = runs::newest_of(&mut transaction, &node.id).await.unwrap().unwrap();
    if agent.is_some() {
        run.started_at = Some(1);
        run.progress.state = RunState::Succeeded;
        runs::update(&mut transaction, &run).await.unwrap();
    }
    store::commit(transaction).await.unwrap();
    let Action::BootReporter(inputs) = &run.workflow[0].action else { panic!("{:?}", run.workflow) };
    BootReporterConfig {
        url: lab.url(),
        token: inputs.token.clone(),
        ca: inputs.ca.clone(),
        machine: Default::default(),
        hours: 1,
        every: 600,
        agent,
    }
}

/// Makes a system in a folder: the files that the action writes, the kernel files that are read, and programs that
/// print reports.
pub fn system(root: &Path, config: &BootReporterConfig) -> Surroundings {
    let write = |path: &str, content: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let own = |name: &str| format!("{}/{name}", places::USR_LOCAL);
    for place in places::LINKS.iter().chain([&places::UNIT]) {
        write(place, "");
    }
    write(&own(places::PROGRAM), "");
    write(&own(places::CONFIG), &serde_json::to_string(config).unwrap());
    write("proc/sys/kernel/random/boot_id", "boot-1\n");
    write("proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
    write("proc/net/route", "Iface Destination\n");
    write("etc/resolv.conf", "nameserver 192.0.2.1\n");
    write("state/system", "starting\n");
    let state = root.join("state/system");
    let systemctl = format!(
        "[ \"$1\" = is-system-running ] && cat {} && exit 1\n\
         [ \"$1\" = list-units ] && echo 'srv-a.mount loaded failed failed /srv/a' && exit\n\
         echo \"units: $*\"",
        state.display()
    );
    program(root, "systemctl", &systemctl);
    program(root, "journalctl", "case \"$*\" in *containerd*) exit 0 ;; *) echo \"journal: $*\" ;; esac");
    Surroundings { root: root.to_owned(), programs: vec![root.join("bin")], state: root.join("state") }
}

/// Writes a program that this shell script is.
pub fn program(root: &Path, name: &str, script: &str) {
    let path = root.join("bin").join(name);
    fs::create_dir_all(root.join("bin")).unwrap();
    // A separate process writes the program. Otherwise a process forked by another test could hold the file open for
    // writing, and nobody could run it (execve(2), ETXTBSY).
    let mut write = Command::new("/bin/sh");
    write.args(["-euc", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\"; chmod 755 \"$0\""]).arg(path).arg(script);
    assert!(write.status().unwrap().success());
}

/// Gives a system a service manager that starts units and says how they are: `systemd-run`, and what `systemctl` does
/// with a unit. Each unit that was started is a line of the file `started`, and each reboot one of `reboots`.
pub fn with_units(root: &Path) {
    let units = root.join("units");
    fs::create_dir_all(&units).unwrap();
    let (root, units) = (root.display(), units.display());
    let run = format!(
        r#"for argument; do
    case $argument in
    --unit=*) unit=${{argument#--unit=}} ;;
    --property=StandardOutput=file:*) out=${{argument#--property=StandardOutput=file:}} ;;
    --property=RuntimeMaxSec=*) most=${{argument#--property=RuntimeMaxSec=}} ;;
    --setenv=*) export "${{argument#--setenv=}}" ;;
    esac
    shift
    [ "$argument" = -- ] && break
done
echo "$unit" >>{root}/started
# As the service manager does with the arguments of a unit.
[ "$1" = /bin/sh ] && set -- /bin/sh -c "$(printf '%s\n' "$3" | sed 's/\$\$/$/g')" slipway
export unit out most
setsid sh -c 'echo $$ >{units}/$unit.pid; timeout "$most" "$@" >"$out" 2>&1; echo $? >{units}/$unit.status' sh "$@" \
    </dev/null >/dev/null 2>&1 &
while [ ! -e {units}/$unit.pid ]; do sleep 0.01; done"#
    );
    let control = format!(
        r#"for unit; do :; done
case $1 in
is-system-running) cat {root}/state/system ;;
list-units) ;;
--no-wall) echo "$2" >>{root}/reboots ;;
stop) [ -e {units}/$unit.pid ] && kill -- -"$(cat {units}/$unit.pid)" 2>/dev/null; rm -f {units}/$unit.* ;;
reset-failed) rm -f {units}/$unit.* ;;
show)
    if [ ! -e {units}/$unit.pid ]; then echo LoadState=not-found; exit; fi
    echo LoadState=loaded
    case $(cat {units}/$unit.status 2>/dev/null) in
    '') printf 'ActiveState=active\nSubState=running\nResult=success\n' ;;
    0) printf 'ActiveState=active\nSubState=exited\nResult=success\n' ;;
    124) printf 'ActiveState=failed\nSubState=failed\nResult=timeout\n' ;;
    *)
        printf 'ActiveState=failed\nSubState=failed\nResult=exit-code\n'
        echo "ExecMainStatus=$(cat {units}/$unit.status)" ;;
    esac ;;
esac"#
    );
    let folder = Path::new(&root.to_string()).to_owned();
    program(&folder, "systemd-run", &run);
    program(&folder, "systemctl", &control);
}
