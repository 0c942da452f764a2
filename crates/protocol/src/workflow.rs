//! Workflows: the work of a node. Operators write them as YAML; the server sends them as JSON.

use serde::{Deserialize, Serialize};

use crate::workflow::capture::CaptureDisk;
use crate::workflow::disk::DiskHints;

pub use boot::{BootPosition, EfiBootOrder, Kexec, Reboot};
pub use boot_reporter::BootReporter;
pub use encrypt::{EncryptRoot, RecoveryKey};
pub use erase::{EraseDisk, EraseMode};
pub use foresee::Foreseen;
pub use image::{StreamImage, Verify};
pub use kernel_args::{KernelArgReplacement, KernelArgs, is_kernel_argument, kernel_argument_problem};
pub use origin::{DetachedSignature, Location, Origin, RegistryAuth, shown_url};
pub use partition::{FileSystemKind, MakeFileSystem, Partition, volume_id};
pub use secure_boot::{EnrolSecureBoot, SecureBootUpdate, SecureBootVariable, signed_lists};
pub use seed::{PhoneHome, SeedCloudInit, SeedPlace, is_ignition};
pub use target::{NumberOrName, RunInTarget, UnpackArchive, WriteFile, file_mode, target_path_problem};

pub mod agent;
mod boot;
mod boot_reporter;
pub mod capture;
pub mod disk;
mod encrypt;
mod erase;
pub mod foresee;
pub mod hint;
mod image;
mod kernel_args;
pub mod new_partition;
mod origin;
mod partition;
pub mod partition_types;
pub mod raid_lvm;
mod secure_boot;
mod seed;
mod target;

/// The answer (200) to `GET /v1/node/workflow`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    /// The run that these steps belong to.
    pub run: String,
    /// The sequence number that the first event of this agent must have: the highest stored number plus one.
    pub next_seq: u64,
    /// The steps, in the order they run.
    pub steps: Vec<Step>,
    /// How many of the steps an earlier run has done. The agent begins with the step after them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub done: u32,
}

pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The most retries of a step. With more of them, a machine that cannot do the step would be busy forever.
const MAX_RETRIES: u32 = 100;

/// Returns the problems of these steps, one sentence each. Empty if the steps can be run. The server calls this before
/// it accepts a run, and the installer before it begins one. So a workflow that cannot work is refused before a disk is
/// erased.
pub fn validate(steps: &[Step]) -> Vec<String> {
    let mut problems = Vec::new();
    if steps.is_empty() {
        problems.push("the workflow has no steps".to_owned());
    }
    for (index, step) in steps.iter().enumerate() {
        let place = format!("step {} ({:?})", index + 1, step.name);
        if step.name.trim().is_empty() {
            problems.push(format!("{place} has no name"));
        }
        if steps.iter().take(index).any(|earlier| earlier.name == step.name) {
            problems.push(format!("{place} has the same name as an earlier step"));
        }
        if step.timeout == Some(0) {
            problems.push(format!("{place} has a timeout of 0 seconds: leave it out for no limit"));
        }
        if step.retries > MAX_RETRIES {
            problems.push(format!("{place} has {} retries, but at most {MAX_RETRIES} are allowed", step.retries));
        }
        let leaves = match step.action {
            Action::Reboot(_) => Some("reboots"),
            Action::Kexec(_) => Some("starts the installed kernel"),
            _ => None,
        };
        if let Some(leaves) = leaves.filter(|_| index + 1 < steps.len()) {
            let follow = match steps.len() - index - 1 {
                1 => "1 more step follows".to_owned(),
                more => format!("{more} more steps follow"),
            };
            problems.push(format!("{place} {leaves}, but {follow}"));
        }
        if let Some(number) =
            steps.iter().take(index).position(|earlier| encrypt::closes(&earlier.action, &step.action))
        {
            problems.push(format!(
                "{place} needs the root file system, which step {} encrypts: put it before that step",
                number + 1
            ));
        }
        problems.extend(step.action.validate().into_iter().map(|problem| format!("{place} {problem}")));
    }
    problems
}

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The name of the step, for operators. It is unique in the workflow.
    pub name: String,
    /// The action of the step.
    pub action: Action,
    /// How often the action is tried again after a temporary failure. Default: 0. At most 100.
    #[serde(default)]
    pub retries: u32,
    /// The seconds that one attempt may take. Without it, the only limit is the action's own detection of a stall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// The actions. This set is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Erases disks.
    EraseDisk(EraseDisk),
    /// Writes an image to a disk.
    StreamImage(StreamImage),
    /// Gives a disk a new partition table.
    Partition(Partition),
    /// Makes a file system in a partition.
    #[serde(rename = "make-filesystem")]
    MakeFileSystem(MakeFileSystem),
    /// Gives the installed system its user-data.
    SeedCloudInit(SeedCloudInit),
    /// Changes the kernel arguments in the installed system's boot entries.
    KernelArgs(KernelArgs),
    /// Writes a file of the installed system.
    WriteFile(WriteFile),
    /// Unpacks a tar archive in the installed system.
    UnpackArchive(UnpackArchive),
    /// Runs a command in the installed system.
    RunInTarget(RunInTarget),
    /// Encrypts the root file system of the installed system.
    EncryptRoot(EncryptRoot),
    /// Stores the disk on the server as an image.
    CaptureDisk(CaptureDisk),
    /// Makes the installed system report its boots until it runs.
    BootReporter(BootReporter),
    /// Makes the firmware start the installed system.
    EfiBootOrder(EfiBootOrder),
    /// Gives the firmware keys for Secure Boot.
    EnrolSecureBoot(EnrolSecureBoot),
    /// Starts the installed system without the firmware.
    Kexec(Kexec),
    /// Restarts the machine into the installed system.
    Reboot(Reboot),
}

impl Action {
    /// Returns the problems of the options. Each completes a sentence that begins with the name of the step. Empty if
    /// the action can be run.
    pub fn validate(&self) -> Vec<String> {
        match self {
            Action::EraseDisk(erase) => erase.validate(),
            Action::StreamImage(image) => image.validate(),
            Action::Partition(partition) => partition.validate(),
            Action::MakeFileSystem(make) => make.validate(),
            Action::SeedCloudInit(seed) => seed.validate(),
            Action::KernelArgs(arguments) => arguments.validate(),
            Action::WriteFile(file) => file.validate(),
            Action::UnpackArchive(archive) => archive.validate(),
            Action::RunInTarget(run) => run.validate(),
            Action::EncryptRoot(encrypt) => encrypt.validate(),
            Action::CaptureDisk(capture) => capture.validate(),
            Action::BootReporter(reporter) => reporter.validate(),
            Action::EfiBootOrder(order) => order.validate(),
            Action::EnrolSecureBoot(enrol) => enrol.validate(),
            Action::Kexec(kexec) => kexec.validate(),
            Action::Reboot(_) => Vec::new(),
        }
    }

    /// Returns the hints that select the action's disk. None if the action works on no disk.
    pub fn disk(&self) -> Option<&DiskHints> {
        match self {
            Action::EraseDisk(erase) => Some(&erase.disk),
            Action::StreamImage(image) => Some(&image.disk),
            Action::Partition(partition) => Some(&partition.disk),
            Action::MakeFileSystem(make) => Some(&make.disk),
            Action::SeedCloudInit(seed) => Some(&seed.disk),
            Action::KernelArgs(arguments) => Some(&arguments.disk),
            Action::WriteFile(file) => Some(&file.disk),
            Action::UnpackArchive(archive) => Some(&archive.disk),
            Action::RunInTarget(run) => Some(&run.disk),
            Action::EncryptRoot(encrypt) => Some(&encrypt.disk),
            Action::CaptureDisk(capture) => Some(&capture.disk),
            Action::BootReporter(reporter) => Some(&reporter.disk),
            Action::EfiBootOrder(order) => Some(&order.disk),
            Action::Kexec(kexec) => Some(&kexec.disk),
            Action::EnrolSecureBoot(_) | Action::Reboot(_) => None,
        }
    }

    /// Returns the hints for the action's disk, to change them. `None` if the action has no disk.
    pub fn disk_mut(&mut self) -> Option<&mut DiskHints> {
        match self {
            Action::EraseDisk(erase) => Some(&mut erase.disk),
            Action::StreamImage(image) => Some(&mut image.disk),
            Action::Partition(partition) => Some(&mut partition.disk),
            Action::MakeFileSystem(make) => Some(&mut make.disk),
            Action::SeedCloudInit(seed) => Some(&mut seed.disk),
            Action::KernelArgs(arguments) => Some(&mut arguments.disk),
            Action::WriteFile(file) => Some(&mut file.disk),
            Action::UnpackArchive(archive) => Some(&mut archive.disk),
            Action::RunInTarget(run) => Some(&mut run.disk),
            Action::EncryptRoot(encrypt) => Some(&mut encrypt.disk),
            Action::CaptureDisk(capture) => Some(&mut capture.disk),
            Action::BootReporter(reporter) => Some(&mut reporter.disk),
            Action::EfiBootOrder(order) => Some(&mut order.disk),
            Action::Kexec(kexec) => Some(&mut kexec.disk),
            Action::EnrolSecureBoot(_) | Action::Reboot(_) => None,
        }
    }

    /// Returns the action's name in workflows and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Action::EraseDisk(_) => "erase-disk",
            Action::StreamImage(_) => "stream-image",
            Action::Partition(_) => "partition",
            Action::MakeFileSystem(_) => "make-filesystem",
            Action::SeedCloudInit(_) => "seed-cloud-init",
            Action::KernelArgs(_) => "kernel-args",
            Action::WriteFile(_) => "write-file",
            Action::UnpackArchive(_) => "unpack-archive",
            Action::RunInTarget(_) => "run-in-target",
            Action::EncryptRoot(_) => "encrypt-root",
            Action::CaptureDisk(_) => "capture-disk",
            Action::BootReporter(_) => "boot-reporter",
            Action::EfiBootOrder(_) => "efi-boot-order",
            Action::EnrolSecureBoot(_) => "enrol-secure-boot",
            Action::Kexec(_) => "kexec",
            Action::Reboot(_) => "reboot",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reboot(name: &str) -> Step {
        Step { name: name.to_owned(), action: Action::Reboot(Reboot {}), retries: 0, timeout: None }
    }

    #[test]
    fn a_workflow_that_cannot_be_run_is_told_why() {
        assert_eq!(validate(&[]), ["the workflow has no steps"]);
        assert_eq!(validate(&[reboot("a")]), [""; 0]);
        assert_eq!(
            validate(&[reboot("a"), reboot("a")]),
            ["step 1 (\"a\") reboots, but 1 more step follows", "step 2 (\"a\") has the same name as an earlier step"]
        );
        assert_eq!(
            validate(&[reboot("a"), reboot("b"), reboot("c")]),
            ["step 1 (\"a\") reboots, but 2 more steps follow", "step 2 (\"b\") reboots, but 1 more step follows",]
        );
        let never = Step { timeout: Some(0), ..reboot("a") };
        assert_eq!(validate(&[never]), ["step 1 (\"a\") has a timeout of 0 seconds: leave it out for no limit"]);
    }

    /// Checks the problems of one step with this action.
    pub(super) fn check(action: Action, expect: &[&str]) {
        let step = Step { action, ..reboot("a") };
        let expect: Vec<String> = expect.iter().map(|problem| format!("step 1 (\"a\") {problem}")).collect();
        assert_eq!(validate(std::slice::from_ref(&step)), expect, "{step:?}");
    }

    #[test]
    fn names_and_retries_have_bounds() {
        assert_eq!(validate(&[reboot(" ")]), ["step 1 (\" \") has no name"]);
        let stubborn = |retries| Step { retries, ..reboot("a") };
        assert_eq!(validate(&[stubborn(100)]), [""; 0]);
        assert_eq!(validate(&[stubborn(101)]), ["step 1 (\"a\") has 101 retries, but at most 100 are allowed"]);
    }

    #[test]
    fn hints_that_could_never_be_followed_are_told() {
        let erase = |disk| Action::EraseDisk(EraseDisk { disk, ..EraseDisk::default() });
        let args = |disk| {
            let append = vec!["quiet".to_owned()];
            Action::KernelArgs(KernelArgs { disk, append, ..KernelArgs::default() })
        };
        let read = |json: &str| serde_json::from_str::<DiskHints>(json).expect(json);
        let skipping = read(r#"{"choose": "all", "skip": [{"tran": "usb"}, {"name": "/dev/disk/by-path/pci-1"}]}"#);
        check(erase(skipping.clone()), &[]);
        check(args(skipping), &["takes one disk: it cannot choose all"]);
        check(erase(read(r#"{"skip": [{}]}"#)), &["skips every disk: a hint in skip is empty"]);
        let not_in_skip = "has device, choose or skip in a hint in skip; to skip a path, use name";
        for skip in [r#"{"device": "/dev/sda"}"#, r#"{"choose": "all"}"#, r#"{"skip": [{"tran": "usb"}]}"#] {
            check(args(read(&format!(r#"{{"skip": [{skip}]}}"#))), &[not_in_skip]);
        }
        let link =
            "names a disk with \"/dev/disk/by-id/x\": name accepts kernel paths and links under /dev/disk/by-path/";
        check(args(read(r#"{"name": "<or> /dev/sda <or> /dev/disk/by-id/X"}"#)), &[link]);
        check(erase(read(r#"{"skip": [{"name": "s== /dev/disk/by-id/x"}]}"#)), &[link]);
        for text in ["{{ x }}", "{{x", "{% x %}", "${X}", "a-${X}", "$(x)", "$X", "a <%= x %>"] {
            let left = |value: &str, key: &str| {
                format!("has {value:?} as its {key}: this is a variable of a template that was not filled in")
            };
            let lower = text.to_lowercase();
            check(erase(read(&format!(r#"{{"serial": "s!= {text}"}}"#))), &[&left(&lower, "serial")]);
            check(erase(read(&format!(r#"{{"skip": [{{"model": "{text}"}}]}}"#))), &[&left(&lower, "model")]);
            check(erase(read(&format!(r#"{{"device": "{text}"}}"#))), &[&left(text, "device")]);
        }
        for text in ["a$b", "{x}", "$1", "%x%", "<in> a"] {
            check(erase(read(&format!(r#"{{"serial": "{text}"}}"#))), &[]);
        }
    }

    #[test]
    fn a_misspelt_key_is_an_error() {
        let text = r#"{"stream-image": {"url": "https://s/x", "sha265": "00"}}"#;
        let error = serde_json::from_str::<Action>(text).expect_err("misspelt");
        assert!(error.to_string().contains("unknown field `sha265`"), "{error}");
    }
}
