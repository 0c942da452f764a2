//! How a program knows that its standard error goes to the journal (systemd.exec(5), `$JOURNAL_STREAM`).

/// Whether the stream with this device and inode number is the stream that `JOURNAL_STREAM` names.
pub fn is_stream(journal_stream: &str, device: u64, inode: u64) -> bool {
    journal_stream == format!("{device}:{inode}")
}

#[cfg(test)]
mod tests {
    use super::is_stream;

    #[test]
    fn both_numbers_must_match() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["", "8:123", "9:1234", "8:1234:", "8", "1234:8"] {
            assert!(!is_stream(other, 8, 1234), "{other}");
        }
    }
}
