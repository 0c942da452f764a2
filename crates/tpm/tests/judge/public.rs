//! Public areas, made by hand.

use slipway_protocol::node::attestation::{Blob, TpmKeys};

/// TPM_ALG_ID and TPM_ECC_CURVE.
pub const NULL: u16 = 0x10;
pub const AES_128_CFB: &[u16] = &[6, 128, 0x43];
pub const ECDSA_SHA_256: &[u16] = &[0x18, 0x0b];
pub const P256: u16 = 3;

pub const EK: u32 = 0x0003_00b2;
pub const AK: u32 = 0x0005_0072;

/// A point of P-256: its generator.
pub const POINT: [[u8; 32]; 2] = [
    *b"\x6b\x17\xd1\xf2\xe1\x2c\x42\x47\xf8\xbc\xe6\xe5\x63\xa4\x40\xf2\
       \x77\x03\x7d\x81\x2d\xeb\x33\xa0\xf4\xa1\x39\x45\xd8\x98\xc2\x96",
    *b"\x4f\xe3\x42\xe2\xfe\x1a\x7f\x9b\x8e\xe7\xeb\x4a\x7c\x0f\x9e\x16\
       \x2b\xce\x33\x57\x6b\x31\x5e\xce\xcb\xb6\x40\x68\x37\xbf\x51\xf5",
];

/// TPMT_PUBLIC of an ECC key.
pub fn ecc(name: u16, attributes: u32, symmetric: &[u16], scheme: &[u16], curve: u16, point: [&[u8]; 2]) -> Vec<u8> {
    public(0x23, name, attributes, &[symmetric, scheme, &[curve, NULL]], &point.map(sized).concat())
}

pub fn public(kind: u16, name: u16, attributes: u32, parameters: &[&[u16]], rest: &[u8]) -> Vec<u8> {
    let numbers: Vec<u8> = parameters.concat().into_iter().flat_map(u16::to_be_bytes).collect();
    [&kind.to_be_bytes(), &name.to_be_bytes(), &attributes.to_be_bytes()[..], &sized(&[7; 32]), &numbers, rest].concat()
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

pub fn rsa(bits: u16, exponent: u32, modulus: &[u8]) -> Vec<u8> {
    let rest = [&exponent.to_be_bytes(), &sized(modulus)[..]].concat();
    public(1, 0x0b, EK, &[AES_128_CFB, &[NULL], &[bits]], &rest)
}

pub fn good_ek() -> Vec<u8> {
    ecc(0x0b, EK, AES_128_CFB, &[NULL], P256, [&POINT[0], &POINT[1]])
}

pub fn good_ak() -> Vec<u8> {
    ecc(0x0b, AK, &[NULL], ECDSA_SHA_256, P256, [&POINT[0], &POINT[1]])
}

pub fn keys(ek: Vec<u8>, ak: Vec<u8>) -> TpmKeys {
    TpmKeys { ek: Blob(ek), ek_certificate: None, ak: Blob(ak) }
}
