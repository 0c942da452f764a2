//! The key slot for the TPM, and the token that tells systemd-cryptsetup how to get its passphrase (systemd 252,
//! src/shared/tpm2-util.c, `tpm2_make_luks2_json`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use slipway_tpm::device::Sealed;

use super::luks2::Slot;

/// Makes the key slot of a secret that is sealed to these registers.
pub(super) fn slot(secret: &[u8], sealed: &Sealed, pcrs: &[u32]) -> Slot {
    let mut pcrs = pcrs.to_vec();
    pcrs.sort_unstable();
    let token = json!({
        "type": "systemd-tpm2",
        "tpm2-blob": BASE64.encode(&sealed.blob),
        "tpm2-pcrs": pcrs,
        "tpm2-pcr-bank": "sha256",
        "tpm2-primary-alg": sealed.primary,
        "tpm2-policy-hash": base16ct::lower::encode_string(&sealed.policy),
        "tpm2-pin": false,
    });
    Slot { passphrase: BASE64.encode(secret), token }
}
