//! Explains errors when the data folder belongs to another user: only its owner and root may use it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use slipway_server::Error;

/// Adds advice to the error if its cause is that the caller does not own the data folder.
pub fn told(error: anyhow::Error, data: &Path) -> anyhow::Error {
    let is_denied = |error: &Error| {
        let Error::File { path, source, .. } = error else { return false };
        source.kind() == ErrorKind::PermissionDenied && path.starts_with(data)
    };
    let is_about_it = error.chain().filter_map(|cause| cause.downcast_ref::<Error>()).any(is_denied);
    // If the folder is missing, the owner of its nearest existing parent counts.
    let owner = data.ancestors().find_map(|folder| fs::metadata(folder).ok()).map(|folder| folder.uid());
    let others = |uid: &u32| *uid != rustix::process::geteuid().as_raw() && is_about_it;
    match owner.filter(others).map(name) {
        None => error,
        Some(owner) => {
            let who = if owner == "root" {
                owner
            } else {
                format!("{owner} (`runuser -u {owner} -- slipway-server ...`) or as root")
            };
            error.context(format!(
                "only its owner may use {data:?}: run this as {who}, or give another folder with --data"
            ))
        }
    }
}

/// Returns who runs this command, for the history: the user of this host, also behind sudo.
pub fn caller() -> String {
    let user = std::env::var("SUDO_USER").ok().filter(|user| !user.is_empty());
    format!("{} on the server", user.unwrap_or_else(|| name(rustix::process::getuid().as_raw())))
}

/// Returns the name of a user, or the number if the user has no name.
fn name(uid: u32) -> String {
    let number = uid.to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(number.as_str())).then(|| name.to_owned())
    };
    users.lines().find_map(of_line).unwrap_or(number)
}
