//! Rotation: a new certificate authority next to the old one, until all machines trust it.
//!
//! When a generation is made, its root is written last; when it takes over, its root is moved first. So if next-* files
//! remain without the next root, the issuer of the next intermediate tells which of the two was interrupted.

use std::collections::BTreeSet;
use std::fs;

use slipway_protocol::ErrorCode;

use super::files::{self, CURRENT, Files, Generation, NEXT};
use crate::base::data::DataDir;
use crate::base::error::Error;

/// Makes the next root and intermediate, which may sign for the names of the current ones and the names in `further`.
/// From now on, machines get both roots.
pub fn begin(data: &DataDir, further: &BTreeSet<String>) -> Result<(), Error> {
    let _lock = data.lock()?;
    recover(data)?;
    if data.path(NEXT.root).exists() {
        let message = "a rotation is in progress: end it with `slipway-server ca rotate --finish` or `--cancel`";
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let current = Generation::open(data, &CURRENT)?;
    let mut names = current.intermediate.permitted.unwrap_or_default();
    names.extend(further.iter().cloned());
    Generation::make(data, &NEXT, &names)
}

/// Replaces the current root and intermediate by the next ones, and removes the old keys.
pub fn finish(data: &DataDir) -> Result<(), Error> {
    let _lock = data.lock()?;
    recover(data)?;
    if !data.path(NEXT.root).exists() {
        return Err(none());
    }
    Generation::open(data, &NEXT)?;
    rename(data, NEXT.root, CURRENT.root)?;
    take_over(data)
}

/// Removes the next root and intermediate.
pub fn cancel(data: &DataDir) -> Result<(), Error> {
    let _lock = data.lock()?;
    recover(data)?;
    if !data.path(NEXT.root).exists() {
        return Err(none());
    }
    for name in [NEXT.root, NEXT.intermediate, NEXT.intermediate_key, NEXT.root_key] {
        data.remove(name)?;
    }
    Ok(())
}

/// Completes or undoes a rotation command that was killed.
pub fn recover(data: &DataDir) -> Result<(), Error> {
    let Files { root, root_key, intermediate, intermediate_key } = NEXT;
    if data.path(root).exists() {
        return Ok(());
    }
    let current = files::certificate(data, CURRENT.root)?;
    let next = files::certificate(data, intermediate)?;
    match (current, next) {
        (Some(current), Some(next)) if next.is_issued_by(&current) => take_over(data),
        _ => [intermediate, intermediate_key, root_key].into_iter().try_for_each(|name| data.remove(name)),
    }
}

/// Completes a rotation whose root was already moved. The intermediate's certificate is moved last, so that everything
/// before can be repeated.
fn take_over(data: &DataDir) -> Result<(), Error> {
    match data.path(NEXT.root_key).exists() {
        true => rename(data, NEXT.root_key, CURRENT.root_key)?,
        // The next root's key is offline, and the existing key is the old root's; or this is a repetition, and the next
        // root's key was already moved.
        false => {
            let root = files::certificate(data, CURRENT.root)?.ok_or_else(|| files::no_root(data, &CURRENT))?;
            if files::key_pair(data, CURRENT.root_key)?.is_some_and(|key| !root.is_of(&key)) {
                data.remove(CURRENT.root_key)?;
            }
        }
    }
    if data.path(NEXT.intermediate_key).exists() {
        rename(data, NEXT.intermediate_key, CURRENT.intermediate_key)?;
    }
    rename(data, NEXT.intermediate, CURRENT.intermediate)
}

fn none() -> Error {
    let message = "no rotation is in progress; begin one with `slipway-server ca rotate`";
    Error::refused(ErrorCode::Conflict, message)
}

fn rename(data: &DataDir, from: &str, to: &str) -> Result<(), Error> {
    let path = data.path(from);
    fs::rename(&path, data.path(to)).map_err(|source| Error::File { doing: "renaming", path, source })
}
