//! The machine an action works on: the seam between actions and the world.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slipway_protocol::{CapturedImage, Disk, RecoveryKey, Secret};

use crate::error::{Error, FetchError};

/// How long nothing may succeed before it is given up: a server may start again meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// A connection that delivers nothing for this long is dropped, unless more patience is asked for.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// What does not change about a machine while an action runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// How long a server may fail, with no more than a few bytes going through, before it is given up.
    pub patience: Duration,
    /// The file of this very program.
    pub program: PathBuf,
    /// Device of the TPM.
    pub tpm: PathBuf,
    /// Where Linux shows what UEFI firmware gave it (kernel documentation, ABI/testing/sysfs-firmware-efi). There is no such
    /// folder on a machine that was started in another way.
    pub efi: PathBuf,
    /// Whether slipway is the operating system here. Then nobody else uses a disk, and what sits on it may be taken down.
    pub is_operating_system: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            patience: PATIENCE,
            program: "/proc/self/exe".into(),
            // By way of the kernel's resource manager.
            tpm: "/dev/tpmrm0".into(),
            efi: "/sys/firmware/efi".into(),
            is_operating_system: false,
        }
    }
}

/// What actions need of a machine. [`crate::Host`] is the real one; tests put files in place of its disks.
pub trait Machine: Sync {
    /// What does not change.
    fn setup(&self) -> &Setup;

    /// Asks the running action to stop; checked by every stage.
    fn cancel(&self) -> &Cancel;

    /// Every whole disk, with what forbids writing to it.
    fn disks(&self) -> Result<Vec<Candidate>, Error>;

    /// GUIDs of the partitions a disk had when this machine was first asked for its disks.
    fn former_partitions(&self, disk: &Disk) -> Vec<String>;

    /// Opens a source at an offset. `stop` ends the body's reads early, with an error.
    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError>;

    /// Begins an image of this name, where captured disks go. Fails if there is an image of that name already.
    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError>;

    /// Stores a recovery key where its operators find it. Once this returns, it is not lost.
    fn escrow(&self, key: &RecoveryKey) -> Result<(), UploadError>;

    /// Puts a kernel into memory, to be started without the firmware. Both files must be regular.
    fn load_kernel(&self, kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()>;
}

/// An image that is being stored. Until it is committed nobody sees it, and when it is dropped before that, it is or will be gone.
pub trait Upload: Send {
    /// Stores a piece that belongs at this offset in bytes, which is where what is stored ends. Returns how many bytes are stored
    /// now: where an earlier try of the same piece was not heard to succeed, that may be more than `offset` before anything is
    /// sent. Called again with the same piece after a failure that may pass.
    fn put(&mut self, offset: u64, piece: &[u8]) -> Result<u64, UploadError>;

    /// Makes what is stored an image, once its size and its digest are found to be right.
    fn commit(&mut self, image: &CapturedImage) -> Result<(), UploadError>;
}

/// Why an image or a recovery key was not stored.
#[derive(Debug)]
pub struct UploadError {
    /// The cause.
    pub source: Box<dyn std::error::Error + Send + Sync>,
    /// Whether the same may succeed if it is tried again.
    pub is_transient: bool,
}

/// A disk, and whether it may be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The disk.
    pub disk: Disk,
    /// Why it must not be touched beside what [`Disk`] says: mounted, held, the boot medium.
    pub in_use: Option<String>,
    /// Whether it counts only where it is named by device: a loop device, an array, a mapping, a file.
    pub by_name_only: bool,
    /// By what it is seen to be a medium to start slipway from. It counts only where it is named by device, serial or wwn.
    pub boot_medium: Option<String>,
}

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `https://`, `http://`, `file://` or an absolute path.
    pub url: &'a str,
    /// CA certificates in PEM to trust beside the machine's own.
    pub ca: Option<&'a str>,
    /// First byte wanted.
    pub offset: u64,
    /// Entity tag the source must still have when `offset` is not 0.
    pub etag: Option<&'a str>,
    /// How long the source may be silent.
    pub stall: Duration,
    /// Media types wanted, where there is a choice.
    pub accept: Option<&'a str>,
    /// Value of the `Authorization` header. It is not sent on to another server.
    pub authorization: Option<&'a Secret>,
}

impl<'a> Request<'a> {
    /// Asks for all of it, with 10 s for every silence.
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
    /// Whether the end of the body can be told from a dropped connection.
    pub is_delimited: bool,
    /// Digest of the whole, as registries tell it in `Docker-Content-Digest`.
    pub content_digest: Option<String>,
    /// The bytes from the offset on. An end before `total` is a dropped connection.
    pub body: Box<dyn Read + Send>,
}

/// A request to stop, shared by all who must hear it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A handle nobody has set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether a stop was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// An error once a stop was asked for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
