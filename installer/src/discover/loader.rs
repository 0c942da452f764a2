//! The URL that the boot image was loaded from, as its loader recorded it.

use std::path::Path;

use slipway_protocol::node::boot_settings;

use super::files::{Notes, bytes, note};

/// The variable in which systemd's stub, since version 258, records the URL of its own image (systemd-stub(7)), with
/// the vendor GUID of systemd's boot loader interface.
const LOADER_DEVICE_URL: &str = "firmware/efi/efivars/LoaderDeviceURL-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Path of a server's boot files.
const BOOT_FILES: &str = "/boot/";

/// Returns the URL that the boot image was loaded from. `None` if it was not loaded from a URL, or its stub is older.
pub(super) fn loaded_from(sys: &Path, notes: &mut Notes) -> Option<String> {
    let path = sys.join(LOADER_DEVICE_URL);
    if !path.exists() {
        return None;
    }
    let url = url(&bytes(&path, notes)?);
    if url.is_none() {
        note(&path, &"not a URL", notes);
    }
    url
}

/// Returns the server whose boot files include the boot image, if the image was loaded over TLS. Changing the variable
/// gains an attacker nothing, because the server must present a certificate of the configured CA.
pub(super) fn server(sys: &Path) -> Option<String> {
    server_of(&loaded_from(sys, &mut Notes::new())?)
}

/// Decodes a variable with a URL. efivarfs puts four bytes of attributes before the value (Linux,
/// Documentation/filesystems/efivarfs.rst). The value is zero-terminated UTF-16, little-endian.
fn url(variable: &[u8]) -> Option<String> {
    let (_attributes, value) = variable.split_at_checked(4)?;
    let (pairs, []) = value.as_chunks() else { return None };
    let units = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).take_while(|unit| *unit != 0);
    let text: String = char::decode_utf16(units).collect::<Result<_, _>>().ok()?;
    let is_url = text.contains("://") && text.chars().all(|c| c.is_ascii_graphic());
    is_url.then_some(text)
}

fn server_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, path) = rest.split_at(rest.find('/')?);
    // Scheme and host are case-insensitive (RFC 3986, section 6.2.2.1).
    let server = format!("{}://{host}", scheme.to_ascii_lowercase());
    (path.starts_with(BOOT_FILES) && boot_settings::check_server(&server).is_ok()).then_some(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(text: &str) -> Vec<u8> {
        let units = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes);
        [6, 0, 0, 0].into_iter().chain(units).collect()
    }

    #[test]
    fn the_variable_has_a_url_or_nothing_that_is_used() {
        let of = |bytes: &[u8]| url(bytes);
        let known = "https://10.0.2.2:8443/boot/x86_64/slipway.efi";
        assert_eq!(of(&variable(known)).as_deref(), Some(known));
        let mut unended = variable(known);
        unended.truncate(unended.len() - 2);
        assert_eq!(of(&unended).as_deref(), Some(known));
        let odd = &variable(known)[..9];
        let lone_surrogate = [6, 0, 0, 0, b'a', 0, 0, 0xd8];
        for bad in [&[][..], &[6, 0, 0], &[6, 0, 0, 0], odd, &lone_surrogate] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        for bad in ["", "slipway.efi", "https://a/\u{1b}[2J", "https://a/ b", "https://ä/boot/x"] {
            assert_eq!(of(&variable(bad)), None, "{bad:?}");
        }
    }

    #[test]
    fn a_server_is_named_only_by_its_boot_files_and_over_tls() {
        let table = [
            ("https://10.0.2.2:8443/boot/x86_64/slipway.efi", Some("https://10.0.2.2:8443")),
            ("HTTPS://install.example/boot/slipway.efi", Some("https://install.example")),
            ("https://[2001:db8::1]:8443/boot/x86_64/slipway.efi", Some("https://[2001:db8::1]:8443")),
            ("http://10.0.2.2:8080/boot/x86_64/slipway.efi", None),
            ("https://mirror.example/images/slipway.efi", None),
            ("https://mirror.example/x/boot/slipway.efi", None),
            ("https://mirror.example", None),
            ("https://user:pw@install.example/boot/slipway.efi", None),
            ("https://install.example:0/boot/slipway.efi", None),
            ("https:///boot/slipway.efi", None),
            ("tftp://10.0.2.2/boot/slipway.efi", None),
        ];
        for (url, expect) in table {
            assert_eq!(server_of(url).as_deref(), expect, "{url}");
        }
    }
}
