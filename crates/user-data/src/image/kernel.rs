//! Kernel arguments that cloud-init obeys. They are baked into the boot configuration of an image.

use super::ds_identify::Arguments;
use super::{File, NO_CLOUD, Obstacle, Seed, obstacle, pinned};

/// The arguments that are judged here and by ds-identify, except those that begin with `cc:`.
const KEYS: &[&str] = &[
    "ci.ds",
    "ci.datasource",
    "ci.di.policy",
    "cloud-init",
    "systemd.volatile",
    "systemd.mask",
    "ds",
    "network-config",
];

/// Finds what keeps a seed from being taken, and what only ds-identify understands.
pub(super) fn read<'a>(boot: &'a [File], seed: Seed, obstacles: &mut Vec<Obstacle>) -> Arguments<'a> {
    let mut arguments = Arguments::default();
    for file in boot {
        let lines = file.text.lines().zip(1..).filter(|(line, _)| !line.trim_start().starts_with('#'));
        for (line, number) in lines {
            let by = (&*file.path, number);
            for word in line.split_whitespace().map(|word| word.trim_matches(['"', '\''])) {
                obstacles.extend(judged(word, line, seed).map(|reason| obstacle(by, &reason)));
                let (key, value) = word.split_once('=').unwrap_or((word, ""));
                match key {
                    // Of several entries, the harmful one is reported.
                    "ci.ds" | "ci.datasource" if value != NO_CLOUD || arguments.source.is_none() => {
                        arguments.source = Some((value, by));
                    }
                    "ci.di.policy" if value.contains("disabled") || arguments.policy.is_none() => {
                        arguments.policy = Some((value, by));
                    }
                    _ => {}
                }
            }
        }
    }
    arguments
}

/// A boot text with only the lines that matter here, each in its original place. None if there are none.
pub fn telling(file: File) -> Option<File> {
    let matters = |line: &&str| line.split_whitespace().any(|word| is_telling(word.trim_matches(['"', '\''])));
    let lines: Vec<&str> = file.text.lines().map(|line| Some(line).filter(matters).unwrap_or_default()).collect();
    let last = lines.iter().rposition(|line| !line.is_empty())?;
    Some(File { text: lines.get(..=last)?.join("\n"), ..file })
}

/// Whether a kernel argument may matter to whether cloud-init takes a seed.
pub fn is_telling(argument: &str) -> bool {
    argument.starts_with("cc:") || KEYS.contains(&argument.split_once('=').map_or(argument, |(key, _)| key))
}

fn judged(word: &str, line: &str, seed: Seed) -> Option<String> {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    let gives = |what: &str| Some(format!("gives the kernel {word}, {what}"));
    match key {
        "cloud-init" if value == "disabled" => gives("which keeps cloud-init from running"),
        "systemd.volatile" if !seed.is_partition && matches!(value, "" | "yes" | "true" | "1" | "on" | "state") => {
            gives("with which /var is empty at each start")
        }
        "systemd.mask" if value.starts_with("cloud-") => gives("which keeps cloud-init from running"),
        "ds" => {
            // Boot loaders want the semicolon escaped.
            let (source, rest) = value.split_once([';', '\\']).unwrap_or((value, ""));
            match source.to_ascii_lowercase().as_str() {
                "nocloud" | "nocloud-net" if rest.trim_matches(['\\', ';']).is_empty() => None,
                "nocloud" | "nocloud-net" => gives("which takes precedence over a seed"),
                _ => Some(format!("gives the kernel {word}: it {}", pinned(source))),
            }
        }
        "network-config" if seed.has_network => gives("which takes precedence over a seed's network configuration"),
        _ if word.starts_with("cc:") && line.contains("datasource") => gives("which sets the data source"),
        _ => None,
    }
}
