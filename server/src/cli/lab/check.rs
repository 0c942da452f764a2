//! A check in an installed system: a script of cloud-init that reports by the serial port. So it needs neither SSH nor
//! a network in the system.

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use slipway_server::base::random;

/// The script, with places for values.
const SCRIPT: &str = include_str!("check.sh");
/// Marks lines of the report.
const MARK: &str = "slipway-check";
/// Bytes of output that are reported: the last ones.
const MOST: usize = 64 << 10;

/// A check to run in a system.
#[derive(Clone, Debug)]
pub struct Check {
    command: String,
    /// Marks the report of this check, as nothing else that the machine prints.
    id: String,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The exit status.
    pub status: u8,
    /// The end of what it printed.
    pub output: String,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the check failed with status {status}")]
pub struct CheckFailed {
    /// The exit status of the check, and of this program.
    pub status: u8,
}

impl Done {
    /// The error for a check that failed.
    pub fn failed(&self) -> CheckFailed {
        CheckFailed { status: self.status }
    }
}

impl Check {
    /// A check that is this command of the shell.
    pub fn new(command: String) -> Self {
        Self { command, id: random::id() }
    }

    /// Returns user-data that runs the check after everything that `given` asks for, and before the system reports that
    /// it is up.
    pub fn user_data(&self, given: Option<&str>) -> anyhow::Result<String> {
        let boundary = format!("slipway-{}", self.id);
        let is_one = given.is_none_or(|given| !given.to_ascii_lowercase().contains("mime-version:"));
        ensure!(is_one, "reading the user-data: it has several parts; give a #cloud-config or a script for a check");
        let part = |name: &str, content: &str| {
            let head = "Content-Type: text/plain; charset=\"utf-8\"\nMIME-Version: 1.0";
            let encoded = STANDARD.encode(content);
            let lines = encoded.as_bytes().chunks(76).map(|line| String::from_utf8_lossy(line) + "\n");
            let lines: String = lines.collect();
            let file = format!("Content-Disposition: attachment; filename=\"{name}\"");
            format!("--{boundary}\n{head}\nContent-Transfer-Encoding: base64\n{file}\n\n{lines}")
        };
        let given = given.map(|given| part("given", given)).unwrap_or_default();
        // cloud-init runs scripts in the order of their names.
        let check = part("zz-slipway-check", &self.script());
        let head = format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0");
        Ok(format!("{head}\n\n{given}{check}--{boundary}--\n"))
    }

    fn script(&self) -> String {
        let values =
            [("@ID@", self.id.clone()), ("@COMMAND@", STANDARD.encode(&self.command)), ("@MOST@", MOST.to_string())];
        values.iter().fold(SCRIPT.to_owned(), |script, (name, value)| script.replacen(name, value, 1))
    }

    /// Finds the report in what a machine printed.
    pub fn find(&self, console: &str) -> anyhow::Result<Done> {
        let (mut encoded, mut ended) = (String::new(), None);
        for line in console.lines() {
            let Some(report) = line.trim_end().strip_prefix(&format!("{MARK} {} ", self.id)) else { continue };
            match report.split_once(' ') {
                Some(("out", text)) => encoded.push_str(text),
                Some(("end", status)) => ended = status.parse().ok(),
                _ => {}
            }
        }
        let none = "reading the result of the check: the system did not report it on its serial port; its cloud-init \
                    has to run scripts of user-data (scripts-user)";
        let status = ended.context(none)?;
        let output = STANDARD.decode(&encoded).context("reading the result of the check: it is damaged")?;
        Ok(Done { status, output: String::from_utf8_lossy(&output).into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_check_prints_is_found_among_other_lines() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("check-{}", random::id()));
        std::fs::create_dir(&folder)?;
        let check = Check::new("printf 'one\\ntwo'; echo three >&2; seq 3000; exit 7".to_owned());
        let serial = folder.join("serial");
        std::fs::write(&serial, "[  OK  ] Reached target\n")?;
        let script = check.script().replace("dmesg -n 1", ":").replace("> \"$serial\"", ">> \"$serial\"");
        let script = script.replace("/dev/ttyS0", &serial.display().to_string()).replace("/dev/ttyAMA0", "/nowhere");
        assert!(Command::new("sh").arg("-c").arg(script).status()?.success());
        let console = std::fs::read_to_string(&serial)? + "login: slipway-check other end 0\n";
        std::fs::remove_dir_all(&folder)?;
        let done = check.find(&console)?;
        assert_eq!(done.status, 7);
        assert!(done.output.starts_with("one\ntwothree\n1\n2\n") && done.output.ends_with("\n3000\n"));
        assert!(Check::new(String::new()).find(&console).is_err(), "the report of another check");
        Ok(())
    }
}
