//! What a TPM signs when it is asked for its registers: TPMS_ATTEST of a quote, and TPMT_SIGNATURE. Trusted Platform Module
//! Library, Part 2, sections 10.12 and 11.3.

use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

use crate::keys::{ECDSA, SHA_256};
use crate::reader::Reader;

/// TPM_GENERATED_VALUE: what a restricted key signs from outside must not begin with it.
const MAGIC: u32 = 0xff54_4347;
/// TPM_ST_ATTEST_QUOTE.
const QUOTE: u16 = 0x8018;

/// The fields of a quote that matter here.
#[derive(Debug, PartialEq, Eq)]
pub struct Quote<'a> {
    /// What the one who asked for it has chosen.
    pub extra_data: &'a [u8],
    /// The selected registers of each bank, by the algorithm of the bank (TPM_ALG_ID).
    pub selection: Vec<(u16, Vec<u8>)>,
    /// The digest of the values of the registers.
    pub digest: &'a [u8],
}

impl<'a> Quote<'a> {
    /// Reads a TPMS_ATTEST. None if it is anything else than one quote.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        if rest.be32()? != MAGIC || rest.be16()? != QUOTE {
            return None;
        }
        let _signer = rest.sized()?;
        let extra_data = rest.sized()?;
        let (_clock, _firmware) = (rest.bytes(17)?, rest.bytes(8)?);
        let banks = rest.be32()?;
        let mut selection = Vec::new();
        // Ends with the input at the latest: each bank takes bytes of it.
        for _ in 0..banks {
            let (algorithm, [length]) = (rest.be16()?, rest.array()?);
            selection.push((algorithm, registers(rest.bytes(length.into())?)));
        }
        let digest = rest.sized()?;
        rest.is_empty().then_some(Self { extra_data, selection, digest })
    }
}

/// The numbers of the bits that are set, the lowest bit of the first byte first.
fn registers(bits: &[u8]) -> Vec<u8> {
    (0..=u8::MAX).filter(|at| bits.get(usize::from(at / 8)).is_some_and(|byte| byte >> (at % 8) & 1 != 0)).collect()
}

/// Whether a TPMT_SIGNATURE is that of a point of P-256 over a message, by ECDSA with SHA-256.
pub(crate) fn is_signed(point: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let mut rest = Reader(signature);
    let mut numbers = || {
        let algorithms = (rest.be16()?, rest.be16()?);
        let numbers = [rest.number()?, rest.number()?];
        (algorithms == (ECDSA, SHA_256) && rest.is_empty()).then_some(numbers)
    };
    let Some(numbers) = numbers() else { return false };
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, &numbers.concat()).is_ok()
}
