//! The layers that `partition` builds on partitions: Linux software RAID arrays and LVM volume groups.

use serde::{Deserialize, Serialize};

use crate::workflow::new_partition;
use crate::workflow::new_partition::{NewPartition, PartitionChoice, PartitionSize};

/// The greatest length of an array's name, in bytes. The superblock has 32 bytes for the name and its prefix (Linux,
/// uapi/linux/raid/md_p.h). The kernel's limit for a device name with `md_` in front gives the same number.
const MAX_ARRAY_NAME: usize = 28;
/// The greatest length of a volume's name in the device mapper, with the name of its group, in bytes (linux/dm-ioctl.h,
/// `DM_NAME_LEN`).
const MAX_MAPPING_NAME: usize = 127;
/// The most volumes in a group. The group's LVM metadata must fit into the space reserved for it.
const MAX_VOLUMES: usize = 256;
/// The names that LVM keeps for itself (lvm(8), "Valid names").
const RESERVED_STARTS: &[&str] = &["snapshot", "pvmove"];
const RESERVED_PARTS: &[&str] = &[
    "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_pmspare", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_tpool", "_vdata", "_vorigin", "_vpool", "_wcorig",
];
/// Folders of /dev. A group of such a name would be taken for something else.
const RESERVED_GROUPS: &[&str] = &["mapper", "md"];

/// An array of one partition of every disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewRaid {
    /// The name of the array. Later steps and the installed system name it by `device: /dev/md/NAME`. It has at most 28
    /// letters, digits, `_`, `-` and `.`, and begins with a letter or digit.
    pub name: String,
    /// How the array stores its data.
    pub level: RaidLevel,
    /// Selects the partition of each disk, by number or label. The partition must have the type `raid`. For `raid1`, it
    /// may also have the type `esp` or `xbootldr`; firmware still reads the partition as if there were no array.
    pub partition: PartitionChoice,
}

/// How an array stores its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RaidLevel {
    /// Spread over all disks. The array is lost with the first disk.
    Raid0,
    /// The same data on every disk.
    Raid1,
    /// Spread over at least three disks, with parity. The array survives the loss of one disk, once it is fully in
    /// sync.
    Raid5,
    /// Spread over at least four disks, with double parity. The array survives the loss of two disks, once it is fully
    /// in sync.
    Raid6,
    /// Spread over the disks, with every piece on two disks.
    Raid10,
}

impl RaidLevel {
    /// Returns the name in workflows and in mdadm.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid5 => "raid5",
            Self::Raid6 => "raid6",
            Self::Raid10 => "raid10",
        }
    }
}

/// An LVM volume group. It is on an array or on a partition of every disk: give exactly one of `raid` and `partition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewVolumeGroup {
    /// The name of the group. It has letters, digits, `+`, `_`, `.` and `-`.
    pub name: String,
    /// The name of the array that the group is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raid: Option<String>,
    /// Selects the partition of each disk that the group is on, by number or label. The type must be `lvm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionChoice>,
    /// The volumes, in their order in the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<NewVolume>,
}

/// A linear volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The name of the volume. Later steps and the installed system name it by `device: /dev/GROUP/NAME`.
    pub name: String,
    /// The size, rounded up to whole extents of 4 MiB.
    pub size: PartitionSize,
}

/// Returns the index of the one partition that the choice selects, or the problem of the choice.
pub fn chosen(partitions: &[NewPartition], choice: &PartitionChoice) -> Result<usize, String> {
    match choice {
        PartitionChoice::Number(number) => {
            let index = usize::try_from(*number).ok().and_then(|number| number.checked_sub(1));
            index.filter(|index| *index < partitions.len()).ok_or_else(|| format!("there is no partition {number}"))
        }
        PartitionChoice::Label(label) => {
            let mut found = (0..).zip(partitions).filter(|(_, partition)| partition.label.as_ref() == Some(label));
            match (found.next(), found.next()) {
                (Some((index, _)), None) => Ok(index),
                (None, _) => Err(format!("there is no partition with the label {label:?}")),
                (Some(_), Some(_)) => Err(format!("several partitions have the label {label:?}; give the number")),
            }
        }
    }
}

/// Returns whether firmware reads partitions of this type. Such partitions must look as if there were no array.
pub fn is_read_by_firmware(r#type: &str) -> bool {
    let guid = new_partition::type_guid(r#type);
    guid.is_some() && ["esp", "xbootldr"].iter().any(|name| new_partition::type_guid(name) == guid)
}

/// Returns the problems of the arrays and groups of a disk. Each completes a sentence that begins with the name of the
/// step. `is_several` says whether the table is made on several disks.
pub(crate) fn validate(
    partitions: &[NewPartition],
    raids: &[NewRaid],
    groups: &[NewVolumeGroup],
    is_several: bool,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut used = Vec::new();
    for (index, raid) in raids.iter().enumerate() {
        let mut found = raid_problems(raid, partitions, is_several, &mut used);
        if raids[..index].iter().any(|earlier| earlier.name == raid.name) {
            found.push("an earlier array has the same name".to_owned());
        }
        problems.extend(found.into_iter().map(|problem| format!("cannot make array {:?}: {problem}", raid.name)));
    }
    let mut raids_used = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let mut found = group_problems(group, partitions, raids, &mut used, &mut raids_used);
        if groups[..index].iter().any(|earlier| earlier.name == group.name) {
            found.push("an earlier group has the same name".to_owned());
        }
        let place = |problem| format!("cannot make volume group {:?}: {problem}", group.name);
        problems.extend(found.into_iter().map(place));
    }
    problems
}

fn raid_problems(raid: &NewRaid, partitions: &[NewPartition], is_several: bool, used: &mut Vec<usize>) -> Vec<String> {
    let mut problems = Vec::new();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_name = raid.name.starts_with(|c: char| c.is_ascii_alphanumeric()) && raid.name.chars().all(is_valid);
    if !is_name || raid.name.len() > MAX_ARRAY_NAME {
        let rule = "letters, digits, _, - and ., and begins with a letter or digit";
        problems.push(format!("a name has at most {MAX_ARRAY_NAME} {rule}"));
    }
    if !is_several {
        problems.push("it needs one partition on each of several disks: set disk.choose to all".to_owned());
    }
    let fits = |r#type: &str| {
        let is_raid = new_partition::type_guid(r#type) == new_partition::type_guid("raid");
        is_raid || (raid.level == RaidLevel::Raid1 && is_read_by_firmware(r#type))
    };
    let types = match raid.level {
        RaidLevel::Raid1 => "raid, esp or xbootldr",
        RaidLevel::Raid0 | RaidLevel::Raid5 | RaidLevel::Raid6 | RaidLevel::Raid10 => "raid",
    };
    problems.extend(base_problem(&raid.partition, partitions, used, fits, types));
    problems
}

fn group_problems(
    group: &NewVolumeGroup,
    partitions: &[NewPartition],
    raids: &[NewRaid],
    used: &mut Vec<usize>,
    raids_used: &mut Vec<String>,
) -> Vec<String> {
    let mut problems: Vec<String> = name_problem(&group.name).into_iter().collect();
    if RESERVED_GROUPS.contains(&group.name.as_str()) {
        problems.push("/dev has a folder of this name for something else".to_owned());
    }
    match (&group.raid, &group.partition) {
        (Some(raid), None) => {
            if !raids.iter().any(|made| made.name == *raid) {
                problems.push(format!("there is no array {raid:?} in this step"));
            } else if raids_used.contains(raid) {
                problems.push(format!("another volume group already uses the array {raid:?}"));
            }
            raids_used.push(raid.clone());
        }
        (None, Some(choice)) => {
            let is_lvm = |r#type: &str| new_partition::type_guid(r#type) == new_partition::type_guid("lvm");
            problems.extend(base_problem(choice, partitions, used, is_lvm, "lvm"));
        }
        _ => problems.push("it needs either raid or partition: give exactly one".to_owned()),
    }
    if group.volumes.len() > MAX_VOLUMES {
        problems.push(format!("it has {} volumes, but at most {MAX_VOLUMES} are allowed", group.volumes.len()));
    }
    if group.volumes.iter().filter(|volume| volume.size.bytes() == Ok(None)).count() > 1 {
        problems.push("it gives the rest of the group to several volumes".to_owned());
    }
    for (index, volume) in group.volumes.iter().enumerate() {
        let mut found: Vec<String> = volume.size.bytes().err().into_iter().chain(name_problem(&volume.name)).collect();
        if group.volumes[..index].iter().any(|earlier| earlier.name == volume.name) {
            found.push("an earlier volume has the same name".to_owned());
        }
        if mapping_name(&group.name, &volume.name).len() > MAX_MAPPING_NAME {
            found.push(format!(
                "its name is too long: at most {MAX_MAPPING_NAME} characters together with its group's name"
            ));
        }
        problems.extend(found.into_iter().map(|problem| format!("volume {:?}: {problem}", volume.name)));
    }
    problems
}

/// Returns the problem of a partition that an array or group is to be built on. Marks the partition as used.
fn base_problem(
    choice: &PartitionChoice,
    partitions: &[NewPartition],
    used: &mut Vec<usize>,
    fits: impl Fn(&str) -> bool,
    types: &str,
) -> Option<String> {
    let index = match chosen(partitions, choice) {
        Ok(index) => index,
        Err(problem) => return Some(problem),
    };
    let is_used = used.contains(&index);
    used.push(index);
    let found = &partitions[index].r#type;
    if is_used {
        Some(format!("partition {} is already used by something else", index + 1))
    } else if !fits(found) {
        Some(format!("partition {} has the type {found:?}, but must have {types}", index + 1))
    } else {
        None
    }
}

/// Checks the rules of lvm(8), "Valid names", which are the same for groups and volumes.
fn name_problem(name: &str) -> Option<String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    if name.is_empty() || !name.chars().all(is_valid) || name.starts_with(['-', '.']) {
        return Some("a name has only letters, digits, +, _, . and -, and does not begin with . or -".to_owned());
    }
    let is_reserved = RESERVED_STARTS.iter().any(|start| name.starts_with(start))
        || RESERVED_PARTS.iter().any(|part| name.contains(part));
    is_reserved.then(|| "LVM reserves this name".to_owned())
}

/// Returns the name of a volume in the device mapper. A hyphen separates group and volume. Hyphens within the names are
/// doubled.
pub fn mapping_name(group: &str, volume: &str) -> String {
    format!("{}-{}", group.replace('-', "--"), volume.replace('-', "--"))
}

/// Splits a name from [`mapping_name`] into group and volume. Returns None for any other name.
pub fn parse_mapping_name(name: &str) -> Option<(String, String)> {
    let mut from = 0;
    while let Some(at) = name.get(from..)?.find('-').map(|at| at + from) {
        if name[at + 1..].starts_with('-') {
            from = at + 2;
            continue;
        }
        let (group, volume) = (name[..at].replace("--", "-"), name[at + 1..].replace("--", "-"));
        return (mapping_name(&group, &volume) == name && !group.is_empty()).then_some((group, volume));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Partition;

    const DISKS: &str = r#""disk": {"choose": "all"}, "partitions": [
        {"type": "esp", "size": "1GiB", "label": "esp"}, {"type": "raid", "size": "1GiB", "label": "system"},
        {"type": "lvm", "size": "1GiB", "label": "data"}, {"type": "linux", "size": "rest"}]"#;

    fn check(layers: &str, expect: &[&str]) {
        let inputs: Partition = serde_json::from_str(&format!("{{{DISKS}, {layers}}}")).expect("inputs");
        let problems = inputs.validate();
        assert_eq!(problems.len(), expect.len(), "{layers}: {problems:?}");
        for (problem, expect) in problems.iter().zip(expect) {
            assert!(problem.starts_with(expect), "{layers}: {problems:?}");
        }
    }

    #[test]
    fn arrays_that_cannot_be_made_are_told_why() {
        let raid = |name: &str, level: &str, partition: &str| {
            format!(r#""raids": [{{"name": "{name}", "level": "{level}", "partition": {partition}}}]"#)
        };
        check(&raid("system", "raid1", "\"system\""), &[]);
        check(&raid("a-b.c_1", "raid10", "2"), &[]);
        check(&raid("esp", "raid1", "\"esp\""), &[]);
        check(&raid("esp", "raid0", "\"esp\""), &["cannot make array \"esp\": partition 1 has the type \"esp\", but"]);
        check(&raid("x", "raid1", "4"), &["cannot make array \"x\": partition 4 has the type \"linux\""]);
        check(&raid("x", "raid1", "5"), &["cannot make array \"x\": there is no partition 5"]);
        check(&raid("x", "raid1", "0"), &["cannot make array \"x\": there is no partition 0"]);
        check(&raid("x", "raid1", "\"y\""), &["cannot make array \"x\": there is no partition with the label \"y\""]);
        for wrong in ["", "../x", "a b", ".x", "-x", "12345678901234567890123456789"] {
            check(&raid(wrong, "raid1", "2"), &[&format!("cannot make array {wrong:?}: a name has at most 28")]);
        }
        check(
            r#""raids": [
                {"name": "a", "level": "raid1", "partition": 2},
                {"name": "a", "level": "raid1", "partition": 2}
            ]"#,
            &[
                "cannot make array \"a\": partition 2 is already used by something else",
                "cannot make array \"a\": an earlier array has the same name",
            ],
        );
    }

    #[test]
    fn groups_that_cannot_be_made_are_told_why() {
        let group = |rest: &str| format!(r#""volume_groups": [{{"name": "vg", {rest}}}]"#);
        let volumes = |list: &str| group(&format!(r#""partition": 3, "volumes": [{list}]"#));
        let why = |problem: &str| format!("cannot make volume group \"vg\": {problem}");
        check(&volumes(r#"{"name": "root", "size": "10GiB"}, {"name": "x+y_z", "size": "rest"}"#), &[]);
        check(&group(r#""volumes": []"#), &[&why("it needs either raid or partition")]);
        check(&group(r#""raid": "x", "partition": 3"#), &[&why("it needs either raid or partition")]);
        check(&group(r#""raid": "x""#), &[&why("there is no array \"x\" in this step")]);
        check(&group(r#""partition": 2"#), &[&why("partition 2 has the type \"raid\", but must have lvm")]);
        check(&volumes(r#"{"name": "a", "size": "x"}"#), &[&why("volume \"a\": the size \"x\"")]);
        let twice = r#"{"name": "a", "size": "rest"}, {"name": "a", "size": "rest"}"#;
        let expect = ["it gives the rest of the group", "volume \"a\": an earlier volume has the same name"];
        check(&volumes(twice), &expect.map(why).each_ref().map(String::as_str));
        for wrong in ["", "-a", "..", "a/b", "a b", "snapshot1", "x_tmeta"] {
            check(&volumes(&format!(r#"{{"name": "{wrong}", "size": 1}}"#)), &[&why(&format!("volume {wrong:?}: "))]);
        }
        let long = "a".repeat(125);
        check(&volumes(&format!(r#"{{"name": "{long}", "size": 1}}"#)), &[&why(&format!("volume {long:?}: its name"))]);
        check(r#""volume_groups": [{"name": "md", "partition": 3}]"#, &["cannot make volume group \"md\": /dev has"]);
    }

    #[test]
    fn one_disk_has_no_array_and_several_have_no_uuid_in_common() {
        let check = |disk: &str, uuid: &str, expect: &str| {
            let json = format!(
                r#"{{{disk} "partitions": [{{"type": "raid", "size": "rest" {uuid}}}],
                "raids": [{{"name": "a", "level": "raid1", "partition": 1}}]}}"#
            );
            let problems = serde_json::from_str::<Partition>(&json).expect("inputs").validate();
            assert!(problems.len() == 1 && problems[0].contains(expect), "{problems:?}");
        };
        check("", "", "set disk.choose to all");
        let uuid = r#", "uuid": "0fc63daf-8483-4772-8e79-3d69d8477de4""#;
        check(r#""disk": {"choose": "all"},"#, uuid, "the same uuid on every disk");
    }

    #[test]
    fn names_of_mappings_are_read_as_they_are_written() {
        for (group, volume, name) in
            [("vg0", "root", "vg0-root"), ("a-b", "c", "a--b-c"), ("a", "b-c", "a-b--c"), ("a-", "b", "a---b")]
        {
            assert_eq!(mapping_name(group, volume), name);
            assert_eq!(parse_mapping_name(name), Some((group.to_owned(), volume.to_owned())), "{name}");
        }
        for other in ["", "luks", "a--b", "-b", "a-b-c"] {
            assert_eq!(parse_mapping_name(other), None, "{other}");
        }
    }
}
