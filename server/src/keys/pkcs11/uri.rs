//! PKCS #11 URIs (RFC 7512) that identify a private key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Scheme of the URIs, with its colon.
const SCHEME: &str = "pkcs11:";
/// Maximum length of a URI in bytes. Each known attribute has at most a hundred bytes, except the two paths.
const LONGEST: usize = 4096;
const KNOWN: &str =
    "token, serial, manufacturer, model, object, id and type, and after a question mark module-path and pin-source";

/// Identifies a private key, its token, the module that reaches the token, and the file with the PIN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyUri {
    /// The URI as it was given. It contains no secret.
    text: String,
    /// Label of the token.
    pub token: Option<String>,
    /// Serial number of the token.
    pub serial: Option<String>,
    /// Manufacturer of the token.
    pub manufacturer: Option<String>,
    /// Model of the token.
    pub model: Option<String>,
    /// Label of the key (CKA_LABEL).
    pub object: Option<String>,
    /// Identifier of the key (CKA_ID).
    pub id: Option<Vec<u8>>,
    /// Path of the module, the library that talks to the token.
    pub module: PathBuf,
    /// Path of the file with the token's PIN.
    pub pin: Option<PathBuf>,
}

/// Why a URI is invalid. The reason contains no attribute's value, because one may be a PIN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading a PKCS #11 URI: {reason}")]
pub struct UriError {
    reason: String,
}

/// Whether a text looks like a PKCS #11 URI.
pub fn is_uri(text: &str) -> bool {
    text.starts_with(SCHEME)
}

impl FromStr for KeyUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        if text.len() > LONGEST {
            return refuse(format!("it has {} bytes; at most {LONGEST} are read", text.len()));
        }
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| error("it does not begin with pkcs11:"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut uri = Self { text: text.to_owned(), ..Self::default() };
        let mut seen = Vec::new();
        let attributes = [(path, ';', Self::read_path as Read), (query, '&', Self::read_query)];
        for (part, separator, read) in attributes {
            for attribute in part.split(separator).filter(|_| !part.is_empty()) {
                let (name, value) = attribute.split_once('=').ok_or_else(|| {
                    let sign = if separator == ';' { "semicolons" } else { "ampersands" };
                    error(format!("between its {sign}, each part must be NAME=VALUE"))
                })?;
                if seen.contains(&name) {
                    return refuse(format!("{} is given twice", shown(name)));
                }
                seen.push(name);
                read(&mut uri, name, &decode(name, value)?)?;
            }
        }
        if uri.module.as_os_str().is_empty() {
            return refuse("it names no library for the token; add ?module-path=/PATH/OF/THE/LIBRARY.so");
        }
        Ok(uri)
    }
}

/// Function that stores an attribute's decoded value in the URI, by the attribute's name.
type Read = fn(&mut KeyUri, &str, &[u8]) -> Result<(), UriError>;

impl KeyUri {
    fn read_path(&mut self, name: &str, value: &[u8]) -> Result<(), UriError> {
        let place = match name {
            "token" => &mut self.token,
            "serial" => &mut self.serial,
            "manufacturer" => &mut self.manufacturer,
            "model" => &mut self.model,
            "object" => &mut self.object,
            "id" if value.is_empty() => return refuse("id is empty"),
            "id" => {
                self.id = Some(value.to_vec());
                return Ok(());
            }
            "type" if value == b"private" => return Ok(()),
            "type" => return refuse("type must be private: only a private key signs"),
            _ => return unknown(name),
        };
        *place = Some(text(name, value)?);
        Ok(())
    }

    fn read_query(&mut self, name: &str, value: &[u8]) -> Result<(), UriError> {
        match name {
            "module-path" => self.module = file(name, &text(name, value)?)?,
            "pin-source" => self.pin = Some(pin_file(&text(name, value)?)?),
            // A PIN in the URI would appear in the list of processes, in the data folder and in every backup.
            "pin-value" => {
                return refuse(
                    "it contains the PIN; write the PIN to a file, and name the file with pin-source=file:/PATH",
                );
            }
            _ => return unknown(name),
        }
        Ok(())
    }
}

impl fmt::Display for KeyUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the file that a pin-source names: by a path, or by a `file` URI without a host (RFC 8089).
fn pin_file(source: &str) -> Result<PathBuf, UriError> {
    if source.starts_with('|') {
        return refuse("pin-source names a program, which slipway does not run; name a file with the PIN");
    }
    let path = source.strip_prefix("file:").unwrap_or(source);
    // After two slashes a host could follow, which must be empty.
    file("pin-source", path.strip_prefix("//").unwrap_or(path))
}

fn file(name: &str, path: &str) -> Result<PathBuf, UriError> {
    match Path::new(path).is_absolute() {
        true => Ok(path.into()),
        false => refuse(format!("{name} must be an absolute path, because the server has another current directory")),
    }
}

fn text(name: &str, value: &[u8]) -> Result<String, UriError> {
    match std::str::from_utf8(value) {
        Ok("") => refuse(format!("{name} is empty")),
        Ok(text) => Ok(text.to_owned()),
        Err(_) => refuse(format!("{name} is not UTF-8")),
    }
}

/// Replaces each `%` and two hexadecimal digits by a byte.
fn decode(name: &str, value: &str) -> Result<Vec<u8>, UriError> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let wrong = || error(format!("in {}, a % is not followed by two hexadecimal digits", shown(name)));
                let (high, low) = digit().zip(digit()).ok_or_else(wrong)?;
                (high * 16 + low) as u8
            }
            b'!'..=b'~' => byte,
            _ => return refuse(format!("{} has a space or a letter that must be written as %XX", shown(name))),
        };
        // No name in a token contains a zero byte, which would also end a path early.
        if byte == 0 && name != "id" {
            return refuse(format!("{} has a zero byte", shown(name)));
        }
        bytes.push(byte);
    }
    Ok(bytes)
}

fn unknown<T>(name: &str) -> Result<T, UriError> {
    refuse(format!("{} is not supported; supported are {KNOWN}", shown(name)))
}

/// Quotes a name from the URI, cut to 40 characters.
fn shown(name: &str) -> String {
    format!("{:?}", name.chars().take(40).collect::<String>())
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, UriError> {
    Err(error(reason))
}

fn error(reason: impl Into<String>) -> UriError {
    UriError { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_key_its_token_the_module_and_the_pin() {
        let all = "pkcs11:model=SoftHSM%20v2;manufacturer=SoftHSM%20project;serial=5b%c3%a9;token=a%3bb;id=%00%FFx;\
                   object=db+1;type=private?module-path=/usr/lib/a%20b.so&pin-source=file:/etc/pin%25";
        let uri: KeyUri = all.parse().unwrap();
        assert_eq!(uri.to_string(), all);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!((uri.model, uri.manufacturer), (text("SoftHSM v2"), text("SoftHSM project")));
        assert_eq!((uri.serial, uri.token, uri.object), (text("5bé"), text("a;b"), text("db+1")));
        assert_eq!((uri.id, uri.module), (Some(b"\0\xFFx".to_vec()), "/usr/lib/a b.so".into()));
        assert_eq!(uri.pin, Some("/etc/pin%".into()));

        let least: KeyUri = "pkcs11:?module-path=/m".parse().unwrap();
        assert_eq!(least, KeyUri { text: "pkcs11:?module-path=/m".into(), module: "/m".into(), ..KeyUri::default() });
        for source in ["/pin", "file:/pin", "file:///pin"] {
            let uri: KeyUri = format!("pkcs11:?pin-source={source}&module-path=/m").parse().unwrap();
            assert_eq!(uri.pin, Some("/pin".into()), "{source}");
        }
    }

    #[test]
    fn each_refusal_says_what_is_wrong_and_repeats_no_value() {
        let long = format!("pkcs11:object={}?module-path=/m", "s".repeat(LONGEST));
        for (text, expect) in [
            ("/etc/sesame", "does not begin with pkcs11:"),
            (&long, "it has 4125 bytes; at most 4096"),
            ("pkcs11:", "add ?module-path="),
            ("pkcs11:object=sesame", "add ?module-path="),
            ("pkcs11:object=sesame;module-path=/m", "\"module-path\" is not supported; supported are token, serial"),
            ("pkcs11:sesame", "between its semicolons, each part must be NAME=VALUE"),
            ("pkcs11:object=a;?module-path=/m", "between its semicolons"),
            ("pkcs11:?module-path=/m&", "between its ampersands"),
            ("pkcs11:?module-path=/m&sesame", "between its ampersands"),
            ("pkcs11:object=sesame;object=sesame?module-path=/m", "\"object\" is given twice"),
            ("pkcs11:slot-id=7?module-path=/m", "\"slot-id\" is not supported"),
            ("pkcs11:x-vendor=sesame?module-path=/m", "\"x-vendor\" is not supported"),
            ("pkcs11:Object=sesame?module-path=/m", "\"Object\" is not supported"),
            ("pkcs11:?module-name=sesame", "\"module-name\" is not supported"),
            ("pkcs11:?module-path=/m&pin-value=sesame", "it contains the PIN; write the PIN to a file"),
            ("pkcs11:?module-path=/m&pin-source=sesame", "pin-source must be an absolute path"),
            ("pkcs11:?module-path=/m&pin-source=file:sesame", "pin-source must be an absolute path"),
            ("pkcs11:?module-path=/m&pin-source=file://sesame/pin", "pin-source must be an absolute path"),
            ("pkcs11:?module-path=/m&pin-source=https://sesame/pin", "pin-source must be an absolute path"),
            ("pkcs11:?module-path=/m&pin-source=%7Csesame", "pin-source names a program"),
            ("pkcs11:?module-path=libsesame.so", "module-path must be an absolute path"),
            ("pkcs11:?module-path=/m%00", "\"module-path\" has a zero byte"),
            ("pkcs11:?module-path=", "module-path is empty"),
            ("pkcs11:object=?module-path=/m", "object is empty"),
            ("pkcs11:id=?module-path=/m", "id is empty"),
            ("pkcs11:type=cert?module-path=/m", "type must be private"),
            ("pkcs11:object=%ff?module-path=/m", "object is not UTF-8"),
            ("pkcs11:object=sesame%?module-path=/m", "in \"object\", a % is not followed by two hexadecimal digits"),
            ("pkcs11:object=%4?module-path=/m", "a % is not followed by two"),
            ("pkcs11:object=%+4?module-path=/m", "a % is not followed by two"),
            (
                "pkcs11:object=open sesame?module-path=/m",
                "\"object\" has a space or a letter that must be written as %XX",
            ),
            ("pkcs11:object=sésame?module-path=/m", "\"object\" has a space or a letter"),
        ] {
            let error = text.parse::<KeyUri>().unwrap_err().to_string();
            assert!(error.contains(expect) && !error.contains("sesame"), "{text}: {error}");
        }
    }
}
