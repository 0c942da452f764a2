//! The TPM of this machine, and what the server is told of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slipway_protocol::{Failure, Tpm, TpmChallenge};
use slipway_tpm::device::{Attester, TpmError};
use tracing::{debug, warn};

/// Exists once the TPM that the boot medium requires has made its keys. `slipway network` waits for it.
pub const READY: &str = "/run/slipway/tpm-ready";
/// How long to wait for the driver of a TPM.
const DRIVER: Duration = Duration::from_secs(30);
/// How long a TPM may take for a command. An RSA key takes a slow one half a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the machine has its TPM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device, if the machine has one.
    pub device: PathBuf,
    /// What the firmware says that it measured. A system that goes on measuring by itself has none that explains the
    /// registers.
    pub event_log: Option<PathBuf>,
}

impl Place {
    /// In the boot image.
    pub fn of_boot_image() -> Self {
        Self { device: slipway_tpm::device::DEVICE.into(), event_log: Some(slipway_tpm::device::EVENT_LOG.into()) }
    }

    /// In an operating system.
    pub fn of_operating_system() -> Self {
        Self { device: slipway_tpm::device::DEVICE.into(), event_log: None }
    }
}

/// The boot medium requires a TPM, and there is none that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the boot medium requires that this machine proves its TPM (require: attested), and {reason}; nothing is sent to the \
     server. Switch the TPM (2.0, also called PTT or fTPM) on in the firmware's setup, or start from another medium"
)]
pub struct NoTpm {
    reason: String,
}

/// The TPM. It is opened when it is first asked for, and keeps its keys while the machine runs, because a slow one takes
/// seconds to make them. Clones share it.
#[derive(Clone)]
pub struct MachineTpm {
    place: Arc<Place>,
    open: Arc<Mutex<Option<Attester>>>,
}

impl MachineTpm {
    /// The TPM that is there, if there is one.
    pub fn at(place: Place) -> Self {
        Self { place: Arc::new(place), open: Arc::default() }
    }

    /// Has the TPM make its keys, which are then there when they are needed.
    pub async fn prepare(&self) {
        self.claim().await;
    }

    /// Fails unless the TPM makes its keys. One that is missing is waited for until all drivers are loaded.
    pub async fn require(&self, all_drivers_loaded: impl Fn() -> bool) -> Result<(), NoTpm> {
        let began = Instant::now();
        loop {
            // Asked first: a driver that loads in between counts.
            let is_last = all_drivers_loaded() || began.elapsed() > DRIVER;
            match self.claim().await {
                Tpm::Present { .. } => return Ok(()),
                Tpm::Broken { reason } => return Err(NoTpm { reason: format!("its TPM cannot be used: {reason}") }),
                Tpm::Absent if is_last => return Err(NoTpm { reason: "it has none".to_owned() }),
                Tpm::Absent => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// What the machine says before it was asked for a proof.
    pub(crate) async fn claim(&self) -> Tpm {
        self.ask(|attester, _| Ok(Tpm::Present { keys: attester.keys()?, proof: None })).await
    }

    /// The answer to a challenge.
    pub(crate) async fn prove(&self, challenge: TpmChallenge) -> Tpm {
        self.ask(move |attester, place| {
            let event_log = place.event_log.as_deref().and_then(|path| {
                slipway_tpm::device::read_event_log(path)
                    .inspect_err(|error| warn!("reading the event log {path:?}: {error}; the TPM is proved without it"))
                    .ok()?
            });
            let proof = attester.prove(&challenge, event_log)?;
            Ok(Tpm::Present { keys: attester.keys()?, proof: Some(proof) })
        })
        .await
    }

    /// Asks the TPM in a thread that may wait for it.
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
        check(folder.path().join("none"), "(require: attested), and it has none;").await;
        let file = folder.path().join("file");
        std::fs::write(&file, "this is no TPM").unwrap();
        check(file, "its TPM cannot be used: ").await;
    }
}
