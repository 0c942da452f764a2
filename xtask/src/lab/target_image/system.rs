//! The kinds of target image, and how they differ.

use slipway_parts::Arch;

/// Packages that open an encrypted root with the TPM, and dracut, which includes them in the initramfs. dracut replaces
/// [`USUAL_INITRAMFS`].
const ENCRYPTED_PACKAGES: &[&str] = &["dracut", "cryptsetup-bin", "tpm2-tools", "libtss2-tcti-device0", "binutils"];
/// Debian's usual program for making an initramfs.
pub(super) const USUAL_INITRAMFS: &str = "initramfs-tools";
/// The recipe that all images share.
pub(super) const COMMON: &str = "common";
/// "Root Partition" of the Discoverable Partitions Specification, for amd64/x86_64 and for 64-bit ARM/AArch64.
const ROOT_TYPE: &str = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709";
const ROOT_TYPE_ARM64: &str = "B921B045-1DF0-41C3-AF44-4C6F280D3FAE";

/// The kinds of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// systemd-boot, with kernels and their entries on the EFI system partition.
    SystemdBoot,
    /// systemd-boot, with kernels and their entries on an extended boot loader partition.
    BootPartition,
    /// Debian's signed shim and GRUB, with kernels in the root file system. Without a grub.cfg, because grub-mkconfig
    /// needs the disk.
    Grub,
    /// Like `SystemdBoot`, with an initramfs from dracut that can open an encrypted root.
    Dracut,
    /// Like Fedora CoreOS: an OSTree deployment that Ignition sets up at first boot, with GRUB and a separate /boot
    /// partition.
    Ostree,
    /// Like `SystemdBoot`, for arm64. Needs a host that can run its programs ([`crate::host::translation::ensure`]).
    Arm64,
}

/// A boot partition.
pub(super) struct BootFileSystem {
    /// Mount point without the leading slash.
    pub(super) place: &'static str,
    pub(super) label: &'static str,
    /// Partition type code of sgdisk.
    pub(super) r#type: &'static str,
    /// File system: `vfat` or `ext4`.
    pub(super) kind: &'static str,
}

const ESP: BootFileSystem = BootFileSystem { place: "boot/efi", label: "ESP", r#type: "EF00", kind: "vfat" };
const XBOOTLDR: BootFileSystem =
    BootFileSystem { place: "boot/xbootldr", label: "XBOOTLDR", r#type: "EA00", kind: "vfat" };
const BOOT: BootFileSystem = BootFileSystem { place: "boot", label: "boot", r#type: "8300", kind: "ext4" };

impl System {
    /// Every kind of image.
    pub const ALL: [System; 6] =
        [System::SystemdBoot, System::BootPartition, System::Grub, System::Dracut, System::Ostree, System::Arm64];

    /// Returns the folders of the recipes, in the order in which they set up the system.
    pub(super) fn recipes(self) -> [&'static str; 2] {
        // Usually the boot loader is set up first. An OSTree commit must come after everything else.
        if self == System::Ostree { [COMMON, self.recipe()] } else { [self.recipe(), COMMON] }
    }

    /// Returns the folder of the recipe that is added to the common one.
    pub(super) fn recipe(self) -> &'static str {
        match self {
            System::SystemdBoot | System::Dracut | System::Arm64 => "systemd-boot",
            System::BootPartition => "boot-partition",
            System::Grub => "grub",
            System::Ostree => "ostree",
        }
    }

    pub(super) fn arch(self) -> Arch {
        if self == System::Arm64 { Arch::Aarch64 } else { Arch::X86_64 }
    }

    /// Returns the type GUID of the root partition.
    pub(super) fn root_type(self) -> &'static str {
        if self == System::Arm64 { ROOT_TYPE_ARM64 } else { ROOT_TYPE }
    }

    /// Returns the packages in addition to those of the recipes.
    pub(super) fn packages(self) -> &'static [&'static str] {
        if self == System::Dracut { ENCRYPTED_PACKAGES } else { &[] }
    }

    /// Whether dracut makes the initramfs instead of [`USUAL_INITRAMFS`].
    pub(super) fn has_dracut(self) -> bool {
        matches!(self, System::Dracut | System::Ostree)
    }

    /// Which folder of the built system becomes the image's root file system.
    pub(super) fn top(self) -> &'static str {
        if self == System::Ostree { "./sysroot" } else { "." }
    }

    /// Returns the partitions before the root partition. A partition mounted inside another precedes that other
    /// partition.
    pub(super) fn boot_file_systems(self) -> &'static [BootFileSystem] {
        match self {
            System::SystemdBoot | System::Grub | System::Dracut | System::Arm64 => &[ESP],
            System::BootPartition => &[ESP, XBOOTLDR],
            System::Ostree => &[ESP, BOOT],
        }
    }
}
