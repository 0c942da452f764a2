//! Operating systems.

use std::collections::HashMap;

use slipway_protocol::{
    Action, Agent, Digest, ErrorCode, PhoneHome, SeedCloudInit, SiteEventKind, Step, StreamImage, workflow,
};
use slipway_user_data::seed;

use super::{check_keys, check_name, did};
use crate::base::error::Error;
use crate::base::objects::Seen;
use crate::base::time::now;
use crate::image::examine::examine;
use crate::image::stored;
use crate::rules::limits;
use crate::run::new_run::{check_disk, check_known};
use crate::run::{compose, foresee};
use crate::store;
use crate::store::history::NewEvent;
use crate::store::images::{self, Image};
use crate::store::systems::{self, System};
use crate::store::{Connection, Store, findings};

/// Adds an operating system, or replaces the one of the same name.
pub async fn add_system(store: &Store, mut system: System) -> Result<System, Error> {
    check_name("operating system", &system.name)?;
    let seen = examine(store, vec![system.image.clone()]).await?;
    let mut transaction = store.write().await?;
    let Some(image) = images::get_by_digest(&mut transaction, &system.image).await? else {
        let message = format!("there is no image {}; add it with `image add`", system.image);
        return Err(Error::refused(ErrorCode::NotFound, message));
    };
    if system.raw_digest.is_some() && image.is_qcow2() {
        let message = format!(
            "the digest of the raw image cannot be checked: {} is a qcow2 image, whose blocks are in another order; \
             leave out --raw-digest, as machines check the digest of the image itself, or convert the image with \
             `qemu-img convert -O raw` and add the result",
            system.image
        );
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    check_image(&seen, &mut transaction, &system, &image).await?;
    system.raw_size = system.raw_size.or(image.raw_size);
    for argument in &system.kernel_args {
        if let Some(problem) = workflow::kernel_argument_problem(argument) {
            let message = format!("the kernel argument {argument:?} cannot be used: {problem}");
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
    }
    check_disk(&system.disk)?;
    system.reporting().check()?;
    check_keys(&system.ssh_keys)?;
    check_seed(&system)?;
    check_known(&system.known_steps)?;
    if let Some(problem) = system.agent.iter().flat_map(Agent::validate).next() {
        let message = format!("the operating system {problem}");
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    system.limits.iter().try_for_each(|(name, change)| limits::check(name, change))?;
    systems::save(&mut transaction, &system, now()).await?;
    let message =
        format!("the operating system {} was added or changed; its image is {}", system.name, image.file_name);
    did(&mut transaction, SiteEventKind::Operator, NewEvent::new(message)).await?;
    store::commit(transaction).await?;
    Ok(system)
}

/// Refuses an image that no machine can install, or that contradicts the settings of the operating system.
async fn check_image(
    seen: &HashMap<Digest, Seen>,
    connection: &mut Connection,
    system: &System,
    image: &Image,
) -> Result<(), Error> {
    let finding = findings::get(connection, &image.digest).await?;
    let problem = seen.get(&image.digest).and_then(|seen| stored::problem(*seen, image, finding.as_ref()));
    let problem = if let Some(problem) = problem {
        Some(stored::sentence(image, problem))
    } else {
        let (digest, raw_size, raw_digest) = (Some(image.digest.clone()), system.raw_size, system.raw_digest.clone());
        let step = StreamImage { digest, raw_size, raw_digest, ..StreamImage::default() };
        let unusable = finding.as_ref().and_then(|finding| foresee::unusable(&step, &finding.content));
        let other = || finding.as_ref().and_then(|found| foresee::other_architecture(system.arch, &found.content));
        let unmet = || foresee::unmet(image.clone(), finding.clone(), &steps_of(system));
        unusable.or_else(|| foresee::contradiction(&step, image)).or_else(other).or_else(unmet)
    };
    problem.map_or(Ok(()), |problem| Err(Error::refused(ErrorCode::InvalidRequest, problem)))
}

/// Returns the steps that install a system. There is no seed if only a run brings user-data: it may be for Ignition.
fn steps_of(system: &System) -> Vec<Step> {
    let mut steps = compose::install(system, "https://localhost", None);
    if system.user_data.is_none() && system.allow_override {
        steps.retain(|step| !matches!(step.action, Action::SeedCloudInit(_)));
    }
    steps
}

/// Refuses data for the first boot that the installed system would not understand, or that it could not report with.
fn check_seed(system: &System) -> Result<(), Error> {
    let phone_home = system.phone_home.then(|| PhoneHome { url: "https://localhost/".to_owned(), tries: None });
    let (user_data, vendor_data) = (system.user_data.clone().unwrap_or_default(), system.vendor_data.clone());
    let seed = SeedCloudInit { user_data, vendor_data, phone_home, ..SeedCloudInit::default() };
    let mut problems = seed.validate();
    for problem in &mut problems {
        problem.insert_str(0, "the operating system ");
    }
    if problems.is_empty() {
        problems.extend(seed::judge(&seed).err().map(|unusable| unusable.to_string()));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(ErrorCode::InvalidRequest, problems.join("; ")))
}

/// Removes an operating system. Runs that were started from it continue, because they have copies of all they need.
pub async fn remove_system(store: &Store, name: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    if !systems::remove(&mut transaction, name).await? {
        let message = format!("there is no operating system {name:?}; `os list` shows them all");
        return Err(Error::refused(ErrorCode::NotFound, message));
    }
    let event = NewEvent::new(format!("the operating system {name} was removed"));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await
}
