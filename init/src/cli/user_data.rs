//! `slipway user-data`: the user-data edits of a seed, from standard input to standard output.

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use slipway_user_data::{Block, MAX_BYTES, Post, Refusal};

#[derive(Subcommand)]
pub(super) enum UserData {
    /// Insert a phone_home block: standard input to standard output
    Inject {
        /// URL to which cloud-init reports; $INSTANCE_ID in it is replaced
        #[arg(long, value_parser = parse_url)]
        phone_home_url: String,
        /// What it posts: all, or some of pub_key_rsa, pub_key_ecdsa, pub_key_ed25519, instance_id, hostname, fqdn
        #[arg(long, value_name = "all|KEY,KEY", default_value = "all")]
        post: Post,
        /// How often cloud-init tries, 3 s apart [cloud-init's own default: 10]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        tries: Option<u32>,
    },
    /// Remove every phone_home block with this URL: standard input to standard output
    Remove {
        /// The URL of the blocks
        #[arg(long)]
        phone_home_url: String,
    },
    /// Check that cloud-init can parse standard input, and that a phone_home block can be inserted
    Check,
}

pub(super) fn run(command: UserData) -> Result<ExitCode> {
    let mut user_data = Vec::new();
    let mut stdin = std::io::stdin().take(MAX_BYTES as u64 + 1);
    stdin.read_to_end(&mut user_data).context("reading user-data from standard input")?;
    if user_data.len() > MAX_BYTES {
        // `remove` passes on what it cannot parse, so truncated input must not reach it.
        super::print_stderr(&format!("1:1: the user-data has more than {} MiB", MAX_BYTES >> 20));
        return Ok(ExitCode::FAILURE);
    }
    let edited = match command {
        UserData::Inject { phone_home_url: url, post, tries } => {
            slipway_user_data::inject(&user_data, &Block { url, post, tries })
        }
        UserData::Remove { phone_home_url } => slipway_user_data::remove(&user_data, &phone_home_url),
        UserData::Check => slipway_user_data::check(&user_data).map(|()| Vec::new()),
    };
    match edited {
        Ok(edited) => {
            super::print_bytes(&edited)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(Refusal { line, column, reason }) => {
            super::print_stderr(&format!("{line}:{column}: {reason}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn parse_url(url: &str) -> Result<String, String> {
    slipway_user_data::url_problem(url).map_or_else(|| Ok(url.to_owned()), |problem| Err(problem.to_owned()))
}
