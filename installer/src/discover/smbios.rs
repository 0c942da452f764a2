//! The machine's vendor, model, serial numbers and UUID.
//!
//! Read from the kernel's own parse of the SMBIOS tables, `/sys/class/dmi/id` (Linux, drivers/firmware/dmi-id.c). The
//! kernel checked their bounds at boot and knows the UUID's two byte orders (DSP0134, 7.2.1: little-endian fields since
//! version 2.6). The tables are untrusted input on which a decoder here must not panic (dmidecode 1.0 does, on a
//! structure shorter than its header). Boards without SMBIOS, mostly arm64, have a device tree instead.

use std::path::Path;

use slipway_protocol::System;
use slipway_protocol::shared::identity::{meaningful, serial_number, system_uuid};

use super::Roots;
use super::files::{Notes, attribute};

/// Returns the system UUID (SMBIOS type 1), unless many machines share it. Only root can read it.
pub(super) fn uuid(roots: &Roots, notes: &mut Notes) -> Option<String> {
    let text = attribute(&roots.sys.join("class/dmi/id/product_uuid"), notes)?;
    system_uuid(&text).ok()
}

/// Returns the system serial number (SMBIOS type 1), else the device tree's, unless many machines share it. Board and
/// chassis serial numbers are not used: blades share a chassis, and a board may be replaced in repair. Only root can
/// read it.
pub(super) fn serial(roots: &Roots, notes: &mut Notes) -> Option<String> {
    let mut serial = |path: &Path| serial_number(&attribute(path, notes)?).ok();
    let smbios = serial(&roots.sys.join("class/dmi/id/product_serial"));
    smbios.or_else(|| serial(&roots.proc.join("device-tree/serial-number")))
}

/// Returns the firmware's values of system, board and chassis (SMBIOS types 1 to 3). The model may also come from the
/// device tree.
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

/// Returns the attribute. `None` if it is a placeholder instead of a value.
pub(super) fn value(path: &Path, notes: &mut Notes) -> Option<String> {
    let text = attribute(path, notes)?;
    meaningful(&text).map(str::to_owned)
}
