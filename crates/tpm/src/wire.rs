//! Values in commands and answers (part 2): big-endian, one after the other.

/// Bytes with their length before them. The length of what is too long for any command is wrong.
pub(crate) fn sized(bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes(), bytes].concat()
}

/// Numbers, one after the other.
pub(crate) fn words(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// The unread rest of an answer. Reads beyond its end give `None`.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().copied().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().copied().map(u32::from_be_bytes)
    }

    /// Reads bytes that have their length before them.
    pub(crate) fn sized(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}
