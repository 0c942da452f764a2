//! A machine with a device that has no driver, and the pack of drivers on its server. Its kernel is a folder.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use slipway_installer::discover::Roots;
use slipway_installer::rare_drivers::{self, Insert, Places};
use slipway_protocol::node::rare_drivers::{INDEX, PACK, Piece, RareDrivers, RareModule};
use slipway_tests::Lab;

const RELEASE: &str = "6.1.0-1-test";
const FIRMWARE: &str = "esp/esp.bin";

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// A pack with a controller's driver, the module that this driver needs, and its firmware, and with a driver for
/// another device.
struct Pack {
    index: RareDrivers,
    bytes: Vec<u8>,
    /// Index to serve instead of the one whose digest the machine has.
    other_index: Option<Vec<u8>>,
    /// Name of a module that never finishes loading.
    hanging: Option<&'static str>,
}

impl Pack {
    fn new() -> Self {
        let index = RareDrivers { release: RELEASE.to_owned(), ..RareDrivers::default() };
        let mut pack = Self { index, bytes: Vec::new(), other_index: None, hanging: None };
        let firmware = pack.add(b"the firmware");
        pack.index.firmware = BTreeMap::from([(FIRMWARE.to_owned(), firmware)]);
        for (name, needs, alias, firmware) in [
            ("esp_scsi", None, None, None),
            ("am53c974", Some("esp_scsi"), Some("pci:v00001022d00002020sv*sd*bc*sc*i*"), Some(FIRMWARE)),
            ("lpfc", None, Some("pci:v000010DFd0000E300sv*sd*bc*sc*i*"), None),
        ] {
            let piece = pack.add(name.as_bytes());
            let list = |one: Option<&str>| one.map(str::to_owned).into_iter().collect();
            let module = RareModule { piece, needs: list(needs), aliases: list(alias), firmware: list(firmware) };
            pack.index.modules.insert(name.to_owned(), module);
        }
        pack
    }

    fn add(&mut self, content: &[u8]) -> Piece {
        let packed = zstd::stream::encode_all(content, 3).unwrap();
        let (offset, size) = (self.bytes.len() as u64, packed.len() as u64);
        self.bytes.extend(&packed);
        Piece { offset, size, sha256: sha256(&packed), unpacked: content.len() as u64 }
    }

    fn module(&mut self, name: &str) -> &mut RareModule {
        self.index.modules.get_mut(name).unwrap()
    }

    /// Changes a byte of a piece.
    fn damage(&mut self, piece: &Piece) {
        self.bytes[usize::try_from(piece.offset).unwrap() + 8] ^= 1;
    }
}

/// The modules that were loaded, the machine's log, and whether the controller's firmware was there.
struct Outcome {
    loaded: Vec<String>,
    said: String,
    firmware: bool,
}

/// Loads drivers for a device that has none, with this pack on the server. `alias` is the device's modalias.
async fn boot(lab: &Lab, pack: &Pack, alias: &str) -> Outcome {
    let folder = tempfile::tempdir_in(lab.folder.path()).unwrap();
    let root = |name: &str| folder.path().join(name);
    let put = |path: PathBuf, content: &[u8]| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let index = serde_json::to_vec(&pack.index).unwrap();
    put(root("etc/sha256"), format!("{}\n", sha256(&index)).as_bytes());
    let boot_files = lab.boot_folder().join(std::env::consts::ARCH);
    put(boot_files.join(INDEX), pack.other_index.as_ref().unwrap_or(&index));
    put(boot_files.join(PACK), &pack.bytes);
    put(root("proc/sys/kernel/osrelease"), format!("{RELEASE}\n").as_bytes());
    let device = root("sys/bus/pci/devices/0000:00:05.0");
    let (vendor, id) = (&alias[9..13], &alias[18..22]);
    for (name, value) in [("class", "0x010000"), ("vendor", &format!("0x{vendor}")), ("device", &format!("0x{id}"))] {
        put(device.join(name), value.as_bytes());
    }
    put(device.join("modalias"), alias.as_bytes());

    let roots = Roots { sys: root("sys"), proc: root("proc"), dev: root("dev"), modules: root("modules") };
    let places = Places { roots, digest: root("etc/sha256"), firmware: root("firmware"), state: root("run") };
    assert!(places.lack_drivers());
    let loaded = Arc::new(Mutex::new(Vec::new()));
    // Loading the hanging module lasts until `_end` is dropped.
    let (_end, ended) = mpsc::channel::<()>();
    let (hanging, ended) = (pack.hanging, Mutex::new(ended));
    let insert: Insert = {
        let (loaded, sys, firmware) = (Arc::clone(&loaded), root("sys"), root("firmware").join(FIRMWARE));
        Arc::new(move |path: &Path| {
            // Each module has its name as content here.
            let name = fs::read_to_string(path)?;
            assert_eq!(path.file_stem().unwrap(), name.as_str());
            if hanging == Some(name.as_str()) {
                let _ = ended.lock().unwrap().recv();
                return Ok(true);
            }
            assert!(name != "am53c974" || firmware.exists() || loaded.lock().unwrap().len() == 1);
            fs::create_dir_all(sys.join("module").join(&name))?;
            loaded.lock().unwrap().push(name);
            Ok(true)
        })
    };
    let said = Arc::new(Mutex::new(Vec::new()));
    let count = {
        let said = Arc::clone(&said);
        let writer = tracing_subscriber::fmt().with_ansi(false).with_writer(move || Said(Arc::clone(&said)));
        let _guard = tracing::subscriber::set_default(writer.finish());
        let patience = if hanging.is_some() { Duration::from_millis(50) } else { rare_drivers::PATIENCE };
        rare_drivers::load(&lab.config(), &places, &insert, patience).await
    };
    let loaded = loaded.lock().unwrap().clone();
    assert_eq!(count, loaded.len());
    let said = String::from_utf8(said.lock().unwrap().clone()).unwrap();
    Outcome { loaded, said, firmware: root("firmware").join(FIRMWARE).exists() }
}

/// Collects log lines.
struct Said(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const CONTROLLER: &str = "pci:v00001022d00002020sv00000000sd00000000bc01sc00i00";
const NAME: &str = "storage controller 1022:2020 at 0000:00:05.0";

#[tokio::test]
async fn the_driver_of_a_device_is_loaded_after_what_it_needs() {
    let lab = Lab::start().await;
    let Outcome { loaded, said, firmware } = boot(&lab, &Pack::new(), CONTROLLER).await;
    assert_eq!(loaded, ["esp_scsi", "am53c974"], "{said}");
    assert!(firmware && said.contains(&format!("loaded am53c974 from the server for the {NAME}")), "{said}");
    assert!(!said.contains("WARN"), "{said}");
    // No driver in the pack is for this device.
    let Outcome { loaded, said, .. } = boot(&lab, &Pack::new(), &CONTROLLER.replace("2020", "2021")).await;
    assert!(loaded.is_empty() && !said.contains("WARN"), "{loaded:?} {said}");
}

#[tokio::test]
async fn a_driver_that_hangs_does_not_hold_up_the_machine() {
    let lab = Lab::start().await;
    let pack = Pack { hanging: Some("esp_scsi"), ..Pack::new() };
    let Outcome { loaded, said, .. } = boot(&lab, &pack, CONTROLLER).await;
    assert!(loaded.is_empty(), "{loaded:?}");
    let expect = format!("{NAME}: its driver esp_scsi is not loaded: the module took over 0 s to probe");
    assert!(
        said.contains(&format!("loading esp_scsi from the server for the {NAME}")) && said.contains(&expect),
        "{said}"
    );
}

type Change = fn(&mut Pack);

#[tokio::test]
async fn what_is_not_what_the_boot_image_knows_is_never_loaded() {
    let lab = Lab::start().await;
    let cases: [(Change, &[&str], &str); 8] = [
        (
            |pack| pack.other_index = Some(serde_json::to_vec(&RareDrivers::default()).unwrap()),
            &[],
            "looking for its driver on the server: the server's rare-drivers.json does not match this boot image",
        ),
        (|pack| pack.other_index = Some(vec![b' '; (4 << 20) + 1]), &[], "it is larger than 4194304 bytes"),
        (
            |pack| pack.index.release = "6.1.0-2-test".to_owned(),
            &[],
            "it is for kernel \"6.1.0-2-test\", but this machine",
        ),
        (
            |pack| {
                let piece = pack.module("am53c974").piece.clone();
                pack.damage(&piece);
            },
            &["esp_scsi"],
            "its driver am53c974 is not loaded: module am53c974 in the server's rare-drivers.pack does not match \
             rare-drivers.json: its digest differs",
        ),
        (
            |pack| {
                let piece = pack.module("esp_scsi").piece.clone();
                pack.damage(&piece);
            },
            &[],
            "its driver esp_scsi is not loaded: ",
        ),
        (
            |pack| {
                let end = pack.module("am53c974").piece.offset + 5;
                pack.bytes.truncate(usize::try_from(end).unwrap());
            },
            &["esp_scsi"],
            "its driver am53c974 is not loaded: module am53c974 in the server's rare-drivers.pack does not match \
             rare-drivers.json: it is too short",
        ),
        (|pack| pack.module("am53c974").piece.unpacked -= 1, &["esp_scsi"], "its unpacked size differs"),
        (|pack| pack.bytes.clear(), &[], "its driver esp_scsi is not loaded: fetching a driver at "),
    ];
    for (change, expect, sentence) in cases {
        let mut pack = Pack::new();
        change(&mut pack);
        let Outcome { loaded, said, .. } = boot(&lab, &pack, CONTROLLER).await;
        assert_eq!(loaded, expect, "{sentence}: {said}");
        let line = said.lines().find(|line| line.contains(sentence));
        assert!(line.is_some_and(|line| line.contains(NAME)), "{sentence}: {said}");
    }
}

#[tokio::test]
async fn a_driver_is_loaded_without_firmware_that_is_damaged() {
    let lab = Lab::start().await;
    let mut pack = Pack::new();
    let piece = pack.index.firmware[FIRMWARE].clone();
    pack.damage(&piece);
    let Outcome { loaded, said, firmware } = boot(&lab, &pack, CONTROLLER).await;
    assert_eq!((loaded.len(), firmware), (2, false), "{said}");
    let line = said.lines().find(|line| line.contains(&format!("firmware {FIRMWARE} of its driver am53c974: ")));
    assert!(line.is_some_and(|line| line.contains(NAME) && line.contains("its digest differs")), "{said}");
}

#[tokio::test]
async fn nothing_is_asked_of_a_server_if_every_device_has_a_driver() {
    let mut lab = Lab::start().await;
    lab.stop_server().await;
    let root = |name: &str| lab.folder.path().join(name);
    fs::write(root("sha256"), "00").unwrap();
    let device = root("sys/bus/pci/devices/0000:00:05.0");
    fs::create_dir_all(device.join("driver")).unwrap();
    for (name, value) in [("class", "0x010000"), ("vendor", "0x1022"), ("device", "0x2020"), ("modalias", CONTROLLER)] {
        fs::write(device.join(name), value).unwrap();
    }
    let roots = Roots { sys: root("sys"), proc: root("proc"), dev: root("dev"), modules: root("modules") };
    let places = Places { roots, digest: root("sha256"), firmware: root("firmware"), state: root("run") };
    assert!(!places.lack_drivers());
    let insert: Insert = Arc::new(|_: &Path| Ok(true));
    // If it asked the server, it would try without end.
    assert_eq!(rare_drivers::load(&lab.config(), &places, &insert, rare_drivers::PATIENCE).await, 0);
}
