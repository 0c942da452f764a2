//! Processor architectures.

use serde::{Deserialize, Serialize};

/// An architecture that slipway runs on, by its name of uname(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// 64-bit x86.
    #[serde(rename = "x86_64")]
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Arch {
    /// Its name, which is also that of its folder of boot files.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The program that firmware starts from a removable medium (UEFI Specification 2.10, section 3.5.1.1).
    pub fn removable(self) -> &'static str {
        match self {
            Self::X86_64 => "EFI/BOOT/BOOTX64.EFI",
            Self::Aarch64 => "EFI/BOOT/BOOTAA64.EFI",
        }
    }

    /// The usual consoles. The kernel's messages go to all of them, PID 1's output to the last.
    pub fn consoles(self) -> &'static str {
        match self {
            Self::X86_64 => "console=tty0 console=ttyS0,115200",
            Self::Aarch64 => "console=tty0 console=ttyAMA0,115200",
        }
    }
}
