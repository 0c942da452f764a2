//! What `slipway-server image list` and `os list` print.

use slipway_server::image::stored::{ImageProblem, ImageStatus, SystemStatus};
use slipway_server::store::images::Image;
use slipway_server::time::utc;

use super::words::{bytes, dash, table, word};

pub fn image_table(images: &[ImageStatus]) -> String {
    let rows = images.iter().map(|ImageStatus { image, problem }| {
        vec![
            image.file_name.clone(),
            bytes(image.size),
            image.raw_size.map_or_else(dash, bytes),
            utc(image.added_at),
            state(*problem),
            image.digest.to_string(),
        ]
    });
    table(&["Name", "Size", "Raw size", "Added", "File", "Digest"], rows.collect())
}

pub fn system_table(systems: &[SystemStatus], images: &[Image]) -> String {
    let rows = systems.iter().map(|SystemStatus { system, image_problem }| {
        let image = images.iter().find(|image| image.digest == system.image);
        let reports = [(system.phone_home, "phone-home"), (system.boot_reporter, "boots")];
        let reports: Vec<&str> = reports.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        vec![
            system.name.clone(),
            image.map_or_else(dash, |image| image.file_name.clone()),
            state(*image_problem),
            system.raw_size.map_or_else(dash, bytes),
            if reports.is_empty() { dash() } else { reports.join(", ") },
            system.image.to_string(),
        ]
    });
    table(&["Name", "Image", "File", "Raw size", "Reports", "Digest"], rows.collect())
}

/// The state of an image's file.
fn state(problem: Option<ImageProblem>) -> String {
    problem.map_or_else(|| "there".to_owned(), |problem| word(&problem))
}
