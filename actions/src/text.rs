//! Texts for messages.

/// A size with a binary unit, with one decimal place if it is not exact: `8 GiB`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let (unit, name) = match (0..UNITS.len()).rev().map(|i| (1_u64 << (10 * (i + 1)), UNITS[i])).find(|u| bytes >= u.0)
    {
        Some(unit) => unit,
        None => return format!("{bytes} bytes"),
    };
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        tenth => format!("{}.{tenth} {name}", tenths / 10),
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    slipway_protocol::Failure::of(error).in_one_line()
}

/// A folder with these files, for tests.
#[cfg(test)]
pub(crate) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_have_the_unit_that_fits() {
        for (bytes, expect) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536 * 1024, "1.5 MiB"),
            (8 << 30, "8 GiB"),
            (1_000_204_886_016, "931.5 GiB"),
        ] {
            assert_eq!(super::size(bytes), expect);
        }
    }
}
