//! Drivers that do not fit into the boot image. For a network card or storage controller without a driver, the machine
//! fetches the driver and its firmware from the server before it enrols.
//!
//! The server is asked only if there is such a device. Everything that the server sends is checked against the digest
//! in the boot image, which the image's signature covers. An error is only a warning, because the machine may work
//! without the device.

mod fetch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use slipway_protocol::node::rare_drivers::{DIGEST_FILE, Piece, RareDrivers, RareModule};
use slipway_protocol::{Failure, UnservedDevice};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use self::fetch::{Pack, RareError};
use crate::config::Config;
use crate::discover::{self, Roots};
use crate::drivers::modalias;
use crate::server::clock;

/// How long a module may take to probe its devices, in the boot image.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How long the interfaces of a network card may take until they are up.
const UP_LIMIT: Duration = Duration::from_secs(5);
/// Polling interval of interfaces.
const UP_POLL: Duration = Duration::from_millis(50);
/// The flag of an interface that is up (linux/if.h).
const IFF_UP: u32 = 1;

/// Loads the module in a file. Returns false if it was already loaded.
pub type Insert = Arc<dyn Fn(&Path) -> io::Result<bool> + Send + Sync>;

/// Paths on the machine.
#[derive(Clone, Debug)]
pub struct Places {
    /// Mount points of the kernel's file systems.
    pub roots: Roots,
    /// File with the digest of the index.
    pub digest: PathBuf,
    /// Folder where the kernel looks for firmware.
    pub firmware: PathBuf,
    /// A folder that is lost when the machine restarts.
    pub state: PathBuf,
}

impl Places {
    /// Returns the paths in the boot image. `state` is a folder that is lost when the machine restarts.
    pub fn of_boot_image(state: &Path) -> Self {
        Self {
            roots: Roots::default(),
            digest: Path::new("/").join(DIGEST_FILE),
            firmware: "/lib/firmware".into(),
            state: state.to_owned(),
        }
    }

    /// Whether drivers may have to be fetched: there is a device without a driver, and the image has the digest of a
    /// pack.
    pub fn lack_drivers(&self) -> bool {
        self.digest.exists() && !discover::without_driver(&self.roots).is_empty()
    }
}

/// Fetches and loads drivers for the devices that have none. Waits until the server answers for the first time, as
/// enrolment does. If a module takes longer than `patience`, it is left alone and no further module is loaded. Returns
/// the number of modules loaded.
pub async fn load(config: &Config, places: &Places, insert: &Insert, patience: Duration) -> usize {
    let devices = discover::without_driver(&places.roots);
    if devices.is_empty() || !places.digest.exists() {
        return 0;
    }
    // Checking certificates needs the right time. An error is ignored here, because it comes again when the machine
    // enrols.
    if clock::set(config, &places.state.join(clock::SEEN)).await.is_err() {
        return 0;
    }
    let (pack, index) = match open(config, places).await {
        Ok(opened) => opened,
        Err(error) => {
            for (device, _) in devices {
                warn!("{}: looking for its driver on the server: {}", device.name(), Failure::of(&error).in_one_line());
            }
            return 0;
        }
    };
    let mut loaded = 0;
    for (device, alias) in devices {
        let drivers = drivers_of(&index, &alias);
        // The module may have been loaded for an earlier device.
        let is_loaded = |name: &str| places.roots.sys.join("module").join(name).exists();
        for (name, module) in index.in_order(&drivers, is_loaded) {
            let fetched = Fetched { pack: &pack, index: &index, places, device: &device, patience };
            match fetched.load(name, module, insert).await {
                Ok(new) => loaded += usize::from(new),
                Err(error) => {
                    warn!("{}: its driver {name} is not loaded: {}", device.name(), Failure::of(&error).in_one_line());
                    // The next module would wait for this one in the kernel.
                    if matches!(error, RareError::Hangs { .. }) {
                        return loaded;
                    }
                    break;
                }
            }
        }
    }
    loaded
}

/// Returns the names of the modules in the pack that match a device's modalias.
fn drivers_of<'a>(index: &'a RareDrivers, alias: &str) -> Vec<&'a str> {
    let fits = |module: &RareModule| module.aliases.iter().any(|pattern| modalias::fits(pattern, alias));
    index.modules.iter().filter(|(_, module)| fits(module)).map(|(name, _)| name.as_str()).collect()
}

/// Fetches the index from the server, and checks it against the digest in the boot image.
async fn open(config: &Config, places: &Places) -> Result<(Pack, RareDrivers), RareError> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|source| RareError::File { doing: "reading", path, source })
    };
    let (digest, release) = (read(places.digest.clone())?, read(places.roots.proc.join("sys/kernel/osrelease"))?);
    let pack = Pack::new(config)?;
    let index = pack.index(digest.trim(), release.trim()).await?;
    Ok((pack, index))
}

/// What is needed to fetch and load modules for a device.
struct Fetched<'a> {
    pack: &'a Pack,
    index: &'a RareDrivers,
    places: &'a Places,
    device: &'a UnservedDevice,
    patience: Duration,
}

impl Fetched<'_> {
    /// Loads a module, after putting its firmware where the kernel looks for it.
    async fn load(&self, name: &str, module: &RareModule, insert: &Insert) -> Result<bool, RareError> {
        for file in &module.firmware {
            let Some(piece) = self.index.firmware.get(file) else { continue };
            // The driver may work without this firmware. If not, the kernel log and the inventory say so.
            if let Err(error) = self.put_firmware(file, piece).await {
                warn!(
                    "{}: firmware {file} of its driver {name}: {}",
                    self.device.name(),
                    Failure::of(&error).in_one_line()
                );
            }
        }
        let path = self.places.state.join(format!("{name}.ko"));
        write(&path, &self.pack.file(format!("module {name}"), &module.piece).await?)?;
        let (to_load, load) = (path.clone(), Arc::clone(insert));
        info!("loading {name} from the server for the {}", self.device.name());
        // A driver probes its devices while it is loaded, which may take seconds.
        let done = timeout(self.patience, tokio::task::spawn_blocking(move || load(&to_load))).await;
        let done = done.map_err(|_| RareError::Hangs { patience: self.patience })?;
        // The kernel has the module now.
        let _ = std::fs::remove_file(&path);
        let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
        let new = done.map_err(|source| RareError::File { doing: "loading", path, source })?;
        info!("loaded {name} from the server for the {}", self.device.name());
        self.wait_until_up().await;
        Ok(new)
    }

    /// Waits until the network has brought up the device's interfaces, for a while. Many drivers look for their
    /// firmware only then, and what they lack must be in the kernel log before the machine reports its devices.
    async fn wait_until_up(&self) {
        let interfaces = self.places.roots.sys.join("bus/pci/devices").join(&self.device.address).join("net");
        let began = Instant::now();
        let is_done = || are_up(&interfaces) || self.lacks_something();
        while !is_done() && began.elapsed() < UP_LIMIT {
            sleep(UP_POLL).await;
        }
    }

    fn lacks_something(&self) -> bool {
        discover::unserved(&self.places.roots).iter().any(|device| device.address == self.device.address)
    }

    async fn put_firmware(&self, name: &str, piece: &Piece) -> Result<(), RareError> {
        let path = self.places.firmware.join(name);
        if path.exists() {
            return Ok(());
        }
        write(&path, &self.pack.file(name.to_owned(), piece).await?)
    }
}

/// Whether all network interfaces in a folder of sysfs are up. True if there are none.
fn are_up(folder: &Path) -> bool {
    let is_up = |interface: std::fs::DirEntry| {
        let flags = std::fs::read_to_string(interface.path().join("flags")).unwrap_or_default();
        let flags = flags.trim().strip_prefix("0x").and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & IFF_UP != 0)
    };
    std::fs::read_dir(folder).into_iter().flatten().flatten().all(is_up)
}

fn write(path: &Path, content: &[u8]) -> Result<(), RareError> {
    crate::files::write_whole(path, content).map_err(|source| RareError::File {
        doing: "writing",
        path: path.to_owned(),
        source,
    })
}
