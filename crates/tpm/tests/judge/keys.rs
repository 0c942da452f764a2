//! Public areas that were made by hand. Those of a TPM are in `swtpm.rs`.

use slipway_tpm::judge::{ChallengeError, Challenger, Endorsement, Keys, Roots, RootsError};

use super::public::{AES_128_CFB, AK, ECDSA_SHA_256, EK, NULL, P256, POINT, ecc, good_ak, good_ek, keys, public, rsa};

#[test]
fn keys_that_could_belong_to_anybody_are_refused_with_the_reason() {
    let point: [&[u8]; 2] = [&POINT[0], &POINT[1]];
    let modulus = [0xff; 256];
    let ek_use = "it must be a restricted decryption key that the TPM made and that cannot leave it";
    let ak_use = "it must be a restricted signing key that the TPM made and that cannot leave it";
    let protection = "it must encrypt with AES-128-CFB and have no signature scheme";
    let signs = "it must sign with ECDSA over P-256 and SHA-256";
    let eks: &[(Vec<u8>, Option<&str>)] = &[
        (good_ek(), None),
        (rsa(2048, 0, &modulus), None),
        (rsa(2048, 65537, &modulus), None),
        // The template H-2: a password may authorize the use of the key.
        (ecc(0x0b, EK | 1 << 6, AES_128_CFB, &[NULL], P256, point), None),
        (rsa(2048, 3, &modulus), Some("its exponent must be 65537")),
        (rsa(1024, 0, &modulus[..128]), Some("an RSA key must have 2048 bits")),
        (rsa(2048, 0, &modulus[1..]), Some("its modulus must have 256 bytes")),
        (rsa(2048, 0, &[0x7f; 256]), Some("its modulus must be an odd number of 2048 bits")),
        (rsa(2048, 0, &[0xfe; 256]), Some("its modulus must be an odd number of 2048 bits")),
        (ecc(0x0c, EK, AES_128_CFB, &[NULL], P256, point), Some("its name algorithm must be SHA-256")),
        (ecc(0x0b, EK & !(1 << 1), AES_128_CFB, &[NULL], P256, point), Some(ek_use)),
        (ecc(0x0b, EK & !(1 << 4), AES_128_CFB, &[NULL], P256, point), Some(ek_use)),
        (ecc(0x0b, EK & !(1 << 5), AES_128_CFB, &[NULL], P256, point), Some(ek_use)),
        (ecc(0x0b, EK & !(1 << 16), AES_128_CFB, &[NULL], P256, point), Some(ek_use)),
        (ecc(0x0b, EK & !(1 << 17), AES_128_CFB, &[NULL], P256, point), Some(ek_use)),
        (ecc(0x0b, EK | 1 << 18, AES_128_CFB, &[NULL], P256, point), Some(ek_use)),
        (ecc(0x0b, EK, &[NULL], &[NULL], P256, point), Some(protection)),
        (ecc(0x0b, EK, AES_128_CFB, ECDSA_SHA_256, P256, point), Some(protection)),
        (
            ecc(0x0b, EK, &[6, 256, 0x43], &[NULL], P256, point),
            Some("its symmetric algorithm must be AES-128-CFB, or none"),
        ),
        (
            ecc(0x0b, EK, &[6, 128, 0x42], &[NULL], P256, point),
            Some("its symmetric algorithm must be AES-128-CFB, or none"),
        ),
        (ecc(0x0b, EK, AES_128_CFB, &[NULL], 4, point), Some("its curve must be P-256")),
        (
            ecc(0x0b, EK, AES_128_CFB, &[NULL], P256, [&[0; 33], &POINT[1]]),
            Some("its coordinates must have at most 32 bytes"),
        ),
        (
            public(0x23, 0x0b, EK, &[AES_128_CFB, &[NULL, P256, 0x20, 0x0b]], &[]),
            Some("its key derivation scheme must be none"),
        ),
        (public(0x25, 0x0b, EK, &[AES_128_CFB, &[NULL]], &[]), Some("it must be an ECC or an RSA key")),
        (good_ek()[..20].to_vec(), Some("it is truncated")),
        ([good_ek(), vec![0]].concat(), Some("more bytes follow it")),
    ];
    let aks: &[(Vec<u8>, Option<&str>)] = &[
        (good_ak(), None),
        (ecc(0x0b, AK & !(1 << 1), &[NULL], ECDSA_SHA_256, P256, point), Some(ak_use)),
        (ecc(0x0b, AK & !(1 << 4), &[NULL], ECDSA_SHA_256, P256, point), Some(ak_use)),
        (ecc(0x0b, AK & !(1 << 5), &[NULL], ECDSA_SHA_256, P256, point), Some(ak_use)),
        (ecc(0x0b, AK & !(1 << 16), &[NULL], ECDSA_SHA_256, P256, point), Some(ak_use)),
        (ecc(0x0b, AK & !(1 << 18), &[NULL], ECDSA_SHA_256, P256, point), Some(ak_use)),
        (ecc(0x0b, AK | 1 << 17, &[NULL], ECDSA_SHA_256, P256, point), Some(ak_use)),
        (ecc(0x0b, AK, &[NULL], &[NULL], P256, point), Some(signs)),
        (ecc(0x0b, AK, AES_128_CFB, ECDSA_SHA_256, P256, point), Some(signs)),
        (ecc(0x0b, AK, &[NULL], &[0x18, 0x0c], P256, point), Some("its scheme must be ECDSA with SHA-256, or none")),
        (ecc(0x0b, AK, &[NULL], &[0x1a, 0x0b], P256, point), Some("its scheme must be ECDSA with SHA-256, or none")),
    ];
    for (ek, reason) in eks {
        let refusal = Keys::parse(&keys(ek.clone(), good_ak())).err();
        assert_eq!(
            refusal.as_ref().map(|refusal| (refusal.key, refusal.reason)),
            reason.map(|reason| ("endorsement key", reason))
        );
    }
    for (ak, reason) in aks {
        let refusal = Keys::parse(&keys(good_ek(), ak.clone())).err();
        assert_eq!(
            refusal.as_ref().map(|refusal| (refusal.key, refusal.reason)),
            reason.map(|reason| ("attestation key", reason))
        );
    }
}

#[test]
fn nothing_is_encrypted_to_what_is_no_point_of_the_curve() {
    let challenger = Challenger::new(&[7; 32]);
    let made = |point| {
        let ek = ecc(0x0b, EK, AES_128_CFB, &[NULL], P256, point);
        challenger.challenge(&Keys::parse(&keys(ek, good_ak())).unwrap(), "key", 0).map(drop)
    };
    assert_eq!(made([&POINT[0], &POINT[1]]), Ok(()));
    assert_eq!(made([&POINT[0], &POINT[0]]), Err(ChallengeError::Encrypt));
    assert_eq!(made([&[], &[]]), Err(ChallengeError::Encrypt));
}

#[test]
fn a_text_without_certificates_has_no_roots() {
    let refusal = |text| Roots::from_pem(text).map(drop).unwrap_err();
    assert!(matches!(refusal("none"), RootsError::Empty));
    let pem = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    assert!(matches!(refusal(pem), RootsError::Unreadable { number: 1 }));
    let keys = Keys::parse(&keys(good_ek(), good_ak())).unwrap();
    assert_eq!(keys.endorsement(&Roots::default(), 0), Endorsement::None);
}
