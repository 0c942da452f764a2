//! What Ignition refuses beyond types and names (Ignition, config/v3_5/types and config/shared/errors).

use std::collections::BTreeSet;

use serde_json::Value;

use super::judge::{Judged, judge_resource, wrong};

/// Endings of the names of units (systemd.unit(5)); `snapshot` is Ignition's.
const UNITS: &[&str] = &[
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "snapshot",
    "slice",
    "scope",
];
const LEVELS: &[&str] = &[
    "linear", "raid0", "0", "stripe", "raid1", "1", "mirror", "raid4", "4", "raid5", "5", "raid6", "6", "raid10", "10",
];
/// RAID levels without a place for spares.
const WITHOUT_SPARES: &[&str] = &["linear", "raid0", "0", "stripe"];
/// Kinds of file systems, and the most characters of their labels.
const FORMATS: &[(&str, usize)] =
    &[("ext4", 16), ("btrfs", 256), ("xfs", 12), ("vfat", 11), ("swap", 15), ("none", usize::MAX)];
/// Most characters of a partition's label (UEFI specification, 5.3.3).
const LONGEST_LABEL: usize = 36;

/// Refuses what Ignition would refuse in a config whose values have the right types.
pub(super) fn judge(root: &Value) -> Judged {
    judge_ignition(&root["ignition"])?;
    judge_arguments(&root["kernelArguments"])?;
    for (place, user) in each(&root["passwd"], "passwd", "users") {
        once(&place, "sshAuthorizedKeys", &user["sshAuthorizedKeys"])?;
    }
    let storage = |list| each(&root["storage"], "storage", list);
    storage("disks").try_for_each(|(place, disk)| judge_disk(&place, disk))?;
    storage("raid").try_for_each(|(place, raid)| judge_raid(&place, raid))?;
    storage("filesystems").try_for_each(|(place, file_system)| judge_file_system(&place, file_system))?;
    storage("luks").try_for_each(|(place, luks)| judge_luks(&place, luks))?;
    for list in ["files", "directories", "links"] {
        storage(list).try_for_each(|(place, node)| judge_node(&place, node, root))?;
    }
    for (place, file) in storage("files") {
        if file["overwrite"] == true && file["contents"]["source"].is_null() {
            return wrong(&place, "has \"overwrite\": true, but no source of its contents; an empty one is \"data:,\"");
        }
    }
    for (place, link) in storage("links") {
        if text(link, "target").is_empty() {
            return wrong(&place, "needs \"target\", a path");
        }
    }
    each(&root["systemd"], "systemd", "units").try_for_each(|(place, unit)| judge_unit(&place, unit))
}

/// The items of a list, each with its place in words.
fn each<'a>(section: &'a Value, name: &str, list: &str) -> impl Iterator<Item = (String, &'a Value)> + use<'a> {
    let place = format!("{name}.{list}");
    let items = section[list].as_array().into_iter().flatten().enumerate();
    items.map(move |(index, item)| (format!("{place}[{index}]"), item))
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

/// Refuses a text that a list has twice.
fn once(place: &str, key: &str, list: &Value) -> Judged {
    let mut seen = BTreeSet::new();
    let mut texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    match texts.find(|text| !seen.insert(*text)) {
        Some(twice) => wrong(place, format!("has {twice:?} twice in {key:?}")),
        None => Ok(()),
    }
}

fn judge_ignition(ignition: &Value) -> Judged {
    for (place, merged) in each(&ignition["config"], "ignition.config", "merge") {
        judge_needed(&place, merged)?;
    }
    judge_resource("ignition.config.replace", &ignition["config"]["replace"])?;
    let mut sources = BTreeSet::new();
    for (place, ca) in each(&ignition["security"]["tls"], "ignition.security.tls", "certificateAuthorities") {
        judge_needed(&place, ca)?;
        if !sources.insert(text(ca, "source")) {
            return wrong(&place, "has the source of an earlier entry: give each once");
        }
    }
    for key in ["httpProxy", "httpsProxy"] {
        let proxy = text(&ignition["proxy"], key);
        if !proxy.is_empty() && !proxy.starts_with("http://") && !proxy.starts_with("https://") {
            return wrong(&format!("ignition.proxy.{key}"), "needs a URL that begins with http:// or https://");
        }
    }
    Ok(())
}

/// Judges what is fetched, which must have a source.
fn judge_needed(place: &str, resource: &Value) -> Judged {
    if text(resource, "source").is_empty() {
        return wrong(place, "needs \"source\", a URL");
    }
    judge_resource(place, resource)
}

fn judge_arguments(arguments: &Value) -> Judged {
    for key in ["shouldExist", "shouldNotExist"] {
        once("kernelArguments", key, &arguments[key])?;
    }
    let unwanted = arguments["shouldNotExist"].as_array().into_iter().flatten();
    let wanted = arguments["shouldExist"].as_array();
    match unwanted.into_iter().find(|unwanted| wanted.is_some_and(|wanted| wanted.contains(unwanted))) {
        Some(both) => wrong("kernelArguments", format!("has {both} both in \"shouldExist\" and in \"shouldNotExist\"")),
        None => Ok(()),
    }
}

fn judge_disk(place: &str, disk: &Value) -> Judged {
    judge_device(place, disk)?;
    let (mut numbers, mut labels, mut ranges) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for (place, partition) in each(disk, place, "partitions") {
        let (number, label) = (partition["number"].as_i64().unwrap_or(0), text(partition, "label"));
        if number < 0 || number == 0 && label.is_empty() {
            return wrong(&place, "needs \"number\", from 1, or \"label\"");
        }
        if number > 0 && !numbers.insert(number) || !label.is_empty() && !labels.insert(label) {
            return wrong(&place, "has the number or the label of another partition");
        }
        if label.chars().count() > LONGEST_LABEL || label.contains(':') {
            return wrong(&place, format!("needs a label of at most {LONGEST_LABEL} characters, without colons"));
        }
        if let Some(key) = ["guid", "typeGuid"].into_iter().find(|key| !is_guid(text(partition, key))) {
            return wrong(&place, format!("needs {key:?} as 01234567-89AB-CDEF-EDCB-A98765432101"));
        }
        let [start, size] = ["startMiB", "sizeMiB"].map(|key| partition[key].as_i64().filter(|value| *value > 0));
        if let Some((start, size)) = start.zip(size) {
            let overlaps = |(other, end): &(i64, i64)| start < *end && *other < start.saturating_add(size);
            if ranges.iter().any(overlaps) {
                return wrong(&place, "overlaps another partition");
            }
            ranges.push((start, start.saturating_add(size)));
        }
    }
    Ok(())
}

/// Whether a text is a GUID, or empty.
fn is_guid(text: &str) -> bool {
    let is_digits = |(part, len): (&str, usize)| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    text.is_empty() || text.split('-').count() == 5 && text.split('-').zip([8, 4, 4, 4, 12]).all(is_digits)
}

fn judge_device(place: &str, object: &Value) -> Judged {
    match text(object, "device").starts_with('/') {
        true => Ok(()),
        false => wrong(place, "needs \"device\", a path that begins with a slash"),
    }
}

fn judge_raid(place: &str, raid: &Value) -> Judged {
    let (level, devices) = (text(raid, "level"), raid["devices"].as_array());
    if !LEVELS.contains(&level) {
        return wrong(place, format!("needs \"level\", one of: {}", LEVELS.join(", ")));
    }
    let mut paths = devices.into_iter().flatten().filter_map(Value::as_str);
    if devices.is_none_or(Vec::is_empty) || !paths.all(|path| path.starts_with('/')) {
        return wrong(place, "needs \"devices\", a list of paths that begin with a slash");
    }
    once(place, "devices", &raid["devices"])?;
    match WITHOUT_SPARES.contains(&level) && raid["spares"].as_i64().unwrap_or(0) != 0 {
        true => wrong(place, format!("has \"spares\", for which the level {level:?} has no place")),
        false => Ok(()),
    }
}

fn judge_file_system(place: &str, file_system: &Value) -> Judged {
    judge_device(place, file_system)?;
    let (format, label) = (text(file_system, "format"), text(file_system, "label"));
    if format.is_empty() {
        let others = ["path", "label", "uuid", "wipeFilesystem", "options", "mountOptions"];
        let is_empty = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        return match others.into_iter().find(|key| !is_empty(&file_system[*key])) {
            Some(key) => wrong(place, format!("needs \"format\", as it has {key:?}")),
            None => Ok(()),
        };
    }
    let Some((_, longest)) = FORMATS.iter().find(|(name, _)| *name == format) else {
        let names: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
        return wrong(place, format!("needs \"format\", one of: {}", names.join(", ")));
    };
    match label.len() > *longest {
        true => wrong(place, format!("has a label of more than {longest} bytes, which {format} cannot hold")),
        false => Ok(()),
    }
}

fn judge_luks(place: &str, luks: &Value) -> Judged {
    if text(luks, "name").contains('/') {
        return wrong(place, "needs \"name\" without slashes");
    }
    judge_device(place, luks)?;
    judge_resource(&format!("{place}.keyFile"), &luks["keyFile"])
}

/// Judges owner and place of a file, folder or link.
fn judge_node(place: &str, node: &Value, root: &Value) -> Judged {
    for owner in ["user", "group"] {
        if !node[owner]["id"].is_null() && !text(&node[owner], "name").is_empty() {
            return wrong(&format!("{place}.{owner}"), "has both \"id\" and \"name\": give one of them");
        }
    }
    let path = text(node, "path");
    let mut links = each(&root["storage"], "storage", "links").map(|(_, link)| text(link, "path"));
    let is_above = |link: &&str| path.strip_prefix(*link).is_some_and(|rest| rest.starts_with('/'));
    match links.find(is_above) {
        Some(link) => wrong(place, format!("is below {link:?}, which is a link")),
        None => Ok(()),
    }
}

fn judge_unit(place: &str, unit: &Value) -> Judged {
    let ending = text(unit, "name").rsplit_once('.').map_or("", |(_, ending)| ending);
    if !UNITS.contains(&ending) {
        return wrong(place, format!("needs a name that ends with one of: .{}", UNITS.join(", .")));
    }
    judge_sections(place, unit)?;
    let mut names = BTreeSet::new();
    for (place, dropin) in each(unit, place, "dropins") {
        let name = text(dropin, "name");
        if !name.ends_with(".conf") {
            return wrong(&place, "needs a name that ends with .conf");
        }
        if !names.insert(name) {
            return wrong(&place, format!("has the name {name:?} again: give each once"));
        }
        judge_sections(&place, dropin)?;
    }
    Ok(())
}

/// Refuses the heading of a section that does not end.
fn judge_sections(place: &str, unit: &Value) -> Judged {
    let is_open = |line: &&str| line.starts_with('[') && !line.trim_end().ends_with(']');
    match text(unit, "contents").lines().find(is_open) {
        Some(line) => wrong(place, format!("has the heading {line:?} without its \"]\"")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
