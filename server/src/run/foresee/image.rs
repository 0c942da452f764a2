//! Checks the image of a step.

use slipway_formats::architecture;
use slipway_formats::image::made_for::MadeFor;
use slipway_parts::Arch;
use slipway_protocol::{Algorithm, Digest, StreamImage};

use crate::run::compose::images::image_at;
use crate::run::facts::{Facts, Stored};
use crate::store::findings::Content;
use crate::store::images::Image;
use crate::store::systems::System;

/// Returns the image of this server that a step certainly writes, wherever the step fetches it.
pub(super) fn of<'a>(step: &StreamImage, facts: &'a Facts) -> Option<&'a Stored> {
    let with = |digest: &Digest| facts.image(digest);
    // A mirror may have another image, unless a digest says which image is meant.
    let at_url = || image_at(&step.url).filter(|_| step.mirrors.is_empty());
    step.digest.as_ref().and_then(with).or_else(|| at_url().as_ref().and_then(with))
}

/// Returns why an image on this server cannot be what the step says.
pub fn contradiction(step: &StreamImage, image: &Image) -> Option<String> {
    let name = format!("the image {} ({})", image.file_name, image.digest);
    match (&step.digest, &step.raw_digest) {
        (Some(said), _) if said.algorithm() == Algorithm::Sha256 && *said != image.digest => {
            return Some(format!("the image {} has the digest {}, not {said} as given", image.file_name, image.digest));
        }
        (Some(_), Some(_)) if image.is_qcow2() => {
            let advice = "leave out `raw_digest`, or leave out `digest`, so machines can read the file in any order";
            return Some(format!(
                "{name} is a qcow2 image, and a single pass can check only one of its digests; {advice}"
            ));
        }
        _ => {}
    }
    let raw_digest = image.raw_digest.as_ref().zip(step.raw_digest.as_ref());
    if let Some((found, said)) =
        raw_digest.filter(|(found, said)| found.algorithm() == said.algorithm() && found != said)
    {
        return Some(format!("the raw image of {} has the digest {found}, not {said} as given", image.file_name));
    }
    let (found, said) = image.raw_size.zip(step.raw_size).filter(|(found, said)| found != said)?;
    Some(format!("the raw image of {} has {found} bytes, not {said} bytes as given", image.file_name))
}

/// Returns why machines cannot use the image as the step says, judged by the content of its file.
pub fn unusable(step: &StreamImage, content: &Content) -> Option<String> {
    let is_read_once = step.digest.is_some() || step.sums.is_some() || step.signature.is_some();
    match content {
        Content::Unusable(reason) => Some(reason.clone()),
        Content::MadeFor(made_for) if made_for.needs_ranges && is_read_once => Some(
            "the image is qcow2, and the order of its blocks does not allow reading and checking it in one pass; \
             convert it with `qemu-img convert -O qcow2` or to raw, and add the result"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Returns why a machine of this architecture cannot run an operating system. An empty architecture is unknown.
pub fn foreign(system: &System, machine: &str) -> Option<String> {
    let (name, arch) = (&system.name, system.arch?);
    if machine.is_empty() || architecture::runs(machine, arch.name()) {
        return None;
    }
    let [of_system, of_machine] = [arch.name(), machine].map(architecture::usual_name);
    Some(format!(
        "the operating system {name} is for {of_system}, but the machine is {of_machine}; use one for {of_machine}"
    ))
}

/// Returns why an image cannot be that of an operating system for an architecture.
pub fn other_architecture(arch: Option<Arch>, content: &Content) -> Option<String> {
    let Content::MadeFor(made_for) = content else { return None };
    let (arch, first) = (arch?.name(), made_for.machines.first()?);
    if made_for.machines.iter().any(|evidence| evidence.architecture == arch) {
        return None;
    }
    let [given, found] = [arch, first.architecture.as_str()].map(architecture::usual_name);
    Some(format!("the image is for {found} ({}), and not for {given} as given", first.what))
}

impl Stored {
    /// Returns why a machine of this architecture cannot use the image in a step. An empty architecture is unknown.
    pub(super) fn problem(&self, step: &StreamImage, machine: &str) -> Option<String> {
        let content = &self.finding.as_ref()?.content;
        let foreign = |made_for: &MadeFor| architecture::mismatch(&made_for.machines, machine);
        unusable(step, content).or_else(|| self.made_for().and_then(foreign))
    }

    /// Returns the kind of disk and machine that the image is made for. `None` if unknown.
    pub(super) fn made_for(&self) -> Option<&MadeFor> {
        match &self.finding.as_ref()?.content {
            Content::MadeFor(made_for) => Some(made_for),
            _ => None,
        }
    }
}
