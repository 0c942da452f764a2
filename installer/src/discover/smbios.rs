//! Vendor, model, serial numbers and UUID.
//!
//! Taken from the kernel's own parse of the SMBIOS tables, `/sys/class/dmi/id` (Linux, drivers/firmware/dmi-id.c), and not
//! from the tables: the kernel has checked their bounds when it booted, and knows the two byte orders of the UUID (DSP0134,
//! 7.2.1: little endian fields since version 2.6). Tables are hostile input, and a decoder of our own or of a crate would be
//! one more thing that must never panic on them (dmidecode 1.0 does, on a structure shorter than its header). Boards without
//! SMBIOS, mostly arm64, have a device tree instead.

use std::path::Path;

use slipway_protocol::System;
use slipway_protocol::identity::{meaningful, normalise_uuid};

use super::Roots;
use super::files::{Notes, attribute};

/// The system UUID of SMBIOS type 1. Readable by root only.
pub(super) fn uuid(roots: &Roots, notes: &mut Notes) -> Option<String> {
    let text = attribute(&roots.sys.join("class/dmi/id/product_uuid"), notes)?;
    normalise_uuid(&text)
}

/// The system serial number: SMBIOS type 1, else the device tree's. Serial numbers of board and chassis do not count, since a
/// chassis is shared by its blades and a board is replaced in repair. Readable by root only.
pub(super) fn serial(roots: &Roots, notes: &mut Notes) -> Option<String> {
    value(&roots.sys.join("class/dmi/id/product_serial"), notes)
        .or_else(|| value(&roots.proc.join("device-tree/serial-number"), notes))
}

/// What the firmware says the machine is (SMBIOS types 1 to 3); the model also from the device tree.
pub(super) fn system(roots: &Roots, notes: &mut Notes) -> System {
    let dmi = roots.sys.join("class/dmi/id");
    System {
        vendor: value(&dmi.join("sys_vendor"), notes),
        model: value(&dmi.join("product_name"), notes).or_else(|| value(&roots.proc.join("device-tree/model"), notes)),
        board_serial: value(&dmi.join("board_serial"), notes),
        chassis_serial: value(&dmi.join("chassis_serial"), notes),
        asset_tag: value(&dmi.join("chassis_asset_tag"), notes),
    }
}

/// The attribute, unless it is a filler.
fn value(path: &Path, notes: &mut Notes) -> Option<String> {
    let text = attribute(path, notes)?;
    meaningful(&text).map(str::to_owned)
}
