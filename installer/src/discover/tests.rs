//! Simulated machines: folders that look like sysfs and procfs.

use std::fs;
use std::os::unix::fs::symlink;

use slipway_protocol::{Cpu, Firmware, MAX_REQUEST_BYTES, Nic, System};
use tempfile::TempDir;

use super::*;

const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

const SETUP_MODE: &str = "sys/firmware/efi/efivars/SetupMode-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const PK: &str = "sys/firmware/efi/efivars/PK-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// The files of an ordinary server and their content.
const SERVER: &[(&str, &[u8])] = &[
    ("sys/class/dmi/id/product_uuid", b"4c4c4544-0042-3010-8058-b7c04f503432\n"),
    ("sys/class/dmi/id/product_serial", b"7CZ1234\n"),
    ("sys/class/dmi/id/bios_vendor", b"Acme Firmware\n"),
    ("sys/class/dmi/id/bios_version", b"2.19.1\n"),
    ("sys/class/dmi/id/sys_vendor", b"Acme Inc.\n"),
    ("sys/class/dmi/id/product_name", b"Anvil R750\n"),
    ("sys/class/dmi/id/board_serial", b"..CN0042..\n"),
    ("sys/class/dmi/id/chassis_serial", b"CH77\n"),
    ("sys/class/dmi/id/chassis_asset_tag", b"rack 7\n"),
    ("sys/devices/system/cpu/online", b"0-63\n"),
    ("proc/cpuinfo", b"processor\t: 0\nmodel name\t: Acme Core\n\nprocessor\t: 1\n"),
    ("proc/meminfo", b"MemTotal:       16777216 kB\nMemFree: 1 kB\n"),
    (SECURE_BOOT, &[6, 0, 0, 0, 1]),
    (SETUP_MODE, &[6, 0, 0, 0, 0]),
    (
        PK,
        b"\x27\0\0\0\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72\x37\0\0\0\0\0\0\0\x1b\0\0\0\
          owner of entry 1certificate",
    ),
    ("sys/class/tpm/tpm0/tpm_version_major", b"2\n"),
    ("sys/class/net/test0/address", b"52:54:00:AB:CD:01\n"),
    ("sys/class/net/test0/addr_assign_type", b"0\n"),
    ("sys/class/net/test0/carrier", b"1\n"),
    ("sys/class/net/test0/speed", b"25000\n"),
];

struct Machine {
    folder: TempDir,
    roots: Roots,
}

impl Machine {
    fn empty() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let root = |name| folder.path().join(name);
        let roots = Roots { sys: root("sys"), proc: root("proc"), dev: root("dev"), modules: root("lib/modules") };
        Self { folder, roots }
    }

    fn server() -> Self {
        let machine = Self::empty();
        for (path, content) in SERVER {
            machine.file(path, content);
        }
        machine.nic("test0", "acme_nic", &[]);
        machine
    }

    fn file(&self, path: &str, content: &[u8]) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("creating a folder");
        fs::write(path, content).expect("writing a file");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).expect("removing a file");
    }

    /// Adds an interface with a device and a driver.
    fn nic(&self, name: &str, driver: &str, attributes: &[(&str, &str)]) {
        let device = self.folder.path().join("sys/class/net").join(name).join("device");
        fs::create_dir_all(&device).expect("creating a folder");
        symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("driver")).expect("linking the driver");
        for (attribute, value) in attributes {
            self.file(&format!("sys/class/net/{name}/{attribute}"), value.as_bytes());
        }
    }

    /// Returns identity, inventory and notes.
    fn discover(&self) -> (Identity, Inventory, Vec<String>) {
        let (inventory, notes) = inventory(&self.roots, Vec::new());
        (identity(&self.roots), inventory, notes)
    }
}

#[test]
fn an_ordinary_server_is_known_in_full() {
    let (identity, inventory, notes) = Machine::server().discover();
    assert_eq!(notes, Vec::<String>::new());
    let mac = "52:54:00:ab:cd:01".to_owned();
    assert_eq!(
        identity,
        Identity {
            uuid: Some("4c4c4544-0042-3010-8058-b7c04f503432".into()),
            serial: Some("7CZ1234".into()),
            macs: vec![mac.clone()],
        }
    );
    let expect = Inventory {
        system: System {
            vendor: Some("Acme Inc.".into()),
            model: Some("Anvil R750".into()),
            board_serial: Some("..CN0042..".into()),
            chassis_serial: Some("CH77".into()),
            asset_tag: Some("rack 7".into()),
        },
        cpu: Cpu { model: Some("Acme Core".into()), threads: 64, arch: std::env::consts::ARCH.into() },
        memory: 16 << 30,
        disks: Vec::new(),
        nics: vec![Nic {
            name: "test0".into(),
            mac: Some(mac),
            addresses: Vec::new(),
            carrier: true,
            speed: Some(25_000),
            driver: Some("acme_nic".into()),
        }],
        firmware: Firmware {
            vendor: Some("Acme Firmware".into()),
            version: Some("2.19.1".into()),
            uefi: true,
            secure_boot: Some(true),
            setup_mode: Some(false),
            // The output of `printf certificate | sha256sum`.
            platform_key: Some("03d66dd08835c1ca3f128cceacd1f31ac94163096b20f445ae84285bc0832d72".into()),
            tpm: Some(2),
        },
        loaded_from: None,
        unserved: Vec::new(),
    };
    assert_eq!(inventory, expect);
}

#[test]
fn fillers_count_as_missing_and_the_operator_is_told() {
    let machine = Machine::server();
    for name in ["sys_vendor", "product_name", "board_serial", "chassis_serial", "chassis_asset_tag", "product_serial"]
    {
        machine.file(&format!("sys/class/dmi/id/{name}"), b"To be filled by O.E.M.\n");
    }
    machine.file("sys/class/dmi/id/product_uuid", b"00000000-0000-0000-0000-000000000000\n");
    let (identity, inventory, notes) = machine.discover();
    assert_eq!((identity.uuid, identity.serial, inventory.system), (None, None, System::default()));
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].ends_with("only by its MAC addresses"), "{notes:?}");
}

#[test]
fn a_board_without_smbios_is_known_by_its_device_tree() {
    let machine = Machine::empty();
    machine.file("proc/device-tree/serial-number", b"10000000deadbeef\0");
    machine.file("proc/device-tree/model", b"Acme Board 4\0");
    let (identity, inventory, _) = machine.discover();
    assert_eq!(identity.serial.as_deref(), Some("10000000deadbeef"));
    assert_eq!(inventory.system.model.as_deref(), Some("Acme Board 4"));
}

#[test]
fn the_serial_of_a_board_or_chassis_does_not_identify_a_machine() {
    let machine = Machine::server();
    machine.remove("sys/class/dmi/id/product_serial");
    assert_eq!(machine.discover().0.serial, None);
}

#[test]
fn control_characters_of_the_firmware_do_not_reach_the_console() {
    let machine = Machine::server();
    machine.file("sys/class/dmi/id/product_serial", b" 7C\x1b[2JZ\r\n\xff \n");
    assert_eq!(machine.discover().0.serial.as_deref(), Some("7C[2JZ\u{fffd}"));
}

#[test]
fn interfaces_without_a_device_are_not_listed() {
    let machine = Machine::server();
    machine.file("sys/class/net/testbond0/address", b"52:54:00:ab:cd:77\n");
    machine.file("sys/class/net/testbond0/addr_assign_type", b"0\n");
    machine.file("sys/class/net/bonding_masters", b"testbond0\n");
    let (identity, inventory, notes) = machine.discover();
    assert_eq!((identity.macs.len(), inventory.nics.len()), (1, 1));
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn only_permanent_addresses_identify_a_machine() {
    let machine = Machine::server();
    let fixed = |mac| [("address", mac), ("addr_assign_type", "0\n")];
    machine.nic("test1", "acme_nic", &fixed("52:54:00:ab:cd:00\n"));
    machine.nic("test2", "acme_nic", &fixed("00:00:00:00:00:00\n"));
    machine.nic("testib0", "mlx5_core", &fixed("00:00:10:87:fe:80:00:00:00:00:00:00:e4:1d:2d:03:00:5e:39:f0\n"));
    machine.nic("testrandom", "acme_nic", &[("address", "4a:54:00:ab:cd:03\n"), ("addr_assign_type", "1\n")]);
    machine.nic("testsilent", "acme_nic", &[("address", "4a:54:00:ab:cd:04\n")]);
    let (identity, inventory, _) = machine.discover();
    assert_eq!(identity.macs, ["52:54:00:ab:cd:00", "52:54:00:ab:cd:01"], "sorted by address, not by interface");
    assert_eq!(inventory.nics.len(), 6);
}

#[test]
fn the_link_to_a_management_controller_is_listed_and_does_not_identify() {
    let machine = Machine::server();
    machine.nic("testusb0", "cdc_ether", &[("address", "be:3a:f2:b6:05:9f\n"), ("addr_assign_type", "0\n")]);
    let (identity, inventory, _) = machine.discover();
    assert_eq!(identity.macs, ["52:54:00:ab:cd:01"]);
    assert_eq!(inventory.nics[1].mac.as_deref(), Some("be:3a:f2:b6:05:9f"));
    assert_eq!(inventory.nics[1].driver.as_deref(), Some("cdc_ether"));
}

#[test]
fn a_member_of_a_bond_keeps_its_permanent_address() {
    let machine = Machine::server();
    machine.file("sys/class/net/test0/address", b"52:54:00:ab:cd:99\n");
    machine.file("sys/class/net/test0/addr_assign_type", b"3\n");
    assert_eq!(machine.discover().0.macs, Vec::<String>::new(), "an address somebody set is nobody's");

    let link = Link { permanent_mac: Some("52:54:00:ab:cd:01".into()), addresses: vec!["192.0.2.7/24".into()] };
    let links = BTreeMap::from([("test0".to_owned(), link)]);
    assert_eq!(identify(&machine.roots, &links, &mut Notes::new()).macs, ["52:54:00:ab:cd:01"]);
    let inventory = take_stock(&machine.roots, &links, Vec::new(), &mut Notes::new());
    assert_eq!(inventory.nics[0].addresses, ["192.0.2.7/24"]);
}

#[test]
fn an_unknown_speed_is_none() {
    for (text, expect) in
        [("1000\n", Some(1000)), ("-1\n", None), ("4294967295\n", None), ("0\n", None), ("fast", None), ("", None)]
    {
        let machine = Machine::server();
        machine.file("sys/class/net/test0/speed", text.as_bytes());
        let (_, inventory, notes) = machine.discover();
        assert_eq!((inventory.nics[0].speed, notes.len()), (expect, 0), "{text:?}");
    }
}

#[test]
fn a_value_the_kernel_does_not_have_now_is_no_fault() {
    let machine = Machine::server();
    machine.remove("sys/class/net/test0/speed");
    let without_speed = "/sys/class/net/lo/speed";
    let error = fs::read(without_speed).expect_err("loopback has no speed");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    symlink(without_speed, machine.folder.path().join("sys/class/net/test0/speed")).expect("linking the speed");
    let (_, inventory, notes) = machine.discover();
    assert_eq!((inventory.nics[0].speed, notes), (None, Vec::new()));
}

#[test]
fn secure_boot_is_on_off_or_unknown() {
    let cases: [(&[u8], Option<bool>, usize); 5] = [
        (&[6, 0, 0, 0, 0], Some(false), 0),
        (&[6, 0, 0, 0, 1], Some(true), 0),
        (&[6, 0, 0, 0, 2], None, 1),
        (&[1], None, 1),
        (&[], None, 1),
    ];
    for (content, expect, notes) in cases {
        let machine = Machine::server();
        machine.file(SECURE_BOOT, content);
        let (_, inventory, found) = machine.discover();
        assert_eq!((inventory.firmware.secure_boot, found.len()), (expect, notes), "{content:?}: {found:?}");
    }
    let (_, bios, notes) = Machine::empty().discover();
    assert_eq!(bios.firmware, Firmware::default());
    assert!(!notes.iter().any(|note| note.contains("SecureBoot")), "a BIOS has no variables: {notes:?}");
}

#[test]
fn whatever_a_file_holds_it_costs_that_file_alone() {
    let (expect, ..) = Machine::server().discover();
    for (path, _) in SERVER {
        let is_attribute = !path.starts_with("proc/");
        for content in [&[b'7'; 1 << 20][..], &noise(5000), &noise(40), b"\0\0\0", b":\n-\n,\n", b""] {
            let machine = Machine::server();
            machine.file(path, content);
            let (identity, inventory, notes) = machine.discover();
            if is_attribute && content.len() > 4096 {
                assert!(notes.iter().any(|note| note.contains(path) && note.ends_with("longer than 4096 bytes")));
            }
            let touches = |part: &str| path.contains(part);
            assert!(touches("uuid") || identity.uuid == expect.uuid, "{path}");
            assert!(touches("product_serial") || identity.serial == expect.serial, "{path}");
            assert!(touches("net/") || identity.macs == expect.macs, "{path}");
            assert!(touches("meminfo") || inventory.memory == 16 << 30, "{path}");
            assert_eq!(inventory.nics.len(), 1, "{path}");
        }
        let machine = Machine::server();
        machine.remove(path);
        fs::create_dir(machine.folder.path().join(path)).expect("creating a folder");
        let notes = machine.discover().2;
        assert!(notes.iter().any(|note| note.contains(path)), "{path} is a folder: {notes:?}");
    }
}

/// Returns pseudo-random bytes, the same each time (xorshift).
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(step).collect()
}

#[test]
fn a_machine_that_tells_nothing_is_described_as_such() {
    let (identity, inventory, notes) = Machine::empty().discover();
    assert_eq!(identity, Identity::default());
    assert_eq!((inventory.memory, inventory.cpu.threads, inventory.nics.len()), (0, 0, 0));
    for part in ["cpuinfo", "meminfo", "class/net", "cpu/online", "cannot be identified"] {
        assert!(notes.iter().any(|note| note.contains(part)), "{part} in {notes:?}");
    }
}

#[test]
fn a_crowd_of_interfaces_and_disks_fits_a_request() {
    let machine = Machine::server();
    for i in 0..1100 {
        machine.nic(
            &format!("test{i:04}"),
            "acme_nic",
            &[("address", "52:54:00:ab:cd:01\n"), ("addr_assign_type", "0")],
        );
    }
    let disk = |i: usize| Disk { path: format!("/dev/sd{i:04}"), serial: Some("7".repeat(64)), ..Disk::default() };
    let (inventory, notes) = inventory(&machine.roots, (0..1000).rev().map(disk).collect());
    assert_eq!((inventory.nics.len(), inventory.disks.len()), (1024, 1000));
    assert_eq!(inventory.disks[7], disk(7), "sorted by name");
    assert!(notes.iter().any(|note| note.ends_with("1101 interfaces, of which 1024 are listed")), "{notes:?}");
    assert_eq!(identity(&machine.roots).macs.len(), 1, "each address once");
    let size = serde_json::to_vec(&inventory).expect("an inventory as JSON").len();
    assert!(size < MAX_REQUEST_BYTES / 2, "{size} bytes");
}

#[test]
fn the_machine_of_this_test_is_described() {
    let (inventory, _) = inventory(&Roots::default(), Vec::new());
    assert!(inventory.memory > 0 && inventory.cpu.threads > 0);
    assert_eq!(inventory.cpu.arch, std::env::consts::ARCH);
    assert!(inventory.nics.iter().all(|nic| nic.name != "lo"));
    assert!(identity(&Roots::default()).macs.is_sorted());
}

#[test]
fn the_running_kernel_lists_its_interfaces() {
    let mut notes = Notes::new();
    let links = links::links(&mut notes).expect("an answer by netlink");
    let mut names: Vec<_> = fs::read_dir("/sys/class/net")
        .expect("interfaces")
        .flatten()
        .filter(|entry| entry.path().join("ifindex").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    assert_eq!(links.keys().cloned().collect::<Vec<_>>(), names);
    assert!(links.values().flat_map(|link| &link.addresses).all(|address| address.contains('/')));
    assert_eq!(notes, Vec::<String>::new());
}

/// Adds a device on the PCI bus.
fn pci(machine: &Machine, address: &str, class: &str, vendor: &str, device: &str, driver: Option<&str>) {
    let folder = format!("sys/bus/pci/devices/{address}");
    for (name, value) in [("class", class), ("vendor", vendor), ("device", device)] {
        machine.file(&format!("{folder}/{name}"), format!("0x{value}\n").as_bytes());
    }
    if let Some(driver) = driver {
        let target = machine.folder.path().join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&target).expect("creating a driver");
        symlink(target, machine.folder.path().join(folder).join("driver")).expect("linking the driver");
    }
}

#[test]
fn devices_without_driver_or_firmware_are_named() {
    let machine = Machine::server();
    machine.file("proc/sys/kernel/osrelease", b"6.1.0-test\n");
    let aliases = b"alias pci:v00001000d000000E6sv*sd*bc*sc*i* mpi3mr\nalias pci:v*d*sv*sd*bc01sc08i02* nvme\n";
    machine.file("lib/modules/6.1.0-test/modules.alias", aliases);
    pci(&machine, "0000:00:1f.6", "020000", "8086", "15b7", Some("e1000e"));
    pci(&machine, "0000:02:00.0", "030000", "102b", "0522", None);
    pci(&machine, "0000:03:00.0", "020000", "14e4", "16A1", Some("bnx2x"));
    pci(&machine, "0000:04:00.0", "010400", "1000", "00e6", None);
    pci(&machine, "0000:05:00.0", "020000", "19ee", "4000", None);
    pci(&machine, "0000:06:00.0", "020000", "1077", "1656", None);
    // A virtual function of a card.
    pci(&machine, "0000:05:08.0", "020000", "19ee", "6003", None);
    machine.file("sys/bus/pci/devices/0000:05:08.0/physfn/vendor", b"0x19ee\n");
    machine.file(
        "dev/kmsg",
        b"3,1,1,-;bnx2x 0000:03:00.0: Direct firmware load for bnx2x/b.fw failed with error -2\n SUBSYSTEM=pci\n\
          3,2,2,-;bnx2x 0000:03:00.0: Direct firmware load for bnx2x/a.fw failed with error -2\n\
          3,3,3,-;bnx2x 0000:03:00.0: Direct firmware load for bnx2x/a.fw failed with error -2\n\
          3,4,4,-;qed 0000:06:00.0: firmware: failed to load qed/q.bin (-2)\n",
    );
    let (_, inventory, notes) = machine.discover();
    assert_eq!(notes, Vec::<String>::new());
    let told: Vec<String> = inventory.unserved.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "network card 14e4:16a1 at 0000:03:00.0: driver bnx2x lacks firmware bnx2x/a.fw, bnx2x/b.fw: add it to the \
             boot image",
            "storage controller 1000:00e6 at 0000:04:00.0 does not work with its driver mpi3mr: see the kernel log",
            "network card 19ee:4000 at 0000:05:00.0 has no driver in this boot image",
            "network card 1077:1656 at 0000:06:00.0: driver qed lacks firmware qed/q.bin: add it to the boot image",
        ]
    );
    assert_eq!(inventory.unserved, unserved(&machine.roots));
}

#[test]
fn odd_devices_and_a_crowd_of_them_do_no_harm() {
    let machine = Machine::server();
    for class in ["", "0x", "0x0", "02", "0xé2"] {
        machine.file("sys/bus/pci/devices/0000:00:00.0/class", class.as_bytes());
        assert_eq!(machine.discover().1.unserved, [], "{class:?}");
    }
    pci(&machine, "0000:00:00.0", "020000", "8086 and more", "1", None);
    assert_eq!(machine.discover().1.unserved, []);
    for i in 0..200 {
        pci(&machine, &format!("0000:{i:02x}:00.0"), "010700", "1000", "00e6", None);
    }
    let (_, inventory, notes) = machine.discover();
    assert_eq!(inventory.unserved.len(), 128);
    assert!(notes.iter().any(|note| note.ends_with("of which 128 are listed")), "{notes:?}");
}

#[test]
fn the_url_that_the_image_was_loaded_from_is_told() {
    let machine = Machine::server();
    let variable = "sys/firmware/efi/efivars/LoaderDeviceURL-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
    let value = |text: &str| text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let url = "http://10.0.2.2:8080/boot/x86_64/slipway.efi";
    machine.file(variable, &[&[6, 0, 0, 0], &*value(url)].concat());
    let (_, inventory, notes) = machine.discover();
    assert_eq!((inventory.loaded_from.as_deref(), notes.len()), (Some(url), 0), "{notes:?}");
    machine.file(variable, b"\x06\0\0\0odd");
    let (_, inventory, notes) = machine.discover();
    assert_eq!((inventory.loaded_from, notes.len()), (None, 1), "{notes:?}");
    assert!(notes[0].ends_with(": not a URL"), "{notes:?}");
}
