//! `bench user-data`: `slipway user-data inject` puts a block into a mebibyte of user-data of several kinds.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use slipway_parts::Arch;

use super::cost::{self, Cost};
use crate::build::binary;
use crate::host::command::command;
use crate::host::files;

const MIB: usize = 1 << 20;
const INJECT: [&str; 4] = ["user-data", "inject", "--phone-home-url", "https://s.example/v1/phone-home/t"];

/// Result for one kind of user-data.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What the user-data mostly consists of.
    pub sort: &'static str,
    /// Milliseconds from the start of the program to its end, median of the rounds.
    pub wall_ms: f64,
}

/// Measures the static binary, built or from the cache.
pub fn run(rounds: usize) -> Result<Vec<Row>> {
    let program = binary::build(Arch::default(), None)?;
    let scratch = tempfile::tempdir().context("creating a temporary folder")?;
    let input = scratch.path().join("user-data");
    let mut rows = Vec::new();
    for (sort, text) in inputs() {
        files::write(&input, text)?;
        let costs = (0..rounds).map(|_| once(&program, &input)).collect::<Result<Vec<Cost>>>();
        let costs = costs.with_context(|| format!("measuring {sort}"))?;
        rows.push(Row { sort, wall_ms: cost::median(&costs).wall * 1e3 });
    }
    Ok(rows)
}

fn once(program: &Path, input: &Path) -> Result<Cost> {
    let stdin = File::open(input).with_context(|| format!("opening {}", input.display()))?;
    let mut command = command(program, INJECT);
    command.stdin(stdin).stdout(Stdio::null());
    let began = Instant::now();
    let status = command.status().with_context(|| format!("starting {}", program.display()))?;
    let wall = began.elapsed().as_secs_f64();
    ensure!(status.success(), "running {}: {status}", program.display());
    Ok(Cost { wall, ..Cost::default() })
}

fn inputs() -> Vec<(&'static str, String)> {
    let files = |content: &dyn Fn(usize) -> String| {
        many("write_files:\n", |n| format!("- path: /etc/file-{n}\n  owner: root:root # of it\n{}", content(n)))
    };
    let texts = files(&|_| format!("  content: |\n{}", "    some text of a file\n".repeat(12)));
    let crlf = texts.replace('\n', "\r\n");
    vec![
        ("files, block scalars", texts),
        ("files, base64", files(&|n| format!("  encoding: b64\n  content: {}\n", base64(n)))),
        ("files, CRLF", crlf),
        ("users with keys", many("users:\n", user)),
        ("packages", many("packages:\n", |n| format!("- some-package-{n}\n"))),
        ("commands as text", many("runcmd:\n", |n| format!("- echo 'command {n}' >>/var/log/commands.log\n"))),
        ("comments", many("a: 1\n", |n| format!("# What number {n} is for.\n"))),
        ("keys", many("", |n| format!("key_{n}: value\n"))),
        ("one list", many("a:\n", |_| "- b\n".to_owned())),
        (
            "commands in brackets",
            many("runcmd:\n", |n| format!("- [ systemctl, enable, --now, service-{n}.service ]\n")),
        ),
    ]
}

fn user(n: usize) -> String {
    let key = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{n:043}");
    format!(
        "- name: user-{n}\n  groups: [sudo, users]\n  shell: /bin/bash\n  ssh_authorized_keys:\n  - {key} user-{n}\n"
    )
}

/// Makes a cloud-config that starts with `begin` and is filled with pieces to one mebibyte.
fn many(begin: &str, piece: impl Fn(usize) -> String) -> String {
    let mut text = format!("#cloud-config\n{begin}");
    let mut n = 0;
    while text.len() < MIB {
        text.push_str(&piece(n));
        n += 1;
    }
    text
}

/// Makes four thousand base64 characters, different for every seed.
fn base64(seed: usize) -> String {
    let mut text = String::new();
    for n in 0..500 {
        // Knuth's multiplier spreads the number over all digits.
        _ = write!(text, "{:08X}", ((seed * 500 + n) as u32).wrapping_mul(2_654_435_761));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_a_mebibyte_of_cloud_config() {
        for (sort, text) in inputs() {
            assert!(text.starts_with("#cloud-config"), "{sort}");
            assert!((MIB..MIB + MIB / 8).contains(&text.len()), "{sort}: {}", text.len());
        }
    }
}
