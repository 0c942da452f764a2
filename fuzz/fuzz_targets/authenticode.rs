//! A program verifies only if it is one of `SIGNED`, because no fuzzer finds a valid signature. A program that can be
//! signed verifies afterwards.
#![no_main]

use std::slice::from_ref;
use std::sync::LazyLock;

use slipway_secure_boot::authenticode::{digest, sign, signatures, verify};
use slipway_secure_boot::{Certificate, KeySize, SigningKey};
use time::OffsetDateTime;

/// Programs signed with the key of [`SIGNER`], which nobody has kept. sbsign signed the second.
const SIGNED: [&[u8]; 2] =
    [include_bytes!("../corpus/authenticode/signed"), include_bytes!("../corpus/authenticode/sbsign")];
static SIGNER: LazyLock<Certificate> =
    LazyLock::new(|| Certificate::from_pem(include_str!("../src/signer.pem")).expect("a certificate"));
static KEY: LazyLock<SigningKey> = LazyLock::new(|| {
    let now = OffsetDateTime::UNIX_EPOCH;
    SigningKey::generate(KeySize::Rsa2048, "fuzzing", now, now).expect("a key")
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if verify(input, from_ref(&*SIGNER)).is_ok() {
        let of = |program| digest(program).expect("a program");
        assert!(SIGNED.iter().any(|signed| of(signed) == of(input)));
    }
    if let Ok(signed) = sign(input.to_vec(), &KEY) {
        assert_eq!(signatures(&signed).expect("a program").len(), 1);
        assert_eq!(verify(&signed, from_ref(KEY.certificate())).expect("a signed program"), KEY.certificate());
    }
});
