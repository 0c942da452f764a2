//! `slipway user-data`: edits user-data from standard input to standard output, and checks seeds.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use slipway_user_data::{Block, MAX_BYTES, Post, Refusal, network, seed};

#[derive(Subcommand)]
pub(super) enum UserData {
    /// Insert a phone_home block: standard input to standard output
    Inject {
        /// URL to which cloud-init reports; cloud-init replaces $INSTANCE_ID in it
        #[arg(long, value_parser = parse_url)]
        phone_home_url: String,
        /// What cloud-init posts: all, or some of pub_key_rsa, pub_key_ecdsa, pub_key_ed25519, instance_id, hostname,
        /// fqdn
        #[arg(long = "phone-home-post", alias = "post", value_name = "all|KEY,KEY", default_value = "all")]
        post: Post,
        /// Number of attempts, 3 s apart [cloud-init's own default: 10]
        #[arg(long = "phone-home-tries", alias = "tries", value_name = "N")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        tries: Option<u32>,
    },
    /// Remove every phone_home block with this URL: standard input to standard output
    Remove {
        /// URL of the blocks to remove
        #[arg(long)]
        phone_home_url: String,
    },
    /// Check that cloud-init or Ignition can use the content of seeds
    Check {
        /// Files with user-data, vendor-data or Ignition configs; - is standard input, which is also the default
        /// without --network-config
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// File with a network configuration; may be given several times
        #[arg(long = "network-config", alias = "network", value_name = "FILE")]
        network: Vec<PathBuf>,
    },
}

pub(super) fn run(command: UserData) -> Result<ExitCode> {
    let edited = match command {
        UserData::Inject { phone_home_url: url, post, tries } => {
            edited(|user_data| slipway_user_data::inject(user_data, &Block { url, post, tries }))?
        }
        UserData::Remove { phone_home_url } => {
            edited(|user_data| slipway_user_data::remove(user_data, &phone_home_url))?
        }
        UserData::Check { files, network } if files.is_empty() && network.is_empty() => {
            edited(|user_data| seed::check_user_data(user_data).map(|()| Vec::new()))?
        }
        UserData::Check { files, network } => return check(&files, &network),
    };
    match edited {
        Ok(edited) => {
            super::print_bytes(&edited)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            super::print_stderr(&line(&refusal));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Edits standard input. Refuses input larger than [`MAX_BYTES`], because only its beginning is read.
fn edited(edit: impl FnOnce(&[u8]) -> Result<Vec<u8>, Refusal>) -> Result<Result<Vec<u8>, Refusal>> {
    let user_data = read_whole(&mut std::io::stdin()).context("reading user-data from standard input")?;
    if user_data.len() > MAX_BYTES {
        // `remove` passes on what it cannot parse, so it must not get truncated input.
        let reason = format!("the user-data has more than {} MiB", MAX_BYTES >> 20);
        return Ok(Err(Refusal { line: 1, column: 1, reason }));
    }
    Ok(edit(&user_data))
}

/// Checks all files, and prints a line for each one that is refused.
fn check(files: &[PathBuf], networks: &[PathBuf]) -> Result<ExitCode> {
    let mut refused = false;
    let mut tell = |file: &Path, judged: Result<(), Refusal>| {
        if let Err(refusal) = judged {
            refused = true;
            super::print_stderr(&format!("{}:{}", file.display(), line(&refusal)));
        }
    };
    for file in files {
        tell(file, seed::check_user_data(&read(file)?));
    }
    for file in networks {
        let not_text = |_| Refusal { line: 1, column: 1, reason: "it is not UTF-8 text".to_owned() };
        tell(file, String::from_utf8(read(file)?).map_err(not_text).and_then(|text| network::check(&text)));
    }
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn line(Refusal { line, column, reason }: &Refusal) -> String {
    format!("{line}:{column}: {reason}")
}

/// Reads a file, but at most one byte more than [`MAX_BYTES`].
pub(super) fn read(file: &Path) -> Result<Vec<u8>> {
    if super::is_stdin(file) {
        return read_whole(&mut std::io::stdin()).context("reading standard input");
    }
    let mut opened = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    read_whole(&mut opened).with_context(|| format!("reading {}", file.display()))
}

fn read_whole(source: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse_url(url: &str) -> Result<String, String> {
    slipway_user_data::url_problem(url).map_or_else(|| Ok(url.to_owned()), |problem| Err(problem.to_owned()))
}
