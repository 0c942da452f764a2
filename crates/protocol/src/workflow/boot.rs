//! The actions that start the installed system, and the action that sets what the machine starts from next.

use serde::{Deserialize, Serialize};

use super::target_path_problem;
use crate::workflow::disk::DiskHints;

/// The most characters in an entry's name. Firmware shows one line of a menu.
const MAX_LABEL: usize = 64;
/// The most bytes in a kernel command line, with the zero byte at its end (COMMAND_LINE_SIZE of x86 and arm64).
const MAX_COMMAND_LINE: usize = 2048;

/// The options of `reboot`. There are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reboot {}

/// The options of `efi-boot-order`. The action makes the firmware start the installed system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EfiBootOrder {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The place of the entry in the firmware's boot order. Default: `first`.
    #[serde(default)]
    pub position: BootPosition,
    /// The path of the boot loader on the EFI system partition, such as `/EFI/debian/shimx64.efi`. Without it, slipway
    /// takes the boot loader that came with the installed system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader: Option<String>,
    /// The name of the entry in the firmware. Without it, slipway takes the name of the installed system. At most 64
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the run goes on if the firmware's boot order cannot be changed. The step then warns and says why. A
    /// machine without UEFI gets no warning. Default: `false`.
    #[serde(default)]
    pub optional: bool,
}

/// The place of an entry in the firmware's boot order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum BootPosition {
    /// Before all other entries, from now on.
    #[default]
    First,
    /// Before all other entries, but only at the next boot. Later boots follow the boot order, in which the entry is
    /// last.
    Next,
}

impl EfiBootOrder {
    /// Returns the problems of these options by themselves.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if let Some(loader) = &self.loader {
            let path = loader.replace('\\', "/");
            let problem = match target_path_problem(&path) {
                None if !path.starts_with('/') => Some("it does not begin with a slash"),
                None if !path.to_ascii_lowercase().ends_with(".efi") => Some("it does not end in .efi"),
                None if path.chars().any(char::is_control) => Some("it has a control character"),
                problem => problem,
            };
            problems.extend(problem.map(|problem| format!("starts the loader {loader:?}: {problem}")));
        }
        if let Some(label) = &self.label {
            let problem = match label {
                _ if label.trim().is_empty() => Some("it is empty"),
                _ if label.chars().any(char::is_control) => Some("it has a control character"),
                _ if label.chars().count() > MAX_LABEL => Some("it has more than 64 characters"),
                _ => None,
            };
            problems.extend(problem.map(|problem| format!("calls its entry {label:?}: {problem}")));
        }
        problems
    }
}

/// The options of `kexec`. The action starts the installed kernel without the firmware. If an option is left out, the
/// action takes its value from the default entry of the installed system's boot loader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Kexec {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The path of the kernel in the installed system, in place of the default entry. /boot may be a partition of its
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The path of the kernel's initramfs in the installed system. It may be on another partition than the kernel. Only
    /// with `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<String>,
    /// The kernel's command line, at most 2047 bytes. Without it, the default entry's command line is used. Required
    /// with `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
}

impl Kexec {
    /// Returns the problems of these options by themselves.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        for (what, path) in [("kernel", &self.kernel), ("initrd", &self.initrd)] {
            let problem = path.as_deref().and_then(|path| Some((path, target_path_problem(path)?)));
            problems.extend(problem.map(|(path, problem)| format!("starts the {what} {path:?}: {problem}")));
        }
        if self.kernel.is_none() && self.initrd.is_some() {
            problems.push("has an initrd without a kernel: give both, or neither".to_owned());
        }
        if self.kernel.is_some() && self.cmdline.is_none() {
            problems.push("has a kernel, for which no boot entry has a cmdline: give both, or neither".to_owned());
        }
        if let Some(cmdline) = &self.cmdline {
            if cmdline.chars().any(|c| c.is_control()) {
                problems.push("has a cmdline with a control character".to_owned());
            }
            if cmdline.len() >= MAX_COMMAND_LINE {
                problems.push(format!(
                    "has a cmdline of {} bytes, but at most {} are allowed",
                    cmdline.len(),
                    MAX_COMMAND_LINE - 1
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::tests::check;
    use crate::{Action, Step, workflow};

    #[test]
    fn an_entry_names_a_loader_and_has_a_name_that_can_be_shown() {
        let order = |loader: Option<&str>, label: Option<&str>| {
            let [loader, label] = [loader, label].map(|text| text.map(str::to_owned));
            Action::EfiBootOrder(EfiBootOrder { loader, label, ..EfiBootOrder::default() })
        };
        check(order(None, None), &[]);
        check(order(Some("\\EFI\\debian\\shimx64.efi"), Some("Debian")), &[]);
        let refused = |loader: &str, problem: &str| {
            check(order(Some(loader), None), &[&format!("starts the loader {loader:?}: {problem}")]);
        };
        refused("EFI/x.efi", "it does not begin with a slash");
        refused("/EFI/x", "it does not end in .efi");
        refused("/EFI/../x.efi", "it has \"..\", which could lead elsewhere");
        refused("/EFI/a\nb.efi", "it has a control character");
        refused("", "it does not name a file");
        check(order(None, Some(" ")), &["calls its entry \" \": it is empty"]);
        let long = "x".repeat(65);
        check(order(None, Some(&long)), &[&format!("calls its entry {long:?}: it has more than 64 characters")]);
    }

    #[test]
    fn a_kernel_that_is_named_has_its_command_line() {
        let kexec = |kernel: Option<&str>, initrd: Option<&str>, cmdline: Option<&str>| {
            let [kernel, initrd, cmdline] = [kernel, initrd, cmdline].map(|text| text.map(str::to_owned));
            Action::Kexec(Kexec { kernel, initrd, cmdline, ..Kexec::default() })
        };
        check(kexec(None, None, None), &[]);
        check(kexec(None, None, Some("ro")), &[]);
        check(kexec(Some("/vmlinuz"), Some("/initrd.img"), Some("ro")), &[]);
        check(kexec(None, Some("/i"), None), &["has an initrd without a kernel: give both, or neither"]);
        let alone = "has a kernel, for which no boot entry has a cmdline: give both, or neither";
        check(kexec(Some("/v"), None, None), &[alone]);
        check(kexec(Some("/v/"), None, Some("ro")), &["starts the kernel \"/v/\": it does not name a file"]);
        check(kexec(None, None, Some("a\nb")), &["has a cmdline with a control character"]);
        let long = "x".repeat(2048);
        check(kexec(None, None, Some(&long)), &["has a cmdline of 2048 bytes, but at most 2047 are allowed"]);
    }

    #[test]
    fn nothing_follows_when_the_machine_has_left() {
        let step = |name: &str, action| Step { name: name.to_owned(), action, retries: 0, timeout: None };
        let kexec = || Action::Kexec(Kexec::default());
        assert_eq!(workflow::validate(&[step("a", kexec())]), [""; 0]);
        assert_eq!(
            workflow::validate(&[step("a", kexec()), step("b", Action::Reboot(Reboot {}))]),
            ["step 1 (\"a\") starts the installed kernel, but 1 more step follows"]
        );
    }
}
