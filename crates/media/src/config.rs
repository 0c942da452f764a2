//! The configuration of boot files, and the archive that adds it to the initramfs.

use slipway_parts::cpio::Archive;
use slipway_parts::{About, Arch, sha256};
use slipway_protocol::node::boot_settings;
use slipway_protocol::shared::network;
use slipway_protocol::{MEDIUM, MOST_CONFIG_BYTES, Medium, Network, Proof, Proxy, Secret};

use crate::kind::Kind;

/// The file in the initramfs.
const CONFIG: &str = "/etc/slipway/config.yaml";

/// The kernel's limit, including the final zero (arch/x86/include/asm/setup.h and include/uapi/asm-generic/setup.h).
const COMMAND_LINE_SIZE: usize = 2048;

/// The configuration of one site, or of one group of its machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// HTTPS URL of the server, as machines reach it.
    pub server: String,
    /// CAs that may sign the server's certificate, in PEM (RFC 7468).
    pub ca: String,
    /// Bootstrap token.
    pub token: Option<Secret>,
    /// Network of machines while they run from the medium. None means DHCP and router advertisements on each interface.
    pub network: Option<Network>,
    /// HTTP proxy to the server and images. None means a direct connection.
    pub proxy: Option<Proxy>,
    /// What machines must have before they contact the server.
    pub require: Proof,
    /// Consoles of the kernel, such as `ttyS1,115200`. Kernel messages go to all of them, PID 1's output to the last.
    /// Empty means the default consoles of the architecture, [`Arch::consoles`].
    pub consoles: Vec<String>,
    /// Further kernel arguments.
    pub arguments: Vec<String>,
}

/// A value of the configuration is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checking the configuration of the boot medium: {key} {value:?} {wrong}")]
pub struct ConfigError {
    /// Key of the value.
    pub key: &'static str,
    /// The value, shortened.
    pub value: String,
    /// What is wrong, and what would be valid.
    pub wrong: String,
}

impl Config {
    /// Checks every value for boot files of these kinds, because a machine cannot correct them.
    pub fn check(&self, kinds: &[Kind]) -> Result<(), ConfigError> {
        let error = |key, value: &str, wrong| ConfigError { key, value: value.chars().take(60).collect(), wrong };
        boot_settings::check_server(&self.server).map_err(|wrong| error("server", &self.server, wrong))?;
        boot_settings::check_ca(&self.ca).map_err(|wrong| error("ca", &self.ca, wrong))?;
        if self.to_yaml().len() > MOST_CONFIG_BYTES {
            let wrong = format!("makes a configuration of more than {MOST_CONFIG_BYTES} bytes");
            return Err(error("ca", &self.ca, wrong));
        }
        if let Some(token) = &self.token {
            check_token(token)?;
        } else if self.require == Proof::Token && kinds.iter().any(|kind| !kind.has_machine_settings()) {
            let wrong = "needs a bootstrap token in the files; without one, make only media that have a place for the \
                         settings of a machine: the kinds stick and disc";
            return Err(error("require", self.require.name(), wrong.to_owned()));
        }
        if let Some(network) = &self.network {
            check_network(network)?;
        }
        if let Some(proxy) = &self.proxy {
            boot_settings::check_proxy(proxy).map_err(|(key, wrong)| match key {
                // The part before it may be a password.
                "proxy" => error(key, proxy.url.rsplit_once('@').map_or(&*proxy.url, |(_, host)| host), wrong),
                _ => error(key, &proxy.except, wrong),
            })?;
        }
        let words = self.consoles.iter().map(|word| ("console", word));
        for (key, word) in words.chain(self.arguments.iter().map(|word| ("argument", word))) {
            // The kernel splits its command line at blanks outside quotes.
            if word.is_empty() || !word.bytes().all(|c| c.is_ascii_graphic() && c != b'"') {
                return Err(error(key, word, "must be one word of visible ASCII characters without quotes".to_owned()));
            }
        }
        let cmdline = self.cmdline(Arch::X86_64);
        if cmdline.len() >= COMMAND_LINE_SIZE {
            let wrong =
                format!("makes a command line of {COMMAND_LINE_SIZE} bytes or more, which the kernel would cut off");
            return Err(error("argument", self.arguments.last().map_or("", String::as_str), wrong));
        }
        Ok(())
    }

    /// The kernel's command line.
    pub fn cmdline(&self, arch: Arch) -> String {
        let mut words: Vec<String> = match self.consoles.is_empty() {
            true => vec![arch.consoles().to_owned()],
            false => self.consoles.iter().map(|console| format!("console={console}")).collect(),
        };
        // The default root file system is limited to half of the memory, which is too little with 192 MiB.
        words.push("rootfstype=ramfs".to_owned());
        words.extend(self.arguments.iter().cloned());
        words.join(" ")
    }

    /// The archive with the configuration, and with the facts that the machine checks before it uses its network. No
    /// other part of the boot files depends on the site.
    pub(crate) fn archive(&self, build: &str, about: &About) -> Vec<u8> {
        let config = self.to_yaml().into_bytes();
        let medium = Medium { build: build.to_owned(), release: about.release.clone(), config_sha256: sha256(&config) };
        // This type always serialises.
        let medium = serde_json::to_vec(&medium).unwrap_or_default();
        let mut archive = Archive::default();
        archive.add_file(CONFIG, 0o600, config);
        archive.add_file(MEDIUM, 0o644, medium);
        archive.to_bytes(about.date)
    }

    pub(crate) fn to_yaml(&self) -> String {
        // JSON strings are valid YAML strings (YAML 1.2.2, section 1.2).
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut yaml = format!("server: {}\n", quoted(&self.server));
        if let Some(token) = &self.token {
            yaml.push_str(&format!("token: {}\n", quoted(token.reveal())));
        }
        if let Some(network) = &self.network {
            yaml.push_str(&network_line(network));
        }
        if let Some(proxy) = &self.proxy {
            yaml.push_str(&format!("proxy: {}\n", quoted(&proxy.url)));
            if !proxy.except.is_empty() {
                yaml.push_str(&format!("no_proxy: {}\n", quoted(&proxy.except)));
            }
        }
        if self.require != Proof::default() {
            yaml.push_str(&format!("require: {}\n", self.require.name()));
        }
        yaml.push_str("ca: |\n");
        for line in self.ca.trim().lines() {
            yaml.push_str(&format!("  {}\n", line.trim()));
        }
        yaml
    }
}

/// The line for the network. Its value is JSON, because all sources of the configuration hold texts.
pub(crate) fn network_line(network: &Network) -> String {
    format!("network: {}\n", serde_json::Value::from(serde_json::json!(network).to_string()))
}

pub(crate) fn check_network(network: &Network) -> Result<(), ConfigError> {
    let problems = network::boot_problems(network);
    let names: Vec<&str> = network.interfaces.iter().map(|interface| &*interface.name).collect();
    let value = names.join(" ").chars().take(60).collect();
    let wrong = || format!("is not valid: {}", problems.join("; "));
    problems.is_empty().then_some(()).ok_or_else(|| ConfigError { key: "network", value, wrong: wrong() })
}

pub(crate) fn check_token(token: &Secret) -> Result<(), ConfigError> {
    let token = token.reveal();
    if (1..=1024).contains(&token.len()) && token.bytes().all(|c| c.is_ascii_graphic()) {
        return Ok(());
    }
    let wrong =
        "must be one word of visible ASCII characters: write what `slipway-server token add` printed".to_owned();
    Err(ConfigError { key: "token", value: "(secret)".to_owned(), wrong })
}
