//! Processor architectures.

use serde::{Deserialize, Serialize};

/// A processor architecture that slipway runs on, by its name of uname(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// 64-bit x86.
    #[default]
    #[serde(rename = "x86_64")]
    #[cfg_attr(feature = "clap", value(name = "x86_64"))]
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Arch {
    /// All architectures.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Returns the name, as in target triples. The architecture's folder of boot files has the same name.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the name in Debian's packages.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Returns the name in file names of EFI programs (UEFI Specification 2.10, table 3-2).
    pub fn efi(self) -> &'static str {
        match self {
            Self::X86_64 => "x64",
            Self::Aarch64 => "aa64",
        }
    }

    /// Whether this host has this architecture.
    pub fn is_of_host(self) -> bool {
        std::env::consts::ARCH == self.name()
    }

    /// Returns the program that firmware starts from a removable medium (UEFI Specification 2.10, section 3.5.1.1).
    pub fn removable(self) -> &'static str {
        match self {
            Self::X86_64 => "EFI/BOOT/BOOTX64.EFI",
            Self::Aarch64 => "EFI/BOOT/BOOTAA64.EFI",
        }
    }

    /// Returns kernel arguments for the usual consoles. The kernel's messages go to all, PID 1's output to the last.
    pub fn consoles(self) -> &'static str {
        match self {
            Self::X86_64 => "console=tty0 console=ttyS0,115200",
            Self::Aarch64 => "console=tty0 console=ttyAMA0,115200",
        }
    }
}
