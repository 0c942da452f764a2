//! Encoding of values in commands and answers (Trusted Platform Module Library, part 2): big-endian, one after the
//! other.

/// Bytes with their length before them.
pub(super) fn sized(bytes: &[u8]) -> Vec<u8> {
    // All values that are sent are made here and are short.
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

/// The unread rest of an answer. Reads beyond its end give `None`.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().copied().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().copied().map(u32::from_be_bytes)
    }

    /// Reads bytes that have their length before them.
    pub(super) fn sized(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}
