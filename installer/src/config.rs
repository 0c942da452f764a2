//! The configuration a machine needs for its first request: where the server is and how to verify it.
//!
//! Five sources; later ones override earlier ones: the file in the initramfs, the settings of one machine on the
//! medium, SMBIOS OEM strings (type 11, `slipway.KEY=VALUE`), QEMU's fw_cfg (`opt/slipway/KEY`), the kernel command
//! line (`slipway.KEY=VALUE`). All have the same keys. Under Secure Boot, only the file in the initramfs says where the
//! server is and what to trust, because the boot image's signature covers no other source. If no source has a server,
//! the machine uses the server that the boot image was loaded from over HTTPS.
//!
//! If there is no such server either, and the file in the initramfs has the key `metadata`, the machine asks the places
//! that the key lists: a config drive, and the metadata services of clouds ([`crate::metadata`]). They say where the
//! server is, and may have a bootstrap token, which counts if no source has one. Nothing else of them counts. So they
//! need no trust, also under Secure Boot: the server must have a certificate of the CA that the medium names.

mod loaded;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::de::value::{Error as Wrong, MapDeserializer};
use serde::{Deserialize as _, Serialize};
use slipway_protocol::node::boot_settings;
use slipway_protocol::shared::given::is_blank;
use slipway_protocol::{BootSettings, MachineSettings, MetadataSource, Proof};
use slipway_user_data::Refusal;

use crate::discover::{self, Roots};
use crate::drivers::command_line;

pub use self::loaded::{Loaded, Metadata};

/// Path of the configuration in the initramfs.
pub const BAKED: &str = "/etc/slipway/config.yaml";
/// Path of the settings of one machine, which systemd's stub takes from the medium (systemd-stub(7)).
pub(crate) const OF_MACHINE: &str = "/.extra/global_credentials/slipway.cred";
/// Name of a source, for messages.
const COMMAND_LINE: &str = "the kernel command line";
const LOADER: &str = "the URL that the boot image was loaded from";
/// Largest value from any source, in bytes. A CA bundle of a hundred certificates fits.
const LARGEST: u64 = 1 << 20;

/// The merged configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Base URL of the server, `https` only.
    pub server: Url,
    /// PEM certificates of CAs that may sign the server's certificate. Nothing else is trusted.
    pub ca: String,
    /// What the machine must have before it sends anything to the server.
    pub require: Proof,
    /// Settings that may differ from machine to machine. If they have no proxy, the proxy in the environment is used,
    /// but PID 1 sets none there.
    pub machine: MachineSettings,
}

impl Config {
    /// A configuration with only the server's URL and CA.
    pub fn new(server: Url, ca: String) -> Self {
        Self { server, ca, require: Proof::default(), machine: MachineSettings::default() }
    }
}

/// The values of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Name of the source, for messages.
    pub place: String,
    /// Keys without the `slipway.` prefix.
    pub values: BTreeMap<String, String>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ConfigError {
    /// The file is not YAML, or not a mapping of strings to strings.
    #[error("reading the configuration in {place}")]
    Syntax {
        place: String,
        /// The cause, with line and column.
        source: Refusal,
    },
    /// A source exists but cannot be read.
    #[error("reading the configuration in {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A required key is missing.
    #[error("no {key} is configured: set `{key}:` in {BAKED} or slipway.{key}= on the kernel command line")]
    Missing { key: &'static str },
    /// The medium requires a bootstrap token.
    #[error(
        "{place} requires a bootstrap token (require: token), and there is none, so nothing is sent to the server: set \
         `token:` in {BAKED} or in the settings of the machine, or slipway.token in fw_cfg or in allowed metadata"
    )]
    NoToken { place: String },
    /// A key has no value.
    #[error("{key} from {place} has no value: leave the key out, or give it one")]
    NoValue { key: String, place: String },
    /// One source gives a key two values.
    #[error("{key} is given twice in {place}, with different values: leave one of them out")]
    Twice { key: String, place: String },
    /// A value is invalid.
    #[error("{key} from {place} is {value:?}, which {wrong}")]
    Value {
        key: String,
        place: String,
        value: String,
        /// What is wrong and what would be right.
        wrong: String,
    },
}

/// Reads and merges every source of this machine but metadata.
pub fn load() -> Result<Loaded, ConfigError> {
    let root = Path::new("/");
    let baked = root.join(BAKED.trim_start_matches('/'));
    let mut sources = Vec::from_iter(from_loader(&Roots::default()));
    if let Some(text) = read_if_there(&baked)? {
        sources.push(from_yaml(BAKED, &text)?);
    }
    if let Some(text) = read_if_there(&root.join(OF_MACHINE.trim_start_matches('/')))? {
        sources.push(from_yaml(OF_MACHINE, &text)?);
    }
    // Only root can read the table. A machine without SMBIOS has none.
    let table = std::fs::read(root.join("sys/firmware/dmi/tables/DMI")).unwrap_or_default();
    sources.push(from_words("the SMBIOS OEM strings", &crate::discover::oem_strings::parse(&table))?);
    sources.push(from_fw_cfg(&root.join("sys/firmware/qemu_fw_cfg/by_name/opt/slipway")));
    if let Some(text) = read_if_there(&root.join("proc/cmdline"))? {
        sources.push(from_command_line(&text)?);
    }
    // A file with all modes, the current one in brackets (security/lockdown/lockdown.c). Secure Boot locks the kernel
    // down.
    let lockdown = std::fs::read_to_string(root.join("sys/kernel/security/lockdown")).unwrap_or_default();
    Loaded::of(sources, lockdown.contains('[') && !lockdown.contains("[none]"))
}

fn read_if_there(path: &Path) -> Result<Option<String>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// Returns the server that the boot image was loaded from, by whatever loader. The loader need not be trusted: the
/// server must present a certificate of the configured CA.
pub fn from_loader(roots: &Roots) -> Option<Source> {
    let server = discover::server_of_loader(roots)?;
    Some(Source { place: LOADER.to_owned(), values: BTreeMap::from([("server".to_owned(), server)]) })
}

/// Reads a YAML mapping of strings to strings.
pub fn from_yaml(place: &str, text: &str) -> Result<Source, ConfigError> {
    let values = yaml::parse(text).map_err(|source| ConfigError::Syntax { place: place.to_owned(), source })?;
    Ok(Source { place: place.to_owned(), values })
}

/// Reads the mapping of strings to strings below one key of a YAML mapping. None if there is no such key. What the
/// other keys have does not matter.
pub(crate) fn from_yaml_below(key: &str, text: &str) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    yaml::parse_below(key, text)
}

/// Reads `slipway.KEY=VALUE` words. Only the first `=` separates. A key with two values is refused.
pub fn from_command_line(text: &str) -> Result<Source, ConfigError> {
    let words: Vec<String> = command_line::words(text).map(|word| word.replace('"', "")).collect();
    from_words(COMMAND_LINE, &words)
}

fn from_words(place: &str, words: &[String]) -> Result<Source, ConfigError> {
    let mut source = Source { place: place.to_owned(), values: BTreeMap::new() };
    let known = keys_of::<BootSettings>();
    for (key, value) in words.iter().filter_map(|word| key_and_value(word)) {
        match source.values.insert(key.clone(), value.clone()) {
            // Loaders may add words that are there already.
            Some(earlier) if earlier != value && known.contains(&key) => {
                return Err(ConfigError::Twice { key, place: source.place });
            }
            _ => {}
        }
    }
    Ok(source)
}

/// Returns the names of the settings. The JSON of the type has every name, whether the setting has a value or not.
fn keys_of<T: Default + Serialize>() -> BTreeSet<String> {
    let json = serde_json::to_value(T::default()).unwrap_or_default();
    json.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}

/// Returns the key of a setting that slipway knows.
pub(crate) fn known_key(key: &str) -> Option<String> {
    keys_of::<BootSettings>().take(key)
}

fn key_and_value(word: &str) -> Option<(String, String)> {
    let word = word.strip_prefix("slipway.")?;
    // Without "=", the key has no value.
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    Some((key.to_owned(), value.to_owned()))
}

fn from_fw_cfg(folder: &Path) -> Source {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let value = |entry: std::fs::DirEntry| {
        use std::io::Read;
        let mut text = String::new();
        let raw = std::fs::File::open(entry.path().join("raw")).ok()?;
        raw.take(LARGEST).read_to_string(&mut text).ok()?;
        Some((entry.file_name().into_string().ok()?, text.trim_end_matches(['\n', '\0']).to_owned()))
    };
    Source { place: "fw_cfg opt/slipway".to_owned(), values: entries.filter_map(value).collect() }
}

/// Merges the sources, later ones over earlier ones. On a machine that is locked down, and on one whose boot image
/// requires a TPM, only the file in the initramfs says where the server is, what to trust and what to require. Only
/// that file allows metadata. The strings are warnings for the operator.
pub fn merge(sources: &[Source], is_locked_down: bool) -> Result<(Config, Vec<String>), ConfigError> {
    let Settled { settings, found, warnings } = settle(sources, is_locked_down)?;
    let BootSettings { server, ca, require, metadata: _, machine } = settings;
    let server = server.ok_or(ConfigError::Missing { key: "server" })?;
    if let (Proof::Token, None, Some((place, _))) = (require, &machine.token, found.get("require")) {
        return Err(ConfigError::NoToken { place: (*place).to_owned() });
    }
    let server = server.parse().map_err(|error| {
        wrong(&found, "server", boot_settings::shortened(&server), format!("is not a valid URL ({error})"))
    })?;
    Ok((Config { server, ca, require, machine }, warnings))
}

/// The place and the value of each key.
type Found<'a> = BTreeMap<&'a str, (&'a str, &'a str)>;

/// Merged and checked settings, which may lack the server if metadata may name it.
struct Settled<'a> {
    settings: BootSettings,
    found: Found<'a>,
    warnings: Vec<String>,
}

fn settle(sources: &[Source], is_locked_down: bool) -> Result<Settled<'_>, ConfigError> {
    let known = keys_of::<BootSettings>();
    let rules = Rules::of(sources, is_locked_down);
    let mut warnings = Vec::new();
    let mut found = Found::new();
    for source in sources {
        for (key, value) in &source.values {
            // The code that lists disks and the one that draws the screen read these keys, before there is a
            // configuration.
            if matches!(key.as_str(), "boot_medium" | "screen") && source.place == COMMAND_LINE {
                continue;
            }
            if !known.contains(key) {
                warnings.push(format!("{} sets {key:?}, which slipway does not know", source.place));
                continue;
            }
            if let Some(why) = rules.why_ignored(key, &source.place) {
                warnings.push(format!("{} sets {key:?}, which is ignored: {why}", source.place));
                continue;
            }
            if is_blank(value) {
                return Err(ConfigError::NoValue { key: key.clone(), place: source.place.clone() });
            }
            if key == "token" && source.place == COMMAND_LINE {
                warnings.push(format!(
                    "the bootstrap token is on {}, where every program can read it: put it into {BAKED} or fw_cfg",
                    source.place
                ));
            }
            found.insert(key, (&source.place, value));
        }
    }
    let is_missing = |key: &&str| !found.contains_key(key) && (*key != "server" || !found.contains_key("metadata"));
    if let Some(key) = ["server", "ca"].into_iter().find(is_missing) {
        return Err(ConfigError::Missing { key });
    }
    let mut settings = read(&found)?;
    if let (None, Some((place, _))) = (&settings.machine.proxy, found.get("no_proxy")) {
        warnings.push(format!("{place} sets \"no_proxy\", which has no effect without \"proxy\""));
        settings.machine.no_proxy = None;
    }
    settings.check().map_err(|error| wrong(&found, error.key, error.value, error.wrong))?;
    Ok(Settled { settings, found, warnings })
}

/// Which source may set which key.
struct Rules {
    /// Keys of the settings that one machine may have for itself.
    of_machine: BTreeSet<String>,
    is_locked_down: bool,
    /// The boot image requires a TPM.
    is_attested: bool,
    /// The metadata that the boot image allows.
    allowed: Vec<MetadataSource>,
}

impl Rules {
    fn of(sources: &[Source], is_locked_down: bool) -> Self {
        let baked = |key| sources.iter().find(|source| source.place == BAKED)?.values.get(key);
        let names: Vec<&str> = baked("metadata").map_or(Vec::new(), |names| names.split(',').map(str::trim).collect());
        Self {
            of_machine: keys_of::<MachineSettings>(),
            is_locked_down,
            is_attested: baked("require").is_some_and(|it| it == Proof::Attested.name()),
            allowed: MetadataSource::ALL.into_iter().filter(|it| names.contains(&it.name())).collect(),
        }
    }

    /// Returns why a key from a place is ignored.
    fn why_ignored(&self, key: &str, place: &str) -> Option<&'static str> {
        if let Some(metadata) = MetadataSource::ALL.into_iter().find(|metadata| metadata.title() == place) {
            return match key {
                _ if !self.allowed.contains(&metadata) => Some("the boot image does not allow this metadata"),
                // The server is useless without a signed CA.
                "server" | "token" => None,
                _ => Some("metadata is trusted for the server and a token alone"),
            };
        }
        // The loader's server is useless without a signed CA too. No unsigned source may ask for less proof.
        let is_signed = place == BAKED || place == LOADER;
        match (self.is_locked_down, self.is_attested) {
            _ if is_signed || self.of_machine.contains(key) => None,
            (true, _) => Some("Secure Boot is on, so only signed configuration may set it"),
            // The TPM's measurements confirm the content of the boot image, but nothing about most other sources.
            (_, true) => Some("the boot image requires a TPM, so only the image may set it"),
            _ if place == OF_MACHINE => Some("the settings of one machine may not set it"),
            _ if key == "metadata" => Some("only the boot image may allow metadata"),
            _ => None,
        }
    }
}

/// Makes an error about the value of a key. What metadata said is left out, because anybody may have said it.
fn wrong(found: &Found, key: &str, value: String, wrong: String) -> ConfigError {
    let place = found.get(key).map_or("", |(place, _)| place).to_owned();
    let is_metadata = MetadataSource::ALL.iter().any(|metadata| metadata.title() == place);
    let value = if is_metadata { "(not shown)".to_owned() } else { value };
    ConfigError::Value { key: key.to_owned(), place, value, wrong }
}

/// Reads the settings from `found`, which has the place and the value of each key.
fn read(found: &Found) -> Result<BootSettings, ConfigError> {
    // One key at a time, because the error does not say which key it is about.
    for (key, (place, value)) in found {
        let one = MapDeserializer::<_, Wrong>::new([(*key, *value)].into_iter());
        BootSettings::deserialize(one).map_err(|error| ConfigError::Value {
            key: (*key).to_owned(),
            place: (*place).to_owned(),
            value: boot_settings::shortened(value),
            wrong: error.to_string(),
        })?;
    }
    let all = MapDeserializer::<_, Wrong>::new(found.iter().map(|(key, (_, value))| (*key, *value)));
    // Each key was read without an error above.
    Ok(BootSettings::deserialize(all).unwrap_or_default())
}

#[cfg(test)]
mod tests;
