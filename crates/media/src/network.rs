//! Boot files for the network.

use std::borrow::Cow;

use slipway_secure_boot::{KeyError, SigningKey, sign_detached};

/// A file cannot be signed.
#[derive(Debug, thiserror::Error)]
#[error("signing the boot file {name}")]
pub struct SignFileError {
    /// Name of the file.
    pub name: &'static str,
    /// The cause.
    pub source: KeyError,
}

/// Pairs of a file name and its content.
type Files<'a> = Vec<(&'static str, Cow<'a, [u8]>)>;

/// Returns the files of an architecture. The unified kernel image contains its signature. Kernel and initramfs, which
/// iPXE loads one by one, have detached signatures.
pub fn files<'a>(
    vmlinuz: &'a [u8],
    initramfs: &'a [u8],
    program: &'a [u8],
    signer: Option<&SigningKey>,
) -> Result<Files<'a>, SignFileError> {
    let mut files =
        vec![("vmlinuz", vmlinuz.into()), ("initramfs", initramfs.into()), ("slipway.efi", Cow::from(program))];
    if let Some(signer) = signer {
        for (name, signature, content) in
            [("vmlinuz", "vmlinuz.sig", vmlinuz), ("initramfs", "initramfs.sig", initramfs)]
        {
            let signed = sign_detached(content, signer).map_err(|source| SignFileError { name, source })?;
            files.push((signature, signed.into()));
        }
    }
    Ok(files)
}
