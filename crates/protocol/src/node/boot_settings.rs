//! The settings of a machine's boot: where the server is, how to recognise it, and what differs from machine to
//! machine.
//!
//! A new setting is a field here, with its check. The field's name is the key in all sources of a machine's
//! configuration. The program that makes a boot medium and the machine that starts from it call the same check.

mod hosts;
mod json;
mod metadata;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde::{Deserialize, Deserializer, Serialize, de};

pub use self::hosts::{Proxy, check_proxy, check_server, is_host_name};
pub use self::metadata::MetadataSource;
use crate::node::enrolment::Proof;
use crate::shared::network::{self, Network};
use crate::shared::secret::Secret;

/// Beginning of a certificate in PEM (RFC 7468).
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// The longest host name that the kernel stores, in bytes (`__NEW_UTS_LEN`, include/uapi/linux/utsname.h).
const MOST_HOSTNAME: usize = 64;
/// Most characters of a value in an error.
const MOST_SHOWN: usize = 60;

/// All settings. The settings outside [`MachineSettings`] are for all machines of a site, never for one.
///
/// In every source, each value is a text: a file has YAML, and other sources have pairs of a key and a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BootSettings {
    /// HTTPS URL of the server, as machines reach it. May be absent only if `metadata` is not empty.
    #[serde(deserialize_with = "text")]
    pub server: Option<String>,
    /// CAs that may sign the server's certificate, in PEM (RFC 7468). Nothing else is trusted.
    pub ca: String,
    /// What a machine must have before it sends anything to the server.
    #[serde(deserialize_with = "proof")]
    pub require: Proof,
    /// Where a machine may be told its server, and a bootstrap token, if no source of settings has the server.
    #[serde(with = "metadata")]
    pub metadata: BTreeSet<MetadataSource>,
    /// What may differ from machine to machine.
    #[serde(flatten)]
    pub machine: MachineSettings,
}

/// The settings that one machine may have for itself. On a command line they are options, except those that are read
/// from files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default)]
pub struct MachineSettings {
    /// Bootstrap token.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub token: Option<Secret>,
    /// Network while the machine runs from the medium; JSON in a source. Absent: DHCP and router advertisements on
    /// every interface.
    #[cfg_attr(feature = "clap", arg(skip))]
    #[serde(with = "json")]
    pub network: Option<Network>,
    /// HTTP proxy through which machines reach the server and images, such as `http://proxy.example:3128`.
    #[cfg_attr(feature = "clap", arg(long, value_name = "URL"))]
    pub proxy: Option<String>,
    /// Hosts that machines reach without the proxy, separated by commas: names, which stand for the names below them
    /// too, addresses, and networks such as 10.0.0.0/8.
    #[cfg_attr(feature = "clap", arg(long, value_name = "HOSTS", requires = "proxy"))]
    pub no_proxy: Option<String>,
    /// Name of the machine while it runs from the medium, such as rack3-u12. It is sent to DHCP servers.
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub hostname: Option<String>,
}

/// A setting is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checking the configuration of the boot medium: {key} {value:?} {wrong}")]
pub struct SettingError {
    /// The setting's key.
    pub key: &'static str,
    /// The setting's value, shortened and without secrets.
    pub value: String,
    /// What is wrong and what would be right, as the end of a sentence about the value.
    pub wrong: String,
}

impl SettingError {
    /// Makes an error about a value, and shortens the value. It must contain no secrets.
    pub fn new(key: &'static str, value: &str, wrong: impl Into<String>) -> Self {
        Self { key, value: shortened(value), wrong: wrong.into() }
    }
}

impl BootSettings {
    /// Checks every setting.
    pub fn check(&self) -> Result<(), SettingError> {
        match &self.server {
            Some(server) => {
                check_server(server).map_err(|wrong| SettingError::new("server", &without_password(server), wrong))?
            }
            None if self.metadata.is_empty() => {
                let wrong = "is missing: write it as https://install.example:8443, or allow metadata to say it";
                return Err(SettingError::new("server", "", wrong));
            }
            None => {}
        }
        check_ca(&self.ca).map_err(|wrong| SettingError::new("ca", &self.ca, wrong))?;
        self.machine.check()
    }
}

impl MachineSettings {
    /// Checks every setting that is there.
    pub fn check(&self) -> Result<(), SettingError> {
        if let Some(token) = &self.token {
            check_token(token.reveal()).map_err(|wrong| SettingError::new("token", "(secret)", wrong))?;
        }
        if let Some(network) = &self.network {
            let names: Vec<&str> = network.interfaces.iter().map(|interface| &*interface.name).collect();
            check_network(network).map_err(|wrong| SettingError::new("network", &names.join(" "), wrong))?;
        }
        if let Some(name) = &self.hostname {
            check_hostname(name).map_err(|wrong| SettingError::new("hostname", name, wrong))?;
        }
        match (self.proxy(), &self.no_proxy) {
            (Some(proxy), _) => check_proxy(&proxy).map_err(|(key, wrong)| match key {
                "proxy" => SettingError::new(key, &without_password(&proxy.url), wrong),
                _ => SettingError::new(key, &proxy.except, wrong),
            }),
            (None, Some(hosts)) => Err(SettingError::new("no_proxy", hosts, "has no effect without proxy")),
            (None, None) => Ok(()),
        }
    }

    /// Returns the settings that are there, without the token, by their keys: what [`MachineSettings`] is read from.
    pub fn stored(&self) -> Result<serde_json::Map<String, serde_json::Value>, serde_json::Error> {
        let values = serde_json::to_value(Self { token: None, ..self.clone() })?;
        let mut values = serde_json::from_value::<serde_json::Map<_, _>>(values)?;
        values.retain(|_, value: &mut serde_json::Value| !value.is_null());
        Ok(values)
    }

    /// Returns settings that have nothing but the proxy, or nothing at all if `proxy` is None.
    pub fn with_proxy(proxy: Option<Proxy>) -> Self {
        let (proxy, no_proxy) = proxy.map(|proxy| (proxy.url, proxy.except)).unzip();
        Self { proxy, no_proxy, ..Self::default() }
    }

    /// Returns the proxy, with the hosts that are reached without it. None if no proxy is set.
    pub fn proxy(&self) -> Option<Proxy> {
        let except = self.no_proxy.clone().unwrap_or_default();
        self.proxy.clone().map(|url| Proxy { url, except })
    }
}

/// Returns at most the first `MOST_SHOWN` characters of a value, for messages.
pub fn shortened(value: &str) -> String {
    value.chars().take(MOST_SHOWN).collect()
}

/// Returns a URL for messages, without the part before an @, which may contain a password.
fn without_password(url: &str) -> String {
    url.rsplit_once('@').map_or(url.to_owned(), |(_, host)| format!("...@{host}"))
}

/// Checks that a text has a certificate in PEM. The error says what is wrong with it, as the end of a sentence about
/// the value.
pub fn check_ca(pem: &str) -> Result<(), String> {
    match pem.contains(CERTIFICATE) {
        true => Ok(()),
        false => Err(format!("contains no \"{CERTIFICATE}\": give the CA's certificate in PEM")),
    }
}

fn check_hostname(name: &str) -> Result<(), String> {
    match name.len() <= MOST_HOSTNAME && is_host_name(name) && name.parse::<Ipv4Addr>().is_err() {
        true => Ok(()),
        false => {
            Err(format!("is not a host name of at most {MOST_HOSTNAME} characters: write it as rack3-u12.example"))
        }
    }
}

fn check_token(token: &str) -> Result<(), &'static str> {
    match (1..=1024).contains(&token.len()) && token.bytes().all(|c| c.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("must be one word of visible ASCII characters: write what `slipway-server token add` printed"),
    }
}

fn check_network(network: &Network) -> Result<(), String> {
    let problems = network::boot_problems(network);
    if problems.is_empty() { Ok(()) } else { Err(format!("is not valid: {}", problems.join("; "))) }
}

fn text<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<String>, D::Error> {
    String::deserialize(reader).map(Some)
}

fn proof<'de, D: Deserializer<'de>>(reader: D) -> Result<Proof, D::Error> {
    let name = String::deserialize(reader)?;
    let found = Proof::ALL.into_iter().find(|proof| proof.name() == name);
    let all = || Proof::ALL.map(Proof::name).join(", ");
    found.ok_or_else(|| de::Error::custom(format_args!("must be one of {}", all())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_named_without_its_secrets() {
        let machine = |machine| BootSettings { machine, ..good() };
        let text = |text: &str| Some(text.to_owned());
        let of = MachineSettings::default;
        let bond = r#"{"interfaces": [{"name": "a", "bond": {"of": ["b", "c"]}}]}"#;
        assert_eq!(good().check(), Ok(()));
        let told = BTreeSet::from([MetadataSource::Ec2]);
        assert_eq!(BootSettings { server: None, metadata: told, ..good() }.check(), Ok(()));
        for (settings, key, value, wrong) in [
            (BootSettings { server: text("https://u:s3cret@a"), ..good() }, "server", "...@a", "must be a host"),
            (BootSettings { server: None, ..good() }, "server", "", "is missing: write it as https://"),
            (BootSettings { ca: "x".repeat(99), ..good() }, "ca", &*"x".repeat(60), "contains no \"-----BEGIN"),
            (
                machine(MachineSettings { token: text("a s3cret").map(Secret::from), ..of() }),
                "token",
                "(secret)",
                "must be",
            ),
            (
                machine(MachineSettings { network: serde_json::from_str(bond).ok(), ..of() }),
                "network",
                "a",
                "is not valid: interface \"a\" is a bond",
            ),
            (machine(MachineSettings { proxy: text("http://u:s3cret@p:1"), ..of() }), "proxy", "...@p:1", "must be"),
            (
                machine(MachineSettings { proxy: text("http://p:1"), no_proxy: text("a,*"), ..of() }),
                "no_proxy",
                "a,*",
                "has an entry, number 2,",
            ),
            (machine(MachineSettings { hostname: text("a_b"), ..of() }), "hostname", "a_b", "is not a host name of at"),
            (machine(MachineSettings { no_proxy: text("a"), ..of() }), "no_proxy", "a", "has no effect without proxy"),
        ] {
            let error = settings.check().expect_err(key);
            assert_eq!((error.key, &*error.value), (key, value));
            assert!(error.wrong.starts_with(wrong) && !error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_host_name_has_labels_for_which_the_kernel_has_room() {
        let long = ["a".repeat(63), "a".repeat(64), format!("{}.a", "a".repeat(62)), format!("{}.aa", "a".repeat(62))];
        for good in ["a", "rack3-u12", "12345", "3com.example", "RACK3.example.com", &long[0], &long[2]] {
            assert_eq!(check_hostname(good), Ok(()), "{good}");
        }
        for wrong in
            ["", ".", "a.", ".a", "a..b", "-a", "a-", "a.-b", "a_b", "a b", "ä", "192.0.2.7", &long[1], &long[3]]
        {
            assert!(check_hostname(wrong).is_err(), "{wrong}");
        }
    }

    fn good() -> BootSettings {
        BootSettings { server: Some("https://a".to_owned()), ca: CERTIFICATE.to_owned(), ..BootSettings::default() }
    }
}
