//! Vendor-data that has the system trust a CA, and does what the operator's does.
//!
//! Not by `ca_certs`: of that, or of its older name `ca-certs`, cloud-init takes the user's list or the vendor's and never both
//! (cloudinit/config/cc_ca_certs.py, and its merging). A boothook has no name that anybody else's could take, and needs no module,
//! which images leave out. It comes before `ca_certs`, whose `remove_defaults` leaves local certificates where they are in Debian and
//! Ubuntu.

use crate::kind::{self, Kind};
use crate::multipart::{self, Part};
use crate::{Refusal, check, mime};

/// Ends the certificates in the script. No line of base64 or of PEM is that.
const END: &str = "END OF CA";

/// The vendor-data with a script that has the system trust the certificates in PEM, once for each instance-id.
///
/// Refused is what cloud-init would not understand.
pub fn trusting(vendor_data: &str, ca: &str) -> Result<String, Refusal> {
    check(vendor_data.as_bytes())?;
    let script = script(ca);
    if let Some(message) = mime::message(vendor_data) {
        return multipart::inject(vendor_data, &message, Part::Boothook(&script));
    }
    match kind::of(vendor_data)? {
        Kind::Empty => Ok(script),
        _ => Ok(multipart::wrap(vendor_data, Part::Boothook(&script))),
    }
}

/// Distributions have one of these folders (update-ca-trust(8), update-ca-certificates(8)); the last is made where there is none.
fn script(ca: &str) -> String {
    let ca = ca.trim_end();
    format!(
        "#cloud-boothook\n\
         #!/bin/sh\n\
         # Has this system trust the server it reports to, beside what ca_certs says.\n\
         test \"$1\" = now || exec cloud-init-per instance slipway-ca \"$0\" now\n\
         for folder in /etc/pki/ca-trust/source/anchors /etc/pki/trust/anchors \\\n\
         \x20   /etc/ca-certificates/trust-source/anchors /usr/local/share/ca-certificates; do\n\
         \x20   test -d \"$folder\" && break\n\
         done\n\
         umask 022\n\
         mkdir -p \"$folder\" || exit\n\
         cat >\"$folder/slipway.crt\" <<'{END}' || exit\n\
         {ca}\n\
         {END}\n\
         if command -v update-ca-certificates >/dev/null; then\n\
         \x20   exec update-ca-certificates\n\
         fi\n\
         exec update-ca-trust\n"
    )
}
