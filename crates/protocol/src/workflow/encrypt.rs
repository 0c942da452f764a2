//! Encryption of the root file system.

use serde::{Deserialize, Serialize};

use super::Action;
use crate::shared::secret::Secret;
use crate::workflow::disk::DiskHints;

/// The number of registers of a TPM. It is the same on every platform (TCG PC Client Platform TPM Profile 1.05, 4.6).
const REGISTERS: u32 = 24;
/// The register that Secure Boot and its keys are measured into (UAPI Group Specifications, "Linux TPM PCR Registry").
const SECURE_BOOT: u32 = 7;

/// The options of `encrypt-root`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EncryptRoot {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The TPM's platform configuration registers that the key is bound to, from 0 to 23. They are of the SHA-256 bank.
    /// The installed system gets the key only if these registers have the same values as during this step.
    #[serde(default = "secure_boot", skip_serializing_if = "is_secure_boot")]
    #[cfg_attr(feature = "openapi", schema(default = json!([7])))]
    pub pcrs: Vec<u32>,
    /// Whether the root partition grows to the end of the disk. It grows only if it is the last partition of its disk.
    #[serde(default = "super::image::yes", skip_serializing_if = "super::image::is_yes")]
    #[cfg_attr(feature = "openapi", schema(default = true))]
    pub grow: bool,
}

impl Default for EncryptRoot {
    fn default() -> Self {
        Self { disk: DiskHints::default(), pcrs: secure_boot(), grow: true }
    }
}

fn secure_boot() -> Vec<u32> {
    vec![SECURE_BOOT]
}

fn is_secure_boot(pcrs: &[u32]) -> bool {
    pcrs == [SECURE_BOOT]
}

impl EncryptRoot {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if self.pcrs.is_empty() {
            problems.push(
                "has an empty list of pcrs: name the PCRs that the key is bound to, such as [7], or leave pcrs out"
                    .to_owned(),
            );
        }
        for pcr in self.pcrs.iter().filter(|pcr| **pcr >= REGISTERS) {
            problems.push(format!("binds the key to PCR {pcr}, but PCRs are 0 to {}", REGISTERS - 1));
        }
        for (index, pcr) in self.pcrs.iter().enumerate() {
            if self.pcrs.iter().take(index).any(|earlier| earlier == pcr) {
                problems.push(format!("names PCR {pcr} twice"));
            }
        }
        problems
    }
}

/// Returns whether the earlier action encrypts the root file system that the later action mounts. Actions with
/// different hints are not compared: the hints may select different disks.
pub(super) fn closes(earlier: &Action, later: &Action) -> bool {
    let Action::EncryptRoot(encrypt) = earlier else { return false };
    let disk = match later {
        Action::EncryptRoot(again) => Some(&again.disk),
        Action::SeedCloudInit(seed) => Some(&seed.disk),
        Action::RunInTarget(run) => Some(&run.disk),
        Action::BootReporter(reporter) => Some(&reporter.disk),
        Action::WriteFile(file) => Some(&file.disk).filter(|_| file.partition.is_none()),
        Action::UnpackArchive(archive) => Some(&archive.disk).filter(|_| archive.partition.is_none()),
        _ => None,
    };
    disk == Some(&encrypt.disk)
}

/// The key that opens an encrypted root file system when the TPM does not. It is the body of
/// `POST /v1/node/runs/{run}/recovery-keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RecoveryKey {
    /// The UUID of the LUKS2 volume, in lower case.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"))]
    pub volume: String,
    /// The key: 64 modhex digits in groups of eight, joined by hyphens, in the form of systemd-cryptenroll.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = String, pattern = "^[bcdefghijklnrtuv]{8}(-[bcdefghijklnrtuv]{8}){7}$")
    )]
    pub key: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::tests::check;
    use crate::{NumberOrName, RunInTarget, Step, WriteFile, workflow};

    #[test]
    fn a_key_is_bound_to_registers_there_are() {
        let encrypt = |pcrs: &[u32]| Action::EncryptRoot(EncryptRoot { pcrs: pcrs.to_vec(), ..EncryptRoot::default() });
        check(encrypt(&[7]), &[]);
        check(encrypt(&[0, 2, 23]), &[]);
        check(
            encrypt(&[]),
            &["has an empty list of pcrs: name the PCRs that the key is bound to, such as [7], or leave pcrs out"],
        );
        check(encrypt(&[24]), &["binds the key to PCR 24, but PCRs are 0 to 23"]);
        check(encrypt(&[7, 4, 7]), &["names PCR 7 twice"]);
    }

    #[test]
    fn what_needs_the_root_comes_before_it_is_encrypted() {
        let step = |name: &str, action: Action| Step { name: name.to_owned(), action, retries: 0, timeout: None };
        let run = RunInTarget { command: vec!["true".to_owned()], ..RunInTarget::default() };
        let elsewhere = DiskHints { device: Some("/dev/sdb".to_owned()), ..DiskHints::default() };
        let encrypt = step("a", Action::EncryptRoot(EncryptRoot::default()));
        let check = |second: Action, expect: &[&str]| {
            assert_eq!(workflow::validate(&[encrypt.clone(), step("b", second)]), expect);
        };
        let late = "step 2 (\"b\") needs the root file system, which step 1 encrypts: put it before that step";
        check(Action::RunInTarget(run.clone()), &[late]);
        check(Action::EncryptRoot(EncryptRoot::default()), &[late]);
        check(Action::RunInTarget(RunInTarget { disk: elsewhere, ..run.clone() }), &[]);
        let file = WriteFile { path: "a".to_owned(), content: Some(String::new()), ..WriteFile::default() };
        check(Action::WriteFile(file.clone()), &[late]);
        check(Action::WriteFile(WriteFile { partition: Some(NumberOrName::Number(1)), ..file }), &[]);
        let before = [step("b", Action::RunInTarget(run)), encrypt.clone()];
        assert_eq!(workflow::validate(&before), [""; 0]);
    }

    #[test]
    fn what_is_left_out_is_secure_boot_and_all_of_the_disk() {
        let read: Action = serde_json::from_str(r#"{"encrypt-root": {}}"#).expect("an action");
        assert_eq!(read, Action::EncryptRoot(EncryptRoot { pcrs: vec![7], grow: true, ..EncryptRoot::default() }));
        assert_eq!(serde_json::to_string(&read).expect("text"), r#"{"encrypt-root":{}}"#);
    }
}
