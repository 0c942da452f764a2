//! Checks whether the files of images are as they were added.

use serde::Serialize;

use crate::base::error::Error;
use crate::base::objects::Seen;
use crate::store::Store;
use crate::store::findings::{self, Content, Finding};
use crate::store::images::{self, Image};
use crate::store::systems::{self, System};

/// What is wrong with an image's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImageProblem {
    /// The file does not exist, for example after a backup without images was restored.
    Missing,
    /// The size differs from the added image's.
    WrongSize,
    /// The digest differs from the added image's.
    Changed,
    /// The file cannot be opened.
    Unreadable,
}

impl ImageProblem {
    /// The problem in words that follow the image's name.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Missing => "is missing on this server",
            Self::WrongSize => "has changed since it was added: its size differs",
            Self::Changed => "has changed since it was added: its digest differs",
            Self::Unreadable => "cannot be read on this server",
        }
    }
}

/// What to do about an image whose file cannot be used.
pub const ADD_AGAIN: &str = "add it again (`slipway-server image add FILE`)";

/// Returns a sentence that says what is wrong with an image's file, and what to do.
pub fn sentence(image: &Image, problem: ImageProblem) -> String {
    let Image { file_name, digest, .. } = image;
    format!("the image {file_name} ({digest}) {}; {ADD_AGAIN}", problem.in_words())
}

/// Returns what is wrong with an image's file that was looked at. Whether its digest differs, only `finding` says.
pub fn problem(seen: Seen, image: &Image, finding: Option<&Finding>) -> Option<ImageProblem> {
    let is_changed = |file| finding.is_some_and(|found| found.content == Content::Changed && found.file == file);
    match seen {
        Seen::There(found) if found.size != image.size => Some(ImageProblem::WrongSize),
        Seen::There(found) => is_changed(found).then_some(ImageProblem::Changed),
        Seen::Missing => Some(ImageProblem::Missing),
        Seen::Unreadable => Some(ImageProblem::Unreadable),
    }
}

/// An image, and whether its file is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ImageStatus {
    /// The image.
    #[serde(flatten)]
    pub image: Image,
    /// What is wrong with the image's file, if anything. No run can use the image until it is added again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ImageProblem>,
}

/// An operating system, and whether the file of its image is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct SystemStatus {
    /// The operating system.
    #[serde(flatten)]
    pub system: System,
    /// What is wrong with the image's file, if anything. The system cannot be installed until the image is added again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_problem: Option<ImageProblem>,
}

/// An image and the state of its file.
pub async fn status(store: &Store, image: Image) -> Result<ImageStatus, Error> {
    let finding = findings::get(&mut *store.read().await?, &image.digest).await?;
    let seen = store.objects().look(&image.digest).await?;
    Ok(ImageStatus { problem: problem(seen, &image, finding.as_ref()), image })
}

/// All images, oldest first.
pub async fn list(store: &Store) -> Result<Vec<ImageStatus>, Error> {
    let mut connection = store.read().await?;
    let findings = findings::all(&mut connection).await?;
    let images = images::all(&mut connection).await?;
    // There are few connections, and a bucket may be slow.
    drop(connection);
    let seen = store.objects().look_at(images.iter().map(|image| image.digest.clone()).collect()).await?;
    let status = |image: Image| {
        let seen = seen.get(&image.digest).copied().unwrap_or(Seen::Missing);
        ImageStatus { problem: problem(seen, &image, findings.get(&image.digest)), image }
    };
    Ok(images.into_iter().map(status).collect())
}

/// All operating systems, by name.
pub async fn systems(store: &Store) -> Result<Vec<SystemStatus>, Error> {
    let images = list(store).await?;
    let problem = |system: &System| match images.iter().find(|status| status.image.digest == system.image) {
        Some(status) => status.problem,
        None => Some(ImageProblem::Missing),
    };
    let systems = systems::all(&mut *store.read().await?).await?.into_iter();
    Ok(systems.map(|system| SystemStatus { image_problem: problem(&system), system }).collect())
}
