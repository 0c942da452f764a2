//! The configuration a machine needs for its first request: where the server is and how to verify it.
//!
//! Five sources; later ones override earlier ones: the file in the initramfs, the settings of one machine on the medium,
//! SMBIOS OEM strings (type 11, `slipway.KEY=VALUE`), QEMU's fw_cfg (`opt/slipway/KEY`), the kernel command line
//! (`slipway.KEY=VALUE`). All have the same keys. Under Secure Boot, only the first says where the server is and what to trust:
//! its signature covers the file in the initramfs and nothing else. If none
//! of them has a server, it is the one that the boot image was loaded from over HTTPS.

mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::de::value::{Error as Wrong, MapDeserializer};
use serde::{Deserialize as _, Serialize};
use slipway_protocol::node::boot_settings;
use slipway_protocol::shared::given::is_blank;
use slipway_protocol::{BootSettings, MachineSettings, Proof, Proxy};
use slipway_user_data::Refusal;

use crate::discover::{self, Roots};
use crate::drivers::command_line;

/// The file in the initramfs.
pub const BAKED: &str = "/etc/slipway/config.yaml";
/// The settings of one machine, which systemd's stub takes from the medium (systemd-stub(7)).
const OF_MACHINE: &str = "/.extra/global_credentials/slipway.cred";
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
    /// PEM certificates of CAs that may sign the server's. Nothing else is trusted.
    pub ca: String,
    /// What the machine must have before it sends anything to the server.
    pub require: Proof,
    /// The HTTP proxy to the server and to images. None is that of the environment, in which PID 1 names none.
    pub proxy: Option<Proxy>,
    /// What may differ from machine to machine. The proxy's keys are among it too.
    pub machine: MachineSettings,
}

impl Config {
    /// Where a server is and how to recognise it, and nothing else.
    pub fn new(server: Url, ca: String) -> Self {
        Self { server, ca, require: Proof::default(), proxy: None, machine: MachineSettings::default() }
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
pub enum ConfigError {
    /// The file is not YAML, or not a mapping of strings to strings.
    #[error("reading the configuration in {place}")]
    Syntax {
        /// The file.
        place: String,
        /// The cause, with line and column.
        #[source]
        source: Refusal,
    },
    /// A source exists but cannot be read.
    #[error("reading the configuration in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A required key is missing.
    #[error("no {key} is configured: set `{key}:` in {BAKED} or slipway.{key}= on the kernel command line")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// The medium requires a bootstrap token.
    #[error(
        "{place} requires a bootstrap token (require: token), and there is none, so nothing is sent to the server: set \
         `token:` in {BAKED} or in the settings of the machine, or slipway.token in fw_cfg"
    )]
    NoToken {
        /// What requires it.
        place: String,
    },
    /// A key has no value.
    #[error("{key} from {place} has no value: leave the key out, or give it one")]
    NoValue {
        /// The key.
        key: String,
        /// Where it was set.
        place: String,
    },
    /// One source gives a key two values.
    #[error("{key} is there twice in {place}, with two values: leave one of them out")]
    Twice {
        /// The key.
        key: String,
        /// Where it was set.
        place: String,
    },
    /// A value is invalid.
    #[error("{key} from {place} is {value:?}, which {wrong}")]
    Value {
        /// The key.
        key: String,
        /// Where it was set.
        place: String,
        /// The value.
        value: String,
        /// What is wrong and what would be right.
        wrong: String,
    },
}

/// Reads and merges every source of this machine. The strings are warnings for the operator.
pub fn load() -> Result<(Config, Vec<String>), ConfigError> {
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
    // A file with all modes, the current one in brackets (security/lockdown/lockdown.c). Secure Boot locks the kernel down.
    let lockdown = std::fs::read_to_string(root.join("sys/kernel/security/lockdown")).unwrap_or_default();
    merge(&sources, lockdown.contains('[') && !lockdown.contains("[none]"))
}

fn read_if_there(path: &Path) -> Result<Option<String>, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
    }
}

/// The server that the boot image was loaded from, whichever loader did it. It needs no trust: the server must show a
/// certificate of the configured CA.
pub fn from_loader(roots: &Roots) -> Option<Source> {
    let server = discover::server_of_loader(roots)?;
    Some(Source { place: LOADER.to_owned(), values: BTreeMap::from([("server".to_owned(), server)]) })
}

/// Reads a YAML mapping of strings to strings.
pub fn from_yaml(place: &str, text: &str) -> Result<Source, ConfigError> {
    let values = yaml::parse(text).map_err(|source| ConfigError::Syntax { place: place.to_owned(), source })?;
    Ok(Source { place: place.to_owned(), values })
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
            // Loaders may add what is there already.
            Some(earlier) if earlier != value && known.contains(&key) => {
                return Err(ConfigError::Twice { key, place: source.place });
            }
            _ => {}
        }
    }
    Ok(source)
}

/// The names of settings. Each is in the JSON of the type, whether it has a value or not.
fn keys_of<T: Default + Serialize>() -> BTreeSet<String> {
    let json = serde_json::to_value(T::default()).unwrap_or_default();
    json.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
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

/// Merges the sources, later ones over earlier ones. On a machine that is locked down, and on one whose boot image requires a
/// TPM, only the file in the initramfs says where the server is, what to trust and what to require.
pub fn merge(sources: &[Source], is_locked_down: bool) -> Result<(Config, Vec<String>), ConfigError> {
    let (known, of_machine) = (keys_of::<BootSettings>(), keys_of::<MachineSettings>());
    let mut warnings = Vec::new();
    let mut found: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let baked = sources.iter().find(|source| source.place == BAKED);
    let is_attested =
        baked.and_then(|baked| baked.values.get("require")).is_some_and(|it| it == Proof::Attested.name());
    for source in sources {
        for (key, value) in &source.values {
            // Read by the code that lists disks, which must know the boot medium before there is a configuration.
            if key == "boot_medium" && source.place == COMMAND_LINE {
                continue;
            }
            if !known.contains(key) {
                warnings.push(format!("{} sets {key:?}, which slipway does not know", source.place));
                continue;
            }
            let is_signed = source.place == BAKED || source.place == LOADER;
            // The loader's server is good for nothing without a signed CA, and nobody may ask for less proof.
            let why_ignored = match (is_locked_down, is_attested) {
                _ if is_signed || of_machine.contains(key) => None,
                (true, _) => Some("Secure Boot is on, so only what is signed says it"),
                // A TPM confirms what is in the boot image. Of most other sources it knows nothing.
                (_, true) => Some("the boot image requires a TPM, so only the image says it"),
                _ if source.place == OF_MACHINE => Some("it is not a setting of one machine"),
                _ => None,
            };
            if let Some(why) = why_ignored {
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
    if let Some(key) = ["server", "ca"].into_iter().find(|key| !found.contains_key(key)) {
        return Err(ConfigError::Missing { key });
    }
    let mut settings = read(&found)?;
    if let (Proof::Token, None, Some((place, _))) = (settings.require, &settings.machine.token, found.get("require")) {
        return Err(ConfigError::NoToken { place: (*place).to_owned() });
    }
    if let (None, Some((place, _))) = (&settings.machine.proxy, found.get("no_proxy")) {
        warnings.push(format!("{place} sets \"no_proxy\", which means nothing without \"proxy\""));
        settings.machine.no_proxy = None;
    }
    let wrong = |key: &str, value, wrong| {
        let place = found.get(key).map_or("", |(place, _)| place).to_owned();
        ConfigError::Value { key: key.to_owned(), place, value, wrong }
    };
    settings.check().map_err(|error| wrong(error.key, error.value, error.wrong))?;
    let BootSettings { server, ca, require, machine } = settings;
    let server = server
        .parse()
        .map_err(|error| wrong("server", boot_settings::shortened(&server), format!("is not a valid URL ({error})")))?;
    Ok((Config { server, ca, require, proxy: machine.proxy(), machine }, warnings))
}

/// The settings of these keys, each of which has its place and its value.
fn read(found: &BTreeMap<&str, (&str, &str)>) -> Result<BootSettings, ConfigError> {
    // One by one, because the error does not say which it is about.
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
    // Each of them was read before.
    Ok(BootSettings::deserialize(all).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CA: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";

    fn source(place: &str, values: &[(&str, &str)]) -> Source {
        let values = values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Source { place: place.to_owned(), values }
    }

    #[test]
    fn later_sources_win() {
        let baked = source(BAKED, &[("server", "https://a.example"), ("ca", CA), ("token", "t")]);
        let later = from_command_line(
            "quiet slipway.server=https://b.example:8443 slipway.boot_medium=LABEL=x slipway.colour=red",
        )
        .unwrap();
        let (config, warnings) = merge(&[baked, later], false).unwrap();
        assert_eq!(config.server.as_str(), "https://b.example:8443/");
        assert_eq!(warnings, ["the kernel command line sets \"colour\", which slipway does not know"]);
        assert!(!format!("{config:?}").contains("\"t\""), "a token must not be printed");
    }

    #[test]
    fn a_key_without_a_value_is_refused_from_any_source() {
        let baked = source(BAKED, &[("server", "https://a.example"), ("ca", CA), ("token", "t")]);
        let check = |source: Source, key: &str| {
            let place = source.place.clone();
            let error = merge(&[baked.clone(), source], false).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{key} from {place} has no value")), "{error}");
        };
        for key in ["token", "network", "proxy", "no_proxy"] {
            for place in [OF_MACHINE, "the SMBIOS OEM strings", "fw_cfg opt/slipway"] {
                for none in ["", "  ", "\u{a0}", "\0"] {
                    check(source(place, &[(key, none)]), key);
                }
            }
            for word in [format!("slipway.{key}="), format!("slipway.{key}"), format!("slipway.{key}=\"\"")] {
                check(from_command_line(&word).unwrap(), key);
            }
        }
        for key in ["server", "ca", "require"] {
            check(from_command_line(&format!("slipway.{key}=")).unwrap(), key);
        }
        check(from_yaml(OF_MACHINE, "token: ''\n").unwrap(), "token");
        let (_, warnings) =
            merge(&[baked, from_command_line("slipway.colour slipway.boot_medium=").unwrap()], false).unwrap();
        assert_eq!(warnings, ["the kernel command line sets \"colour\", which slipway does not know"]);
    }

    #[test]
    fn a_key_has_one_value_in_each_source() {
        let check = |words: &str, expect: Option<&str>| {
            let error = from_command_line(words).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expect, "{words}");
        };
        let twice = "token is there twice in the kernel command line, with two values: leave one of them out";
        check("slipway.token=a quiet slipway.token=b", Some(twice));
        check("slipway.token=a slipway.token", Some(twice));
        check("slipway.token=a slipway.token=a slipway.colour=red slipway.colour=blue", None);
        let oem = from_words("the SMBIOS OEM strings", &["slipway.ca=a".to_owned(), "slipway.ca=b".to_owned()]);
        assert!(oem.unwrap_err().to_string().starts_with("ca is there twice in the SMBIOS OEM strings"));
    }

    #[test]
    fn a_locked_down_machine_takes_its_server_and_ca_from_what_is_signed() {
        let baked = source(BAKED, &[("server", "https://a.example"), ("ca", CA)]);
        let other = |place: &str| source(place, &[("server", "https://evil.example"), ("ca", "evil"), ("token", "t")]);
        for place in [OF_MACHINE, "the SMBIOS OEM strings", COMMAND_LINE] {
            let (config, warnings) = merge(&[baked.clone(), other(place)], true).unwrap();
            assert_eq!((config.server.as_str(), config.ca.as_str()), ("https://a.example/", CA));
            assert!(config.machine.token.is_some());
            let ignored =
                format!("{place} sets \"server\", which is ignored: Secure Boot is on, so only what is signed says it");
            assert!(warnings.contains(&ignored), "{warnings:?}");
        }
        let error = merge(&[other(OF_MACHINE)], true).unwrap_err();
        assert!(error.to_string().starts_with("no server is configured"), "{error}");
    }

    #[test]
    fn a_machine_without_the_required_token_has_no_configuration() {
        let baked = |require| source(BAKED, &[("server", "https://a.example"), ("ca", CA), ("require", require)]);
        let token = source(OF_MACHINE, &[("token", "t")]);
        let error = merge(&[baked("token")], false).unwrap_err().to_string();
        assert!(error.starts_with("/etc/slipway/config.yaml requires a bootstrap token"), "{error}");
        assert_eq!(merge(&[baked("token"), token.clone()], true).unwrap().0.require, Proof::Token);
        assert_eq!(merge(&[baked("attested")], false).unwrap().0.require, Proof::Attested);
        let error = merge(&[baked("tpm")], false).unwrap_err().to_string();
        assert_eq!(
            error,
            "require from /etc/slipway/config.yaml is \"tpm\", which is none of registered, token, attested"
        );

        // Under Secure Boot, nothing unsigned lowers it, and nothing at all lowers what asks for a TPM.
        let lower = from_command_line("slipway.require=registered slipway.server=https://evil.example").unwrap();
        for (require, is_locked_down) in [("attested", false), ("attested", true), ("token", true)] {
            let (config, warnings) = merge(&[baked(require), token.clone(), lower.clone()], is_locked_down).unwrap();
            assert_eq!((config.require.name(), config.server.as_str()), (require, "https://a.example/"));
            let ignored = "the kernel command line sets \"require\", which is ignored";
            assert!(warnings.iter().any(|warning| warning.starts_with(ignored)), "{warnings:?}");
        }
        let (config, _) = merge(&[baked("registered"), lower], false).unwrap();
        assert_eq!(config.server.as_str(), "https://evil.example/");
        // What is written for one machine never says it.
        let of_machine = source(OF_MACHINE, &[("server", "https://evil.example")]);
        let (config, warnings) = merge(&[baked("registered"), of_machine], false).unwrap();
        assert_eq!(config.server.as_str(), "https://a.example/");
        assert!(warnings[0].ends_with("which is ignored: it is not a setting of one machine"), "{warnings:?}");
    }

    #[test]
    fn the_server_of_the_loader_counts_if_no_other_is_configured() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots { sys: folder.path().to_owned(), ..Roots::default() };
        assert_eq!(from_loader(&roots), None);
        let variables = folder.path().join("firmware/efi/efivars");
        std::fs::create_dir_all(&variables).unwrap();
        let url = "https://10.0.2.2:8443/boot/x86_64/slipway.efi\0";
        let value: Vec<u8> = url.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let variable = "LoaderDeviceURL-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
        std::fs::write(variables.join(variable), [&[6, 0, 0, 0], &*value].concat()).unwrap();
        let loader = from_loader(&roots).unwrap();

        let (ca, both) = (&[("ca", CA)][..], &[("ca", CA), ("server", "https://a.example")][..]);
        for (values, expect) in [(ca, "https://10.0.2.2:8443/"), (both, "https://a.example/")] {
            let (config, warnings) = merge(&[loader.clone(), source(BAKED, values)], false).unwrap();
            assert_eq!((config.server.as_str(), warnings.as_slice()), (expect, &[][..]));
        }
        let error = merge(&[loader], false).unwrap_err();
        assert!(error.to_string().starts_with("no ca is configured"), "{error}");
    }

    #[test]
    fn the_command_line_is_split_at_the_first_equals_sign() {
        let source = from_command_line("a=b slipway.token=\"x=y z==\" slipway.server=https://s/?a=b\n").unwrap();
        assert_eq!(source.values["token"], "x=y z==");
        assert_eq!(source.values["server"], "https://s/?a=b");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_place() {
        let check = |server: &str, expect: &str| {
            let error = merge(&[source(BAKED, &[("server", server), ("ca", CA)])], false).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        };
        check("http://s.example", "does not begin with https://");
        check("s.example", "does not begin with https://");
        check("https://user:pw@s.example", "is \"...@s.example\", which must be a host without user name");
        let error = merge(&[source(BAKED, &[("server", "https://s")])], false).unwrap_err();
        assert!(error.to_string().starts_with("no ca is configured"), "{error}");
        let error = merge(&[source(BAKED, &[("server", "https://s"), ("ca", "x")])], false).unwrap_err();
        assert!(error.to_string().contains("contains no"), "{error}");
    }

    #[test]
    fn a_network_is_read_from_any_source_also_under_lockdown() {
        let baked = source(BAKED, &[("server", "https://s"), ("ca", CA), ("network", "x")]);
        let network = |value: &str| merge(&[baked.clone(), source(OF_MACHINE, &[("network", value)])], true);
        let (config, warnings) = network(r#"{"interfaces": [{"name": "any", "dhcp4": true}]}"#).unwrap();
        assert_eq!(config.machine.network.unwrap().interfaces.first().map(|any| any.dhcp4), Some(true));
        assert_eq!(warnings, [""; 0]);
        for (value, expect) in [
            ("any", "which is not a network in JSON"),
            (r#"{"interfaces": [{"name": "a", "dhcp": true}]}"#, "unknown field `dhcp`"),
            (r#"{"interfaces": [{"name": "a", "mac": null}]}"#, "(interfaces[0].mac has no value"),
            (r#"{"interfaces": [{"name": ""}]}"#, "(interfaces[0].name has no value"),
            (r#"{"interfaces": [{"name": "any"}]} {}"#, "trailing characters"),
            (r#"{"interfaces": [{"name": "a", "bond": {"of": ["b", "c"]}}]}"#, "\"a\" is a bond, which"),
        ] {
            let error = network(value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("network from {OF_MACHINE} is")) && error.contains(expect), "{error}");
        }
    }

    #[test]
    fn a_proxy_is_read_from_any_source_also_under_lockdown() {
        let baked = source(BAKED, &[("server", "https://s"), ("ca", CA), ("no_proxy", "10.0.0.0/8")]);
        let (config, warnings) = merge(std::slice::from_ref(&baked), true).unwrap();
        assert_eq!(config.proxy, None);
        assert_eq!(warnings, [r#"/etc/slipway/config.yaml sets "no_proxy", which means nothing without "proxy""#]);
        let later = from_command_line("slipway.proxy=http://proxy.example:3128").unwrap();
        let (config, warnings) = merge(&[baked.clone(), later], true).unwrap();
        let expect = Proxy { url: "http://proxy.example:3128".to_owned(), except: "10.0.0.0/8".to_owned() };
        assert_eq!((config.proxy, warnings.as_slice()), (Some(expect), &[][..]));
        let with_password = from_command_line("slipway.proxy=http://user:pw@proxy.example:3128").unwrap();
        let error = merge(&[baked, with_password], true).unwrap_err().to_string();
        let expect =
            "proxy from the kernel command line is \"...@proxy.example:3128\", which must be a host without user";
        assert!(error.starts_with(expect), "{error}");
    }

    #[test]
    fn bad_yaml_is_reported_with_its_place_and_without_its_text() {
        let error = from_yaml(BAKED, "server: https://s\ntoken: [s3cret]\n").unwrap_err();
        let failure = slipway_protocol::Failure::of(&error);
        let told = format!("{failure:?} {error:?}");
        assert!(failure.causes.join(" ").starts_with("line 2, column 8: "), "{failure:?}");
        assert!(told.contains(BAKED) && !told.contains("s3cret"), "{told}");
    }
}
