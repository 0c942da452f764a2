//! `run-in-target`: runs a command or a script in the installed system, with its kernel file systems and the machine's
//! name servers.
//!
//! The command runs in its own PID namespace and mount namespace. So nothing it starts outlives it, and everything is
//! unmounted however it ends. The first process in these namespaces is this program again ([`in_target`]).

use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;
use std::{fs, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use slipway_protocol::RunInTarget;

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::error::{Error, TargetError, Tried, advised};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::sys;
use crate::target::layout::{Layout, Origin};
use crate::target::{self, Target};
use output::Output;

pub use inside::in_target;

mod inside;
mod links;
mod output;
mod resolver;

/// Subcommand that makes this program the first process in the installed system.
const SUBCOMMAND: &str = "in-target";
/// How often to check whether the step was cancelled.
const STOP_CHECK: Duration = Duration::from_millis(100);
/// The option of a folder that is bound with what is mounted in it.
const RBIND: &str = "rbind";
/// Maximum bytes of the answer of the first process.
const MAX_ANSWER: u64 = 64 << 10;

/// What to mount: device, or a folder of the installed system; type, none for a folder; the option that chooses a
/// subvolume, or `rbind`; mount point in the installed system; and whether the system starts without it.
type Mount = (String, Option<String>, Option<String>, String, bool);
/// The orders for the first process: the inputs, the file systems to mount (root first), and the machine's resolv.conf.
type Orders = (RunInTarget, Vec<Mount>, Option<String>);
/// Exit status of the command, or the signal that ended it.
type Ended = (Option<i32>, Option<i32>);
/// The answer of the first process: how the command ended, with warnings, or why it did not.
type Answer = Result<(Ended, Vec<String>), String>;

pub(crate) fn run(inputs: &RunInTarget, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    run_on(&disk, inputs, machine, report)
}

/// Runs the command on a disk that is already chosen.
pub(crate) fn run_on(
    disk: &OpenDisk,
    inputs: &RunInTarget,
    machine: &dyn Machine,
    report: Tell,
) -> Result<Done, Error> {
    // The first process mounts these file systems again, through the same devices.
    let target = target::find_root(disk, report)?;
    let (extras, unmounted) = Layout::of(disk, &target)?.extras();
    let Target { root, name, kind, source, subvolume, mut warnings, .. } = target;
    warnings.extend(unmounted);
    if machine.setup().is_operating_system {
        warnings.extend(links::make(disk)?);
    }
    machine.cancel().check()?;

    let resolver = fs::read_to_string("/etc/resolv.conf").ok();
    if resolver.is_some() {
        warnings.extend(resolver::set_aside(&root)?);
    }
    let subvolume = subvolume.map(str::to_owned);
    let mut mounts = vec![mount(&Origin::Device { source, kind, subvolume }, "", false)];
    mounts.extend(extras.iter().map(|extra| mount(&extra.origin, &extra.place, extra.may_fail)));
    let result = execute(&(inputs.clone(), mounts, resolver), machine, report);
    resolver::put_back(&root).and_then(|()| root.sync())?;
    warnings.extend(result?);
    Ok(Done::go_on(format!("ran {} in {name}", inputs.describe()), warnings))
}

fn mount(origin: &Origin, place: &str, may_fail: bool) -> Mount {
    let (source, kind, option) = match origin {
        Origin::Device { source, kind, subvolume } => {
            (source.path.display().to_string(), Some((*kind).to_owned()), subvolume.clone())
        }
        Origin::Bound { folder, is_recursive } => (folder.clone(), None, is_recursive.then(|| RBIND.to_owned())),
    };
    (source, kind, option, place.to_owned(), may_fail)
}

/// Starts the first process and passes on the output. Returns warnings. Fails unless the command succeeded.
fn execute(orders: &Orders, machine: &dyn Machine, report: Tell) -> Result<Vec<String>, Error> {
    let what = orders.0.describe();
    let failed = |source: io::Error| Error::Target(TargetError::StartCommand { what: what.clone(), source });
    let (mut control, theirs) = UnixStream::pair().map_err(failed)?;
    let (reader, writer) = io::pipe().map_err(failed)?;
    let started = start(theirs.into(), writer.into()).map_err(|source| advised(Tried::Namespace, source));
    let mut child = Guard(started.map_err(failed)?);
    let text = serde_json::to_string(orders).map_err(|error| failed(error.into()))?;
    // If the process is already gone, its answer or the missing answer says why.
    _ = control.write_all(text.as_bytes()).and_then(|()| control.write_all(b"\n"));
    let mut output = Output::default();
    let passed = pass_on(&reader, &mut child.0, &mut output, machine, report, &failed);
    // A stopped command, too, may have printed a prompt without a line end, and waited for an answer.
    output.finish(report);
    passed?;
    let mut answer = String::new();
    _ = BufReader::new(control.take(MAX_ANSWER)).read_line(&mut answer);
    let how = match serde_json::from_str::<Answer>(&answer) {
        Ok(Ok(((Some(0), _), warnings))) => return Ok(warnings),
        Ok(Ok((ended, warnings))) => {
            warnings.into_iter().for_each(|warning| report(Report::Note(warning)));
            match ended {
                (Some(status), _) => format!("exit status {status}"),
                (None, signal) => format!("signal {}", signal.unwrap_or_default()),
            }
        }
        Ok(Err(reason)) => return Err(TargetError::PrepareCommand { what, reason }.into()),
        Err(_) => "no answer: its first process was killed".to_owned(),
    };
    Err(TargetError::Command { what, how, output: output.tail() }.into())
}

/// Starts the first process of a new PID namespace. Uses a separate thread, because later processes of the calling
/// thread would also start in the namespace.
fn start(control: OwnedFd, output: OwnedFd) -> io::Result<Child> {
    let start = move || {
        sys::unshare(UnshareFlags::NEWPID)?;
        let errors = output.try_clone()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND).env_clear().stdin(control).stdout(output).stderr(errors).spawn()
    };
    thread::scope(|scope| scope.spawn(start).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))))
}

/// The first process. When it ends, the kernel kills every process of its namespace and unmounts its file systems.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // The process may have ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Passes on output until the first process has ended.
fn pass_on(
    mut reader: &PipeReader,
    child: &mut Child,
    output: &mut Output,
    machine: &dyn Machine,
    report: Tell,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<(), Error> {
    let mut buffer = vec![0; 64 << 10];
    let mut is_open = true;
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(STOP_CHECK.subsec_nanos()) };
    loop {
        machine.cancel().check()?;
        if !is_open {
            match child.try_wait().map_err(failed)? {
                Some(_) => return Ok(()),
                None => thread::sleep(STOP_CHECK),
            }
            continue;
        }
        match poll(&mut [PollFd::new(&reader.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let n = reader.read(&mut buffer).map_err(failed)?;
        output.take(buffer.get(..n).unwrap_or_default(), report);
        is_open = n > 0;
    }
}
