//! Operating systems.

use slipway_protocol::{ErrorCode, workflow};

use super::{check_keys, check_name};
use crate::compose::phone_home;
use crate::error::Error;
use crate::reports::external_steps::check_known;
use crate::store::systems::{self, System};
use crate::store::{self, Store, images};
use crate::time::now;

/// Adds an operating system, or replaces the one of the same name.
pub async fn add_system(store: &Store, mut system: System) -> Result<System, Error> {
    check_name("operating system", &system.name)?;
    let mut transaction = store.write().await?;
    let Some(image) = images::get_by_digest(&mut transaction, &system.image).await? else {
        let message = format!("there is no image {}; add it with `image add`", system.image);
        return Err(Error::refused(ErrorCode::NotFound, message));
    };
    if system.raw_digest.is_some() && image.is_qcow2() {
        let message = format!(
            "the digest of the raw image cannot be checked: {} is a qcow2 image, whose blocks are in another order; \
             leave out --raw-digest, as machines check the digest of the image itself, or convert the image with \
             `qemu-img convert -O raw` and add that",
            system.image
        );
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    system.raw_size = system.raw_size.or(image.raw_size);
    for argument in &system.kernel_args {
        if let Some(problem) = workflow::kernel_argument_problem(argument) {
            let message = format!("the kernel argument {argument:?} cannot be used: {problem}");
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
    }
    system.reporting().check()?;
    check_keys(&system.ssh_keys)?;
    if let (Some(user_data), true) = (&system.user_data, system.phone_home) {
        phone_home::check_user_data(user_data)?;
    }
    if let (Some(vendor_data), true) = (&system.vendor_data, system.phone_home) {
        phone_home::check_vendor_data(vendor_data)?;
    }
    check_known(&system.known_steps)?;
    systems::save(&mut transaction, &system, now()).await?;
    store::commit(transaction).await?;
    Ok(system)
}

/// Removes an operating system. Runs that were started from it continue, because they have all they need.
pub async fn remove_system(store: &Store, name: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    if !systems::remove(&mut transaction, name).await? {
        let message = format!("there is no operating system {name:?}; `os list` shows them all");
        return Err(Error::refused(ErrorCode::NotFound, message));
    }
    store::commit(transaction).await
}
