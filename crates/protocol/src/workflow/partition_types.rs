//! The types of partitions, as GUIDs in lower case. The source is The Discoverable Partitions Specification. [`RAID`]
//! and [`BIOS_BOOT`] come from the documentation of Linux RAID and GRUB, and [`USR_FLATCAR`] from that of Flatcar.

/// EFI system partition.
pub const ESP: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
/// Extended boot loader partition.
pub const XBOOTLDR: &str = "bc13c2ff-59e6-4262-a352-b275fd6f7172";
/// The partition that GRUB embeds itself in on machines with a BIOS.
pub const BIOS_BOOT: &str = "21686148-6449-6e6f-744e-656564454649";
/// Linux data, for any use.
pub const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
/// Root file system of x86-64.
pub const ROOT_X86_64: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
/// Root file system of arm64.
pub const ROOT_ARM64: &str = "b921b045-1df0-41c3-af44-4c6f280d3fae";
/// Root file system of the architecture that this program is built for.
pub const ROOT: &str = if cfg!(target_arch = "aarch64") { ROOT_ARM64 } else { ROOT_X86_64 };
/// dm-verity hashes of [`ROOT_X86_64`].
pub const ROOT_X86_64_VERITY: &str = "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5";
/// dm-verity hashes of [`ROOT_ARM64`].
pub const ROOT_ARM64_VERITY: &str = "df3300ce-d69f-4c92-978c-9bfb0f38d820";
/// /usr of x86-64.
pub const USR_X86_64: &str = "8484680c-9521-48c6-9c11-b0720656f69e";
/// /usr of arm64.
pub const USR_ARM64: &str = "b0e01050-ee5f-4390-949a-9101b17104e9";
/// /usr of Flatcar.
pub const USR_FLATCAR: &str = "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6";
/// dm-verity hashes of [`USR_X86_64`].
pub const USR_X86_64_VERITY: &str = "77ff5f63-e7b6-4633-acf4-1565b864c0e6";
/// dm-verity hashes of [`USR_ARM64`].
pub const USR_ARM64_VERITY: &str = "6e11a4e7-fbca-4ded-b9e9-e1a512bb664e";
/// Home directories.
pub const HOME: &str = "933ac7e1-2eb4-4f13-b844-0e14e2aef915";
/// Server data, /srv.
pub const SRV: &str = "3b8f8425-20e0-4f3b-907f-1a25a76f98e8";
/// Variable data, /var.
pub const VAR: &str = "4d21b016-b534-45c2-a9fb-5c16e091fd2d";
/// Temporary data, /var/tmp.
pub const TMP: &str = "7ec6f557-3bc5-4aca-b293-16ef5df639d1";
/// Swap space.
pub const SWAP: &str = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f";
/// An LVM physical volume.
pub const LVM: &str = "e6d6d379-f507-44c2-a23c-238f2a3df928";
/// A member of a Linux software RAID array.
pub const RAID: &str = "a19d880f-05fc-4d3b-a006-743f0f84911e";
