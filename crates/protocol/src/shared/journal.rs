//! How a program knows that its standard error is the journal's (systemd.exec(5), `$JOURNAL_STREAM`).

/// Whether a stream with these numbers of device and inode is the one that `JOURNAL_STREAM` names.
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
