//! What `slipway-server image list` and `os list` print.

use slipway_server::store::images::Image;
use slipway_server::store::systems::System;
use slipway_server::time::utc;

use super::words::{bytes, dash, table};

pub fn image_table(images: &[Image]) -> String {
    let rows = images.iter().map(|image| {
        vec![
            image.file_name.clone(),
            bytes(image.size),
            image.raw_size.map_or_else(dash, bytes),
            utc(image.added_at),
            image.digest.to_string(),
        ]
    });
    table(&["Name", "Size", "Raw size", "Added", "Digest"], rows.collect())
}

pub fn system_table(systems: &[System], images: &[Image]) -> String {
    let rows = systems.iter().map(|system| {
        let image = images.iter().find(|image| image.digest == system.image);
        let reports = [(system.phone_home, "phone-home"), (system.boot_reporter, "boots")];
        let reports: Vec<&str> = reports.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        vec![
            system.name.clone(),
            image.map_or_else(dash, |image| image.file_name.clone()),
            system.raw_size.map_or_else(dash, bytes),
            if reports.is_empty() { dash() } else { reports.join(", ") },
            system.image.to_string(),
        ]
    });
    table(&["Name", "Image", "Raw size", "Reports", "Digest"], rows.collect())
}
