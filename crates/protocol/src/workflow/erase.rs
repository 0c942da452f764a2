//! Erasing disks.

use serde::{Deserialize, Serialize};

use crate::workflow::disk::DiskHints;

/// The options of `erase-disk`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EraseDisk {
    /// Selects the disk. With `choose: all`, every matching disk is erased.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// How thoroughly the disk is erased. See the table of modes. Default: `metadata`.
    #[serde(default)]
    pub mode: EraseMode,
    /// The modes to try, in order, if the disk cannot do `mode`. Without `fallback`, the step fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<EraseMode>,
    /// Whether the step fails, before it erases anything, if `choose: all` would skip a disk that is neither removable
    /// nor a boot medium. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
}

impl EraseDisk {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step. A
    /// fallback that is never reached is a problem: its author is mistaken about how the disk is erased.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(true);
        let mut tried = vec![self.mode];
        for mode in &self.fallback {
            if let Some(sure) = tried.iter().find(|mode| matches!(mode, EraseMode::Zero | EraseMode::Metadata)) {
                problems
                    .push(format!("falls back from {sure} to {mode}, which never happens: every disk supports {sure}"));
            } else if tried.contains(mode) {
                problems.push(format!("falls back to {mode}, which was tried before"));
            }
            tried.push(*mode);
        }
        problems
    }
}

/// How thoroughly a disk is erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum EraseMode {
    /// Erases the head and tail of the disk, and the signatures of every partition. Nothing is recognised afterwards,
    /// but data can be recovered.
    #[default]
    Metadata,
    /// Tells the disk that it may forget every block. Most flash then reads as zeros. Whether its chips still hold the
    /// old data depends on the disk.
    Discard,
    /// Writes zeros to every byte. Spare blocks of flash keep their old content.
    Zero,
    /// Uses the disk's own command that erases all its media: NVMe sanitize or format, ATA secure erase, eMMC secure
    /// discard.
    Secure,
}

impl std::fmt::Display for EraseMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EraseMode::Metadata => "metadata",
            EraseMode::Discard => "discard",
            EraseMode::Zero => "zero",
            EraseMode::Secure => "secure",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    #[test]
    fn every_way_to_erase_that_is_named_can_be_come_to() {
        use EraseMode::{Discard, Metadata, Secure, Zero};
        let erase = |mode, fallback: &[EraseMode]| {
            Action::EraseDisk(EraseDisk { mode, fallback: fallback.to_vec(), ..EraseDisk::default() })
        };
        check(erase(Metadata, &[]), &[]);
        check(erase(Secure, &[Discard, Zero]), &[]);
        check(erase(Discard, &[Metadata]), &[]);
        check(erase(Secure, &[Secure]), &["falls back to secure, which was tried before"]);
        let never = "falls back from zero to discard, which never happens: every disk supports zero";
        check(erase(Zero, &[Discard]), &[never]);
        check(erase(Secure, &[Zero, Discard]), &[never]);
        let text = r#"{"erase-disk": {"mode": "secure", "fallback": ["discard", "metadata"]}}"#;
        let read: Action = serde_json::from_str(text).expect("an action");
        assert_eq!(read, erase(Secure, &[Discard, Metadata]));
    }
}
