//! This machine's TPM, and its part of an enrolment.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slipway_protocol::{Failure, Tpm, TpmChallenge};
use slipway_tpm::device::{Attester, TpmError};
use tracing::{debug, warn};

/// A file that exists once the required TPM has made its keys. `slipway network` waits for the file.
pub const READY: &str = "/run/slipway/tpm-ready";
/// How long to wait for the TPM's driver.
const DRIVER: Duration = Duration::from_secs(30);
/// How long a TPM may take for a command. A slow TPM needs half a minute for an RSA key.
const PATIENCE: Duration = Duration::from_secs(60);

/// Paths of the TPM and its event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Device node, which need not exist.
    pub device: PathBuf,
    /// The firmware's log of its measurements. `None` in an operating system that measures too, because the log then
    /// does not explain the registers.
    pub event_log: Option<PathBuf>,
}

impl Place {
    /// Returns the paths in the boot image.
    pub fn of_boot_image() -> Self {
        Self { device: slipway_tpm::device::DEVICE.into(), event_log: Some(slipway_tpm::device::EVENT_LOG.into()) }
    }

    /// Returns the paths in an operating system.
    pub fn of_operating_system() -> Self {
        Self { device: slipway_tpm::device::DEVICE.into(), event_log: None }
    }
}

/// The boot medium requires a TPM, but the machine has none that works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the boot medium requires a TPM (require: attested), but {reason}; nothing is sent to the \
     server. Enable the TPM (2.0, also called PTT or fTPM) in the firmware's setup, or boot from another medium"
)]
pub struct NoTpm {
    reason: String,
}

/// The machine's TPM. It is opened at the first use and keeps its keys while the machine runs, because a slow TPM takes
/// seconds to make them. Clones share the TPM.
#[derive(Clone)]
pub struct MachineTpm {
    place: Arc<Place>,
    open: Arc<Mutex<Option<Attester>>>,
}

impl MachineTpm {
    /// Names the TPM at this place, which need not exist.
    pub fn at(place: Place) -> Self {
        Self { place: Arc::new(place), open: Arc::default() }
    }

    /// Makes the TPM's keys, so that they are ready when needed.
    pub async fn prepare(&self) {
        self.claim().await;
    }

    /// Fails unless the TPM makes its keys. Waits for a missing TPM until all drivers are loaded, but at most 30 s.
    pub async fn require(&self, all_drivers_loaded: impl Fn() -> bool) -> Result<(), NoTpm> {
        let began = Instant::now();
        loop {
            // Evaluated before the TPM is tried, so that a driver that loads in between is not missed.
            let is_last = all_drivers_loaded() || began.elapsed() > DRIVER;
            match self.claim().await {
                Tpm::Present { .. } => return Ok(()),
                Tpm::Broken { reason } => {
                    return Err(NoTpm { reason: format!("this machine's TPM cannot be used: {reason}") });
                }
                Tpm::Absent if is_last => return Err(NoTpm { reason: "this machine has none".to_owned() }),
                Tpm::Absent => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Returns what the machine sends before the server asks for a proof.
    pub(crate) async fn claim(&self) -> Tpm {
        self.ask(|attester, _| Ok(Tpm::Present { keys: attester.keys()?, proof: None })).await
    }

    /// Returns the proof for a challenge.
    pub(crate) async fn prove(&self, challenge: TpmChallenge) -> Tpm {
        self.ask(move |attester, place| {
            let event_log = place.event_log.as_deref().and_then(|path| {
                slipway_tpm::device::read_event_log(path)
                    .inspect_err(|error| warn!("reading the event log {path:?}: {error}; the TPM proof lacks the log"))
                    .ok()?
            });
            let proof = attester.prove(&challenge, event_log)?;
            Ok(Tpm::Present { keys: attester.keys()?, proof: Some(proof) })
        })
        .await
    }

    /// Runs a TPM request in a thread, because it blocks.
    async fn ask(&self, question: impl FnOnce(&mut Attester, &Place) -> Result<Tpm, TpmError> + Send + 'static) -> Tpm {
        let this = self.clone();
        let asking = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let mut open = this.open.lock().unwrap_or_else(PoisonError::into_inner);
            let attester = match &mut *open {
                Some(attester) => Ok(attester),
                closed => Attester::open(&this.place.device, PATIENCE).map(|attester| closed.insert(attester)),
            };
            match attester.and_then(|attester| question(attester, &this.place)) {
                Ok(tpm) => {
                    debug!("the TPM answered within {} ms", began.elapsed().as_millis());
                    tpm
                }
                Err(TpmError::Missing { .. }) => Tpm::Absent,
                Err(error) => {
                    let reason = Failure::of(&error).in_one_line();
                    warn!("the TPM of this machine cannot be used: {reason}");
                    *open = None;
                    Tpm::Broken { reason }
                }
            }
        });
        asking.await.unwrap_or_else(|failed| Tpm::Broken { reason: failed.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_machine_without_the_required_tpm_is_told_why() {
        let folder = tempfile::tempdir().unwrap();
        let check = async |device: PathBuf, expect: &str| {
            let tpm = MachineTpm::at(Place { device, event_log: None });
            let said = tpm.require(|| true).await.unwrap_err().to_string();
            assert!(said.contains(expect) && said.contains("nothing is sent to the server"), "{said}");
        };
        check(folder.path().join("none"), "(require: attested), but this machine has none;").await;
        let file = folder.path().join("file");
        std::fs::write(&file, "this is no TPM").unwrap();
        check(file, "this machine's TPM cannot be used: ").await;
    }
}
