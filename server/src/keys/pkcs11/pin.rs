//! Reads the PIN of a token from a file.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cryptoki::types::AuthPin;

use super::fault::Fault;

/// Maximum length of a PIN in bytes.
const LONGEST: u64 = 255;

/// A PIN, with its file's path and modification time.
pub struct Pin {
    pub text: AuthPin,
    pub path: PathBuf,
    pub written: SystemTime,
}

impl Pin {
    /// Reads the PIN: the only line of a file that not every user can read.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let failed = |source| Fault::PinFile { path: path.to_owned(), source };
        let wrong = |wrong| Fault::PinText { path: path.to_owned(), wrong };
        // Checked first, because opening a pipe would block.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(wrong("it is not a regular file"));
        }
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if about.permissions().mode() & 0o007 != 0 {
            return Err(wrong("every user can read or change it; change the PIN, and run `chmod 0600` on the file"));
        }
        let mut text = String::new();
        // Reads one byte more than a PIN can have, and the line break.
        file.take(LONGEST + 3).read_to_string(&mut text).map_err(failed)?;
        let pin = text.strip_suffix('\n').unwrap_or(&text);
        let pin = pin.strip_suffix('\r').unwrap_or(pin);
        match pin {
            "" => Err(wrong("it is empty")),
            pin if pin.len() as u64 > LONGEST => Err(wrong("it has more than 255 bytes")),
            pin if pin.contains(['\n', '\0']) => Err(wrong("it has more than one line")),
            pin => {
                let written = about.modified().map_err(failed)?;
                Ok(Self { text: AuthPin::from(pin), path: path.to_owned(), written })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_pin_is_one_line_of_a_file_that_is_not_everybodys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pin");
        let read = |content: &[u8], mode| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Pin::read(&path).map(|pin| pin.text).map_err(|fault| fault.to_string())
        };
        for content in ["1234", "1234\n", "1234\r\n"] {
            use age::secrecy::ExposeSecret;
            let pin = read(content.as_bytes(), 0o640).unwrap();
            assert_eq!(pin.expose_secret(), "1234");
            assert!(!format!("{pin:?}").contains("1234"));
        }
        read("x".repeat(255).as_bytes(), 0o600).unwrap();
        for (content, mode, expect) in [
            (&b"1234"[..], 0o604, "every user can read or change it"),
            (b"1234", 0o602, "every user can read or change it"),
            (b"", 0o600, "it is empty"),
            (b"\n", 0o600, "it is empty"),
            (b"1234\n5678\n", 0o600, "it has more than one line"),
            (&[b'x'; 256], 0o600, "it has more than 255 bytes"),
            (&[b'x'; 10_000], 0o600, "it has more than 255 bytes"),
            (b"1234\xFF", 0o600, "reading the PIN in"),
        ] {
            let error = read(content, mode).unwrap_err();
            assert!(error.contains(expect) && !error.contains("1234"), "{error}");
        }
        assert!(matches!(Pin::read(folder.path()), Err(Fault::PinText { .. })), "a folder");
        fs::remove_file(&path).unwrap();
        assert!(matches!(Pin::read(&path), Err(Fault::PinFile { .. })));
    }
}
