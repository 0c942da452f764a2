//! EFI variables, as files of efivarfs (kernel documentation, filesystems/efivarfs).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use slipway_formats::efi::load_option::LoadOption;
use slipway_formats::efi::order::{self, Entries};

use crate::error::{BootError, Error};

/// Vendor GUID of the variables defined in the specification (UEFI specification 2.10, 3.3).
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// Vendor GUID of the signature databases `db` and `dbx` (32.6.1).
const IMAGE_SECURITY: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";
/// Attributes: non-volatile, boot service access, runtime access (8.2.1). In a file they precede the content.
const ATTRIBUTES: [u8; 4] = 7_u32.to_le_bytes();
/// Maximum size of a variable in bytes. Firmware has less room for all variables together.
const MAX_VARIABLE: u64 = 1 << 20;

/// The folder with the variables.
#[derive(Debug)]
pub(crate) struct Variables(PathBuf);

impl Variables {
    /// Opens the folder with the variables. Fails if the folder is empty, as it is if efivarfs is not mounted.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let first = fs::read_dir(folder).and_then(|mut files| files.next().transpose());
        let none = || {
            io::Error::new(io::ErrorKind::NotFound, "efivarfs is not mounted there, or the firmware shows no variables")
        };
        match first.and_then(|first| first.ok_or_else(none)) {
            Ok(_) => Ok(Self(folder.to_owned())),
            Err(source) => {
                Err(BootError::EfiVariable { operation: "listing", variable: folder.display().to_string(), source }
                    .into())
            }
        }
    }

    /// Reads all boot entries, and the boot order.
    pub(crate) fn entries(&self) -> Result<Entries, Error> {
        let failed = |source| {
            Error::Boot(BootError::EfiVariable { operation: "listing", variable: self.0.display().to_string(), source })
        };
        let mut entries = Entries::default();
        for file in fs::read_dir(&self.0).map_err(failed)? {
            let name = file.map_err(failed)?.file_name();
            let Some(number) = name.to_str().and_then(entry_number) else { continue };
            // An entry that cannot be read still occupies its number.
            let option = self.read(&entry(number)).ok().flatten().and_then(|bytes| LoadOption::decode(&bytes));
            entries.options.insert(number, option);
        }
        entries.order = self.read(&global("BootOrder"))?.map(|bytes| order::decode(&bytes)).unwrap_or_default();
        Ok(entries)
    }

    /// Reads the content of a variable; none if there is no such variable.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = Vec::new();
        let read = File::open(self.0.join(name)).and_then(|file| file.take(MAX_VARIABLE).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(bytes.get(ATTRIBUTES.len()..).map(<[u8]>::to_vec)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed("reading", name, source)),
        }
    }

    /// Writes a variable and reads it back, because firmware may accept it and store something else.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let bytes = [&ATTRIBUTES, content].concat();
        let written = self.store(name, &bytes, |file| {
            // efivarfs sets the size itself. In a plain file, as in tests, the rest of longer content would remain.
            _ = file.set_len(bytes.len() as u64);
        });
        written.map_err(|source| failed("writing", name, source))?;
        if self.read(name)?.as_deref() != Some(content) {
            let source =
                io::Error::other("the firmware accepted it, but returned something else when it was read back");
            return Err(failed("writing", name, source));
        }
        Ok(())
    }

    /// Writes a signed update of a variable: attributes, time, signature and content (8.2.2). The variable then has the
    /// content alone.
    pub(crate) fn write_update(&self, name: &str, update: &[u8]) -> io::Result<()> {
        self.store(name, update, |_| {})
    }

    /// Writes the file of a variable.
    fn store(&self, name: &str, bytes: &[u8], then: impl FnOnce(&File)) -> io::Result<()> {
        let path = self.0.join(name);
        let is_new = !path.exists();
        let written = thawed(&path, || write_at_once(&path, bytes));
        if written.is_err() && is_new {
            // After a failed write, some kernels leave a file although the variable does not exist.
            _ = fs::remove_file(&path);
        }
        written.map(|file| then(&file))
    }

    /// Removes a variable. It is not an error if it does not exist.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.0.join(name);
        match thawed(&path, || fs::remove_file(&path)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed("removing", name, source)),
            _ => Ok(()),
        }
    }
}

/// File name of a boot entry.
pub(crate) fn entry(number: u16) -> String {
    global(&format!("Boot{number:04X}"))
}

/// File name of a variable defined in the specification.
pub(crate) fn global(name: &str) -> String {
    format!("{name}-{GLOBAL}")
}

/// File name of the signature database `db` or `dbx`.
pub(crate) fn image_security(name: &str) -> String {
    format!("{name}-{IMAGE_SECURITY}")
}

/// Parses the number of a boot entry from its file name.
fn entry_number(file: &str) -> Option<u16> {
    let digits = file.strip_prefix("Boot")?.strip_suffix(GLOBAL)?.strip_suffix('-')?;
    let number = u16::from_str_radix(digits, 16).ok()?;
    (entry(number) == file).then_some(number)
}

/// Writes a variable with a single write, which the kernel passes to the firmware.
fn write_at_once(path: &Path, bytes: &[u8]) -> io::Result<File> {
    // Truncating the file first would remove the variable.
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    if file.write(bytes)? != bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(file)
}

/// Changes a file that may be marked as immutable. efivarfs marks the variables that some machines need to start.
fn thawed<T>(path: &Path, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let Ok(file) = File::open(path) else { return change() };
    let flags = ioctl_getflags(&file).unwrap_or(IFlags::empty());
    if !flags.contains(IFlags::IMMUTABLE) {
        return change();
    }
    ioctl_setflags(&file, flags - IFlags::IMMUTABLE)?;
    let changed = change();
    // If the file was removed, its flags no longer matter.
    _ = ioctl_setflags(&file, flags);
    changed
}

fn failed(operation: &'static str, name: &str, source: io::Error) -> Error {
    let variable = name.split('-').next().unwrap_or(name).to_owned();
    let what_to_do = match Errno::from_io_error(&source) {
        Some(Errno::NOSPC) => {
            "the firmware has no room left: remove entries in its setup, or reset its variables there"
        }
        Some(Errno::INVAL) => "the firmware refuses it",
        Some(Errno::ROFS) => "the variables are read-only: the firmware or the mount forbids changes",
        Some(Errno::IO) => "the firmware failed to do it: update it, or reset its variables in its setup",
        Some(Errno::PERM | Errno::ACCESS) => {
            "only root may do this, and only if neither the firmware nor a kernel lockdown forbids it"
        }
        _ => return Error::Boot(BootError::EfiVariable { operation, variable, source }),
    };
    let source = io::Error::new(source.kind(), format!("{source}: {what_to_do}"));
    Error::Boot(BootError::EfiVariable { operation, variable, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    fn folder() -> (tempfile::TempDir, Variables) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(global("Timeout")), [7, 0, 0, 0, 5, 0]).unwrap();
        let variables = Variables::open(folder.path()).unwrap();
        (folder, variables)
    }

    #[test]
    fn a_variable_that_is_protected_is_changed_and_protected_again() {
        let (folder, variables) = folder();
        let path = folder.path().join(global("Timeout"));
        let flags = |flags: Option<IFlags>| {
            let file = File::open(&path).unwrap();
            flags.map_or_else(|| ioctl_getflags(&file), |flags| ioctl_setflags(&file, flags).map(|()| flags))
        };
        let Ok(before) = flags(None).and_then(|before| flags(Some(before | IFlags::IMMUTABLE)).map(|_| before)) else {
            eprintln!("not checked: files cannot be marked as immutable here");
            return;
        };
        assert!(fs::write(&path, "").is_err());
        variables.write(&global("Timeout"), &[9, 0]).unwrap();
        let after = flags(None).unwrap();
        assert!(after.contains(IFlags::IMMUTABLE));
        assert_eq!(variables.read(&global("Timeout")).unwrap(), Some(vec![9, 0]));
        variables.remove(&global("Timeout")).unwrap();
        assert!(!path.exists(), "before: {before:?}, after: {after:?}");
    }

    #[test]
    fn entries_are_told_by_their_names() {
        let (folder, variables) = folder();
        let network = [1, 0, 0, 0, 4, 0, b'P', 0, 0, 0, 0x7F, 0xFF, 4, 0];
        for name in ["Boot0001", "Boot000A", "Boot000b", "Boot1", "BootNext", "Boot00010", "Boot+001"] {
            fs::write(folder.path().join(global(name)), [&ATTRIBUTES, &network[..]].concat()).unwrap();
        }
        fs::write(folder.path().join(global("Boot0002")), [7, 0]).unwrap();
        fs::write(folder.path().join("Boot0003-00000000-0000-0000-0000-000000000000"), "").unwrap();
        fs::write(folder.path().join(global("BootOrder")), [7, 0, 0, 0, 10, 0, 1, 0]).unwrap();
        let entries = variables.entries().unwrap();
        let found: Vec<(u16, bool)> =
            entries.options.iter().map(|(number, option)| (*number, option.is_some())).collect();
        assert_eq!(found, [(1, true), (2, false), (10, true)]);
        assert_eq!(entries.order, [10, 1]);
        variables.remove(&global("Boot0009")).unwrap();
    }

    #[test]
    fn what_the_firmware_says_comes_with_what_to_do() {
        let check = |errno: Errno, expect: &str| {
            let error = failed("writing", &entry(3), errno.into());
            assert!(text::chain(&error).starts_with("writing the EFI variable Boot0003: "), "{error}");
            assert!(text::chain(&error).contains(expect), "{}", text::chain(&error));
        };
        check(Errno::NOSPC, "the firmware has no room left");
        check(Errno::INVAL, "the firmware refuses it");
        check(Errno::ROFS, "are read-only");
        check(Errno::INTR, "Interrupted");
    }

    #[test]
    fn an_empty_folder_is_no_efivarfs() {
        let folder = tempfile::tempdir().unwrap();
        for folder in [folder.path(), &folder.path().join("none")] {
            assert!(matches!(
                Variables::open(folder),
                Err(Error::Boot(BootError::EfiVariable { operation: "listing", .. }))
            ));
        }
    }
}
