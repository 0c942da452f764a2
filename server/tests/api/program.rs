//! The program itself, as operators and scripts run it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::postgres;

pub fn command(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-server"));
    command.arg("--data").arg(data).args(arguments).env_remove("SLIPWAY_LOG");
    name_database(&mut command, data);
    command
}

/// Names the database that belongs to a data folder, if that is not in the folder.
pub fn name_database(command: &mut Command, data: &Path) {
    if let Some(url) = postgres::url_if_asked(data) {
        command.env("SLIPWAY_DATABASE", url);
    }
}

pub fn run(data: &Path, arguments: &[&str]) -> Output {
    command(data, arguments).output().unwrap()
}

pub fn succeed(data: &Path, arguments: &[&str]) -> String {
    let output = run(data, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail. Returns its one line on standard error.
pub fn fail(data: &Path, arguments: &[&str]) -> String {
    let child = command(data, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Ended(child);
    // A server that starts after all would not end. Its first line reveals it.
    let (mut stdout, mut stderr) = (String::new(), String::new());
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut stdout).unwrap();
    assert_eq!(stdout, "", "{arguments:?}");
    child.0.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(1), "{arguments:?}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr.trim_end().to_owned()
}

/// Kills the program on drop, so that a failed test leaves none behind.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn serve(data: &Path) -> (Ended, serde_json::Value) {
    started(command(data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]))
}

/// A server that listens, and what it says of that.
pub fn started(mut command: Command) -> (Ended, serde_json::Value) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Ended(child), serde_json::from_str(&line).unwrap())
}

/// A server creates the folder and is stopped again.
pub fn made(data: &Path) {
    drop(serve(data));
}
