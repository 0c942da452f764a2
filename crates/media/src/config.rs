//! The configuration of boot files, and the archive that adds it to the initramfs.

use serde::Serialize;
use serde_json::Value;
use slipway_parts::cpio::Archive;
use slipway_parts::{About, Arch, sha256};
use slipway_protocol::{BootSettings, MEDIUM, MOST_CONFIG_BYTES, Medium, Proof, SettingError};

use crate::kind::Kind;

/// The path of the configuration in the initramfs.
const CONFIG: &str = "/etc/slipway/config.yaml";

/// The kernel's limit for its command line in bytes, including the final zero (arch/x86/include/asm/setup.h and
/// include/uapi/asm-generic/setup.h).
const COMMAND_LINE_SIZE: usize = 2048;

/// The configuration of one site, or of one group of its machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The machines' configuration.
    pub settings: BootSettings,
    /// Consoles of the kernel, such as `ttyS1,115200`. Kernel messages go to all of them, PID 1's output to the last.
    /// Empty means the default consoles of the architecture, [`Arch::consoles`].
    pub consoles: Vec<String>,
    /// Further kernel arguments.
    pub arguments: Vec<String>,
}

impl Config {
    /// Checks every value for boot files of these kinds, because a machine cannot correct them.
    pub fn check(&self, kinds: &[Kind]) -> Result<(), SettingError> {
        let settings = &self.settings;
        settings.check()?;
        if to_yaml(settings).len() > MOST_CONFIG_BYTES {
            let wrong = format!("makes a configuration of more than {MOST_CONFIG_BYTES} bytes");
            return Err(SettingError::new("ca", &settings.ca, wrong));
        }
        if settings.server.is_some() && !settings.metadata.is_empty() {
            let names: Vec<&str> = settings.metadata.iter().map(|place| place.name()).collect();
            let wrong = "has no effect beside the URL of a server: leave one of them out";
            return Err(SettingError::new("metadata", &names.join(","), wrong));
        }
        // Metadata may bring the token too.
        let has_place = !settings.metadata.is_empty() || kinds.iter().all(|kind| kind.has_machine_settings());
        if settings.require == Proof::Token && settings.machine.token.is_none() && !has_place {
            let wrong = "needs a bootstrap token in the files; without one, make only media that have a place for the \
                         settings of a machine: the kinds stick and disc";
            return Err(SettingError::new("require", settings.require.name(), wrong));
        }
        let words = self.consoles.iter().map(|word| ("console", word));
        for (key, word) in words.chain(self.arguments.iter().map(|word| ("argument", word))) {
            // The kernel splits its command line at blanks outside quotes.
            if word.is_empty() || !word.bytes().all(|c| c.is_ascii_graphic() && c != b'"') {
                return Err(SettingError::new(
                    key,
                    word,
                    "must be one word of visible ASCII characters without quotes",
                ));
            }
        }
        let cmdline = self.cmdline(Arch::X86_64);
        if cmdline.len() >= COMMAND_LINE_SIZE {
            let wrong =
                format!("makes a command line of {COMMAND_LINE_SIZE} bytes or more, which the kernel would cut off");
            return Err(SettingError::new("argument", self.arguments.last().map_or("", String::as_str), wrong));
        }
        Ok(())
    }

    /// Returns the kernel's command line.
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

    /// Returns the archive with the configuration, and with the facts that the machine checks before it uses its
    /// network. No other part of the boot files depends on the site.
    pub(crate) fn archive(&self, build: &str, about: &About) -> Vec<u8> {
        let config = to_yaml(&self.settings).into_bytes();
        let medium = Medium { build: build.to_owned(), release: about.release.clone(), config_sha256: sha256(&config) };
        // This type always serialises.
        let medium = serde_json::to_vec(&medium).unwrap_or_default();
        let mut archive = Archive::default();
        archive.add_file(CONFIG, 0o600, config);
        archive.add_file(MEDIUM, 0o644, medium);
        archive.to_bytes(about.date)
    }
}

/// Returns settings as machines read them: YAML with a text for each key. Leaves out absent settings.
pub fn to_yaml(settings: &impl Serialize) -> String {
    // This type always converts to JSON.
    let values = serde_json::to_value(settings).unwrap_or_default();
    let texts = values.as_object().into_iter().flatten().filter_map(|(key, value)| Some((key, value.as_str()?)));
    let line = |(key, text): (&String, &str)| match text.trim().contains('\n') {
        true => {
            format!("{key}: |\n{}", text.trim().lines().map(|line| format!("  {}\n", line.trim())).collect::<String>())
        }
        // JSON strings are valid YAML strings (YAML 1.2.2, section 1.2).
        false => format!("{key}: {}\n", Value::from(text)),
    };
    texts.map(line).collect()
}
