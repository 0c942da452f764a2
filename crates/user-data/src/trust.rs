//! Makes vendor-data that installs a CA, and otherwise does the same as the operator's vendor-data.
//!
//! The vendor-data does not use `ca_certs`. Of this key, or of its older name `ca-certs`, cloud-init uses the list of
//! the user or of the vendor, never both (cloudinit/config/cc_ca_certs.py, and its merging). A boothook has no key that
//! another could override, and needs no module that an image may leave out. It runs before the module `ca_certs`, whose
//! `remove_defaults` keeps local certificates in Debian and Ubuntu.

use twox_hash::XxHash3_64;

use crate::input::readable;
use crate::kind::{self, Kind};
use crate::multipart::{self, Part};
use crate::refusal::Refusal;
use crate::{jinja, mime};

/// Ends the certificates in the script. It cannot be a line of base64 or PEM.
const END: &str = "END OF CA";

/// Adds a script to the vendor-data that makes the system trust the certificates in PEM, once for each instance-id.
///
/// Vendor-data is refused if it has no header that cloud-init knows, or more than [`MAX_BYTES`](crate::MAX_BYTES). It
/// is not edited otherwise, so the rest of it is not checked.
pub fn trusting(vendor_data: &str, ca: &str) -> Result<String, Refusal> {
    readable(vendor_data.as_bytes())?;
    let script = script(ca);
    if let Some(message) = mime::message(vendor_data) {
        return multipart::inject(vendor_data, &message, Part::Boothook(&script));
    }
    match kind::detect(vendor_data)? {
        Kind::Empty => Ok(script),
        Kind::Jinja => {
            jinja::is_cloud_config(vendor_data).map(|_| multipart::wrap(vendor_data, Part::Boothook(&script)))
        }
        _ => Ok(multipart::wrap(vendor_data, Part::Boothook(&script))),
    }
}

/// Makes the script. Distributions have one of its folders (update-ca-trust(8), update-ca-certificates(8)). If there is
/// none, the script makes the last one.
fn script(ca: &str) -> String {
    let certificates = certificates(ca);
    // The name depends on the certificates. If two servers used the same name, only the first script would run.
    let name = format!("slipway-ca-{:016x}", XxHash3_64::oneshot(certificates.as_bytes()));
    format!(
        "#cloud-boothook\n\
         #!/bin/sh\n\
         # Makes this system trust the server that it reports to, in addition to what ca_certs says.\n\
         test \"$1\" = now || ! command -v cloud-init-per >/dev/null || exec cloud-init-per instance {name} \"$0\" \
         now\n\
         for folder in /etc/pki/ca-trust/source/anchors /etc/pki/trust/anchors \\\n\
         \x20   /etc/ca-certificates/trust-source/anchors /usr/local/share/ca-certificates; do\n\
         \x20   test -d \"$folder\" && break\n\
         done\n\
         umask 022\n\
         mkdir -p \"$folder\" || exit\n\
         cat >\"$folder/slipway.crt\" <<'{END}' || exit\n\
         {certificates}\
         {END}\n\
         if command -v update-ca-certificates >/dev/null; then\n\
         \x20   exec update-ca-certificates\n\
         fi\n\
         exec update-ca-trust\n"
    )
}

/// The lines of the certificates, without the text between them (RFC 7468, 5.2): in a message, cloud-init writes no
/// file with characters outside ASCII.
fn certificates(pem: &str) -> String {
    let mut is_inside = false;
    let mut lines = String::new();
    for line in pem.lines().map(str::trim_end) {
        is_inside |= line == "-----BEGIN CERTIFICATE-----";
        if is_inside {
            lines.extend([line, "\n"]);
        }
        is_inside &= line != "-----END CERTIFICATE-----";
    }
    lines
}
