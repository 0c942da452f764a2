//! `slipway-server run`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use slipway_server::ca::Authority;
use slipway_server::data::DataDir;
use slipway_server::operate::{self, NewRun, Task};
use slipway_server::reporting::PostKeys;
use slipway_server::store::Store;

use super::os::Reports;
use super::{print_line, read, read_user_data};

#[derive(Subcommand)]
pub enum RunCommand {
    /// Start a run on a machine; prints the run's id.
    Start(RunStart),
}

#[derive(Args)]
#[command(group(clap::ArgGroup::new("task").required(true)))]
pub struct RunStart {
    /// Id, name or claim code of the machine.
    node: String,
    /// Install this operating system.
    #[arg(long, group = "task")]
    os: Option<String>,
    /// Run the steps in this YAML file.
    #[arg(long, value_name = "FILE", group = "task")]
    workflow: Option<PathBuf>,
    /// File with user-data in place of the operating system's, plain or compressed by gzip.
    #[arg(long, conflicts_with = "workflow")]
    user_data: Option<PathBuf>,
    /// Whether the installed system reports that it is up, whatever the operating system or the workflow says.
    #[arg(long, value_name = "BOOL")]
    phone_home: Option<bool>,
    #[command(flatten)]
    reports: Reports,
    /// Name of a loose step that is expected, in place of the operating system's or the workflow's; may be given several times.
    #[arg(long = "known-step", value_name = "NAME")]
    known_steps: Vec<String>,
    /// End a run that is still going on, as failed.
    #[arg(long)]
    replace: bool,
}

/// Starts a run.
pub async fn start(store: &Store, data: &DataDir, start: RunStart) -> anyhow::Result<()> {
    let task = match (start.os, start.workflow) {
        (Some(os), None) => Task::Os(os),
        (None, Some(file)) => {
            let yaml = read(&file)?;
            Task::Workflow(operate::parse_workflow(&yaml).with_context(|| format!("reading {file:?}"))?)
        }
        _ => bail!("either --os or --workflow says what to do"),
    };
    let authority = Authority::open(data)?;
    let new = NewRun {
        user_data: read_user_data(start.user_data.as_deref())?,
        phone_home: start.phone_home,
        phone_home_post: start.reports.phone_home_post.map(PostKeys),
        phone_home_tries: start.reports.phone_home_tries,
        known_steps: start.known_steps,
        replace: start.replace,
        ..NewRun::new(task)
    };
    print_line(&operate::start_run(store, authority.pem(), &start.node, new).await?.id)
}
