//! Checks the settings that a server is started with, and notes those that commands need.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use slipway_protocol::ErrorCode;

use crate::base::error::{Error, chain};
use crate::base::objects::{Bucket, Objects};
use crate::store::{Connection, settings};

/// Maximum size of the file with the certificates of the object store, in bytes.
const MAX_IMAGES_CA: usize = 32 << 10;

/// Refuses names that cannot be in a certificate.
pub(super) fn check_names(names: &BTreeSet<String>) -> Result<(), Error> {
    match names.iter().find(|name| ServerName::try_from(name.as_str()).is_err()) {
        None => Ok(()),
        Some(name) => {
            let message = format!("{name:?} is neither a host name nor an IP address; correct --url or --san");
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
    }
}

/// Makes the boot folder and its parents if they are missing, readable by anybody.
pub(super) fn make_boot_folder(folder: &Path) -> Result<(), Error> {
    let failed = |doing| move |source| Error::File { doing, path: folder.to_owned(), source };
    if folder.exists() {
        return Ok(());
    }
    let is_made = |part: &&Path| part.file_name().is_some() && !part.exists();
    let made: Vec<&Path> = folder.ancestors().filter(is_made).collect();
    std::fs::create_dir_all(folder).map_err(failed("creating the boot folder"))?;
    for part in made {
        std::fs::set_permissions(part, Permissions::from_mode(0o755)).map_err(failed("creating the boot folder"))?;
    }
    tracing::info!(folder = %folder.display(), "made the boot folder; `slipway-server media build` fills it");
    Ok(())
}

/// Refuses a boot folder that is none.
pub(super) fn check_boot_folder(folder: &Path) -> Result<(), Error> {
    let path = || folder.to_owned();
    let found = std::fs::metadata(folder);
    let found = found.map_err(|source| Error::File { doing: "opening the boot folder", path: path(), source })?;
    if found.is_dir() {
        return Ok(());
    }
    let source = std::io::ErrorKind::NotADirectory.into();
    Err(Error::File { doing: "opening the boot folder", path: path(), source })
}

/// Refuses a bucket or a key that is wrong. A bucket that does not answer may do so later.
pub(super) async fn check_bucket(bucket: &Bucket) -> Result<(), Error> {
    match bucket.check().await {
        Err(Error::Objects { doing, bucket, source }) if source.is_transient() => {
            let error = Error::Objects { doing, bucket, source };
            tracing::warn!(error = chain(&error), "images cannot be used until the bucket answers");
            Ok(())
        }
        done => done,
    }
}

/// Stores where the images are, so that commands do not look for them elsewhere.
pub(super) async fn note_objects(connection: &mut Connection, objects: &Objects) -> Result<(), Error> {
    let before = settings::read(connection, settings::OBJECTS).await?;
    let now = match objects {
        Objects::Bucket(bucket, _) => Some(bucket.name()),
        Objects::Folder(_) => None,
    };
    if let Some(before) = before.filter(|before| Some(before.as_str()) != now) {
        tracing::warn!(before, now = now.unwrap_or("the data folder"), "the images were elsewhere before");
    }
    match now {
        Some(name) => settings::write(connection, settings::OBJECTS, name).await,
        None => settings::remove(connection, settings::OBJECTS).await,
    }
}

/// Reads the certificates that machines verify the object store with.
pub(super) fn read_images_ca(file: &Path, bucket: Option<&Bucket>) -> Result<String, Error> {
    let refused = |why: String| Err(Error::refused(ErrorCode::InvalidRequest, why));
    let Some(bucket) = bucket else {
        return refused(
            "machines can be redirected only to a bucket: give --objects, or leave out --objects-redirect".to_owned(),
        );
    };
    if !bucket.has_tls() {
        let name = bucket.name();
        return refused(format!(
            "machines cannot be redirected to {name}: it is reached by this host alone, without TLS"
        ));
    }
    let failed = |source| Error::File { doing: "reading the certificates in", path: file.to_owned(), source };
    let pem = std::fs::read_to_string(file).map_err(failed)?;
    if pem.len() > MAX_IMAGES_CA {
        return refused(format!(
            "{file:?} has {} bytes, but each run has a copy of it, so it may have at most {MAX_IMAGES_CA}: give only \
             the root certificate that the object store is verified with",
            pem.len()
        ));
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let trusted = certificate.map_err(|error| error.to_string());
        let trusted = trusted.and_then(|der| roots.add(der).map_err(|error| error.to_string()));
        if let Err(error) = trusted {
            return refused(format!("a certificate in {file:?} cannot be used: {error}"));
        }
    }
    match roots.is_empty() {
        true => refused(format!("{file:?} has no certificate in PEM")),
        false => Ok(pem),
    }
}
