//! `slipway-server os`.

use std::path::PathBuf;
use std::str::FromStr as _;

use anyhow::ensure;
use clap::{ArgAction, Args, Subcommand};
use slipway_parts::Arch;
use slipway_protocol::workflow::agent::DRAIN;
use slipway_protocol::{Agent, AgentAct, Digest, Proof};
use slipway_server::image::stored;
use slipway_server::operate;
use slipway_server::rules::drain::{self, Recipe};
use slipway_server::rules::limits::{self, Change};
use slipway_server::rules::phone_home_settings::PostKeys;
use slipway_server::run::compose::phone_home;
use slipway_server::store::systems::System;
use slipway_server::store::{Store, images};
use slipway_user_data::Post;

use super::agent;
use super::ask::{self, Yes};
use super::disk::DiskOptions;
use super::lists::system_table;
use super::{print, print_json, print_line, read_user_data, tell};

#[derive(Subcommand)]
pub enum OsCommand {
    /// Add an operating system, or replace the one of the same name.
    Add(Box<OsAdd>),
    /// List the operating systems.
    List {
        /// Print a JSON array with all details instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Remove an operating system. Runs that were started from it continue.
    Remove {
        /// Name of the operating system.
        #[arg(value_name = "OS")]
        name: String,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server os add debian-12 --image debian-12.raw.zst --phone-home
  slipway-server os add debian-12 --image debian-12.raw.zst --phone-home --agent --drain systemd=app.service
  slipway-server os add debian-12 --image \"$DIGEST\" --user-data base.yaml --kernel-arg console=ttyS0 \
--disk-choose smallest")]
pub struct OsAdd {
    /// Name of the operating system.
    name: String,
    /// The image: its name, its digest, or the start of its digest.
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Architecture of the machines that it is for. Default: what the image shows, or any.
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Size of the raw image in bytes.
    #[arg(long)]
    raw_size: Option<u64>,
    /// Digest of the raw image, which machines check in addition to the image's digest.
    #[arg(long)]
    raw_digest: Option<Digest>,
    /// File with the user-data for runs that have none of their own, plain or compressed with gzip.
    #[arg(long)]
    user_data: Option<PathBuf>,
    /// File with vendor-data, plain or compressed with gzip.
    #[arg(long)]
    vendor_data: Option<PathBuf>,
    /// Argument for the installed system's kernel; may be given several times.
    #[arg(long = "kernel-arg", allow_hyphen_values = true)]
    kernel_args: Vec<String>,
    /// Public key that may log in, as a line of an id_ed25519.pub; may be given several times.
    #[arg(long = "ssh-key", value_name = "LINE")]
    ssh_keys: Vec<String>,
    /// Make the installed system report that it has booted; a run can override this.
    #[arg(long)]
    phone_home: bool,
    #[command(flatten)]
    reports: Reports,
    /// Whether a run may replace the operating system's user-data.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    allow_override: bool,
    /// Make the installed system report its boots until it runs.
    #[arg(long)]
    boot_reporter: bool,
    /// Leave an agent in the installed system, which says that it runs and does what operators ask for: see the other
    /// options, and `node agent`.
    #[arg(long)]
    agent: bool,
    /// What the agent may do by itself; may be given several times. Default: everything.
    #[arg(long = "agent-may", value_enum, value_name = "TASK", requires = "agent")]
    may: Vec<AgentAct>,
    /// Command that the agent may run as root when an operator asks for it by its name; may be given several times.
    #[arg(long = "task", value_name = "NAME=COMMAND", value_parser = agent::command, requires = "agent")]
    tasks: Vec<(String, String)>,
    /// What `node drain` does: systemd=UNIT,UNIT, podman, docker or kubectl; may be given several times.
    #[arg(long = "drain", value_name = "RECIPE", value_parser = Recipe::from_str, requires = "agent")]
    drains: Vec<Recipe>,
    /// Keep a run's metadata accessible after its system has reported. Its user-data then stays on the server.
    #[arg(long)]
    keep_metadata: bool,
    /// Name of an expected external step; others are accepted and flagged. May be given several times.
    #[arg(long = "known-step", value_name = "NAME")]
    known_steps: Vec<String>,
    /// What a machine must prove before it gets a run of this operating system.
    #[arg(long, value_enum, value_name = "PROOF", default_value_t)]
    require: Proof,
    /// Limit for its runs and its installed system, in place of the site's, such as booting=30m; may be given several
    /// times. `limits list` shows all limits.
    #[arg(long = "limit", value_name = "NAME=DURATION", value_parser = limits::parse)]
    limits: Vec<(String, Change)>,
    #[command(flatten)]
    disk: DiskOptions,
}

/// Options for an installed system's reports.
#[derive(Args)]
pub struct Reports {
    /// What the installed system posts: all, or some of pub_key_rsa, pub_key_ecdsa, pub_key_ed25519, instance_id,
    /// hostname, fqdn. All by default.
    #[arg(long, value_name = "all|KEY,KEY")]
    pub phone_home_post: Option<Post>,
    /// Number of attempts to report, 3 s apart; 10 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub phone_home_tries: Option<u32>,
}

/// Runs a command about operating systems.
pub async fn run(store: &Store, command: OsCommand) -> anyhow::Result<()> {
    match command {
        OsCommand::Add(add) => {
            ensure!(
                add.drains.is_empty() || !add.tasks.iter().any(|(name, _)| name == DRAIN),
                "adding the operating system: give the drain command once, as --drain or as --task {DRAIN}=COMMAND"
            );
            let image = operate::known_image(&mut *store.read().await?, &add.image).await?.digest;
            let system = operate::add_system(store, system(*add, image)?).await?;
            if system.phone_home && system.user_data.as_deref().is_some_and(phone_home::has_own_block) {
                tell(
                    "warning: the user-data has a phone_home block, which is replaced with one for this server; to \
                     keep it, leave out --phone-home\n",
                );
            }
            print_line(&system.name)
        }
        OsCommand::List { json } => {
            let systems = stored::systems(store).await?;
            let images = images::all(&mut *store.read().await?).await?;
            if json { print_json(&systems) } else { print(&system_table(&systems, &images)) }
        }
        OsCommand::Remove { name, yes } => {
            yes.ask("removing the operating system", &ask::system(store, &name).await?)?;
            operate::remove_system(store, &name).await?;
            print_line(&format!("operating system {name} is removed"))
        }
    }
}

fn system(add: OsAdd, image: Digest) -> anyhow::Result<System> {
    let agent = add.agent.then(|| {
        let mut agent = Agent { tasks: add.tasks.into_iter().collect(), ..Agent::default() };
        if !add.may.is_empty() {
            agent.may = add.may.into_iter().collect();
        }
        drain::add(&mut agent, &add.drains);
        agent
    });
    Ok(System {
        name: add.name,
        image,
        arch: add.arch,
        raw_size: add.raw_size,
        raw_digest: add.raw_digest,
        user_data: read_user_data(add.user_data.as_deref())?,
        vendor_data: read_user_data(add.vendor_data.as_deref())?,
        kernel_args: add.kernel_args,
        ssh_keys: add.ssh_keys,
        phone_home: add.phone_home,
        phone_home_post: add.reports.phone_home_post.map(PostKeys),
        phone_home_tries: add.reports.phone_home_tries,
        allow_override: add.allow_override,
        boot_reporter: add.boot_reporter,
        agent,
        keep_metadata: add.keep_metadata,
        known_steps: add.known_steps,
        require: add.require,
        limits: add.limits.into_iter().collect(),
        disk: add.disk.hints().unwrap_or_default(),
    })
}
