//! Reads bytes from the front, never beyond their end.

/// The bytes that are not read yet.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// A 16 bit number of a TPM structure.
    pub fn be16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A 32 bit number of a TPM structure.
    pub fn be32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The contents of a TPM2B: two bytes of size before them.
    pub fn sized(&mut self) -> Option<&'a [u8]> {
        let length = self.be16()?;
        self.bytes(length.into())
    }

    /// A number of at most 32 bytes in a TPM2B, as 32 bytes. Some TPMs leave leading zeros out.
    pub fn number(&mut self) -> Option<[u8; 32]> {
        let bytes = self.sized()?;
        let mut number = [0; 32];
        number.get_mut(32_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
        Some(number)
    }

    /// A 16 bit number of an event log.
    pub fn le16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A 32 bit number of an event log.
    pub fn le32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
