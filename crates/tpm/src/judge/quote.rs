//! Quotes, which show the registers of a TPM: TPMS_ATTEST and TPMT_SIGNATURE. Trusted Platform Module
//! Library, Part 2, sections 10.12 and 11.3.

use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

use crate::wire::{ECDSA, Reader, SHA256};

/// TPM_GENERATED_VALUE: a restricted key does not sign external data that begins with it.
const MAGIC: u32 = 0xff54_4347;
/// TPM_ST_ATTEST_QUOTE.
const QUOTE: u16 = 0x8018;

/// The fields of a quote that are checked.
#[derive(Debug, PartialEq, Eq)]
pub struct Quote<'a> {
    /// The nonce of the request.
    pub extra_data: &'a [u8],
    /// The selected registers of each bank, by the algorithm of the bank (TPM_ALG_ID).
    pub selection: Vec<(u16, Vec<u8>)>,
    /// The digest of the values of the registers.
    pub digest: &'a [u8],
}

impl<'a> Quote<'a> {
    /// Reads a TPMS_ATTEST. None if it is not exactly one quote.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        if rest.u32()? != MAGIC || rest.u16()? != QUOTE {
            return None;
        }
        let _signer = rest.sized()?;
        let extra_data = rest.sized()?;
        let (_clock, _firmware) = (rest.bytes(17)?, rest.bytes(8)?);
        let selection = rest.pcr_selection()?;
        let digest = rest.sized()?;
        rest.is_empty().then_some(Self { extra_data, selection, digest })
    }
}

/// Whether a TPMT_SIGNATURE of a message is valid for a public point of P-256: ECDSA with SHA-256.
pub(crate) fn is_signed(point: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let mut rest = Reader(signature);
    let mut numbers = || {
        let algorithms = (rest.u16()?, rest.u16()?);
        let numbers = [rest.number()?, rest.number()?];
        (algorithms == (ECDSA, SHA256) && rest.is_empty()).then_some(numbers)
    };
    let Some(numbers) = numbers() else { return false };
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, &numbers.concat()).is_ok()
}
