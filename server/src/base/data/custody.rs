//! Checks of the data folder before a server starts: its secrets are private, and its keys exist.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use slipway_protocol::ErrorCode;

use super::DataDir;
use crate::base::error::Error;

/// Permission bits of the group and of others.
const OTHERS: u32 = 0o077;
/// The files that hold secrets.
const SECRET: [&str; 13] = [
    "ca.key",
    "intermediate.key",
    "next-ca.key",
    "next-intermediate.key",
    "server.key",
    "firmware-ca.key",
    "firmware-server.key",
    "jwt.key",
    "operator-token",
    "secure-boot.json",
    "slipway.db",
    "slipway.db-wal",
    "slipway.db-shm",
];
/// The last file that a first start creates. If it is missing, other files may be missing too.
const LAST: &str = "server.pem";
/// Minimum length of the JWT key in bytes. A shorter key could be guessed.
const SHORTEST_KEY: usize = 32;

impl DataDir {
    /// Refuses a folder whose secrets others can read or replace, or that lacks the key that signed the nodes'
    /// credentials. The error has the commands that repair it.
    pub fn check_custody(&self) -> Result<(), Error> {
        let open = |path: &Path| match fs::metadata(path) {
            Ok(found) => Ok(found.mode() & OTHERS != 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::File { doing: "examining", path: path.to_owned(), source }),
        };
        let mut lax = Vec::new();
        for name in SECRET {
            let path = self.path(name);
            if open(&path)? {
                lax.push(path);
            }
        }
        let repair: Vec<String> = lax.iter().map(|path| format!("chmod 600 {}", path.display())).collect();
        if let Some(first) = lax.first() {
            let message = format!(
                "other users can read or change the secret file {first:?}: run `{}`; if others use this host, replace \
                 the secrets that they may have read",
                repair.join(" && ")
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        if open(self.root())? {
            let message = format!(
                "other users can enter the data folder {:?}, which holds secrets: run `chmod 700 {}`",
                self.root(),
                self.root().display()
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        match self.site_key {
            // The database has the key.
            Some(_) => Ok(()),
            None => self.check_jwt_key(),
        }
    }

    fn check_jwt_key(&self) -> Result<(), Error> {
        let key = self.read("jwt.key")?;
        let is_good = match &key {
            Some(key) => key.trim().len() >= SHORTEST_KEY,
            None => !self.path(LAST).exists(),
        };
        if is_good {
            return Ok(());
        }
        let message = format!(
            "{:?} is {}: restore it from a backup, or make a new one with `head -c 32 /dev/urandom | base64 | install \
             -m 600 /dev/stdin {}`; then nodes must enrol again, and metadata URLs no longer work",
            self.path("jwt.key"),
            if key.is_some() { "too short for a key" } else { "missing" },
            self.path("jwt.key").display()
        );
        Err(Error::refused(ErrorCode::Conflict, message))
    }

    /// Makes a folder that holds no secrets yet private to its owner.
    pub(super) fn close_if_new(root: &Path) -> Result<(), Error> {
        if SECRET.iter().any(|name| root.join(name).exists()) {
            return Ok(());
        }
        let failed = |source| Error::File { doing: "restricting", path: root.to_owned(), source };
        let mode = fs::metadata(root).map_err(failed)?.mode();
        if mode & OTHERS == 0 {
            return Ok(());
        }
        fs::set_permissions(root, Permissions::from_mode(mode & 0o7700)).map_err(failed)
    }

    /// Whether an open file is inside the folder, whatever path was used to open it.
    pub fn has(&self, open: &impl AsRawFd) -> bool {
        let real = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()));
        match (real, fs::canonicalize(self.root())) {
            (Ok(file), Ok(root)) => file.starts_with(root),
            // If this cannot be determined, the file is treated as one of the folder's and not handed out.
            _ => true,
        }
    }
}

/// Refuses to create a database in a folder on which a server has already run, because the folder had a database.
/// `state` describes the database file, such as "missing".
pub fn check_never_served(database: &Path, state: &str) -> Result<(), Error> {
    let root = database.parent().unwrap_or(Path::new(""));
    let last = root.join(LAST);
    if !last.exists() {
        return Ok(());
    }
    let elsewhere = match state {
        "missing" => "give --database or SLIPWAY_DATABASE if it is on a PostgreSQL server, ",
        _ => "",
    };
    let message = format!(
        "the database {database:?} is {state}, but a server has run on this folder: put it back, {elsewhere}or move \
         the folder away and restore a backup with `slipway-server --data {} restore FILE`; to start over without \
         the previous machines, images, runs and operators, run `mv {last} {last}.old`",
        root.display(),
        last = last.display()
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Refuses to create tables in a database of PostgreSQL, whose URL is `database`, for a data folder on which a server
/// has already run, because the machines, images and runs that belong to the folder are in another database.
pub fn check_tables_never_served(root: &Path, database: &str) -> Result<(), Error> {
    let last = root.join(LAST);
    if !last.exists() {
        return Ok(());
    }
    let message = format!(
        "the database {database:?} has no tables, but a server has run on the data folder {root:?}: give the database \
         of that server, or restore a dump of it with `pg_restore`; to start over without the previous machines, \
         images, runs and operators, run `mv {last} {last}.old`",
        last = last.display()
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// Refuses a boot folder that is the data folder, inside it, or contains it, because anybody can fetch boot files.
pub fn check_apart(data: &Path, boot: &Path) -> Result<(), Error> {
    let (data_at, boot_at) = (real(data)?, real(boot)?);
    if !data_at.starts_with(&boot_at) && !boot_at.starts_with(&data_at) {
        return Ok(());
    }
    let message = format!(
        "the boot folder {boot:?} and the data folder {data:?} must be apart: anybody can fetch boot files, and the \
         data folder holds keys; give another folder with --boot"
    );
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Returns the path with symbolic links resolved. The folder need not exist yet.
fn real(path: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::File { doing: "examining", path: path.to_owned(), source };
    let whole = std::path::absolute(path).map_err(failed)?;
    let mut missing = Vec::new();
    for folder in whole.ancestors() {
        match fs::canonicalize(folder) {
            Ok(there) => return Ok(missing.iter().rev().fold(there, |path, name| path.join(name))),
            Err(error) if error.kind() == ErrorKind::NotFound => missing.extend(folder.file_name()),
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_link_into_the_folder_is_seen_through() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(&folder.path().join("data"))?;
        fs::write(data.path("ca.key"), "")?;
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(data.path("ca.key"), &link)?;
        fs::write(folder.path().join("other"), "")?;
        assert!(data.has(&File::open(&link)?));
        assert!(!data.has(&File::open(folder.path().join("other"))?));
        Ok(())
    }
}
