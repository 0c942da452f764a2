//! The actions that lay out disks: `partition` and `make-filesystem`.

use serde::{Deserialize, Serialize};

use crate::workflow::disk::DiskHints;
use crate::workflow::new_partition::is_guid;
use crate::workflow::new_partition::{NewPartition, PartitionChoice};
use crate::workflow::raid_lvm;
use crate::workflow::raid_lvm::{NewRaid, NewVolumeGroup};

/// The most partitions in a table. The table has this many entries.
pub const MAX_PARTITIONS: usize = 128;

/// The options of `partition`. The action replaces the partition table of a disk with a new GPT, and builds arrays and
/// volumes on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Selects the disk. With `choose: all`, every matching disk gets the same table.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The partitions, in their order on the disk. They are numbered from 1.
    pub partitions: Vec<NewPartition>,
    /// Linux software RAID arrays over all the disks. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raids: Vec<NewRaid>,
    /// LVM volume groups. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_groups: Vec<NewVolumeGroup>,
}

impl Partition {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(true);
        let is_several = self.disk.may_be_several();
        if self.partitions.is_empty() {
            problems.push("makes no partitions: to remove all partitions, use erase-disk".to_owned());
        }
        if self.partitions.len() > MAX_PARTITIONS {
            problems
                .push(format!("makes {} partitions, but at most {MAX_PARTITIONS} are allowed", self.partitions.len()));
        }
        if self.partitions.iter().filter(|partition| partition.size.bytes() == Ok(None)).count() > 1 {
            problems.push("gives the rest of the disk to several partitions".to_owned());
        }
        for (index, partition) in self.partitions.iter().enumerate() {
            let earlier = &self.partitions[..index];
            let found = partition.validate(earlier).into_iter();
            problems.extend(found.map(|problem| format!("cannot make partition {}: {problem}", index + 1)));
        }
        if is_several && self.partitions.iter().any(|partition| partition.uuid.is_some()) {
            problems.push("gives a partition the same uuid on every disk: leave it out".to_owned());
        }
        problems.extend(raid_lvm::validate(&self.partitions, &self.raids, &self.volume_groups, is_several));
        problems
    }
}

/// The options of `make-filesystem`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MakeFileSystem {
    /// Selects the disk.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// Selects the partition, by number or by label in the partition table. Without it, the file system takes the whole
    /// device that `disk.device` names, such as an array or a volume. That device must not have partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionChoice>,
    /// The kind of file system.
    pub kind: FileSystemKind,
    /// The label of the file system. At most 16 bytes; for `xfs` at most 12 bytes; for `vfat` at most 11 upper-case
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The UUID of the file system. For `vfat` it is eight hexadecimal digits in the form `ABCD-1234`. Without it, the
    /// UUID is random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// A file system that slipway can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FileSystemKind {
    /// ext4.
    Ext4,
    /// FAT32.
    Vfat,
    /// Linux swap space.
    Swap,
    /// XFS.
    Xfs,
}

impl FileSystemKind {
    /// Returns the name that the kernel and blkid use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Vfat => "vfat",
            Self::Swap => "swap",
            Self::Xfs => "xfs",
        }
    }
}

impl MakeFileSystem {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if matches!(&self.partition, Some(PartitionChoice::Number(0))) {
            problems.push("works on partition 0: partitions are numbered from 1".to_owned());
        }
        if self.partition.is_none() && self.disk.device.is_none() {
            problems.push("names no partition: give one, or name an array or a volume with disk.device".to_owned());
        }
        let kind = self.kind.name();
        if let Some(label) = self.label.as_ref().filter(|label| !is_label(self.kind, label)) {
            let rule = match self.kind {
                FileSystemKind::Vfat => "it has at most 11 characters: upper-case letters, digits, spaces, - and _",
                FileSystemKind::Ext4 | FileSystemKind::Swap => "it has at most 16 bytes and no control characters",
                FileSystemKind::Xfs => "it has at most 12 bytes and no control characters",
            };
            problems.push(format!("cannot give {kind} the label {label:?}: {rule}"));
        }
        if let Some(uuid) = &self.uuid {
            let (is_valid, form) = match self.kind {
                FileSystemKind::Vfat => (volume_id(uuid).is_some(), "eight hexadecimal digits, as in ABCD-1234"),
                FileSystemKind::Ext4 | FileSystemKind::Swap | FileSystemKind::Xfs => (is_guid(uuid), "a UUID"),
            };
            if !is_valid {
                problems.push(format!("cannot give {kind} the uuid {uuid:?}: it must be {form}"));
            }
        }
        problems
    }
}

fn is_label(kind: FileSystemKind, label: &str) -> bool {
    // The characters that programs of all systems accept (a subset of Microsoft FAT specification, section 6.1).
    let in_fat = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b' ' | b'-' | b'_');
    match kind {
        FileSystemKind::Vfat => (1..=11).contains(&label.len()) && !label.starts_with(' ') && label.bytes().all(in_fat),
        FileSystemKind::Ext4 | FileSystemKind::Swap => label.len() <= 16 && !label.chars().any(char::is_control),
        FileSystemKind::Xfs => label.len() <= 12 && !label.chars().any(char::is_control),
    }
}

/// Returns the serial number of a FAT volume, in the form that blkid prints.
pub fn volume_id(text: &str) -> Option<u32> {
    let (high, low) = text.split_once('-')?;
    let digits = |part: &str| part.len() == 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    (digits(high) && digits(low)).then(|| u32::from_str_radix(&format!("{high}{low}"), 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_cannot_be_made_is_told_why() {
        let check = |json: &str, expect: &[&str]| {
            let partition: Partition = serde_json::from_str(json).expect("inputs");
            let problems = partition.validate();
            assert_eq!(problems.len(), expect.len(), "{json}: {problems:?}");
            for (problem, expect) in problems.iter().zip(expect) {
                assert!(problem.starts_with(expect), "{json}: {problems:?}");
            }
        };
        check(
            r#"{"partitions": [{"size": "512MiB", "type": "esp"}, {"size": "rest", "type": "root", "label": "r"}]}"#,
            &[],
        );
        check(r#"{"partitions": [{"size": 1, "type": "0FC63DAF-8483-4772-8E79-3D69D8477DE4"}]}"#, &[]);
        check(r#"{"partitions": []}"#, &["makes no partition"]);
        let twice = r#"{"partitions": [{"size": "rest", "type": "linux"}, {"size": "rest", "type": "linux"}]}"#;
        check(twice, &["gives the rest of the disk to several"]);
        check(
            r#"{"partitions": [
                {"size": "x", "type": "ext4", "uuid": "1", "label": "0123456789012345678901234567890123456"}
            ]}"#,
            &[
                "cannot make partition 1: the size \"x\"",
                "cannot make partition 1: the type \"ext4\" is neither",
                "cannot make partition 1: the label",
                "cannot make partition 1: the uuid \"1\" is not a GUID",
            ],
        );
        check(
            r#"{"partitions": [{"size": 1, "type": "linux", "uuid": "0FC63DAF-8483-4772-8E79-3D69D8477DE4"},
                {"size": 1, "type": "linux", "uuid": "0fc63daf-8483-4772-8e79-3d69d8477de4"}]}"#,
            &["cannot make partition 2: an earlier partition has the same uuid"],
        );
    }

    #[test]
    fn a_file_system_that_cannot_be_made_is_told_why() {
        let check = |json: &str, expect: Option<&str>| {
            let problems = serde_json::from_str::<MakeFileSystem>(json).expect("inputs").validate();
            assert_eq!(problems.is_empty(), expect.is_none(), "{json}: {problems:?}");
            assert!(problems.iter().zip(expect).all(|(problem, expect)| problem.starts_with(expect)), "{problems:?}");
        };
        check(r#"{"partition": 1, "kind": "ext4"}"#, None);
        check(
            r#"{"partition": "root", "kind": "swap", "label": "s", "uuid": "0fc63daf-8483-4772-8e79-3d69d8477de4"}"#,
            None,
        );
        check(r#"{"partition": 1, "kind": "vfat", "label": "EFI", "uuid": "AB12-cd34"}"#, None);
        check(r#"{"disk": {"device": "/dev/vg/root"}, "kind": "ext4"}"#, None);
        check(r#"{"partition": 0, "kind": "ext4"}"#, Some("works on partition 0"));
        check(r#"{"disk": {"serial": "x"}, "kind": "ext4"}"#, Some("names no partition"));
        check(r#"{"partition": 1, "kind": "vfat", "label": "efi"}"#, Some("cannot give vfat the label"));
        check(r#"{"partition": 1, "kind": "vfat", "uuid": "12345678"}"#, Some("cannot give vfat the uuid"));
        check(r#"{"partition": 1, "kind": "ext4", "uuid": "AB12-cd34"}"#, Some("cannot give ext4 the uuid"));
        check(r#"{"partition": 1, "kind": "swap", "label": "12345678901234567"}"#, Some("cannot give swap the label"));
        check(r#"{"partition": 1, "kind": "xfs", "label": "-twelve byt-"}"#, None);
        check(r#"{"partition": 1, "kind": "xfs", "label": "1234567890123"}"#, Some("cannot give xfs the label"));
        check(r#"{"partition": 1, "kind": "xfs", "label": "a\nb"}"#, Some("cannot give xfs the label"));
        check(r#"{"partition": 1, "kind": "xfs", "uuid": "AB12-cd34"}"#, Some("cannot give xfs the uuid"));
    }
}
