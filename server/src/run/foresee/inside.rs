//! Checks what steps need in the file systems of an image that an earlier step writes.

use slipway_protocol::workflow::Foreseen;
use slipway_protocol::{Action, DiskHints, KernelArgs, SeedCloudInit, SeedPlace, Step};
use slipway_user_data::image::{ADVICE, Image as Configuration, Obstacle, Seed, is_telling, judge};

use super::image;
use crate::run::facts::{Facts, Stored};
use crate::store::findings::{Finding, Inside};
use crate::store::images::Image;

/// Returns the first step that would not find what it needs in the image on its disk. Nothing is said about steps after
/// one that may change the image or the disk; the machine checks them.
pub(super) fn lacking(facts: &Facts, steps: &[Step]) -> Option<Foreseen> {
    let mut written: Option<(&Stored, &DiskHints)> = None;
    let mut has_own_arguments = true;
    for (index, step) in steps.iter().enumerate() {
        let on_disk = step.action.disk().and_then(|disk| written.filter(|(_, hints)| *hints == disk));
        let inside = on_disk.and_then(|(stored, _)| Some((stored, stored.finding.as_ref()?.inside.as_ref()?)));
        let problem = match &step.action {
            Action::StreamImage(stream) => {
                written = image::of(stream, facts).map(|stored| (stored, &stream.disk));
                has_own_arguments = true;
                None
            }
            Action::KernelArgs(arguments) => {
                has_own_arguments &= !concerns_cloud_init(arguments);
                inside.and_then(|(stored, inside)| no_boot_loader(&stored.image, inside))
            }
            Action::SeedCloudInit(seed) => {
                let inside = inside.filter(|_| has_own_arguments);
                inside.and_then(|(stored, inside)| not_taken(seed, &stored.image, inside.cloud_init.as_ref()?))
            }
            Action::CaptureDisk(_) | Action::BootReporter(_) | Action::EfiBootOrder(_) | Action::EnrolSecureBoot(_) => {
                None
            }
            _ => {
                written = None;
                None
            }
        };
        if let Some(problem) = problem {
            return Some(Foreseen { step: index, problem });
        }
    }
    None
}

/// Returns why a step would not find what it needs in this image on any machine. `steps` are those after the step that
/// writes the image.
pub fn unmet(image: Image, finding: Option<Finding>, steps: &[Step]) -> Option<String> {
    let facts = Facts { images: vec![Stored { image, finding }], ..Facts::default() };
    lacking(&facts, steps).map(|foreseen| foreseen.problem)
}

/// Returns whether these kernel arguments may change how cloud-init treats a seed.
fn concerns_cloud_init(arguments: &KernelArgs) -> bool {
    let replaced = arguments.replace.iter().map(|replacement| &replacement.old);
    arguments.added().chain(&arguments.delete).chain(replaced).any(|argument| is_telling(argument))
}

fn no_boot_loader(Image { file_name, digest, .. }: &Image, inside: &Inside) -> Option<String> {
    (inside.has_boot_loader == Some(false)).then(|| {
        format!(
            "looking for a boot loader's configuration in the image {file_name} ({digest}): none of its file systems \
             has one that slipway can change; leave out the kernel arguments, or use another image"
        )
    })
}

/// Returns why cloud-init would not accept a seed, even with the configuration files that the step writes.
fn not_taken(step: &SeedCloudInit, image: &Image, configuration: &Configuration) -> Option<String> {
    let seed = Seed {
        has_network: step.network_config.is_some(),
        has_vendor_data: step.vendor_data.is_some(),
        has_phone_home: step.phone_home.is_some(),
        is_partition: step.seed == SeedPlace::Cidata,
    };
    let mut configuration = configuration.clone();
    configuration.configure(seed);
    let (obstacles, _) = judge(&configuration, seed);
    let is_kept = !step.is_for_ignition() && !obstacles.is_empty();
    let Image { file_name, digest, .. } = image;
    is_kept.then(|| {
        let reasons: Vec<String> = obstacles.iter().map(Obstacle::to_string).collect();
        format!("seeding the system in the image {file_name} ({digest}): {}; {ADVICE}", reasons.join("; "))
    })
}
