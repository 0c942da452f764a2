//! Checks the database, and that the images in it have their files.

use crate::base::error::Error;
use crate::image::stored;
use crate::store::copy::Progress;
use crate::store::{Store, check, systems};

pub use crate::store::check::Report;

/// Checks a database, whose name is for messages, and the files that belong to it. Changes nothing.
pub async fn check_database(store: &Store, name: &str, told: &mut dyn FnMut(Progress<'_>)) -> Result<Report, Error> {
    let mut report = check::check(store, name, told).await?;
    if report.problems.is_empty() {
        check_images(store, &mut report).await?;
    } else {
        report.problems.push("the files of images were not checked; repair the rows first".to_owned());
    }
    Ok(report)
}

/// Checks that the file of each image has its size, and that the image of each operating system exists.
async fn check_images(store: &Store, report: &mut Report) -> Result<(), Error> {
    let images = stored::list(store).await?;
    let wrong = images.iter().filter_map(|status| Some(stored::sentence(&status.image, status.problem?)));
    report.problems.extend(wrong);
    for system in systems::all(&mut *store.read().await?).await? {
        if !images.iter().any(|status| status.image.digest == system.image) {
            report.problems.push(format!(
                "the operating system {} has the image {}, which is not stored: add it with `slipway-server image add \
                 FILE`, or remove the system with `slipway-server os remove {0}`",
                system.name, system.image
            ));
        }
    }
    report.checked.push(format!("the files of {} images and the images of operating systems are there", images.len()));
    Ok(())
}
