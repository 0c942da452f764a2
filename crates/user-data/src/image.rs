//! What the configuration in an image does to a seed: whether cloud-init, in the installed system, will find it.
//!
//! Pure: the files of the image go in, the obstacles come out. The rules are those of cloud-init's source code:
//! cloudinit/util.py (`read_conf_with_confd`, `mergemanydict`), cloudinit/sources/DataSourceNoCloud.py,
//! cloudinit/stages.py (`_find_networking_config`) and tools/ds-identify.

mod ds_identify;
mod kernel;
mod ours;
mod tree;

use std::fmt;

use serde::{Deserialize, Serialize};

use ds_identify::{Decision, decide};
use tree::Node;

pub use kernel::{is_telling, telling};
pub use ours::{MARK, replaces};

/// What to do about an obstacle.
pub const ADVICE: &str = "change that in the image, or in a step before this one";

const LIST: &str = "datasource_list";
const NO_CLOUD: &str = "NoCloud";
/// The data source that is used if there is no other.
const NONE: &str = "None";
/// Folder of the files that add to the main one.
const PARTS: &str = "/etc/cloud/cloud.cfg.d";
/// Folder of cloud-init's state, with the seed.
const STATE: &str = "/var/lib/cloud";
/// Labels of a partition with a seed, in lower case.
const LABEL: &str = "cidata";
/// Settings that make a file replace the settings of files that sort after it (cloudinit/mergers).
const MERGE: &[&str] = &["merge_how", "merge_type"];

/// A file of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path in the installed system, for messages.
    pub path: String,
    /// Content.
    pub text: String,
}

/// What cloud-init and ds-identify read in an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// /etc/cloud/cloud.cfg.
    pub main: Option<File>,
    /// The files in /etc/cloud/cloud.cfg.d. Only those that end with `.cfg` count.
    pub parts: Vec<File>,
    /// /etc/cloud/ds-identify.cfg.
    pub ds_identify: Option<File>,
    /// A file whose existence keeps cloud-init from running.
    pub disabled: Option<String>,
    /// Texts with arguments of the kernel: boot entries and menus.
    pub boot: Vec<File>,
}

/// A seed, as far as the configuration matters to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seed {
    /// Whether the seed has a network configuration.
    pub has_network: bool,
    /// Whether the seed has vendor-data.
    pub has_vendor_data: bool,
    /// Whether the seed makes the installed system report by cloud-init's module `phone_home`.
    pub has_phone_home: bool,
    /// Whether the seed is in a partition of its own.
    pub is_partition: bool,
}

/// Why cloud-init would not take a seed as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Path of the file.
    pub path: String,
    /// Line of the setting, from 1. None if the file as a whole is the obstacle.
    pub line: Option<usize>,
    /// What the file does.
    pub reason: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        write!(f, "{}{line} {}", self.path, self.reason)
    }
}

/// The settings of a file that cloud-init can read.
struct Settings<'a> {
    path: &'a str,
    settings: Vec<(String, usize, Node)>,
}

/// Judges an image. Returns what keeps a seed from being taken, and warnings of files that cloud-init skips.
pub fn judge(image: &Image, seed: Seed) -> (Vec<Obstacle>, Vec<String>) {
    let mut obstacles = Vec::new();
    if let Some(path) = &image.disabled {
        obstacles.push(obstacle((path, 0), "keeps cloud-init from running"));
    }
    let arguments = kernel::read(&image.boot, seed, &mut obstacles);
    let mut parts: Vec<&File> = image.parts.iter().filter(|file| file.path.ends_with(".cfg")).collect();
    parts.sort_by(|a, b| a.path.cmp(&b.path));
    let (mut read, mut warnings) = (Vec::new(), Vec::new());
    for file in parts.iter().rev().copied().chain(&image.main) {
        match tree::settings(&file.text) {
            Ok(settings) => read.push(Settings { path: &file.path, settings }),
            Err(refusal) if image.main.as_ref() == Some(file) => {
                let reason = format!("cannot be read by cloud-init, which then does nothing: {}", refusal.reason);
                obstacles.push(obstacle((&file.path, refusal.line), &reason));
            }
            Err(refusal) => warnings.push(format!("cloud-init skips {}: {refusal}", file.path)),
        }
    }
    let in_order: Vec<File> = image.main.iter().chain(parts).cloned().collect();
    let decided = decide(&in_order, image.ds_identify.as_ref(), &arguments);
    let by = decided.by.unwrap_or((LIST, 0));
    match decided.decision {
        Decision::Disabled => obstacles.push(obstacle(by, "makes ds-identify disable cloud-init")),
        Decision::Sources(sources) if !sources.iter().any(|source| source == NO_CLOUD) => {
            obstacles.push(obstacle(by, &pinned(&sources.join(", "))));
        }
        Decision::Sources(_) => {}
        Decision::None => obstacles.extend(listed(&read)),
    }
    obstacles.extend(elsewhere(image, &read));
    obstacles.extend(overridden(&read, seed));
    warnings.extend(without_module(&read, seed));
    (obstacles, warnings)
}

fn obstacle((path, line): (&str, usize), reason: &str) -> Obstacle {
    Obstacle { path: path.to_owned(), line: (line > 0).then_some(line), reason: reason.to_owned() }
}

fn pinned(sources: &str) -> String {
    format!("makes cloud-init use the data source {sources} instead of a seed")
}

/// The obstacle that the list of data sources lacks NoCloud, where ds-identify leaves the choice to cloud-init.
fn listed(read: &[Settings]) -> Option<Obstacle> {
    let (node, by) = setting(read, &[LIST])?;
    let names = match node {
        Node::List(items) => items.iter().filter_map(Node::text).collect(),
        _ => Vec::new(),
    };
    let is_no_cloud = |name: &&str| name.strip_prefix("DataSource").unwrap_or(name) == NO_CLOUD;
    (!names.iter().any(is_no_cloud)).then(|| obstacle(by, &pinned(&names.join(", "))))
}

/// A warning if no list of modules has the module that reports. A module is a name, or a list that begins with the name
/// (cloudinit/config/modules.py, `_fixup_modules` and `form_module_name`).
fn without_module(read: &[Settings], seed: Seed) -> Option<String> {
    let stages = ["cloud_init_modules", "cloud_config_modules", "cloud_final_modules"];
    let lists = stages.iter().filter_map(|stage| match setting(read, &[stage])? {
        (Node::List(modules), by) => Some((*stage, modules, by)),
        _ => None,
    });
    let lists: Vec<_> = lists.filter(|_| seed.has_phone_home).collect();
    let name = |module: &Node| match module {
        Node::List(parts) => parts.first().and_then(Node::text).map(str::to_owned),
        Node::Map(_) => Some(words(module)),
        module => module.text().map(str::to_owned),
    };
    let reports = |module: &Node| {
        let name = name(module).unwrap_or_default().to_lowercase().replace('-', "_");
        name.trim().trim_start_matches("cc_").trim_end_matches(".py") == "phone_home"
    };
    let (stage, _, by) = lists.last()?;
    let found = lists.iter().any(|(_, modules, _)| modules.iter().any(reports));
    let reason = format!("has no phone_home among its modules ({stage}), so the installed system will not report");
    (!found).then(|| obstacle(*by, &reason).to_string())
}

/// Finds settings that make cloud-init look in other places.
fn elsewhere(image: &Image, read: &[Settings]) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let main = image.main.as_ref().and_then(|main| read.iter().find(|file| file.path == main.path));
    if let Some((_, line, node)) = main.and_then(|main| main.settings.iter().find(|(key, ..)| key == "conf_d")) {
        let folder = node.text().unwrap_or_default().trim().trim_end_matches('/');
        if folder != PARTS {
            let reason = format!("makes cloud-init read {folder:?} (conf_d) instead of {PARTS}");
            obstacles.extend(main.map(|main| obstacle((main.path, *line), &reason)));
        }
    }
    let is_other = |node: &Node| node.text().is_some_and(|folder| folder.trim_end_matches('/') != STATE);
    let folder = setting(read, &["system_info", "paths", "cloud_dir"]);
    if let Some((Node::Text(folder), by)) = folder.filter(|(node, _)| is_other(node)) {
        obstacles.push(obstacle(by, &format!("makes cloud-init look for a seed below {folder:?} (cloud_dir)")));
    }
    obstacles
}

/// Finds settings that make something else take precedence over the seed.
fn overridden(read: &[Settings], seed: Seed) -> Vec<Obstacle> {
    let no_cloud = |key: &str| setting(read, &["datasource", NO_CLOUD, key]);
    let mut obstacles = Vec::new();
    if let Some((Node::Text(from), by)) = no_cloud("seedfrom").filter(|(node, _)| node.text() != Some("")) {
        obstacles.push(obstacle(by, &format!("makes cloud-init take its seed from {from:?} (seedfrom)")));
    }
    if let (Some((_, by)), Some(_)) = (no_cloud("user-data"), no_cloud("meta-data")) {
        obstacles.push(obstacle(by, "has user-data and meta-data that replace a seed's"));
    }
    let is_label = |node: &Node| node.text().is_some_and(|text| text.eq_ignore_ascii_case(LABEL));
    if let Some((_, by)) = no_cloud("fs_label").filter(|(node, _)| seed.is_partition && !is_label(node)) {
        obstacles.push(obstacle(by, "makes cloud-init look for a partition with another label (fs_label)"));
    }
    // cloudinit/util.py, is_true.
    let is_true = |text: &str| matches!(text.to_lowercase().trim(), "true" | "1" | "on" | "yes");
    let allows = |node: &Node| node.text().is_some_and(is_true);
    if let Some((_, by)) = setting(read, &["allow_userdata"]).filter(|(node, _)| !allows(node)) {
        obstacles.push(obstacle(by, "makes cloud-init ignore user-data (allow_userdata)"));
    }
    let vendor_data = setting(read, &["vendor_data", "enabled"]);
    if let Some((_, by)) = vendor_data.filter(|(node, _)| seed.has_vendor_data && !allows(node)) {
        obstacles.push(obstacle(by, "makes cloud-init ignore vendor-data (vendor_data)"));
    }
    if let Some((_, by)) = setting(read, &["network"]).filter(|(node, _)| seed.has_network && **node != Node::Null) {
        obstacles.push(obstacle(by, "has a network configuration that takes precedence over a seed's (network)"));
    }
    obstacles
}

impl Node {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A setting as cloud-init merges it, and the file and line it comes from. `read` begins with the files that count
/// most.
fn setting<'a>(read: &'a [Settings<'a>], path: &[&str]) -> Option<(&'a Node, (&'a str, usize))> {
    let mut found = None;
    for file in read {
        let has_key = path.first().is_some_and(|first| file.settings.iter().any(|(key, ..)| key == first));
        if has_key && (found.is_none() || file.replaces()) {
            // A key whose parent is not a mapping is not found, and not looked for in other files.
            match file.find(path) {
                Found::Absent => {}
                here => found = Some(here),
            }
        }
    }
    match found? {
        Found::Setting(node, by) => Some((node, by)),
        _ => None,
    }
}

/// What a file has at a path of keys.
enum Found<'a> {
    Setting(&'a Node, (&'a str, usize)),
    Absent,
    /// A parent is not a mapping.
    Blocked,
}

impl<'a> Settings<'a> {
    fn find(&'a self, path: &[&str]) -> Found<'a> {
        let (mut entries, mut left) = (&self.settings, path.iter());
        let Some(mut key) = left.next() else { return Found::Absent };
        loop {
            let Some((_, line, node)) = entries.iter().find(|(name, ..)| name == key) else { return Found::Absent };
            match (left.next(), node) {
                (None, node) => return Found::Setting(node, (self.path, *line)),
                (Some(next), Node::Map(inner)) => (key, entries) = (next, inner),
                (Some(_), _) => return Found::Blocked,
            }
        }
    }

    /// Whether the settings of this file replace those of files with higher precedence.
    fn replaces(&self) -> bool {
        let how = self.settings.iter().filter(|(key, ..)| MERGE.contains(&&**key));
        how.map(|(.., node)| words(node)).any(|words| words.contains("replace") && !words.contains("no_replace"))
    }
}

/// All texts of a node.
fn words(node: &Node) -> String {
    match node {
        Node::Null => String::new(),
        Node::Text(text) => text.clone(),
        Node::List(items) => items.iter().map(words).collect::<Vec<_>>().join(" "),
        Node::Map(entries) => entries.iter().map(|(_, _, node)| words(node)).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests;
