//! The machine an action works on: the interface between actions and the rest of the system.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slipway_protocol::{CapturedImage, Disk, MachineSettings, Proxy, RecoveryKey, Secret};

use crate::error::{Error, FetchError};

/// How long to keep trying without any success before giving up. A server may restart in the meantime.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// A connection that delivers nothing for this long is dropped, unless the request sets a longer limit.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Properties of a machine that do not change while an action runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How long a server may fail, with no more than a few bytes transferred, before the action gives up.
    pub patience: Duration,
    /// The executable of this program.
    pub program: PathBuf,
    /// Device of the TPM.
    pub tpm: PathBuf,
    /// HTTP proxy to other machines. `None` means the proxy in the environment, if any.
    pub proxy: Option<Proxy>,
    /// The settings that this machine has for itself while slipway runs, without its token.
    pub settings: MachineSettings,
    /// Folder in which Linux presents the UEFI variables and tables (kernel documentation,
    /// ABI/testing/sysfs-firmware-efi). It does not exist on a machine that was not started by UEFI firmware.
    pub efi: PathBuf,
    /// Whether slipway is the operating system of this machine. Then nobody else uses a disk, and its mounts, mappings
    /// and arrays may be taken down.
    pub is_operating_system: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            patience: PATIENCE,
            program: "/proc/self/exe".into(),
            // The device that goes through the kernel's resource manager.
            tpm: "/dev/tpmrm0".into(),
            proxy: None,
            settings: MachineSettings::default(),
            efi: "/sys/firmware/efi".into(),
            is_operating_system: false,
        }
    }
}

/// What actions need from a machine. [`crate::Host`] is the real one; tests put files in place of its disks.
pub trait Machine: Sync {
    /// The properties that do not change.
    fn setup(&self) -> &Setup;

    /// Returns the handle that tells the running action to stop. Every stage checks it.
    fn cancel(&self) -> &Cancel;

    /// Lists every whole disk, with the reason why it must not be written to, if there is one.
    fn disks(&self) -> Result<Vec<Candidate>, Error>;

    /// GUIDs of the partitions a disk had when this machine was first asked for its disks.
    fn former_partitions(&self, disk: &Disk) -> Vec<String>;

    /// Opens a source at an offset. `stop` ends reads of the body early, with an error.
    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError>;

    /// Starts an upload of a captured image. Fails if an image of this name exists already.
    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError>;

    /// Stores a recovery key where the operators of the machine can find it. It is stored safely once this returns.
    fn store_recovery_key(&self, key: &RecoveryKey) -> Result<(), UploadError>;

    /// Loads a kernel into memory, to be started without the firmware. Both files must be regular files.
    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()>;
}

/// An image that is being stored. It is invisible until it is committed. If it is dropped before that, it is deleted,
/// possibly later.
pub trait Upload: Send {
    /// Stores a piece at this offset in bytes, which must be the current end of the stored data. Returns how many bytes
    /// are stored now. If the response to an earlier try of the same piece was lost, more than `offset` bytes may be
    /// stored before anything is sent. After a transient failure the caller tries again with the same piece.
    fn put(&mut self, offset: u64, piece: &[u8]) -> Result<u64, UploadError>;

    /// Turns the stored data into an image, after its size and digest have been verified.
    fn commit(&mut self, image: &CapturedImage) -> Result<(), UploadError>;
}

/// Why an image or a recovery key could not be stored.
#[derive(Debug)]
pub struct UploadError {
    /// The cause.
    pub source: Box<dyn std::error::Error + Send + Sync>,
    /// Whether another try may succeed.
    pub is_transient: bool,
}

/// A disk, and whether it may be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The disk.
    pub disk: Disk,
    /// Why the disk must not be touched, in addition to what [`Disk`] says: mounted, held, the boot medium.
    pub in_use: Option<String>,
    /// Whether it is only chosen if named by device: a loop device, an array, a mapping, a file.
    pub by_name_only: bool,
    /// Why the disk is considered a medium to start slipway from. Such a disk is only chosen if named by device, serial
    /// or wwn.
    pub boot_medium: Option<String>,
}

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `https://`, `http://`, `file://` or an absolute path.
    pub url: &'a str,
    /// CA certificates in PEM to trust in addition to the machine's own.
    pub ca: Option<&'a str>,
    /// Offset of the first byte wanted.
    pub offset: u64,
    /// Entity tag the source must still have when `offset` is not 0.
    pub etag: Option<&'a str>,
    /// How long the source may send nothing.
    pub stall: Duration,
    /// Media types for the `Accept` header, if the server offers several.
    pub accept: Option<&'a str>,
    /// Value of the `Authorization` header. It is not sent to another server on a redirect.
    pub authorization: Option<&'a Secret>,
}

impl<'a> Request<'a> {
    /// A request for the whole source, with a stall timeout of 10 s.
    pub fn new(url: &'a str, ca: Option<&'a str>) -> Self {
        Self { url, ca, offset: 0, etag: None, stall: STALL_TIMEOUT, accept: None, authorization: None }
    }
}

/// A source opened at an offset.
pub struct Response {
    /// Size of the whole source in bytes, when known.
    pub total: Option<u64>,
    /// Strong entity tag (RFC 9110, 8.8.3), quotes included.
    pub etag: Option<String>,
    /// Whether the end of the body can be told apart from a dropped connection.
    pub is_delimited: bool,
    /// How the server compressed the body on the way, or how the file is compressed: `Content-Encoding`.
    pub coding: Option<String>,
    /// Digest of the whole source, which registries send in `Docker-Content-Digest`.
    pub content_digest: Option<String>,
    /// The bytes from the offset on. An end before `total` is a dropped connection.
    pub body: Box<dyn Read + Send>,
}

/// A request to stop. All clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A handle that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a stop was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Fails once a stop was requested.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
