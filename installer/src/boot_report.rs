//! `slipway report`: an installed system reports its boots until it runs or the server no longer expects reports. The
//! action `boot-reporter` installs the reporter together with its systemd unit.
//!
//! Nothing in the system depends on the reporter, so an error is only logged.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slipway_protocol::node::boot_report::MAINTENANCE;
use slipway_protocol::{BootKnown, BootReport, BootReporterConfig, BootStage, Failure, MachineSettings, NodeState};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::config::Config;
use crate::server::backoff::Backoff;
use crate::server::client::{Client, ClientError};

pub use files::{configuration, may_start, remove};

pub(crate) mod collect;
pub(crate) mod emergency;
mod files;
mod requests;

/// Wait before a failed log is sent again, because collecting its content takes time.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// The system to report on. In tests, a folder.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The system's root folder.
    pub root: PathBuf,
    /// Folders to search for the system's programs, in this order.
    pub programs: Vec<PathBuf>,
    /// A folder that is lost when the system restarts.
    pub state: PathBuf,
}

impl Default for Surroundings {
    fn default() -> Self {
        let programs = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(PathBuf::from);
        Self { root: "/".into(), programs: programs.into(), state: "/run/slipway-report".into() }
    }
}

/// Intervals and time limit of the reporter.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between two checks of the system. Each check is reported.
    pub look: Duration,
    /// Time between two uploads of the boot's log.
    pub log: Duration,
    /// Time after which the reporter ends, whatever the state of the boot.
    pub lifetime: Duration,
}

impl Pace {
    /// Returns the pace that a configuration sets.
    pub fn of(config: &BootReporterConfig) -> Self {
        Self {
            look: Duration::from_secs(10),
            log: Duration::from_secs(config.every.into()),
            lifetime: Duration::from_secs(u64::from(config.hours) * 60 * 60),
        }
    }
}

/// Why the reporter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The system runs, and the server knows it.
    Healthy,
    /// The server no longer knows the run, or there is a newer one.
    NotAwaited,
    /// The time limit was reached.
    TimeIsUp,
}

/// Why the reporter could not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ReportError {
    /// The configuration is missing, or is not in the format that the action writes.
    #[error("reading {}{}", path.display(), hint(source))]
    Config {
        path: PathBuf,
        /// The error of reading or parsing the configuration.
        source: std::io::Error,
    },
    /// The server's URL is invalid.
    #[error("reading the server's URL {url:?}")]
    Url { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The HTTP client could not be set up.
    #[error("preparing to report")]
    Client {
        #[from]
        source: ClientError,
    },
}

impl ReportError {
    /// The server's URL is invalid.
    pub(crate) fn url(url: &str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Url { url: url.to_owned(), source: Box::new(source) }
    }
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            ": this command is for the unit that the action boot-reporter installs in the target system"
        }
        _ => "",
    }
}

/// Reports until the system runs and the server knows it, the server no longer expects reports, or the time limit is
/// reached.
pub async fn run(config: &BootReporterConfig, surroundings: &Surroundings, pace: Pace) -> Result<End, ReportError> {
    let server = config.url.parse().map_err(|error| ReportError::url(&config.url, error))?;
    let machine = MachineSettings::with_proxy(config.machine.proxy());
    let server = Config { machine, ..Config::new(server, config.ca.clone()) };
    let client = Client::of_run(&server, config.token.clone())?;
    let boot_id = collect::boot_id(&surroundings.root);
    let reporter = Reporter { client, surroundings, pace, boot_id, asked_for_network: AtomicBool::default() };
    Ok(timeout(pace.lifetime, reporter.talk()).await.unwrap_or(End::TimeIsUp))
}

struct Reporter<'a> {
    client: Client,
    surroundings: &'a Surroundings,
    pace: Pace,
    boot_id: String,
    asked_for_network: AtomicBool,
}

impl Reporter<'_> {
    async fn talk(&self) -> End {
        let Some(known) = self.first_contact().await else { return End::NotAwaited };
        let mut stage = first_stage(known.last.as_ref(), &self.boot_id);
        let (mut told, mut backoff) = (Told::default(), Backoff::default());
        let (mut log_at, mut was_in_shell) = (Instant::now(), false);
        loop {
            let system_state = self.look().await;
            if system_state.as_deref().is_some_and(is_up) {
                stage = BootStage::Running;
            }
            // The boot does not get further, so a log sent now is complete.
            let in_shell = is_in_shell(system_state.as_deref());
            if in_shell && !was_in_shell {
                log_at = Instant::now();
            }
            was_in_shell = in_shell;
            let failed_units = collect::failed_units(self.surroundings, in_shell).await;
            let report = BootReport { stage, boot_id: self.boot_id.clone(), system_state, failed_units };
            let answer = self.client.boot_report(&report).await;
            let wait = match &answer {
                Err(error) if is_gone(error) => return End::NotAwaited,
                Err(error) => {
                    told.warn(error);
                    self.pace.look.max(backoff.next_wait())
                }
                Ok(_) => {
                    (told, backoff) = Default::default();
                    self.pace.look
                }
            };
            if let Ok(known) = answer {
                let is_healthy = stage == BootStage::Running && known.node == NodeState::Running;
                if is_healthy || Instant::now() >= log_at {
                    let sent = self.send_log(&report).await;
                    log_at = Instant::now() + if sent { self.pace.log } else { self.pace.log.min(LOG_AGAIN) };
                }
                if is_healthy {
                    return End::Healthy;
                }
            }
            sleep(wait).await;
        }
    }

    /// Returns the state of the service manager. In the emergency or rescue shell, also starts the network, which
    /// nothing else would do.
    async fn look(&self) -> Option<String> {
        let system_state = collect::system_state(self.surroundings).await;
        if is_in_shell(system_state.as_deref()) && !self.asked_for_network.swap(true, Ordering::Relaxed) {
            emergency::start_network(self.surroundings).await;
        }
        system_state
    }

    /// Waits for the server's first answer and returns what it knows about this boot. `None` if the server expects no
    /// reports.
    async fn first_contact(&self) -> Option<BootKnown> {
        let (mut told, mut backoff) = (Told::default(), Backoff::default());
        loop {
            self.look().await;
            match self.client.boot_known().await {
                Ok(known) => return Some(known),
                Err(error) if is_gone(&error) => return None,
                Err(error) => {
                    told.warn(&error);
                    sleep(backoff.next_wait()).await;
                }
            }
        }
    }

    /// Sends the log of this boot. Returns false if that failed.
    async fn send_log(&self, report: &BootReport) -> bool {
        let log = collect::log(self.surroundings, report).await;
        let sent = self.client.boot_log(&self.boot_id, &log).await;
        sent.inspect_err(|error| warn!("{}", Failure::of(error).in_one_line())).is_ok()
    }
}

/// The last failure that was logged, so that a repeated failure is logged only once.
#[derive(Default)]
struct Told(String);

impl Told {
    fn warn(&mut self, error: &ClientError) {
        let sentence = Failure::of(error).in_one_line();
        if self.0 != sentence {
            warn!("{sentence}");
            self.0 = sentence;
        }
    }
}

/// The stage of a boot that has just begun, or of the same boot after a restart of the reporter.
fn first_stage(last: Option<&BootReport>, boot_id: &str) -> BootStage {
    match last {
        None => BootStage::Booting,
        Some(last) if last.boot_id == boot_id => last.stage,
        Some(_) => BootStage::Restarted,
    }
}

/// Whether the service manager has nothing left to start (systemctl(1), is-system-running).
fn is_up(system_state: &str) -> bool {
    matches!(system_state, "running" | "degraded")
}

/// Whether the emergency or rescue shell runs.
fn is_in_shell(system_state: Option<&str>) -> bool {
    system_state == Some(MAINTENANCE)
}

/// Whether the server itself says that it expects no reports. An answer from anything else is ignored.
fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status, .. } if matches!(status.as_u16(), 404 | 410))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_follows_from_the_boot_and_from_what_the_server_knows() {
        use BootStage::{Booting, Restarted, Running};
        let last = |stage, boot_id: &str| BootReport {
            stage,
            boot_id: boot_id.to_owned(),
            system_state: None,
            failed_units: Vec::new(),
        };
        for (known, expect) in [
            (None, Booting),
            (Some(last(Booting, "now")), Booting),
            (Some(last(Running, "now")), Running),
            (Some(last(Booting, "before")), Restarted),
            (Some(last(Running, "before")), Restarted),
            (Some(last(Restarted, "before")), Restarted),
        ] {
            assert_eq!(first_stage(known.as_ref(), "now"), expect, "{known:?}");
        }
        let up = ["initializing", "starting", "running", "degraded", "maintenance", "stopping", "offline", "unknown"];
        assert_eq!(up.map(is_up), [false, false, true, true, false, false, false, false]);
    }
}
