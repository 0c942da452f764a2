//! The actions that change the installed system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::origin::{DetachedSignature, Origin, RegistryAuth};
use crate::shared::digest::Digest;
use crate::shared::ssh_key;
use crate::workflow::disk::DiskHints;

/// Returns why this cannot be the path of a file on a target, or nothing if it can. A leading slash makes no
/// difference.
pub fn target_path_problem(path: &str) -> Option<&'static str> {
    match path {
        _ if path.contains('\0') => Some("it has a zero byte"),
        _ if path.split('/').any(|name| name == "..") => Some("it has \"..\", which could lead elsewhere"),
        _ if path.ends_with('/') || path.is_empty() => Some("it does not name a file"),
        _ => None,
    }
}

/// Returns the mode bits of a text of octal digits such as `0644`. None if the text is not octal or is above `7777`.
pub fn file_mode(text: &str) -> Option<u32> {
    let is_octal = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal)?;
    (mode <= 0o7777).then_some(mode)
}

/// A partition, a user or a group, by its number or by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "it must be a number in decimal digits, or a name")]
pub enum NumberOrName {
    /// The number.
    Number(u32),
    /// The name.
    Name(String),
}

impl From<&str> for NumberOrName {
    /// Reads the text as on a command line, where a number looks the same as a name of digits.
    fn from(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Number)
    }
}

impl std::fmt::Display for NumberOrName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NumberOrName::Number(number) => write!(f, "{number}"),
            NumberOrName::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// The options of `write-file`. The action writes one file, whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// Selects the partition, by its number, its name in the partition table, or the label of its file system. Without
    /// it, the root file system is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<NumberOrName>,
    /// The path of the file, from the root of that file system.
    pub path: String,
    /// The content of the file, as text. Give exactly one of `content`, `content_base64` and `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The content of the file in base64 (RFC 4648, section 4), for bytes that are not text. White space is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// The URL of the content, which is written as it arrives: `https://`, `file://`, an absolute path, or an artifact
    /// in a registry, `oci://REGISTRY/REPOSITORY:TAG`. `http://` is allowed only if another option proves what arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The login at the registry of an `oci://` artifact, as for `stream-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_auth: Option<RegistryAuth>,
    /// Further URLs of the same bytes. slipway tries them in this order if `url` fails or delivers something else.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The digest of the download as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The URL of a list of sums as `sha256sum` and similar tools write it, in place of `digest`. The list has the
    /// digest next to the file name at the end of `url`. `http://` is allowed only with a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<String>,
    /// The detached signature. It signs the list of sums if there is one, otherwise the download as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<DetachedSignature>,
    /// CA certificates in PEM to trust for this URL, in addition to the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The user that owns the file: a number, or a name in the file system's own /etc/passwd. Without it, an existing
    /// file keeps its user, and a new file belongs to root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<NumberOrName>,
    /// The group that owns the file: a number, or a name in the file system's own /etc/group. Without it, an existing
    /// file keeps its group, and a new file belongs to root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<NumberOrName>,
    /// The mode of the file in octal digits, such as `"0644"`. Without it, an existing file keeps its mode, and a new
    /// file gets 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The mode of new directories above the file, in octal digits. Without it, they get 0755. New directories belong
    /// to root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir_mode: Option<String>,
}

impl WriteFile {
    /// Returns the source of the content if it is downloaded.
    pub fn origin(&self) -> Option<Origin<'_>> {
        Some(Origin {
            what: "file",
            url: self.url.as_ref()?,
            mirrors: &self.mirrors,
            registry_auth: self.registry_auth.as_ref(),
            digest: self.digest.as_ref(),
            sums: self.sums.as_deref(),
            signature: self.signature.as_ref(),
            ca: self.ca.as_deref(),
        })
    }

    /// Returns whether any key is given that makes sense only for a download.
    fn has_more_than_content(&self) -> bool {
        let proof = self.digest.is_some() || self.sums.is_some() || self.signature.is_some();
        proof || !self.mirrors.is_empty() || self.registry_auth.is_some() || self.ca.is_some()
    }

    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if let Some(problem) = target_path_problem(&self.path) {
            problems.push(format!("cannot write {:?}: {problem}", self.path));
        }
        let sources = [&self.content, &self.content_base64, &self.url];
        if sources.iter().filter(|source| source.is_some()).count() != 1 {
            problems.push("needs one of content, content_base64 and url: give exactly one".to_owned());
        }
        match self.origin() {
            Some(origin) => problems.extend(origin.validate(origin.is_verified())),
            None if self.has_more_than_content() => {
                let keys = "mirrors, a registry_auth, a digest, sums, a signature or a ca";
                problems.push(format!("has {keys} without a url that they apply to"));
            }
            None => {}
        }
        if self.content_base64.as_deref().is_some_and(|text| !is_base64(text)) {
            problems.push("has a content_base64 that is not base64".to_owned());
        }
        for (key, mode) in [("mode", &self.mode), ("dir_mode", &self.dir_mode)] {
            if let Some(mode) = mode.as_ref().filter(|mode| file_mode(mode).is_none()) {
                problems.push(format!("has {mode:?} as its {key}: write octal digits, such as \"0644\""));
            }
        }
        problems
    }
}

/// Returns whether this is base64 with its padding (RFC 4648, section 4), apart from white space.
fn is_base64(text: &str) -> bool {
    ssh_key::is_base64(&text.split_ascii_whitespace().collect::<String>())
}

/// The options of `unpack-archive`. The action unpacks a tar archive, plain or compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UnpackArchive {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// Selects the partition, by its number, its name in the partition table, or the label of its file system. Without
    /// it, the root file system is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<NumberOrName>,
    /// The directory of that file system to unpack into. It is made if it does not exist. Without it, the archive is
    /// unpacked into the root of the file system.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub directory: String,
    /// The URL of the archive: `https://`, `file://`, an absolute path, or an artifact in a registry,
    /// `oci://REGISTRY/REPOSITORY:TAG`. `http://` is allowed only if another option proves what arrives.
    pub url: String,
    /// The login at the registry of an `oci://` artifact, as for `stream-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_auth: Option<RegistryAuth>,
    /// Further URLs of the same bytes. slipway tries them in this order if `url` fails or delivers something else.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The digest of the download as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The URL of a list of sums as `sha256sum` and similar tools write it, in place of `digest`. The list has the
    /// digest next to the file name at the end of `url`. `http://` is allowed only with a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<String>,
    /// The detached signature. It signs the list of sums if there is one, otherwise the download as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<DetachedSignature>,
    /// CA certificates in PEM to trust for this URL, in addition to the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Whether device nodes in the archive are made. Without it, a device node is an error.
    #[serde(default)]
    pub devices: bool,
}

impl UnpackArchive {
    /// Returns the source of the archive.
    pub fn origin(&self) -> Origin<'_> {
        Origin {
            what: "archive",
            url: &self.url,
            mirrors: &self.mirrors,
            registry_auth: self.registry_auth.as_ref(),
            digest: self.digest.as_ref(),
            sums: self.sums.as_deref(),
            signature: self.signature.as_ref(),
            ca: self.ca.as_deref(),
        }
    }

    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        let directory = self.directory.trim_matches('/');
        if let Some(problem) = target_path_problem(directory).filter(|_| !directory.is_empty()) {
            problems.push(format!("cannot unpack in {:?}: {problem}", self.directory));
        }
        let origin = self.origin();
        problems.extend(origin.validate(origin.is_verified()));
        problems
    }
}

/// The options of `run-in-target`. The action runs one of `command` and `script` as root in the root file system. Give
/// exactly one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunInTarget {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The program and its arguments, one word each. No shell is involved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The script that the installed system's `/bin/sh -e` runs. The script ends with the first command that fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Environment variables in addition to PATH, HOME and LANG. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

impl RunInTarget {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if self.command.is_empty() == self.script.is_none() {
            problems.push("needs one of command and script: give exactly one".to_owned());
        }
        if self.command.first().is_some_and(|program| program.is_empty()) {
            problems.push("has no program as the first word of its command".to_owned());
        }
        if self.command.iter().chain(self.environment.values()).any(|text| text.contains('\0')) {
            problems.push("has a zero byte in its command or environment".to_owned());
        }
        for name in self.environment.keys().filter(|name| name.is_empty() || name.contains(['=', '\0'])) {
            problems.push(format!("has {name:?} in its environment, which is not the name of a variable"));
        }
        problems
    }

    /// Returns a short name of the program that runs, in words. It leaves out the arguments, because they may be
    /// secret.
    pub fn describe(&self) -> String {
        self.command.first().map_or_else(|| "the script".to_owned(), Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    #[test]
    fn a_file_has_one_source_and_a_place_inside_the_target() {
        let file = |path: &str, content: Option<&str>, url: Option<&str>| WriteFile {
            path: path.to_owned(),
            content: content.map(str::to_owned),
            url: url.map(str::to_owned),
            ..WriteFile::default()
        };
        check(Action::WriteFile(file("/etc/motd", Some(""), None)), &[]);
        check(Action::WriteFile(file("etc/a..b", None, Some("https://s/x"))), &[]);
        let one = "needs one of content, content_base64 and url: give exactly one";
        check(Action::WriteFile(file("/a", None, None)), &[one]);
        check(Action::WriteFile(file("/a", Some(""), Some("/x"))), &[one]);
        let clear = "fetches over http:// without a digest: give one, or use https://";
        check(Action::WriteFile(file("/a", None, Some("http://s/x"))), &[clear]);
        for (path, problem) in [
            ("", "it does not name a file"),
            ("/", "it does not name a file"),
            ("/etc/", "it does not name a file"),
            ("/etc/../motd", "it has \"..\", which could lead elsewhere"),
            ("/a\0b", "it has a zero byte"),
        ] {
            check(Action::WriteFile(file(path, Some(""), None)), &[&format!("cannot write {path:?}: {problem}")]);
        }
        let mode = |mode: &str| WriteFile { mode: Some(mode.to_owned()), ..file("/a", Some(""), None) };
        check(Action::WriteFile(mode("4755")), &[]);
        for wrong in ["", "+644", "0o644", "888", "10000", "rwx"] {
            let problem = format!("has {wrong:?} as its mode: write octal digits, such as \"0644\"");
            check(Action::WriteFile(mode(wrong)), &[&problem]);
        }
        for (text, is_right) in
            [("", true), ("QUI=\n", true), ("QQ==", true), ("QUI", false), ("Q===", false), ("Q=I=", false)]
        {
            assert_eq!(is_base64(text), is_right, "{text:?}");
        }
        let text = r#"{"write-file": {"path": "/a", "content": "b", "partition": 2, "owner": "www-data"}}"#;
        let read: Action = serde_json::from_str(text).expect("an action");
        let (partition, owner) = (Some(NumberOrName::Number(2)), Some(NumberOrName::from("www-data")));
        assert_eq!(read, Action::WriteFile(WriteFile { partition, owner, ..file("/a", Some("b"), None) }));
    }

    #[test]
    fn an_archive_is_unpacked_inside_the_target() {
        let archive = |directory: &str, url: &str| {
            let (directory, url) = (directory.to_owned(), url.to_owned());
            Action::UnpackArchive(UnpackArchive { directory, url, ..UnpackArchive::default() })
        };
        for directory in ["", "/", "/opt/app/", "opt"] {
            check(archive(directory, "https://s/x.tar"), &[]);
        }
        let elsewhere = "cannot unpack in \"/opt/..\": it has \"..\", which could lead elsewhere";
        check(archive("/opt/..", "https://s/x.tar"), &[elsewhere]);
        let clear = "fetches over http:// without a digest: give one, or use https://";
        check(archive("/", "http://s/x.tar"), &[clear]);
    }

    #[test]
    fn one_thing_is_run_in_the_target() {
        let run = |command: &[&str], script: Option<&str>| RunInTarget {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            script: script.map(str::to_owned),
            ..RunInTarget::default()
        };
        check(Action::RunInTarget(run(&["update-grub"], None)), &[]);
        check(Action::RunInTarget(run(&[], Some("true"))), &[]);
        let one = "needs one of command and script: give exactly one";
        check(Action::RunInTarget(run(&[], None)), &[one]);
        check(Action::RunInTarget(run(&["a"], Some("b"))), &[one]);
        check(Action::RunInTarget(run(&[""], None)), &["has no program as the first word of its command"]);
        let zero = "has a zero byte in its command or environment";
        check(Action::RunInTarget(run(&["a", "b\0"], None)), &[zero]);
        let environment = BTreeMap::from([("A=B".to_owned(), String::new())]);
        let named = "has \"A=B\" in its environment, which is not the name of a variable";
        check(Action::RunInTarget(RunInTarget { environment, ..run(&["a"], None) }), &[named]);
    }
}
