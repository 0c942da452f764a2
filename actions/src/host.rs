//! The machine this process runs on.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slipway_protocol::{Disk, MachineSettings, Proxy, RecoveryKey};

use self::capture_file::CaptureFile;
use crate::disk::candidates::candidates;
use crate::disk::previous_install::FormerPartitions;
use crate::error::{Error, FetchError};
use crate::fetch::{self, OpenedOnce, Trust};
use crate::machine::{Cancel, Candidate, Machine, Request, Response, Setup, Upload, UploadError};
use crate::sys;

mod capture_file;

/// CA certificates of the running system, only used if none are given: when an action is run by hand.
const SYSTEM_TRUST: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Options of the host.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// CA certificates to trust, each a text in PEM. If empty, those of the running system.
    pub trust: Vec<String>,
    /// Set to stop the running action.
    pub cancel: Cancel,
    /// How long a server may fail before the action gives up; five minutes by default.
    pub patience: Option<Duration>,
    /// Whether slipway is the operating system: then everything that uses a disk is taken down before the disk is
    /// overwritten.
    pub is_operating_system: bool,
    /// File to which a captured disk is written. It must not exist yet.
    pub capture_to: Option<PathBuf>,
    /// File to which a recovery key is written. It must not exist yet.
    pub recovery_key_to: Option<PathBuf>,
    /// Device of the TPM, if not /dev/tpmrm0.
    pub tpm: Option<PathBuf>,
    /// HTTP proxy to other machines, if not the one in the environment.
    pub proxy: Option<Proxy>,
    /// The settings that this machine has for itself while slipway runs, without its token.
    pub settings: MachineSettings,
    /// The partitions that the machine's disks had before anything was changed.
    pub former: FormerPartitions,
}

/// The machine this process runs on.
#[derive(Debug)]
pub struct Host {
    trust: Trust,
    cancel: Cancel,
    setup: Setup,
    capture_to: Option<PathBuf>,
    recovery_key_to: Option<PathBuf>,
    former: FormerPartitions,
    opened: OpenedOnce,
}

impl Host {
    /// The host with these options.
    pub fn new(options: HostOptions) -> Self {
        let trust = match options.trust {
            given if !given.is_empty() => Trust { pem: given, origin: "the CA given to this machine or by hand" },
            _ => Trust { pem: fs::read_to_string(SYSTEM_TRUST).into_iter().collect(), origin: SYSTEM_TRUST },
        };
        let HostOptions {
            cancel,
            patience,
            is_operating_system,
            capture_to,
            recovery_key_to,
            tpm,
            proxy,
            settings,
            former,
            ..
        } = options;
        let mut setup = Setup { is_operating_system, proxy, settings, ..Setup::default() };
        setup.patience = patience.unwrap_or(setup.patience);
        setup.tpm = tpm.unwrap_or(setup.tpm);
        Self { trust, cancel, setup, capture_to, recovery_key_to, former, opened: OpenedOnce::default() }
    }
}

impl Machine for Host {
    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        let candidates = candidates(Path::new("/sys"), Path::new("/proc"), self.setup.is_operating_system)
            .map_err(|source| Error::ListDisks { source })?;
        // Former partitions are only needed for firmware with boot entries, and if slipway may overwrite the disks.
        if self.setup.is_operating_system && self.setup.efi.exists() {
            let disks = candidates.iter().filter(|candidate| !candidate.by_name_only);
            disks.for_each(|candidate| self.former.look_at(&candidate.disk));
        }
        Ok(candidates)
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        fetch::open(request, &self.trust, self.setup.proxy.as_ref(), &self.opened, stop)
    }

    fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        let no_place = || UploadError {
            source: format!("no destination was given for the image {name}").into(),
            is_transient: false,
        };
        Ok(Box::new(CaptureFile::begin(self.capture_to.as_deref().ok_or_else(no_place)?)?))
    }

    fn store_recovery_key(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| UploadError { source, is_transient: false };
        let path = self.recovery_key_to.as_deref().ok_or_else(|| failed("no destination was given for it".into()))?;
        write_key(path, key).map_err(|error| failed(format!("making {}: {error}", path.display()).into()))
    }

    fn former_partitions(&self, disk: &Disk) -> Vec<String> {
        self.former.of(disk)
    }

    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
        sys::kexec::load(kernel, initrd, cmdline)
    }
}

/// Writes a recovery key to a new file, without a newline, so that cryptsetup accepts the file as it is. Returns once
/// the file is on its disk.
fn write_key(path: &Path, key: &RecoveryKey) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(key.key.reveal().as_bytes())?;
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
