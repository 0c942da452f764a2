//! Runs other programs. An error names the program and shows its output.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Makes a command for the functions below. Removes the variables that cargo sets about our package: another cargo,
/// started by the command, would take them for changed inputs and recompile the crates that read them.
pub fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    // The output is parsed, so it must be English.
    command.args(arguments).env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|ours| name.as_encoded_bytes().starts_with(ours.as_bytes())) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the command with its output on our terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let name = name(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {name}"))?;
    ensure!(status.success(), "running {name}: {status}");
    Ok(())
}

/// Runs the command without showing its output. On failure the error contains the last lines.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    captured(command).map(drop)
}

/// Runs the command and prints `message` once, when the first line on standard error begins with `word`: cargo prints
/// `Compiling` if there is something to compile. Other output is shown only on failure.
pub fn run_and_tell(command: &mut Command, word: &str, message: &str) -> Result<()> {
    let name = name(command);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("starting {name}"))?;
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().context("reading standard error")?).lines() {
        let line = line.with_context(|| format!("reading a line that {name} printed"))?;
        if line.trim_start().starts_with(word) && !said.contains(word) {
            eprintln!("{message}");
        }
        said.push_str(&line);
        said.push('\n');
    }
    let status = child.wait().with_context(|| format!("waiting for {name}"))?;
    ensure!(status.success(), "running {name}: {status}\n{}", tail(&said, 30));
    Ok(())
}

/// Runs the command and returns its standard output, which must be UTF-8.
pub fn stdout(command: &mut Command) -> Result<String> {
    let name = name(command);
    let output = captured(command)?;
    String::from_utf8(output.stdout).with_context(|| format!("reading the output of {name}"))
}

fn captured(command: &mut Command) -> Result<Output> {
    let name = name(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {name}"))?;
    if !output.status.success() {
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        bail!("running {name}: {}\n{}", output.status, tail(&String::from_utf8_lossy(&said), 30));
    }
    Ok(output)
}

/// Returns the last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}
