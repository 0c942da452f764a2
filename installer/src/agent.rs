//! The agent of an installed system: `slipway report` once the system runs, if its operating system asks for one. It
//! says that the system runs, and does the tasks that the settings on the machine name. It does nothing else, whatever
//! the server asks for.
//!
//! Nothing in the system depends on the agent, so an error is only logged.

use std::time::Duration;

use slipway_protocol::node::boot_report::{MAINTENANCE, places};
use slipway_protocol::{
    Agent, Algorithm, BootReporterConfig, Digest, ErrorCode, Failure, Heartbeat, HeartbeatAnswer, MachineSettings,
    TaskReport,
};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::boot_report::{ReportError, Surroundings, collect, emergency};
use crate::config::Config;
use crate::server::backoff::Backoff;
use crate::server::client::{Client, ClientError};
use crate::server::told::Told;

pub use self::boot_slipway::{BootSlipwayError, boot_slipway};
use self::files::Files;
use self::task::Tasks;

mod boot_slipway;
mod files;
mod requests;
mod task;

/// The least and the most seconds between two heartbeats, whatever the server says.
const EVERY: std::ops::RangeInclusive<u32> = 5..=300;
/// Seconds between two heartbeats before the server said anything.
const FIRST_EVERY: u32 = 30;
/// Seconds between two reports of a task.
const TASK_EVERY: u32 = 3;

/// How long a second lasts. In tests, less.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A second.
    pub second: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { second: Duration::from_secs(1) }
    }
}

/// Whether the system has an agent that has credentials of its own: its boot has been reported.
pub fn has_begun(config: &BootReporterConfig, surroundings: &Surroundings) -> bool {
    Files::of(surroundings).token(config).is_some()
}

/// Sends heartbeats and does tasks, until the server says that the agent is removed. `settings` are those on the
/// machine.
pub async fn run(
    config: BootReporterConfig,
    settings: &Agent,
    surroundings: &Surroundings,
    pace: Pace,
) -> Result<(), ReportError> {
    let files = Files::of(surroundings);
    let mut config = config;
    let token = match files.token(&config) {
        Some(token) => token,
        None => match register(&config, &files, pace).await? {
            Some(token) => token,
            None => return Ok(()),
        },
    };
    let mut client = client(&config, &token)?;
    let mut tasks = Tasks::resume(surroundings, settings);
    let (mut told, mut backoff, mut every) = (Told::default(), Backoff::default(), FIRST_EVERY);
    let mut asked_for_network = false;
    loop {
        tasks.look(&client).await;
        let seen = look(surroundings, &mut asked_for_network).await;
        let beat = beat(&config, settings, surroundings, seen, tasks.report());
        let wait = if beat.task.is_some() { 0 } else { every };
        let asked = Instant::now();
        let answer = client.agent_heartbeat(&beat, wait).await;
        let pause = match answer {
            Ok(answer) => {
                backoff.reset();
                every = answer.every_seconds.clamp(*EVERY.start(), *EVERY.end());
                client = renewed(client, &answer, &mut config, &files);
                let acts = tasks.told(answer.task).await;
                match (acts, tasks.report()) {
                    (true, _) => Duration::ZERO,
                    (false, Some(_)) => pace.second * TASK_EVERY,
                    // The server has held the heartbeat for most of the time. One that does not is not asked sooner.
                    (false, None) => (pace.second * every * 8 / 10).saturating_sub(asked.elapsed()),
                }
            }
            Err(error) if is_gone(&error) => {
                info!("{}", Failure::of(&error).in_one_line());
                tasks.told(None).await;
                return Ok(());
            }
            Err(error) => {
                let sentence = Failure::of(&error).in_one_line();
                if told.is_due(&sentence, Instant::now()) {
                    warn!("{sentence}");
                }
                pace.second.mul_f64(backoff.next_wait().as_secs_f64())
            }
        };
        sleep(pause).await;
    }
}

/// Exchanges the run's token for one of the agent's own, and stores that. `None` if the server expects no agent.
async fn register(config: &BootReporterConfig, files: &Files, pace: Pace) -> Result<Option<String>, ReportError> {
    let client = client(config, config.token.reveal())?;
    let (mut told, mut backoff) = (Told::default(), Backoff::default());
    loop {
        let failed = match client.agent().await {
            Ok(credentials) => match files.save_token(config, credentials.token.reveal()) {
                Ok(()) => return Ok(Some(credentials.token.reveal().to_owned())),
                Err(error) => format!("storing the credentials of the agent: {error}"),
            },
            Err(error) if is_gone(&error) => {
                info!("{}", Failure::of(&error).in_one_line());
                return Ok(None);
            }
            Err(error) => Failure::of(&error).in_one_line(),
        };
        if told.is_due(&failed, Instant::now()) {
            warn!("{failed}");
        }
        sleep(pace.second.mul_f64(backoff.next_wait().as_secs_f64())).await;
    }
}

fn client(config: &BootReporterConfig, token: &str) -> Result<Client, ReportError> {
    let url = config.url.parse().map_err(|error| ReportError::url(&config.url, error))?;
    let machine = MachineSettings::with_proxy(config.machine.proxy());
    let server = Config { machine, ..Config::new(url, config.ca.clone()) };
    Ok(Client::of_run(&server, token.to_owned().into())?)
}

/// Takes what the server changed: the token, and the certificates that it is verified with. What cannot be stored or
/// used is left as it was, and comes again.
fn renewed(client: Client, answer: &HeartbeatAnswer, config: &mut BootReporterConfig, files: &Files) -> Client {
    if answer.token.is_none() && answer.ca.is_none() {
        return client;
    }
    let ca = answer.ca.clone().unwrap_or_else(|| config.ca.clone());
    let changed = BootReporterConfig { ca, ..config.clone() };
    let made = || -> Result<Client, String> {
        let token = match &answer.token {
            Some(token) => token.reveal().to_owned(),
            None => files.token(config).ok_or("the agent's token is gone")?,
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the server gave a token that no request can carry".to_owned());
        }
        let client = self::client(&changed, &token).map_err(|error| error.to_string())?;
        files.save_token(&changed, &token).map_err(|error| error.to_string())?;
        if answer.ca.is_some() {
            files.save_config(&changed).map_err(|error| error.to_string())?;
        }
        Ok(client)
    };
    match made() {
        Ok(client) => {
            *config = changed;
            client
        }
        Err(error) => {
            warn!("taking new credentials: {error}");
            client
        }
    }
}

/// Returns the state of the service manager, and the failed units. In the emergency or rescue shell, also starts the
/// network, which nothing else would do.
async fn look(surroundings: &Surroundings, asked_for_network: &mut bool) -> (Option<String>, Vec<String>) {
    let state = collect::system_state(surroundings).await;
    let in_shell = state.as_deref() == Some(MAINTENANCE);
    if in_shell && !std::mem::replace(asked_for_network, true) {
        emergency::start_network(surroundings).await;
    }
    let units = collect::failed_units(surroundings, in_shell).await;
    (state, units)
}

fn beat(
    config: &BootReporterConfig,
    settings: &Agent,
    surroundings: &Surroundings,
    (system_state, failed_units): (Option<String>, Vec<String>),
    task: Option<TaskReport>,
) -> Heartbeat {
    Heartbeat {
        boot_id: collect::boot_id(&surroundings.root),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: collect::uptime(&surroundings.root),
        image: settings.image.clone(),
        system_state,
        failed_units,
        tasks: settings.names(),
        ca: digest(&config.ca),
        task,
    }
}

fn digest(pem: &str) -> Digest {
    let hash = ring::digest::digest(&ring::digest::SHA256, pem.as_bytes());
    let hex = base16ct::lower::encode_string(hash.as_ref());
    Digest::new(Algorithm::Sha256, &hex).unwrap_or_else(|_| unreachable!("SHA-256 has 64 digits"))
}

/// Whether the server itself says that the agent is not wanted any more. That it does not know the agent says nothing:
/// it may be of an older version, or have been restored from a backup.
fn is_gone(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::TokenExpired | ErrorCode::Decommissioned))
}

/// Removes the agent, on the word of someone on the machine: tells the server, if it can be reached, and removes all
/// files.
pub async fn leave(config: &BootReporterConfig, surroundings: &Surroundings) -> Result<(), ReportError> {
    if let Some(token) = Files::of(surroundings).token(config)
        && let Err(error) = client(config, &token)?.leave().await
        && !is_gone(&error)
    {
        warn!("{}; the server will find the agent silent", Failure::of(&error).in_one_line());
    }
    // The one that runs has its token in memory.
    if let Err(reason) = collect::succeeds(surroundings, "systemctl", &["--no-block", "stop", places::UNIT_NAME]).await
    {
        warn!("stopping {}: {reason}", places::UNIT_NAME);
    }
    Ok(())
}
