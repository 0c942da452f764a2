//! `slipway-server media`.

pub mod fetched;
mod known;
mod write;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use slipway_media::{AssetInfo, Kind, Manifest};
use slipway_parts::Arch;
use slipway_protocol::{MachineSettings, MetadataSource, Proof, Secret};
use slipway_server::base::data::{DataDir, Place};
use slipway_server::base::error::Error;
use slipway_server::boot_files::make::{KERNEL, NewMedia, Policy, Site};
use slipway_server::boot_files::{MediaError, machine_settings, published};
use slipway_server::{boot_files, operate};

use super::{print, print_json, print_line};

#[derive(Subcommand)]
pub enum MediaCommand {
    /// Make what machines boot from: files for the network, and the images of a stick and of a disc. If the site has a
    /// bucket, they are published there, and all servers fetch them.
    #[command(after_help = "\
Examples:
  slipway-server media build
  slipway-server media build --out /srv/boot --kernel cloud --kind network
  slipway-server media build --out media --url https://install.example:8443 --ca ca.pem --kind stick")]
    Build(Box<BuildOptions>),
    /// Give all servers of the site the boot files in a folder: store them in the bucket, from which the servers fetch
    /// them. `media build` without --out does so itself. The build before stays for machines that began with it.
    #[command(after_help = "\
Examples:
  slipway-server media publish
  slipway-server media publish /srv/boot")]
    Publish {
        /// Folder of boot files that `media build` made.
        #[arg(value_name = "FOLDER", default_value = BOOT_FOLDER)]
        folder: PathBuf,
    },
    /// Write the settings of one machine onto a medium: a few bytes of an image or of a stick. Whoever has the medium
    /// can read them. Without options, the settings are removed.
    #[command(after_help = "\
Examples:
  slipway-server media settings web1.img --token-file token
  slipway-server media settings web1.img --token-file token --network web1.yaml")]
    Settings {
        /// The image, or the disk of a stick.
        medium: PathBuf,
        #[command(flatten)]
        options: MachineOptions,
    },
    /// Write the image of a stick to a disk, and read it back. Shows first what is on the disk, and asks. Needs root,
    /// and the program slipway, which writes disks.
    #[command(after_help = "\
Examples:
  slipway-server media write --disk /dev/sdb
  slipway-server media write --disk /dev/sdb --image media/slipway.img")]
    Write(write::WriteOptions),
    /// List the builds that a machine that must be attested may have started, the programs that may start before them,
    /// and the builds that are published.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Forget a build or an allowed program. Machines that must be attested are then held if they started it.
    #[command(after_help = "\
Examples:
  slipway-server media forget 496870d5a14c6d7d")]
    Forget {
        /// Id of the build, or digest of the program.
        id: String,
    },
    /// Let a program start before boot files on machines that must be attested, such as a boot loader.
    #[command(after_help = "\
Examples:
  slipway-server media allow /srv/boot/ipxe.efi")]
    Allow {
        /// The program, an EFI program.
        program: PathBuf,
    },
    /// Set what a machine that must be attested may have started.
    #[command(after_help = "\
Examples:
  slipway-server media require built")]
    Require {
        /// What it may have started.
        #[arg(value_enum)]
        started: known::Started,
    },
}

/// Default folder of boot files.
const BOOT_FOLDER: &str = "/var/lib/slipway-boot";
/// Where the package slipway-parts puts the prebuilt parts.
pub const PARTS_FOLDER: &str = "/usr/share/slipway/parts";

#[derive(Args)]
pub struct BuildOptions {
    /// Folder for the files, which are then not published. Without a bucket, it may be the folder that `serve --boot`
    /// names. [default: the bucket of the site, or else /var/lib/slipway-boot]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Folder of the prebuilt parts.
    #[arg(long, value_name = "FOLDER", env = "SLIPWAY_PARTS", default_value = PARTS_FOLDER)]
    parts: PathBuf,
    /// Kernel: `generic` has the drivers of real machines; `cloud` is smaller and only for virtual machines.
    #[arg(long, value_name = "NAME", default_value = KERNEL)]
    kernel: String,
    /// Architecture; may be given several times. By default all for which there are parts.
    #[arg(long = "arch", value_enum)]
    archs: Vec<Arch>,
    /// What to make; may be given several times. By default everything.
    #[arg(long = "kind", value_enum)]
    kinds: Vec<KindName>,
    /// HTTPS URL of the server, as machines reach it. By default the URL of the server on this data folder, or none
    /// with `--metadata`.
    #[arg(long)]
    url: Option<String>,
    /// File with what machines are to trust, in PEM. By default the certificate authority of the data folder.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineOptions,
    /// What machines must have before they send anything to the server. `token` needs a token in the files, or in the
    /// settings of each stick or disc.
    #[arg(long, value_enum, value_name = "PROOF", default_value_t)]
    require: Proof,
    /// Where virtual machines may be told the server and a bootstrap token, separated by commas. They trust what they
    /// are told for nothing else.
    #[arg(long, value_enum, value_name = "PLACES", value_delimiter = ',')]
    metadata: Vec<MetadataSource>,
    /// Console of the kernel, such as ttyS1,115200; may be given several times. slipway's own output goes to the last.
    /// By default tty0 and the first serial port.
    #[arg(long = "console", value_name = "CONSOLE")]
    consoles: Vec<String>,
    /// Another argument of the kernel; may be given several times.
    #[arg(long = "kernel-arg", alias = "argument", value_name = "WORD", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Do not sign, although the data folder has keys for Secure Boot.
    #[arg(long)]
    unsigned: bool,
    /// Print the manifest instead of a table.
    #[arg(long)]
    json: bool,
}

/// The settings of machines, two of which are in files.
#[derive(Args)]
pub struct MachineOptions {
    /// File with a bootstrap token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// YAML file with the network while a machine runs from the medium. By default DHCP and router advertisements.
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    #[command(flatten)]
    settings: MachineSettings,
}

/// A kind of boot files.
#[derive(Clone, Copy, ValueEnum)]
enum KindName {
    /// Kernel, initramfs and unified kernel image, for boot over the network.
    Network,
    /// slipway.img, the image of a USB stick.
    Stick,
    /// slipway.iso, for virtual media of management controllers.
    Disc,
}

pub async fn run(place: &Place, command: MediaCommand) -> anyhow::Result<()> {
    match command {
        MediaCommand::Build(options) => build(place, *options).await,
        MediaCommand::Publish { folder } => publish(place, &folder).await,
        MediaCommand::Settings { medium, options } => {
            let settings = options.read()?;
            machine_settings::write(&medium, &settings)?;
            let values = serde_json::to_value(&settings)?;
            let values = values.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
            let has: Vec<&str> = values.map(|(key, _)| key.as_str()).collect();
            let medium = medium.display();
            match has.as_slice() {
                [] => print_line(&format!("removed the machine's settings from {medium}")),
                has => print_line(&format!("wrote the machine's settings to {medium}: {}", has.join(", "))),
            }
        }
        MediaCommand::Write(options) => write::run(&options),
        MediaCommand::List { json } => known::list(place, json).await,
        MediaCommand::Forget { id } => known::forget(place, &id).await,
        MediaCommand::Allow { program } => known::allow(place, &program).await,
        MediaCommand::Require { started } => known::require(place, started).await,
    }
}

impl MachineOptions {
    /// Reads the settings that are in files, and returns all settings.
    fn read(self) -> anyhow::Result<MachineSettings> {
        let token = self.token_file.map(|file| super::read(&file)).transpose()?;
        let network =
            |file: &Path| operate::parse_network(&super::read(file)?).with_context(|| format!("reading {file:?}"));
        Ok(MachineSettings {
            token: token.map(|text| Secret::from(text.trim().to_owned())),
            network: self.network.as_deref().map(network).transpose()?,
            ..self.settings
        })
    }
}

async fn build(place: &Place, options: BuildOptions) -> anyhow::Result<()> {
    let (parts, out, is_json) = (options.parts.clone(), options.out.clone(), options.json);
    let new = new_media(options)?;
    let site = match DataDir::open(place) {
        Ok(data) => Ok(Site { store: super::open(&data).await?, data }),
        Err(error) => Err(error),
    };
    let store = site.as_ref().ok().map(|site| site.store.clone());
    let made = build_for(place, new, &parts, out.as_deref(), site).await;
    if let Some(store) = store {
        store.close().await;
    }
    let (manifest, folder) = made.map_err(told)?;
    if is_json {
        return print_json(&manifest);
    }
    let path = |asset: &AssetInfo| match &folder {
        Some(folder) => folder.join(&asset.path).display().to_string(),
        None => asset.path.clone(),
    };
    let line = |asset: &AssetInfo| format!("{:>11} bytes  {}\n", asset.size, path(asset));
    print(&manifest.assets.iter().map(line).collect::<String>())?;
    match folder {
        Some(_) => Ok(()),
        None => print_line(&rule_of_publishing(&manifest.id)),
    }
}

/// Makes boot files in a folder, or publishes them. Returns their manifest, and the folder.
async fn build_for(
    place: &Place,
    new: NewMedia,
    parts: &Path,
    out: Option<&Path>,
    site: Result<Site, Error>,
) -> Result<(Manifest, Option<PathBuf>), MediaError> {
    let site = match (out, site) {
        (None, Ok(site)) => {
            // If the server has a bucket, its boot files are there.
            operate::check_objects(&site.store).await?;
            Ok(site)
        }
        (_, site) => site,
    };
    if out.is_none() && place.bucket.is_some() {
        let site = site?;
        let (store, data) = (site.store.clone(), site.data.clone());
        let policy = Policy { site: Ok(site), vouches_for_all: true };
        let made = published::make_and_publish(new, parts, &store, &data, policy).await?;
        return Ok((made, None));
    }
    let out = out.unwrap_or(Path::new(BOOT_FOLDER));
    let made = boot_files::make(new, parts, out, Policy { site, vouches_for_all: true }).await?;
    Ok((made, Some(out.to_owned())))
}

async fn publish(place: &Place, folder: &Path) -> anyhow::Result<()> {
    let store = super::open(&DataDir::open(place)?).await?;
    let published = async {
        operate::check_objects(&store).await?;
        published::publish(&store, folder).await
    };
    let published = published.await;
    store.close().await;
    print_line(&rule_of_publishing(&published.map_err(told)?.id))
}

fn rule_of_publishing(id: &str) -> String {
    format!("{id} is published: each server with --boot fetches it from the bucket")
}

fn told(error: MediaError) -> anyhow::Error {
    match error {
        // Converted as in other commands, so that `owner::told` can add who may use the data folder.
        MediaError::Site(error) => error.into(),
        error => error.into(),
    }
}

fn new_media(options: BuildOptions) -> anyhow::Result<NewMedia> {
    let MachineSettings { token, network, proxy, no_proxy, hostname } = options.machine.read()?;
    Ok(NewMedia {
        url: options.url,
        ca: options.ca.as_deref().map(super::read).transpose()?,
        token,
        network,
        proxy,
        no_proxy,
        hostname,
        require: options.require,
        metadata: options.metadata.into_iter().collect(),
        consoles: options.consoles,
        arguments: options.arguments,
        kinds: options.kinds.into_iter().map(Kind::from).collect(),
        archs: options.archs.into_iter().collect(),
        kernel: Some(options.kernel),
        unsigned: options.unsigned,
    })
}

impl From<KindName> for Kind {
    fn from(name: KindName) -> Self {
        match name {
            KindName::Network => Self::Network,
            KindName::Stick => Self::Stick,
            KindName::Disc => Self::Disc,
        }
    }
}
