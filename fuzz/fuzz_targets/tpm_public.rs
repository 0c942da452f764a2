//! A key that is accepted ends where the input ends. Data can be encrypted to it, unless its point is not on the curve.
#![no_main]

use slipway_protocol::node::attestation::{Blob, TpmKeys};
use slipway_tpm::judge::{Challenger, Keys};

const EK: &[u8] = include_bytes!("../corpus/tpm_public/endorsement-ecc");
const AK: &[u8] = include_bytes!("../corpus/tpm_public/attestation");
/// Length of a digest as text: `sha256:` and 32 bytes in hexadecimal.
const DIGEST: usize = 7 + 64;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let parse = |ek: &[u8], ak: &[u8]| {
        Keys::parse(&TpmKeys { ek: Blob(ek.to_vec()), ek_certificate: None, ak: Blob(ak.to_vec()) }).ok()
    };
    let longer = [input, &[0]].concat();
    for (keys, longer) in [(parse(input, AK), parse(&longer, AK)), (parse(EK, input), parse(EK, &longer))] {
        let Some(keys) = keys else { continue };
        assert!(longer.is_none());
        assert_eq!((keys.ek_digest().len(), keys.ak_digest().len()), (DIGEST, DIGEST));
        let Ok(challenge) = Challenger::new(&[0; 32]).challenge(&keys, "key", 0) else {
            continue;
        };
        // The encrypted secret: a point of two coordinates, or as many bytes as an RSA key has.
        assert!(matches!(challenge.secret.0.len(), 68 | 256));
    }
});
