//! Runs external programs that make file systems.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::machine::Cancel;

/// Folders of the programs, in the boot image and on a running system.
const FOLDERS: &[&str] = &["/usr/sbin", "/sbin"];
/// At most this many bytes of error output are read. A program that writes more ends because its pipe is closed.
const MAX_ERRORS: u64 = 16 << 10;
/// How often to check whether a program has ended or should be stopped.
const CHECK: Duration = Duration::from_millis(20);

/// Finds the path of a program, or says why there is none.
pub(super) fn find(name: &str, package: &str) -> Result<PathBuf, String> {
    let found = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.ok_or_else(|| format!("there is no {}/{name}; install {package}", FOLDERS[0]))
}

/// Runs a program until it ends. The error is why it failed. A cancelled program is killed.
pub(super) fn run(command: &mut Command, cancel: &Cancel) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("starting {name}: {error}"))?;
    let errors = child.stderr.take();
    let reader = thread::spawn(move || errors.map(read).unwrap_or_default());
    let status = loop {
        if cancel.is_set() {
            // The program may have ended already.
            _ = child.kill();
        }
        match child.try_wait().map_err(|error| format!("waiting for {name}: {error}"))? {
            Some(status) => break status,
            None => thread::sleep(CHECK),
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = reader.join().unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(format!("{name} ended with {status}: {}", said.join("; ")))
}

fn read(errors: ChildStderr) -> Vec<u8> {
    let mut said = Vec::new();
    // If this fails, the exit status says enough.
    _ = errors.take(MAX_ERRORS).read_to_end(&mut said);
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_complained_of_is_told_within_bounds() {
        let said = |script: &str| run(Command::new("/bin/sh").args(["-c", script]), &Cancel::new());
        assert_eq!(said("echo well"), Ok(()));
        let error = said("echo one >&2; echo; echo >&2; echo ' two' >&2; exit 3").unwrap_err();
        assert_eq!(error, "/bin/sh ended with exit status: 3: one; two");
        let error = said("exec yes >&2").unwrap_err();
        assert!(error.len() < 2 * MAX_ERRORS as usize, "{} bytes", error.len());
    }

    #[test]
    fn a_program_that_is_cancelled_is_killed() {
        let cancel = Cancel::new();
        cancel.set();
        let error = run(Command::new("/bin/sh").args(["-c", "exec sleep 1000"]), &cancel).unwrap_err();
        assert!(error.contains("signal: 9"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        assert_eq!(find("mkfs.none", "nonetools").unwrap_err(), "there is no /usr/sbin/mkfs.none; install nonetools");
    }
}
