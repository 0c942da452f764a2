//! What a node is told to do. Written by operators as YAML, sent as JSON.

use serde::{Deserialize, Serialize};

use crate::{Digest, DiskHints, OciReference, Secret, oci};

/// 200 of `GET /v1/node/workflow`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    /// The run these steps belong to.
    pub run: String,
    /// Sequence number the first event of this agent must have: one more than the highest stored.
    pub next_seq: u64,
    /// In the order they are run.
    pub steps: Vec<Step>,
}

/// Most retries of a step; more would keep a machine that cannot do it busy for good.
const MAX_RETRIES: u32 = 100;

/// What is wrong with these steps, a sentence each; nothing when they can be run. The server asks this before it takes a run
/// and the installer before it begins one, so that what cannot work is found before a disk is erased.
pub fn problems(steps: &[Step]) -> Vec<String> {
    let mut problems = Vec::new();
    if steps.is_empty() {
        problems.push("the workflow has no steps".to_owned());
    }
    for (index, step) in steps.iter().enumerate() {
        let place = format!("step {} ({:?})", index + 1, step.name);
        if step.name.trim().is_empty() {
            problems.push(format!("{place} has no name"));
        }
        if steps.iter().take(index).any(|earlier| earlier.name == step.name) {
            problems.push(format!("{place} has the name of an earlier step"));
        }
        if step.timeout == Some(0) {
            problems.push(format!("{place} has a timeout of 0 seconds: leave it out for no limit"));
        }
        if step.retries > MAX_RETRIES {
            problems.push(format!("{place} has {} retries: at most {MAX_RETRIES}", step.retries));
        }
        if matches!(step.action, Action::Reboot(_)) && index + 1 < steps.len() {
            problems.push(format!("{place} reboots, and {} more steps follow", steps.len() - index - 1));
        }
        problems.extend(action_problems(&step.action).into_iter().map(|problem| format!("{place} {problem}")));
    }
    problems
}

/// What is wrong with one action by itself, to be read after the name of its step.
fn action_problems(action: &Action) -> Vec<String> {
    match action {
        Action::EraseDisk(erase) => erase.disk.problems(true).into_iter().chain(fallback_problems(erase)).collect(),
        Action::StreamImage(image) => image_problems(image),
        Action::SeedCloudInit(seed) => seed.disk.problems(false),
        Action::KernelArgs(arguments) => {
            let problem = |argument: &String| {
                let problem = kernel_argument_problem(argument)?;
                Some(format!("cannot add the kernel argument {argument:?}: {problem}"))
            };
            arguments.append.iter().filter_map(problem).chain(arguments.disk.problems(false)).collect()
        }
        Action::Reboot(_) => Vec::new(),
    }
}

/// A way to erase that is never come to is a mistake about what the disk will be like afterwards.
fn fallback_problems(erase: &EraseDisk) -> Vec<String> {
    let mut problems = Vec::new();
    let mut tried = vec![erase.mode];
    for mode in &erase.fallback {
        if let Some(sure) = tried.iter().find(|mode| matches!(mode, EraseMode::Zero | EraseMode::Metadata)) {
            problems.push(format!("falls back from {sure} to {mode}, which never happens: every disk can do {sure}"));
        } else if tried.contains(mode) {
            problems.push(format!("falls back to {mode}, which was tried before"));
        }
        tried.push(*mode);
    }
    problems
}

fn image_problems(image: &StreamImage) -> Vec<String> {
    let signature = image.signature.as_ref().map(|signature| &signature.url);
    let urls = [image.sums.as_ref(), signature].into_iter().flatten().chain(&image.mirrors);
    let mut problems: Vec<String> = image_url_problem(&image.url).into_iter().collect();
    problems.extend(urls.filter_map(|url| url_problem(url)));
    problems.extend(image.source_problems());
    problems.extend(image.disk.problems(false));
    problems
}

fn image_url_problem(url: &str) -> Option<String> {
    if !url.starts_with(oci::SCHEME) {
        return url_problem(url);
    }
    let error = url.parse::<OciReference>().err()?;
    Some(format!("fetches {url:?}: {error}"))
}

fn url_problem(url: &str) -> Option<String> {
    let known = ["https://", "http://", "file://", "/"].iter().any(|start| url.starts_with(start));
    (!known).then(|| format!("fetches {url:?}, which is neither https://, http:// nor file://, nor an absolute path"))
}

/// Why this cannot be one argument of a kernel command line; nothing if it can. The kernel splits its command line at white
/// space outside double quotes (lib/cmdline.c, next_arg).
pub fn kernel_argument_problem(argument: &str) -> Option<&'static str> {
    if argument.is_empty() {
        return Some("it is empty");
    }
    if argument.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    let mut quoted = false;
    for c in argument.chars() {
        quoted ^= c == '"';
        if c.is_whitespace() && !quoted {
            return Some("it has a space outside double quotes; give each argument by itself");
        }
    }
    quoted.then_some("it has a double quote without its partner")
}

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Shown to operators; unique in its workflow.
    pub name: String,
    /// What is done.
    pub action: Action,
    /// How often the action is tried again after a failure that may pass.
    #[serde(default)]
    pub retries: u32,
    /// Seconds one attempt may take; without it the action has no limit but its own stall detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// The closed set of actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Take away what is on the disk.
    EraseDisk(EraseDisk),
    /// Put an image on the disk.
    StreamImage(StreamImage),
    /// Give the installed system its user-data.
    SeedCloudInit(SeedCloudInit),
    /// Add kernel arguments to the installed system's boot entries.
    KernelArgs(KernelArgs),
    /// Leave for the installed system.
    Reboot(Reboot),
}

impl Action {
    /// The action's name in workflows and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Action::EraseDisk(_) => "erase-disk",
            Action::StreamImage(_) => "stream-image",
            Action::SeedCloudInit(_) => "seed-cloud-init",
            Action::KernelArgs(_) => "kernel-args",
            Action::Reboot(_) => "reboot",
        }
    }
}

/// Inputs of `erase-disk`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EraseDisk {
    /// Which disk.
    #[serde(default)]
    pub disk: DiskHints,
    /// How thoroughly.
    #[serde(default)]
    pub mode: EraseMode,
    /// What is done instead where the disk cannot do `mode`, in the order it is tried. Empty: the step fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<EraseMode>,
}

/// How thoroughly a disk is erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EraseMode {
    /// Head, tail and every partition's signatures: nothing is recognised afterwards, data can be recovered.
    #[default]
    Metadata,
    /// The disk is told that it may forget every block. Most flash then reads as zeros; what its chips hold is up to it.
    Discard,
    /// Every byte is written with zeros. Spare blocks of flash keep what they held.
    Zero,
    /// The disk's own command that erases all its media: NVMe sanitize or format, ATA secure erase, eMMC secure discard.
    Secure,
}

impl std::fmt::Display for EraseMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EraseMode::Metadata => "metadata",
            EraseMode::Discard => "discard",
            EraseMode::Zero => "zero",
            EraseMode::Secure => "secure",
        })
    }
}

/// Inputs of `stream-image`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamImage {
    /// `https://`, `file://`, an absolute path, or an artifact in a registry, `oci://REGISTRY/REPOSITORY:TAG`; `http://` only with
    /// a digest.
    pub url: String,
    /// Login at the registry of an `oci://` artifact; without it, the artifact is pulled anonymously.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_auth: Option<RegistryAuth>,
    /// Further places of the same bytes, asked in this order when `url` fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Digest of the stream as delivered, compressed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// In place of `digest`: where a list of sums is, as `sha256sum` and its kin write it, that has the digest beside the last
    /// part of `url`. `http://` only with a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<String>,
    /// Detached signature of the list of sums where there is one, else of the stream as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<DetachedSignature>,
    /// Digest of the raw image, after decompression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_digest: Option<Digest>,
    /// Size of the raw image in bytes, for the progress display; the image may not be larger or smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_size: Option<u64>,
    /// CA certificates in PEM to trust for this URL beside the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Which disk.
    #[serde(default)]
    pub disk: DiskHints,
}

impl StreamImage {
    /// Whether what arrives is checked against a digest or a signature; what is in a registry has its digest there.
    pub fn is_verified(&self) -> bool {
        let by_manifest = self.url.starts_with(oci::SCHEME);
        let by_digest = self.digest.is_some() || self.raw_digest.is_some() || self.sums.is_some();
        by_manifest || by_digest || self.signature.is_some()
    }

    /// What does not go together in where the image comes from and how it is verified, to be read after the name of the step.
    /// Has no URL in it, which may hold a secret.
    pub fn source_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let in_the_clear = std::iter::once(&self.url).chain(&self.mirrors).any(|url| url.starts_with("http://"));
        if in_the_clear && !self.is_verified() {
            problems.push("fetches over http:// without a digest: give one, or use https://".to_owned());
        }
        if self.digest.is_some() && self.sums.is_some() {
            problems.push("has a digest and a list of sums: give the one or the other".to_owned());
        }
        if self.sums.as_ref().is_some_and(|url| url.starts_with("http://")) && self.signature.is_none() {
            let remedy = "give its signature, or use https://";
            problems.push(format!("fetches the list of sums over http:// without a signature: {remedy}"));
        }
        let is_artifact = self.url.starts_with(oci::SCHEME);
        if is_artifact && self.sums.is_some() {
            problems.push("has a list of sums for an OCI artifact, which has its digest in its manifest".to_owned());
        }
        if is_artifact && !self.mirrors.is_empty() {
            problems.push("has mirrors of an OCI artifact: name one registry, and no mirrors".to_owned());
        }
        if !is_artifact && self.registry_auth.is_some() {
            problems.push("has a login at a registry, and its url is not oci://".to_owned());
        }
        problems
    }
}

/// A login at a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RegistryAuth {
    /// Name of the user, without a colon.
    pub username: String,
    /// Password, or a token in its place.
    pub password: Secret,
}

/// A signature in a file of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DetachedSignature {
    /// Where it is: of minisign where the key is, else 64 bytes of Ed25519, raw or in base64. `http://` will do.
    pub url: String,
    /// Key to verify it with: a public key of minisign, or one of Ed25519 as PEM, base64 or hexadecimal digits.
    pub public_key: String,
}

/// Inputs of `seed-cloud-init`: a NoCloud seed in the root file system of the installed image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SeedCloudInit {
    /// The disk that carries the image.
    #[serde(default)]
    pub disk: DiskHints,
    /// `instance-id` of the meta-data. cloud-init runs once for each; a new run needs a new one.
    pub instance_id: String,
    /// `local-hostname` of the meta-data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// User-data as the operator wrote it.
    #[serde(default)]
    pub user_data: String,
    /// Vendor-data: what the site adds below the user's own; its keys yield to the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_data: Option<String>,
    /// Network configuration, version 1 or 2, as YAML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<String>,
    /// Have the installed system report that it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home: Option<PhoneHome>,
}

/// The `phone_home` block put into the user-data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PhoneHome {
    /// Where cloud-init posts to.
    pub url: String,
    /// How often it tries, 3 s apart; cloud-init's own default is 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
}

/// Inputs of `kernel-args`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelArgs {
    /// The disk that carries the image.
    #[serde(default)]
    pub disk: DiskHints,
    /// Arguments to have at the end of the command line, each once.
    pub append: Vec<String>,
}

/// Inputs of `reboot`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reboot {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reboot(name: &str) -> Step {
        Step { name: name.to_owned(), action: Action::Reboot(Reboot {}), retries: 0, timeout: None }
    }

    #[test]
    fn a_workflow_that_cannot_be_run_is_told_why() {
        assert_eq!(problems(&[]), ["the workflow has no steps"]);
        assert_eq!(problems(&[reboot("a")]), [""; 0]);
        assert_eq!(
            problems(&[reboot("a"), reboot("a")]),
            ["step 1 (\"a\") reboots, and 1 more steps follow", "step 2 (\"a\") has the name of an earlier step"]
        );
        let never = Step { timeout: Some(0), ..reboot("a") };
        assert_eq!(problems(&[never]), ["step 1 (\"a\") has a timeout of 0 seconds: leave it out for no limit"]);
    }

    /// The problems of one step with this action.
    fn check(action: Action, expect: &[&str]) {
        let step = Step { action, ..reboot("a") };
        let expect: Vec<String> = expect.iter().map(|problem| format!("step 1 (\"a\") {problem}")).collect();
        assert_eq!(problems(std::slice::from_ref(&step)), expect, "{step:?}");
    }

    #[test]
    fn names_and_retries_have_bounds() {
        assert_eq!(problems(&[reboot(" ")]), ["step 1 (\" \") has no name"]);
        let stubborn = |retries| Step { retries, ..reboot("a") };
        assert_eq!(problems(&[stubborn(100)]), [""; 0]);
        assert_eq!(problems(&[stubborn(101)]), ["step 1 (\"a\") has 101 retries: at most 100"]);
    }

    #[test]
    fn an_image_comes_from_where_it_can_be_fetched_and_checked() {
        let digest = || Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        let stream = |url: &str, digest, raw_digest| {
            Action::StreamImage(StreamImage { url: url.to_owned(), digest, raw_digest, ..StreamImage::default() })
        };
        for url in ["https://s/x", "file:///x", "/x"] {
            check(stream(url, None, None), &[]);
        }
        check(stream("http://s/x", digest(), None), &[]);
        check(stream("http://s/x", None, digest()), &[]);
        let clear = "fetches over http:// without a digest: give one, or use https://";
        check(stream("http://s/x", None, None), &[clear]);
        let mirrored = |mirror: &str, digest| {
            let mirrors = vec!["https://m/x".to_owned(), mirror.to_owned()];
            Action::StreamImage(StreamImage { url: "/x".to_owned(), mirrors, digest, ..StreamImage::default() })
        };
        check(mirrored("http://s/x", digest()), &[]);
        check(mirrored("http://s/x", None), &[clear]);
        let unknown = "fetches \"s/x\", which is neither https://, http:// nor file://, nor an absolute path";
        check(mirrored("s/x", None), &[unknown]);
        for url in ["", "x", "ftp://s/x", "s/x", "HTTP://s/x", " https://s/x"] {
            let problem =
                format!("fetches {url:?}, which is neither https://, http:// nor file://, nor an absolute path");
            check(stream(url, digest(), None), &[&problem]);
        }
    }

    #[test]
    fn an_image_is_verified_by_what_can_be_believed() {
        let image = |url: &str, sums: Option<&str>, signed: bool| StreamImage {
            url: url.to_owned(),
            sums: sums.map(str::to_owned),
            signature: signed
                .then(|| DetachedSignature { url: "http://s/sig".to_owned(), ..DetachedSignature::default() }),
            ..StreamImage::default()
        };
        for sums in ["https://s/SUMS", "file:///SUMS", "/SUMS"] {
            check(Action::StreamImage(image("http://s/x", Some(sums), false)), &[]);
        }
        check(Action::StreamImage(image("http://s/x", Some("http://s/SUMS"), true)), &[]);
        check(Action::StreamImage(image("http://s/x", None, true)), &[]);
        let unsigned = "fetches the list of sums over http:// without a signature: give its signature, or use https://";
        check(Action::StreamImage(image("https://s/x", Some("http://s/SUMS"), false)), &[unsigned]);
        let digest = Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        let both = StreamImage { digest, ..image("https://s/x", Some("https://s/SUMS"), false) };
        check(Action::StreamImage(both), &["has a digest and a list of sums: give the one or the other"]);
        let unknown = "fetches \"SUMS\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(image("https://s/x", Some("SUMS"), false)), &[unknown]);
    }

    #[test]
    fn an_artifact_in_a_registry_is_named_by_tag_or_digest() {
        let image = |url: &str| StreamImage { url: url.to_owned(), ..StreamImage::default() };
        check(Action::StreamImage(image("oci://r.example/a:b")), &[]);
        let problem = "fetches \"oci://r.example/a\": it has neither tag nor digest; an artifact is \
                       oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:HEX";
        check(Action::StreamImage(image("oci://r.example/a")), &[problem]);
        let login = || Some(RegistryAuth { username: "u".to_owned(), password: Secret::from("hidden".to_owned()) });
        let with_login = StreamImage { registry_auth: login(), ..image("oci://r.example/a:b") };
        assert!(!format!("{with_login:?}").contains("hidden"));
        check(Action::StreamImage(with_login), &[]);
        let elsewhere = StreamImage { registry_auth: login(), ..image("https://r.example/a:b") };
        check(Action::StreamImage(elsewhere), &["has a login at a registry, and its url is not oci://"]);
        let more = StreamImage {
            mirrors: vec!["https://m/x".to_owned()],
            sums: Some("https://m/SUMS".to_owned()),
            ..image("oci://r.example/a:b")
        };
        check(
            Action::StreamImage(more),
            &[
                "has a list of sums for an OCI artifact, which has its digest in its manifest",
                "has mirrors of an OCI artifact: name one registry, and no mirrors",
            ],
        );
    }

    #[test]
    fn every_way_to_erase_that_is_named_can_be_come_to() {
        use EraseMode::{Discard, Metadata, Secure, Zero};
        let erase = |mode, fallback: &[EraseMode]| {
            Action::EraseDisk(EraseDisk { mode, fallback: fallback.to_vec(), ..EraseDisk::default() })
        };
        check(erase(Metadata, &[]), &[]);
        check(erase(Secure, &[Discard, Zero]), &[]);
        check(erase(Discard, &[Metadata]), &[]);
        check(erase(Secure, &[Secure]), &["falls back to secure, which was tried before"]);
        let never = "falls back from zero to discard, which never happens: every disk can do zero";
        check(erase(Zero, &[Discard]), &[never]);
        check(erase(Secure, &[Zero, Discard]), &[never]);
        let text = r#"{"erase-disk": {"mode": "secure", "fallback": ["discard", "metadata"]}}"#;
        let read: Action = serde_json::from_str(text).expect("an action");
        assert_eq!(read, erase(Secure, &[Discard, Metadata]));
    }

    #[test]
    fn a_kernel_argument_is_one_word() {
        let append = |arguments: &[&str]| {
            let append = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            Action::KernelArgs(KernelArgs { disk: DiskHints::default(), append })
        };
        check(append(&["quiet", "root=UUID=a=b", "dyndbg=\"file a.c +p\""]), &[]);
        let space = "it has a space outside double quotes; give each argument by itself";
        check(
            append(&["", "quiet splash", "a\nb", "a=\"b"]),
            &[
                "cannot add the kernel argument \"\": it is empty",
                &format!("cannot add the kernel argument \"quiet splash\": {space}"),
                "cannot add the kernel argument \"a\\nb\": it has a control character",
                "cannot add the kernel argument \"a=\\\"b\": it has a double quote without its partner",
            ],
        );
        for argument in [" quiet", "quiet ", "\"a b\" c"] {
            assert_eq!(kernel_argument_problem(argument), Some(space), "{argument:?}");
        }
    }

    #[test]
    fn hints_that_could_never_be_followed_are_told() {
        let erase = |disk| Action::EraseDisk(EraseDisk { disk, ..EraseDisk::default() });
        let args = |disk| Action::KernelArgs(KernelArgs { disk, append: Vec::new() });
        let read = |json: &str| serde_json::from_str::<DiskHints>(json).expect(json);
        let skipping = read(r#"{"choose": "all", "skip": [{"tran": "usb"}, {"name": "/dev/disk/by-path/pci-1"}]}"#);
        check(erase(skipping.clone()), &[]);
        check(args(skipping), &["takes one disk: it cannot choose all"]);
        check(erase(read(r#"{"skip": [{}]}"#)), &["skips every disk: a hint in skip is empty"]);
        let not_in_skip = "has device, choose or skip in a hint in skip; name is for a path";
        for skip in [r#"{"device": "/dev/sda"}"#, r#"{"choose": "all"}"#, r#"{"skip": [{"tran": "usb"}]}"#] {
            check(args(read(&format!(r#"{{"skip": [{skip}]}}"#))), &[not_in_skip]);
        }
        let link = "names a disk by \"/dev/disk/by-id/x\": name takes kernel paths and links under /dev/disk/by-path/";
        check(args(read(r#"{"name": "<or> /dev/sda <or> /dev/disk/by-id/X"}"#)), &[link]);
        check(erase(read(r#"{"skip": [{"name": "s== /dev/disk/by-id/x"}]}"#)), &[link]);
    }

    #[test]
    fn a_misspelt_key_is_an_error() {
        let text = r#"{"stream-image": {"url": "https://s/x", "sha265": "00"}}"#;
        let error = serde_json::from_str::<Action>(text).expect_err("misspelt");
        assert!(error.to_string().contains("unknown field `sha265`"), "{error}");
    }
}
