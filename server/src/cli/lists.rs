//! Tables and details for `slipway-server image` and `slipway-server os`.

use slipway_protocol::shared::printable::{line, size as bytes};
use slipway_server::base::time::utc;
use slipway_server::image::stored::{ImageProblem, ImageStatus, SystemStatus};
use slipway_server::operate::Cleaned;
use slipway_server::store::images::Image;
use slipway_server::store::systems::System;

use super::words::{dash, table, word};

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

/// Formats the details of an image in lines, with the operating systems that use the image.
pub fn image_lines(ImageStatus { image, problem }: &ImageStatus, systems: &[System]) -> String {
    let exactly = |count: u64| format!("{} ({count} bytes)", bytes(count));
    let used = systems.iter().filter(|system| system.image == image.digest).map(|system| system.name.as_str());
    let used: Vec<&str> = used.collect();
    let lines = [
        ("Name", image.file_name.clone()),
        ("Digest", image.digest.to_string()),
        ("Size", exactly(image.size)),
        ("Raw size", image.raw_size.map_or_else(dash, exactly)),
        ("Raw digest", image.raw_digest.as_ref().map_or_else(dash, ToString::to_string)),
        ("Added", utc(image.added_at)),
        ("File", state(*problem)),
        ("Captured", if image.captured { "yes" } else { "no" }.to_owned()),
        ("Used by", if used.is_empty() { dash() } else { used.join(", ") }),
    ];
    lines.iter().map(|(name, value)| format!("{name:<10}  {}\n", line(value))).collect()
}

pub fn system_table(systems: &[SystemStatus], images: &[Image]) -> String {
    let rows = systems.iter().map(|SystemStatus { system, image_problem }| {
        let image = images.iter().find(|image| image.digest == system.image);
        let reports =
            [(system.phone_home, "phone-home"), (system.boot_reporter, "boots"), (system.agent.is_some(), "agent")];
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

/// Says which files and objects were removed, or would be.
pub fn cleaned(cleaned: &[Cleaned], dry_run: bool) -> String {
    let verb = if dry_run { "can be" } else { "is" };
    let lines = cleaned.iter().map(|Cleaned { name, size }| format!("{name} ({}) {verb} removed\n", bytes(*size)));
    match cleaned.is_empty() {
        true => "every file older than a day belongs to an image, a run or boot files\n".to_owned(),
        false => lines.collect(),
    }
}

/// The state of an image's file in one word.
fn state(problem: Option<ImageProblem>) -> String {
    problem.map_or_else(|| "there".to_owned(), |problem| word(&problem))
}
