//! `slipway-server ca`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::{Args, Subcommand};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::{self, Authority, Certificate};
use slipway_server::operate::site_keys;
use slipway_server::store::Store;

use super::{print, print_line};

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Option<CaCommand>,
}

#[derive(Subcommand)]
enum CaCommand {
    /// Show what machines trust: validity, permitted names and addresses, and where the root key is.
    Show,
    /// Print the root for firmware and network boot loaders that support only RSA; made on first use.
    Firmware,
    /// Begin a new certificate authority next to the old one, or end that with --finish or --cancel.
    #[command(after_help = "\
Examples:
  slipway-server ca rotate --san install2.example
  slipway-server ca rotate --finish")]
    Rotate {
        /// Additional host name or address that the new CA may issue certificates for; may be given several times.
        #[arg(long = "san", alias = "name", value_name = "NAME")]
        names: Vec<String>,
        /// Replace the old certificate authority by the new one. Machines that trust only the old one then refuse the
        /// server.
        #[arg(long, conflicts_with_all = ["names", "cancel"])]
        finish: bool,
        /// Remove the new certificate authority. What was built or installed meanwhile also trusts the old one.
        #[arg(long, conflicts_with = "names")]
        cancel: bool,
    },
    /// Sign a new intermediate with the root key. Machines are not affected.
    Renew {
        /// File with the root key, if it is not in the data folder.
        #[arg(long, value_name = "FILE")]
        root_key: Option<PathBuf>,
        /// Additional host name or address that the intermediate may issue certificates for, if the root may; may be
        /// given several times.
        #[arg(long = "san", alias = "name", value_name = "NAME")]
        names: Vec<String>,
    },
    /// Move the root key out of the data folder into a new file, to be kept offline.
    ExportKey {
        /// File to create; it must not exist yet.
        file: PathBuf,
    },
}

pub async fn run(store: &Store, data: &DataDir, options: Options) -> anyhow::Result<()> {
    match options.command {
        None => print(&ca::anchors(data)?),
        Some(CaCommand::Show) => print(&shown(data, &Authority::open(data)?)),
        Some(CaCommand::Firmware) => {
            print(&site_keys::change(store, data, "a root for firmware was made", ca::firmware::root).await?)
        }
        Some(CaCommand::Rotate { finish: true, .. }) => {
            site_keys::change(store, data, "the new certificate authority is in use", ca::finish_rotation).await?;
            print_line(
                "the new certificate authority is in use; machines that trust only the old one refuse the server",
            )
        }
        Some(CaCommand::Rotate { cancel: true, .. }) => {
            site_keys::change(store, data, "the new certificate authority was removed", ca::cancel_rotation).await?;
            print_line("the new certificate authority is removed")
        }
        Some(CaCommand::Rotate { names, .. }) => {
            let names = written(&names)?;
            let begin = |data: &DataDir| ca::begin_rotation(data, &names);
            site_keys::change(store, data, "a new certificate authority was made", begin).await?;
            print_line(
                "a new certificate authority is made; what is installed and built from now on trusts both; build every \
                 boot medium again, then run `slipway-server ca rotate --finish`",
            )
        }
        Some(CaCommand::Renew { root_key, names }) => {
            let key = root_key.map(|file| super::read(&file)).transpose()?;
            let names = written(&names)?;
            let renew = |data: &DataDir| ca::renew_intermediate(data, key.as_deref(), &names);
            site_keys::change(store, data, "the intermediate certificate was replaced", renew).await?;
            print_line("the intermediate is replaced")
        }
        Some(CaCommand::ExportKey { file }) => export(store, data, &file).await,
    }
}

/// Moves the root key to a file. The key is removed from the data folder only once it is safely in the file.
async fn export(store: &Store, data: &DataDir, file: &Path) -> anyhow::Result<()> {
    let key = ca::root_key(data)?;
    super::write_secret(file, &key)?;
    site_keys::change(store, data, "the root key was moved out of the data folder", ca::remove_root_key).await?;
    print_line(&format!("the root key is in {} and no longer in the data folder", file.display()))
}

/// Returns the names in the form that certificates have: addresses in their usual form, host names in lower case.
fn written(names: &[String]) -> anyhow::Result<BTreeSet<String>> {
    let written = |name: &String| -> anyhow::Result<String> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return Ok(address.to_string());
        }
        let label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        ensure!(name.split('.').all(label), "{name:?} is neither a host name nor an IP address; correct --san");
        Ok(name.to_lowercase())
    };
    names.iter().map(written).collect()
}

fn shown(data: &DataDir, authority: &Authority) -> String {
    let mut text = of("root", authority.root());
    text.push_str(&key_place(data, false));
    text.push_str(&of("intermediate", authority.intermediate()));
    if let Some(next) = authority.next_root() {
        text.push_str(&of("next root, of the rotation in progress", next));
        text.push_str(&key_place(data, true));
    }
    text
}

fn of(what: &str, certificate: &Certificate) -> String {
    let limit = match &certificate.permitted {
        Some(names) => format!("limited to {}", names.iter().cloned().collect::<Vec<_>>().join(", ")),
        None => "not limited to any names: it was made by an older version; replace it with `ca rotate`".to_owned(),
    };
    format!("{what}: {}\n  until {}\n  {limit}\n", certificate.common_name, certificate.not_after.date())
}

fn key_place(data: &DataDir, next: bool) -> String {
    let place = match ca::has_root_key(data, next) {
        true => "in the data folder; move it to a safe place with `ca export-key FILE`",
        false => "not in the data folder (offline)",
    };
    format!("  root key: {place}\n")
}
