//! `cargo xtask image`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use slipway_parts::Arch;
use slipway_protocol::node::boot_settings;
use xtask::build::server::{self, Profile};
use xtask::build::{image, kernel, prepare};
use xtask::host::command::{command, run};
use xtask::host::files;

/// Build kernel, initramfs, unified kernel image, and images for a USB stick and an optical disc, for one server.
///
/// The command builds the parts of the boot image and slipway-server, then runs `slipway-server media build`.
#[derive(Args)]
pub struct Image {
    /// HTTPS URL of the server, as machines reach it
    #[arg(long, value_name = "URL")]
    server_url: String,
    /// File with the CA of the server's certificate, in PEM
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// File with a bootstrap token for the image
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Kernel: `generic` has the drivers of real machines; `cloud` is smaller and only for virtual machines
    #[arg(long, value_name = "NAME", default_value = kernel::GENERIC)]
    kernel: String,
    /// Processor architecture
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// Another argument of the kernel; may be given several times
    #[arg(long = "kernel-arg", alias = "argument", value_name = "WORD", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "target/slipway/image")]
    out: PathBuf,
}

impl Image {
    pub fn run(self) -> Result<()> {
        // Checked before the build, because a machine could not correct a wrong URL or CA.
        let wrong = |what: &str, wrong: String| anyhow!("checking the configuration of the boot image: {what} {wrong}");
        boot_settings::check_server(&self.server_url).map_err(|why| wrong(&format!("{:?}", self.server_url), why))?;
        let ca = files::read_text(&self.ca)?;
        boot_settings::check_ca(&ca).map_err(|why| wrong(&self.ca.display().to_string(), why))?;
        let boot_image = match self.arch {
            Arch::X86_64 => prepare::BOOT_IMAGE,
            Arch::Aarch64 => prepare::BOOT_IMAGE_ARM64,
        };
        let parts = [prepare::BINARY, boot_image, prepare::SERVER];
        prepare::prepare("cargo xtask image", &parts, Duration::from_secs(10))?;
        let config = image::config(&self.kernel, self.arch)?;
        let absent = image::absent_drivers(&config.kernel)?;
        if !absent.is_empty() {
            println!("kernel {} has no drivers for {}", config.kernel.release, absent.join(", "));
            if self.kernel != kernel::GENERIC {
                println!("for real machines, build the image with --kernel {}", kernel::GENERIC);
            }
        }
        let mut media = command(server::build_server(Profile::Dev)?, ["media", "build"]);
        media.arg("--parts").arg(image::build_parts(&config)?);
        media.args(["--kernel", &self.kernel, "--url", &self.server_url]).arg("--ca").arg(&self.ca);
        media.arg("--out").arg(&self.out);
        if let Some(token) = &self.token_file {
            media.arg("--token-file").arg(token);
        }
        for argument in &self.arguments {
            media.args(["--argument", argument]);
        }
        run(&mut media)
    }
}
