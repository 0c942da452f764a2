//! What a node is told to do. Written by operators as YAML, sent as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CaptureDisk, Digest, DiskHints, MakeFileSystem, OciReference, Partition, Secret, oci};

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
        Action::Partition(partition) => partition.problems().into_iter().chain(partition.disk.problems(true)).collect(),
        Action::MakeFileSystem(make) => make.problems().into_iter().chain(make.disk.problems(false)).collect(),
        Action::SeedCloudInit(seed) => seed.disk.problems(false),
        Action::KernelArgs(arguments) => {
            let problem = |argument: &String| {
                let problem = kernel_argument_problem(argument)?;
                Some(format!("cannot add the kernel argument {argument:?}: {problem}"))
            };
            arguments.append.iter().filter_map(problem).chain(arguments.disk.problems(false)).collect()
        }
        Action::WriteFile(file) => file.problems(),
        Action::UnpackArchive(archive) => archive.problems(),
        Action::RunInTarget(run) => run.problems(),
        Action::CaptureDisk(capture) => capture.problems(),
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

/// What is wrong with where something is fetched from.
fn source_problem(url: &str, digested: bool) -> Option<String> {
    if url.starts_with("http://") {
        return (!digested).then(|| "fetches over http:// without a digest: give one, or use https://".to_owned());
    }
    url_problem(url)
}

fn image_problems(image: &StreamImage) -> Vec<String> {
    let signature = image.signature.as_ref().map(|signature| &signature.url);
    let places = std::iter::once(&image.url).chain(&image.mirrors);
    let mut problems: Vec<String> = places.filter_map(|url| image_url_problem(url)).collect();
    let urls = [image.sums.as_ref(), image.bmap.as_ref(), signature];
    problems.extend(urls.into_iter().flatten().filter_map(|url| url_problem(url)));
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

/// Why this cannot be the path of a file on a target; nothing if it can. A slash before it changes nothing.
pub fn target_path_problem(path: &str) -> Option<&'static str> {
    match path {
        _ if path.contains('\0') => Some("it has a zero byte"),
        _ if path.split('/').any(|name| name == "..") => Some("it has \"..\", which could lead elsewhere"),
        _ if path.ends_with('/') || path.is_empty() => Some("it names no file"),
        _ => None,
    }
}

/// The mode bits a text of octal digits says, such as `0644`; none if it is no such text.
pub fn file_mode(text: &str) -> Option<u32> {
    let is_octal = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal)?;
    (mode <= 0o7777).then_some(mode)
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
    /// Give the disk a new partition table.
    Partition(Partition),
    /// Make a file system in a partition.
    #[serde(rename = "make-filesystem")]
    MakeFileSystem(MakeFileSystem),
    /// Give the installed system its user-data.
    SeedCloudInit(SeedCloudInit),
    /// Add kernel arguments to the installed system's boot entries.
    KernelArgs(KernelArgs),
    /// Write a file of the installed system.
    WriteFile(WriteFile),
    /// Unpack a tar archive in the installed system.
    UnpackArchive(UnpackArchive),
    /// Run a command in the installed system.
    RunInTarget(RunInTarget),
    /// Store the disk on the server as an image.
    CaptureDisk(CaptureDisk),
    /// Leave for the installed system.
    Reboot(Reboot),
}

impl Action {
    /// The action's name in workflows and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Action::EraseDisk(_) => "erase-disk",
            Action::StreamImage(_) => "stream-image",
            Action::Partition(_) => "partition",
            Action::MakeFileSystem(_) => "make-filesystem",
            Action::SeedCloudInit(_) => "seed-cloud-init",
            Action::KernelArgs(_) => "kernel-args",
            Action::WriteFile(_) => "write-file",
            Action::UnpackArchive(_) => "unpack-archive",
            Action::RunInTarget(_) => "run-in-target",
            Action::CaptureDisk(_) => "capture-disk",
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamImage {
    /// `https://`, `file://`, an absolute path, or an artifact in a registry, `oci://REGISTRY/REPOSITORY:TAG`; `http://` only with
    /// a digest.
    pub url: String,
    /// Login at the registry of an `oci://` artifact; without it, the artifact is pulled anonymously, as it is from mirrors in
    /// other registries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_auth: Option<RegistryAuth>,
    /// Further places of the same bytes, asked in this order when `url` fails or gives something else; of an artifact, the same
    /// in other registries.
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
    /// `https://`, `file://` or absolute path of the block map of the raw image, as `bmaptool create` makes it. What it lists is checked
    /// against its digests; what it leaves out is not written, so that the disk keeps what it held there, but for the ends of the disk
    /// and of each partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmap: Option<String>,
    /// Size of the raw image in bytes, for the progress display; the image may not be larger or smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_size: Option<u64>,
    /// What is checked beside what is written.
    #[serde(default, skip_serializing_if = "Verify::is_none")]
    pub verify: Verify,
    /// CA certificates in PEM to trust for this URL beside the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Which disk.
    #[serde(default)]
    pub disk: DiskHints,
    /// Whether the last partition of the image and the file system in it grow to the end of the disk. Without it the disk
    /// has the image byte for byte, but for the place of the backup partition table.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[cfg_attr(feature = "openapi", schema(default = true))]
    pub grow: bool,
}

impl Default for StreamImage {
    fn default() -> Self {
        Self {
            url: String::new(),
            digest: None,
            raw_digest: None,
            bmap: None,
            raw_size: None,
            registry_auth: None,
            mirrors: Vec::new(),
            sums: None,
            signature: None,
            verify: Verify::None,
            ca: None,
            disk: DiskHints::default(),
            grow: true,
        }
    }
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// How a written disk is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// The disk is believed.
    #[default]
    None,
    /// Everything is read back from the disk, past the page cache, and compared.
    Readback,
}

impl Verify {
    fn is_none(&self) -> bool {
        *self == Verify::None
    }
}

impl StreamImage {
    /// Whether what arrives is checked against a digest or a signature; what is in a registry has its digest there. A block map is
    /// not counted: whether it has digests, and such that prove anything, is known only when it has been read.
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
        if self.bmap.as_ref().is_some_and(|url| url.starts_with("http://")) {
            let danger = "where anybody can have it leave out what is to be written";
            problems.push(format!("fetches the block map over http://, {danger}: use https://"));
        }
        let is_artifact = self.url.starts_with(oci::SCHEME);
        if is_artifact && self.sums.is_some() {
            problems.push("has a list of sums for an OCI artifact, which has its digest in its manifest".to_owned());
        }
        if self.mirrors.iter().any(|mirror| mirror.starts_with(oci::SCHEME) != is_artifact) {
            problems.push("has an OCI artifact and something else for mirrors of each other".to_owned());
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

/// A partition, a user or a group, by its number or by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum NumberOrName {
    /// Its number.
    Number(u32),
    /// Its name.
    Name(String),
}

impl From<&str> for NumberOrName {
    /// As written on a command line, where a number has no other look than a name of digits.
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

/// Inputs of `write-file`: one file, whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// The disk that carries the image.
    #[serde(default)]
    pub disk: DiskHints,
    /// Number of the partition, or its name in the table or the label of its file system. Without it the root file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<NumberOrName>,
    /// Path from the root of that file system.
    pub path: String,
    /// What the file is to hold, as text. One of this, `content_base64` and `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The same for bytes that are no text (RFC 4648, 4); white space does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Where it is fetched from, and written as it comes: `https://`, `file://` or an absolute path; `http://` only with a
    /// digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Digest of what is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// CA certificates in PEM to trust for this URL beside the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// User the file belongs to; a name is one of the file system's own /etc/passwd. Without it that of the file there is, or root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<NumberOrName>,
    /// Group the file belongs to; a name is one of the file system's own /etc/group. Without it that of the file there is, or root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<NumberOrName>,
    /// Mode in octal digits, such as `"0644"`. Without it that of the file there is, or 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Mode in octal digits of the directories above it that have to be made, which are root's. Without it 0755.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir_mode: Option<String>,
}

impl WriteFile {
    /// What is wrong with these inputs, to be read after the name of the step.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.disk.problems(false);
        if let Some(problem) = target_path_problem(&self.path) {
            problems.push(format!("cannot write {:?}: {problem}", self.path));
        }
        let sources = [&self.content, &self.content_base64, &self.url];
        if sources.iter().filter(|source| source.is_some()).count() != 1 {
            problems.push("writes one of content, content_base64 and url: give exactly one".to_owned());
        }
        problems.extend(self.url.iter().filter_map(|url| source_problem(url, self.digest.is_some())));
        if self.url.is_none() && (self.digest.is_some() || self.ca.is_some()) {
            problems.push("has a digest or a ca without a url they are for".to_owned());
        }
        if self.content_base64.as_deref().is_some_and(|text| !is_base64(text)) {
            problems.push("has a content_base64 that is no base64".to_owned());
        }
        for (key, mode) in [("mode", &self.mode), ("dir_mode", &self.dir_mode)] {
            if let Some(mode) = mode.as_ref().filter(|mode| file_mode(mode).is_none()) {
                problems.push(format!("has {mode:?} as its {key}: write octal digits, such as \"0644\""));
            }
        }
        problems
    }
}

/// Whether this is base64 with its padding (RFC 4648, 4), white space aside.
fn is_base64(text: &str) -> bool {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let padding = digits.iter().rev().take_while(|byte| **byte == b'=').count();
    let (value, _) = digits.split_at(digits.len() - padding);
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    digits.len().is_multiple_of(4) && padding <= 2 && value.iter().all(is_digit)
}

/// Inputs of `unpack-archive`: a tar archive, plain or compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UnpackArchive {
    /// The disk that carries the image.
    #[serde(default)]
    pub disk: DiskHints,
    /// Number of the partition, or its name in the table or the label of its file system. Without it the root file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<NumberOrName>,
    /// Directory of that file system it is unpacked in, made if it is not there. Without it the root of the file system.
    #[serde(default)]
    pub directory: String,
    /// `https://`, `file://` or an absolute path; `http://` only with a digest.
    pub url: String,
    /// Digest of the stream as delivered, compressed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// CA certificates in PEM to trust for this URL beside the server's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Whether device nodes of the archive are made; otherwise one is an error.
    #[serde(default)]
    pub devices: bool,
}

impl UnpackArchive {
    /// What is wrong with these inputs, to be read after the name of the step.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.disk.problems(false);
        let directory = self.directory.trim_matches('/');
        if let Some(problem) = target_path_problem(directory).filter(|_| !directory.is_empty()) {
            problems.push(format!("cannot unpack in {:?}: {problem}", self.directory));
        }
        problems.extend(source_problem(&self.url, self.digest.is_some()));
        problems
    }
}

/// Inputs of `run-in-target`: one of `command` and `script`, run as root in the root file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunInTarget {
    /// The disk that carries the image.
    #[serde(default)]
    pub disk: DiskHints,
    /// Program and arguments, a word each. No shell is involved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// What the installed system's `/bin/sh -e` runs; it ends with the first command that fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Variables beside PATH, HOME and LANG.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

impl RunInTarget {
    /// What is wrong with these inputs, to be read after the name of the step.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.disk.problems(false);
        if self.command.is_empty() == self.script.is_none() {
            problems.push("runs one of command and script: give exactly one".to_owned());
        }
        if self.command.first().is_some_and(|program| program.is_empty()) {
            problems.push("has no program as the first word of its command".to_owned());
        }
        if self.command.iter().chain(self.environment.values()).any(|text| text.contains('\0')) {
            problems.push("has a zero byte in its command or environment".to_owned());
        }
        for name in self.environment.keys().filter(|name| name.is_empty() || name.contains(['=', '\0'])) {
            problems.push(format!("has {name:?} in its environment, which is no name of a variable"));
        }
        problems
    }

    /// What is run, in words. Arguments may be secret.
    pub fn describe(&self) -> String {
        self.command.first().map_or_else(|| "the script".to_owned(), Clone::clone)
    }
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
        check(mirrored("oci://r/a:b", None), &["has an OCI artifact and something else for mirrors of each other"]);
        for url in ["", "x", "ftp://s/x", "s/x", "HTTP://s/x", " https://s/x"] {
            let problem =
                format!("fetches {url:?}, which is neither https://, http:// nor file://, nor an absolute path");
            check(stream(url, digest(), None), &[&problem]);
        }
    }

    #[test]
    fn an_image_grows_unless_it_is_told_not_to() {
        let check = |text: &str, expect: bool| {
            let read: StreamImage = serde_json::from_str(text).expect("inputs");
            assert_eq!(read.grow, expect, "{text}");
            let back = serde_json::to_string(&read).expect("JSON");
            assert_eq!(serde_json::from_str::<StreamImage>(&back).expect("the same"), read, "{back}");
        };
        check(r#"{"url": "/x"}"#, true);
        check(r#"{"url": "/x", "grow": true}"#, true);
        check(r#"{"url": "/x", "grow": false}"#, false);
        assert!(StreamImage::default().grow);
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
    fn a_block_map_comes_from_where_it_can_be_believed() {
        let image = |url: &str, bmap: &str| {
            let (url, bmap) = (url.to_owned(), Some(bmap.to_owned()));
            StreamImage { url, bmap, ..StreamImage::default() }
        };
        for bmap in ["https://s/x.bmap", "file:///x.bmap", "/x.bmap"] {
            check(Action::StreamImage(image("/x", bmap)), &[]);
        }
        let clear = "fetches the block map over http://, where anybody can have it leave out what is to be written: use \
                     https://";
        let digest = Digest::new(crate::Algorithm::Sha256, &"a".repeat(64)).ok();
        check(Action::StreamImage(StreamImage { digest, ..image("https://s/x", "http://s/x.bmap") }), &[clear]);
        let unverified = "fetches over http:// without a digest: give one, or use https://";
        check(Action::StreamImage(image("http://s/x", "https://s/x.bmap")), &[unverified]);
        let unknown = "fetches \"x.bmap\", which is neither https://, http:// nor file://, nor an absolute path";
        check(Action::StreamImage(image("/x", "x.bmap")), &[unknown]);
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
        let mirrored = |mirror: &str| StreamImage { mirrors: vec![mirror.to_owned()], ..image("oci://r.example/a:b") };
        check(Action::StreamImage(mirrored("oci://m.example/a:b")), &[]);
        let problem = problem.replace("r.example/a\"", "m.example/a\"");
        check(Action::StreamImage(mirrored("oci://m.example/a")), &[&problem]);
        let more = StreamImage {
            mirrors: vec!["https://m/x".to_owned()],
            sums: Some("https://m/SUMS".to_owned()),
            ..image("oci://r.example/a:b")
        };
        check(
            Action::StreamImage(more),
            &[
                "has a list of sums for an OCI artifact, which has its digest in its manifest",
                "has an OCI artifact and something else for mirrors of each other",
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
    fn a_file_has_one_source_and_a_place_inside_the_target() {
        let file = |path: &str, content: Option<&str>, url: Option<&str>| WriteFile {
            path: path.to_owned(),
            content: content.map(str::to_owned),
            url: url.map(str::to_owned),
            ..WriteFile::default()
        };
        check(Action::WriteFile(file("/etc/motd", Some(""), None)), &[]);
        check(Action::WriteFile(file("etc/a..b", None, Some("https://s/x"))), &[]);
        let one = "writes one of content, content_base64 and url: give exactly one";
        check(Action::WriteFile(file("/a", None, None)), &[one]);
        check(Action::WriteFile(file("/a", Some(""), Some("/x"))), &[one]);
        let clear = "fetches over http:// without a digest: give one, or use https://";
        check(Action::WriteFile(file("/a", None, Some("http://s/x"))), &[clear]);
        for (path, problem) in [
            ("", "it names no file"),
            ("/", "it names no file"),
            ("/etc/", "it names no file"),
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
        let one = "runs one of command and script: give exactly one";
        check(Action::RunInTarget(run(&[], None)), &[one]);
        check(Action::RunInTarget(run(&["a"], Some("b"))), &[one]);
        check(Action::RunInTarget(run(&[""], None)), &["has no program as the first word of its command"]);
        let zero = "has a zero byte in its command or environment";
        check(Action::RunInTarget(run(&["a", "b\0"], None)), &[zero]);
        let environment = BTreeMap::from([("A=B".to_owned(), String::new())]);
        let named = "has \"A=B\" in its environment, which is no name of a variable";
        check(Action::RunInTarget(RunInTarget { environment, ..run(&["a"], None) }), &[named]);
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
