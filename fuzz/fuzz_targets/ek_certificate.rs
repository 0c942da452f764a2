//! A certificate leads to a root only if it has the signed part of one of `SIGNED`: no fuzzer finds a valid
//! signature.
#![no_main]

use std::sync::LazyLock;

use slipway_protocol::node::attestation::{Blob, TpmKeys};
use slipway_tpm::judge::{Endorsement, Keys, Roots};

const EK: &[u8] = include_bytes!("../corpus/tpm_public/endorsement-ecc");
const AK: &[u8] = include_bytes!("../corpus/tpm_public/attestation");
const SIGNED: [&[u8]; 2] =
    [include_bytes!("../corpus/ek_certificate/by-root"), include_bytes!("../corpus/ek_certificate/by-intermediate")];
/// A root certificate, and an intermediate certificate that it signed. Nobody has kept their keys.
static ROOTS: LazyLock<Roots> =
    LazyLock::new(|| Roots::from_pem(include_str!("../src/roots.pem")).expect("it has two certificates"));
/// A time in 2027, in seconds since 1970.
const NOW: u64 = 1_800_000_000;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let keys = TpmKeys { ek: Blob(EK.to_vec()), ek_certificate: Some(Blob(input.to_vec())), ak: Blob(AK.to_vec()) };
    let keys = Keys::parse(&keys).expect("the keys are a TPM's");
    if keys.endorsement(&ROOTS, NOW) == Endorsement::Chain {
        // The signed part follows a header of four bytes. Its own third and fourth byte are its length.
        let signed = |certificate: &'static [u8]| {
            &certificate[4..8 + usize::from(u16::from_be_bytes([certificate[6], certificate[7]]))]
        };
        assert!(SIGNED.map(signed).iter().any(|signed| input.windows(signed.len()).any(|part| part == *signed)));
    }
});
