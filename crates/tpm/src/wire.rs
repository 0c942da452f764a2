//! Structures of a TPM that both sides know (Trusted Platform Module Library, part 2). Numbers are big-endian, except
//! in event logs.

/// Algorithms (TPM_ALG_ID, 6.3).
pub const RSA: u16 = 0x0001;
pub const AES: u16 = 0x0006;
pub const SHA256: u16 = 0x000B;
pub const NONE: u16 = 0x0010;
pub const ECDSA: u16 = 0x0018;
pub const ECC: u16 = 0x0023;
pub const CFB: u16 = 0x0043;
/// A curve (TPM_ECC_CURVE, 6.4).
pub const NIST_P256: u16 = 0x0003;

/// Attributes of an object (TPMA_OBJECT, 8.3): fixed to the TPM and to its parent.
pub const FIXED: u32 = 1 << 1 | 1 << 4;
/// Attribute: the TPM itself made the secret part.
pub const MADE_BY_TPM: u32 = 1 << 5;
/// Attribute: the key is used for nothing but its purpose.
pub const RESTRICTED: u32 = 1 << 16;
/// Attributes: the purposes of a key.
pub const DECRYPT: u32 = 1 << 17;
pub const SIGN: u32 = 1 << 18;

/// Type of an event that is not measured (TCG PC Client Platform Firmware Profile, 10.4.1).
pub const EV_NO_ACTION: u32 = 3;
/// Beginning of the data of the first event of a crypto-agile log (10.4.5.1).
pub const SPEC_ID: &[u8] = b"Spec ID Event03\0";

/// Bytes with their length before them, as in a TPM2B. The length is wrong if there are more bytes than a command can
/// have.
pub fn sized(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes(), bytes].concat()
}

/// Encodes numbers one after the other.
pub fn words(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// The bytes that are not read yet. Reads beyond their end give `None`.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The contents of a TPM2B: two bytes of length come first.
    pub fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.bytes(length.into())
    }

    /// The selected registers of each bank, by the algorithm of the bank (TPML_PCR_SELECTION, 10.9.7).
    pub fn pcr_selection(&mut self) -> Option<Vec<(u16, Vec<u8>)>> {
        let banks = self.u32()?;
        let mut selection = Vec::new();
        // Bounded, because the input ends: each bank takes up some of its bytes.
        for _ in 0..banks {
            let (algorithm, length) = (self.u16()?, self.u8()?);
            selection.push((algorithm, registers(self.bytes(length.into())?)));
        }
        Some(selection)
    }
}

/// The numbers of the bits that are set, the lowest bit of the first byte first.
fn registers(bits: &[u8]) -> Vec<u8> {
    (0..=u8::MAX).filter(|at| bits.get(usize::from(at / 8)).is_some_and(|byte| byte >> (at % 8) & 1 != 0)).collect()
}

/// What only the judge reads.
#[cfg(feature = "judge")]
impl Reader<'_> {
    /// A number of at most 32 bytes in a TPM2B, as 32 bytes. Some TPMs leave leading zeros out.
    pub fn number(&mut self) -> Option<[u8; 32]> {
        let bytes = self.sized()?;
        let mut number = [0; 32];
        number.get_mut(32_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
        Some(number)
    }

    /// A 16-bit number of an event log.
    pub fn le16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A 32-bit number of an event log.
    pub fn le32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
