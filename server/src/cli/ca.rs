//! `slipway-server ca`.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::{self, Authority, Certificate};

use super::{print, print_line, tell};

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

const RESTART: &str = "restart the server for this to take effect: systemctl restart slipway-server\n";

pub fn run(data: &DataDir, options: Options) -> anyhow::Result<()> {
    match options.command {
        None => print(&ca::anchors(data)?),
        Some(CaCommand::Show) => print(&shown(data, &Authority::open(data)?)),
        Some(CaCommand::Firmware) => {
            let is_in_use = data.path(ca::firmware::SERVER[0]).exists();
            let root = ca::firmware::root(data)?;
            if !is_in_use {
                tell(RESTART);
            }
            print(&root)
        }
        Some(CaCommand::Rotate { finish: true, .. }) => {
            ca::finish_rotation(data)?;
            tell(RESTART);
            print_line(
                "the new certificate authority is in use; machines that trust only the old one refuse the server",
            )
        }
        Some(CaCommand::Rotate { cancel: true, .. }) => {
            ca::cancel_rotation(data)?;
            tell(RESTART);
            print_line("the new certificate authority is removed")
        }
        Some(CaCommand::Rotate { names, .. }) => {
            ca::begin_rotation(data, &written(&names)?)?;
            tell(RESTART);
            print_line(
                "a new certificate authority is made; what is installed and built from now on trusts both; build every \
                 boot medium again, then run `slipway-server ca rotate --finish`",
            )
        }
        Some(CaCommand::Renew { root_key, names }) => {
            let key = root_key.map(|file| super::read(&file)).transpose()?;
            ca::renew_intermediate(data, key.as_deref(), &written(&names)?)?;
            tell(RESTART);
            print_line("the intermediate is replaced")
        }
        Some(CaCommand::ExportKey { file }) => export(data, &file),
    }
}

/// Moves the root key to a file. The key is removed from the data folder only once it is safely in the file.
fn export(data: &DataDir, file: &Path) -> anyhow::Result<()> {
    let key = ca::root_key(data)?;
    let write = || {
        let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        open.write_all(key.as_bytes())?;
        open.sync_all()?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("writing {file:?}"))?;
    ca::remove_root_key(data)?;
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
