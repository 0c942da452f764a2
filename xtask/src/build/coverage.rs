//! Counts which share of the known network cards and storage controllers has a driver in the boot image.
//!
//! pci.ids names devices by vendor and number, but not what they are for, so that is guessed from their names. The
//! shares are estimates, good enough to notice a driver that is missing or was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result};

use crate::build::kernel::Kernel;
use crate::build::modules::{self, Selection};
use crate::host::{debian, files};

/// Substrings of the names of network cards, in lower case.
const NETWORK: &[&str] = &[
    "ethernet",
    "gigabit",
    "gbe ",
    "network adapter",
    "network connection",
    "network controller",
    "lan controller",
    "connectx",
    "hi1822",
];
/// Substrings of the names of storage controllers, in lower case.
const STORAGE: &[&str] =
    &["raid", "sas", "sata", "ahci", "nvme", "solid state", "fibre channel", "scsi", "storage", "ide controller"];
/// Substrings that exclude a device: other functions of the same chips, and wireless networks.
const NEITHER: &[&str] = &[
    "802.11",
    "wireless",
    "wi-fi",
    "wifi",
    "wlan",
    "bluetooth",
    "modem",
    "switch",
    "bridge",
    "smbus",
    "usb",
    "expander",
    "enclosure",
    "dma",
    "heci",
    "registers",
    "debug",
    "root port",
    "upstream",
    "downstream",
    "management",
    "virtual function",
];
/// Drivers that support a whole class have a class in their table instead of device numbers. Each entry has the
/// substring of a device's name that suggests the class, and the class: NVMe, AHCI, IDE (PCI Code and ID Assignment,
/// section 1.2).
const CLASSES: &[(&str, &str)] = &[
    ("nvme", "bc01sc08i02"),
    ("solid state", "bc01sc08i02"),
    ("ahci", "bc01sc06i01"),
    ("sata", "bc01sc06i01"),
    ("ide controller", "bc01sc01"),
];

/// Function of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A network card.
    Network,
    /// A storage controller.
    Storage,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "network",
            Self::Storage => "storage",
        })
    }
}

/// Number of known devices of one kind and vendor, and of those with a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Devices in pci.ids.
    pub known: usize,
    /// Devices with a driver in the boot image.
    pub image: usize,
    /// Devices whose only driver is in `initramfs/rare-drivers.txt`.
    pub rare: usize,
}

/// Shares by vendor (four hexadecimal digits) and kind.
pub type Shares = BTreeMap<(String, Kind), Share>;

/// Counts the devices of the vendors in `table`, and those that a kernel supports. Also returns the vendors' names.
pub fn of_kernel(kernel: &Kernel, table: &str) -> Result<(Shares, BTreeMap<String, String>)> {
    let ids = files::read(&debian::unpacked(&debian::PCI_IDS)?.join("usr/share/misc/pci.ids"))?;
    let alias = files::read(&kernel.modules().join("modules.alias"))?;
    let (image, rare) = (modules::select(kernel, modules::DRIVERS)?, modules::select(kernel, modules::RARE_DRIVERS)?);
    let drivers = Drivers::new(&String::from_utf8_lossy(&alias), &image, &rare);
    let vendors: BTreeSet<String> = parse(table)?.into_keys().map(|(vendor, _)| vendor).collect();
    Ok(count(&String::from_utf8_lossy(&ids), &drivers, &vendors))
}

/// Which modules support which devices.
struct Drivers {
    /// Whether a module in the image supports the device, and whether a module in either list does. The key is vendor
    /// and device, in lower-case hexadecimal.
    devices: BTreeMap<(String, String), (bool, bool)>,
    /// Patterns for whole classes: the vendor (`None` for all), the rest of the pattern, and the same two flags.
    classes: Vec<(Option<String>, String, (bool, bool))>,
}

impl Drivers {
    fn new(alias: &str, image: &Selection, rare: &Selection) -> Self {
        let names = |selection: &Selection| selection.files.iter().map(|file| modules::name_of(file)).collect();
        let (image, rare): (BTreeSet<String>, BTreeSet<String>) = (names(image), names(rare));
        let mut drivers = Self { devices: BTreeMap::new(), classes: Vec::new() };
        for line in alias.lines() {
            let Some((pattern, module)) = line.strip_prefix("alias pci:v").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            let module = module.replace('-', "_");
            let of = (image.contains(&module), image.contains(&module) || rare.contains(&module));
            let Some((vendor, rest)) = pattern.split_once('d') else { continue };
            let Some((device, rest)) = rest.split_once("sv") else { continue };
            let id = |digits: &str| digits.get(4..).map(str::to_ascii_lowercase);
            match (id(vendor), id(device)) {
                (Some(vendor), Some(device)) => {
                    let known = drivers.devices.entry((vendor, device)).or_default();
                    *known = (known.0 || of.0, known.1 || of.1);
                }
                (vendor, _) => drivers.classes.push((vendor, rest.to_owned(), of)),
            }
        }
        drivers
    }

    /// Whether a module in the image supports the device, and whether a module in either list does.
    fn take(&self, vendor: &str, device: &str, name: &str) -> (bool, bool) {
        let of_device = self.devices.get(&(vendor.to_owned(), device.to_owned())).copied().unwrap_or_default();
        let classes: Vec<&str> =
            CLASSES.iter().filter(|(part, _)| name.contains(part)).map(|(_, class)| *class).collect();
        let by_class = self.classes.iter().filter(|(of, pattern, _)| {
            of.as_deref().is_none_or(|of| of == vendor) && classes.iter().any(|class| pattern.contains(class))
        });
        by_class.fold(of_device, |all, (_, _, of)| (all.0 || of.0, all.1 || of.1))
    }
}

/// Counts the devices of some vendors in a pci.ids file. Vendors are not indented, devices are indented by one tab and
/// subsystems by two, and classes follow at the end (see the comment at the head of that file).
fn count(ids: &str, drivers: &Drivers, vendors: &BTreeSet<String>) -> (Shares, BTreeMap<String, String>) {
    let (mut shares, mut names) = (Shares::new(), BTreeMap::new());
    let mut vendor = "";
    for line in ids.lines().take_while(|line| !line.starts_with("C ")) {
        let Some(line) = line.strip_prefix('\t') else {
            if let Some((id, name)) = line.split_once("  ").filter(|(id, _)| vendors.contains(*id)) {
                vendor = id;
                names.insert(id.to_owned(), name.to_owned());
            } else if !line.starts_with('#') {
                vendor = "";
            }
            continue;
        };
        let Some((device, name)) = line.split_once("  ").filter(|(id, _)| !vendor.is_empty() && !id.starts_with('\t'))
        else {
            continue;
        };
        let name = name.to_lowercase();
        let Some(kind) = kind(&name) else { continue };
        let (image, either) = drivers.take(vendor, device, &name);
        let share = shares.entry((vendor.to_owned(), kind)).or_default();
        share.known += 1;
        share.image += usize::from(image);
        share.rare += usize::from(either && !image);
    }
    (shares, names)
}

fn kind(name: &str) -> Option<Kind> {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match (has(NEITHER), has(NETWORK), has(STORAGE)) {
        (true, ..) | (_, false, false) => None,
        (_, true, _) => Some(Kind::Network),
        (_, false, true) => Some(Kind::Storage),
    }
}

/// Formats the table for `initramfs/pci-coverage.txt`, without the comment at its head.
pub fn table(shares: &Shares, names: &BTreeMap<String, String>) -> String {
    let line = |((vendor, kind), Share { known, image, rare }): (&(String, Kind), &Share)| {
        let name = names.get(vendor).map_or("", String::as_str);
        format!("{vendor}  {kind}  {known:>5}  {image:>5}  {rare:>5}  {name}\n")
    };
    shares.iter().map(line).collect()
}

/// Parses the table of `initramfs/pci-coverage.txt`.
pub fn parse(table: &str) -> Result<Shares> {
    let mut shares = Shares::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (vendor, kind) = (words.next(), words.next());
        let mut number = || words.next().and_then(|word| word.parse().ok());
        let share = (|| Some(Share { known: number()?, image: number()?, rare: number()? }))();
        let kind = [Kind::Network, Kind::Storage].into_iter().find(|known| kind == Some(&known.to_string()));
        let parts = vendor.zip(kind).zip(share).with_context(|| {
            format!("reading {line:?} of the table of PCI ids: expected a vendor, a kind and three numbers")
        })?;
        shares.insert((parts.0.0.to_owned(), parts.0.1), parts.1);
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: &str = "# comment\n8086  Intel\n\t10d3  82574L Gigabit Network Connection\n\
                       \t\t8086 a01f  Gigabit Adapter\n\
        \t2725  Wi-Fi 6E Ethernet Look-alike\n\t1234  Ethernet Controller of tomorrow\n\
        \ta352  SATA Controller [AHCI mode]\n\
        \t0600  RAID Controller\n\t1229  82557 Ethernet Pro 100\n1000  LSI\n\t00e6  SAS39xx\n9999  Nobody\n\
        \t0001  Ethernet\n\
        C 02  Network controller\n\t00  Ethernet controller\n";
    const ALIAS: &str = "alias pci:v00008086d000010D3sv*sd*bc*sc*i* e1000e\n\
                         alias pci:v00008086d00001229sv*sd*bc02sc00i* e100\n\
        alias pci:v*d*sv*sd*bc01sc06i01* ahci\nalias pci:v00001000d000000E6sv*sd*bc*sc*i* mpi3mr\nalias usb:v1 x\n";

    #[test]
    fn devices_are_counted_by_vendor_and_kind() -> Result<()> {
        let selection = |files: &[&str]| Selection {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            absent: Vec::new(),
        };
        let drivers = Drivers::new(ALIAS, &selection(&["a/e1000e.ko", "a/ahci.ko"]), &selection(&["a/e100.ko"]));
        let vendors = ["8086", "1000"].map(str::to_owned).into();
        let (shares, names) = count(IDS, &drivers, &vendors);
        let text = table(&shares, &names);
        let expect = "1000  storage      1      0      0  LSI\n8086  network      3      1      1  Intel\n\
            8086  storage      2      1      0  Intel\n";
        assert_eq!(text, expect);
        assert_eq!(parse(&text)?, shares);
        Ok(())
    }

    #[test]
    fn a_line_that_is_no_share_is_refused() {
        for line in ["8086", "8086 network 1 2", "8086 display 1 2 3", "8086 network 1 x 3", ""] {
            assert!(parse(&format!("{line}\n")).is_err(), "{line:?} was taken");
        }
    }
}
