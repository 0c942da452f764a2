//! `slipway installer` under PID 1, and `slipway install` on a running system.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use slipway_installer::End;
use slipway_installer::config;
use slipway_installer::report::log_book::LogBook;

use crate::installer;
use crate::pid1::{EXIT_KEXEC, EXIT_REBOOT};

#[derive(clap::Args)]
pub struct InstallerArguments {
    #[command(flatten)]
    child: super::Supervised,
    /// Seconds from the start of the kernel to the start of PID 1
    #[arg(long)]
    init_at: Option<f64>,
}

#[derive(clap::Args)]
pub struct InstallArguments {
    /// Base URL of the server
    #[arg(long, alias = "server")]
    url: String,
    /// File with the CA certificate that signed the server's certificate
    #[arg(long)]
    ca: PathBuf,
    /// File with a bootstrap token
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// How the log is written to standard error
    /// [default: to the journal if standard error is connected to it, else text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<super::log::Format>,
}

/// Runs the installer as a child of PID 1. The exit status tells PID 1 what to do next.
pub fn installer(arguments: InstallerArguments) -> Result<ExitCode> {
    super::log::start(None, None);
    Ok(match wait_for(installer::in_boot_image(arguments.child.previous_exit, arguments.init_at))? {
        End::Reboot => ExitCode::from(EXIT_REBOOT),
        End::Kexec => ExitCode::from(EXIT_KEXEC),
        End::Done | End::Failed => ExitCode::SUCCESS,
    })
}

/// Runs one workflow on a running system. Only the owner restarts the machine.
pub fn install(arguments: InstallArguments) -> Result<ExitCode> {
    let log = LogBook::default();
    super::log::start(Some(log.clone()), arguments.log_format);
    let mut values =
        BTreeMap::from([("server".to_owned(), arguments.url), ("ca".to_owned(), super::read_file(&arguments.ca)?)]);
    if let Some(path) = &arguments.token_file {
        values.insert("token".to_owned(), super::read_file(path)?.trim().to_owned());
    }
    let settings = config::Source { place: "the command line".to_owned(), values };
    match wait_for(installer::in_operating_system(settings, log))? {
        End::Reboot => super::print("the system is installed: restart the machine to start it\n")?,
        End::Kexec => {
            super::print(
                "the system is installed and its kernel is loaded: start it with systemctl kexec or kexec -e\n",
            )?;
        }
        End::Done => super::print("the run is done\n")?,
        End::Failed => return Ok(ExitCode::FAILURE),
    }
    Ok(ExitCode::SUCCESS)
}

fn wait_for(installer: impl Future<Output = Result<End>>) -> Result<End> {
    let runtime = super::runtime()?;
    let end = runtime.block_on(installer);
    // An action that hangs on a dead disk must not keep the machine from restarting.
    runtime.shutdown_background();
    end
}
