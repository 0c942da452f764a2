//! `slipway-server lab`: a server and virtual machines that it installs, in one folder, with installed packages alone.

pub mod check;
mod fleet;
mod folder;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use slipway_protocol::shared::duration;
use slipway_server::node::status;

use super::boot_files::PARTS_FOLDER;
use super::status::wait::Awaited;
use super::words::{label, table, word};
use super::{print, print_line, read_user_data, tell};
use check::Check;
use fleet::{Fleet, System};
use folder::{Lab, Server};

/// Where a lab is, unless it is said.
const FOLDER: &str = "slipway-lab";

#[derive(Subcommand)]
pub enum LabCommand {
    /// Start a server and virtual machines, and install an image on them.
    #[command(after_help = "\
Examples:
  slipway-server lab up --image debian-12.raw.zst --wait running
  slipway-server lab up --nodes 3 --os debian-12 --image debian-12.raw.zst --option memory=2G --wait running")]
    Up(Box<Up>),
    /// Show the server and the machines of a lab.
    Status(Where),
    /// End the machines and the server of a lab, and remove its folder.
    Down(Where),
    /// Install an image on a virtual machine as on any other, wait until it is up, and run a check in it. The exit
    /// status is that of the check.
    #[command(after_help = "\
Examples:
  slipway-server lab run debian-12.raw.zst --check \"systemctl is-active ssh\"
  slipway-server lab run web.raw.zst --user-data web.yaml --check \"curl --fail http://127.0.0.1/\"")]
    Run(Box<Run>),
}

#[derive(Args)]
pub struct Where {
    /// Folder of the lab.
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    dir: PathBuf,
}

/// What a lab consists of.
#[derive(Args)]
pub struct Made {
    #[command(flatten)]
    place: Where,
    /// Folder of the prebuilt parts, from the package slipway-parts.
    #[arg(long, value_name = "FOLDER", env = "SLIPWAY_PARTS", default_value = PARTS_FOLDER)]
    parts: PathBuf,
    /// What a machine consists of, such as memory=1G or disk=8G; may be given several times.
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = super::power::option)]
    options: Vec<(String, String)>,
    /// File with user-data for the installed systems.
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// How long to wait at most for all machines.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30m")]
    timeout: Duration,
}

#[derive(Args)]
pub struct Up {
    /// Number of machines.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    nodes: u16,
    /// Name of the operating system that is made of the image.
    #[arg(long, value_name = "NAME", default_value = "lab")]
    os: String,
    /// The image to install.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    #[command(flatten)]
    made: Made,
    /// Wait until all machines are in this state. The exit status is 3 if a run failed instead, and 4 if the time was
    /// over.
    #[arg(long, value_enum, value_name = "STATE")]
    wait: Option<Awaited>,
}

#[derive(Args)]
pub struct Run {
    /// The image to install.
    image: PathBuf,
    /// The check: a command for the shell of the installed system. It runs as root at the end of the first boot.
    #[arg(long, value_name = "COMMAND")]
    check: String,
    #[command(flatten)]
    made: Made,
    /// Leave the lab as it is afterwards.
    #[arg(long)]
    keep: bool,
}

/// Runs a command about a lab.
pub async fn run(command: LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Up(up) => self::up(*up).await,
        LabCommand::Status(Where { dir }) => show(&Lab::open(&dir)?).await,
        LabCommand::Down(Where { dir }) => {
            Lab::open(&dir)?.remove().await?;
            print_line(&format!("the lab in {} is gone", dir.display()))
        }
        LabCommand::Run(run) => self::check(*run).await,
    }
}

async fn up(up: Up) -> anyhow::Result<()> {
    let Up { nodes, os, image, made, wait } = up;
    let Some(image) = image else {
        bail!(
            "starting a lab: there is nothing to install; give an image of a disk with --image: raw or qcow2, plain or \
             compressed, with UEFI boot and cloud-init, such as debian-12-genericcloud-amd64.qcow2 from \
             https://cloud.debian.org/images/cloud/bookworm/latest/"
        );
    };
    let user_data = read_user_data(made.user_data.as_deref())?;
    let dir = made.place.dir.clone();
    let (lab, fleet) = start(&made, nodes, System { name: os, image, user_data }).await?;
    let waited = match wait {
        Some(awaited) => fleet.wait(&lab, awaited, made.timeout).await,
        None => Ok(()),
    };
    fleet.close().await;
    let commands = |word: &str| format!("slipway-server lab {word} --dir {}", dir.display());
    tell(&format!(
        "the server is at {}; look at the machines with `{}`, and end all of it with `{}`\n",
        lab.page(),
        commands("status"),
        commands("down")
    ));
    waited
}

/// Starts a lab with machines that are being installed. If that is not possible, nothing is left.
async fn start(made: &Made, nodes: u16, system: System) -> anyhow::Result<(Lab, Fleet)> {
    let is_there = system.image.is_file();
    ensure!(is_there, "starting a lab: there is no image {}", system.image.display());
    let lab = Lab::make(&made.place.dir)?;
    let started = async {
        let server = lab.start(&made.parts)?;
        Fleet::make(&lab, &server, made, nodes, system).await
    };
    match started.await {
        Ok(fleet) => Ok((lab, fleet)),
        Err(error) => {
            clean_up(lab, "`slipway-server lab down`").await;
            Err(error)
        }
    }
}

/// Removes a lab. That this failed is said, and hides no other failure.
async fn clean_up(lab: Lab, end: &str) {
    if let Err(error) = lab.remove().await {
        tell(&format!("warning: the lab could not be removed; end it with {end}: {error:#}\n"));
    }
}

async fn check(run: Run) -> anyhow::Result<()> {
    let Run { image, check, made, keep } = run;
    let check = Check::new(check);
    let user_data = Some(check.user_data(read_user_data(made.user_data.as_deref())?.as_deref())?);
    let system = System { name: "lab".to_owned(), image, user_data };
    let (lab, fleet) = start(&made, 1, system).await?;
    let waited = fleet.wait(&lab, Awaited::Running, made.timeout).await;
    fleet.close().await;
    let console = lab.consoles()?.into_iter().next().unwrap_or_default();
    // What the machine said is what explains a failure.
    print(&console)?;
    let end = format!("`slipway-server lab down --dir {}`", made.place.dir.display());
    match keep {
        true => tell(&format!("end the lab with {end}\n")),
        false => clean_up(lab, &end).await,
    }
    waited?;
    let done = check.find(&console)?;
    print_line(&format!("the check printed, and ended with status {}:", done.status))?;
    print(&done.output)?;
    if done.status == 0 { Ok(()) } else { Err(done.failed().into()) }
}

async fn show(lab: &Lab) -> anyhow::Result<()> {
    let Some(Server { pid }) = lab.server()? else {
        bail!("the server of the lab does not run; `slipway-server lab down` ends what is left of it");
    };
    let (store, _) = lab.store().await?;
    let nodes = status::all(&store).await;
    store.close().await;
    let row = |node: &slipway_protocol::NodeStatus| {
        let power = node.power.as_ref().and_then(|power| power.state).map(|state| state.to_string());
        vec![label(node).to_owned(), word(&node.state), power.unwrap_or_default(), lab.console(&node.id)]
    };
    print_line(&format!("server: process {pid}, at {}", lab.page()))?;
    print(&table(&["Machine", "State", "Power", "Console"], nodes?.iter().map(row).collect()))
}
