//! Identification of an installed system (os-release(5)).

/// Paths of the os-release file.
pub(crate) use slipway_formats::roles::OS_RELEASE as PATHS;

use crate::target::root::TargetRoot;

/// An operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OsRelease {
    pub(crate) name: Option<String>,
    /// `ID`, then the words of `ID_LIKE`.
    pub(crate) ids: Vec<String>,
    /// The key by which its entries in a boot menu are sorted, and its version (UAPI.1, "Sorting").
    pub(crate) sort_key: Option<String>,
    pub(crate) version: Option<String>,
}

impl OsRelease {
    /// Reads the file in a root file system; empty if it cannot be read.
    pub(crate) fn of(root: &TargetRoot) -> Self {
        let text = PATHS.iter().find_map(|path| root.read(path).ok().flatten());
        Self::parse(&text.unwrap_or_default())
    }

    pub(crate) fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim().split_once('='));
            let value = lines.find(|(found, _)| *found == key)?.1.trim();
            let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
            let value: String = unquoted.unwrap_or(value).chars().filter(|c| *c != '\\' && !c.is_control()).collect();
            (!value.is_empty()).then_some(value)
        };
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
        let ids = [value("ID"), value("ID_LIKE")].into_iter().flatten().flat_map(words).collect();
        let first = |keys: &[&str]| keys.iter().find_map(|key| value(key));
        let version = first(&["IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID"]);
        Self { name: value("NAME"), ids, sort_key: first(&["IMAGE_ID", "ID"]), version }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_a_shell_would() {
        let text = "PRETTY_NAME=\"x\"\nNAME=\"Debian GNU/Linux\"\nID=debian\nID_LIKE='a b'\nVERSION_ID=\"12\"\n\
                    VERSION=\"12 (bookworm)\"\n";
        let found = OsRelease::parse(text);
        assert_eq!(found.name.as_deref(), Some("Debian GNU/Linux"));
        assert_eq!(found.ids, ["debian", "a", "b"]);
        assert_eq!((found.sort_key.as_deref(), found.version.as_deref()), (Some("debian"), Some("12 (bookworm)")));
        assert_eq!(OsRelease::parse("NAME=\"a\\\"b\u{7}\"\n").name.as_deref(), Some("a\"b"));
        assert_eq!(OsRelease::parse("NAME=\n=x\nNAME"), OsRelease::default());
    }
}
