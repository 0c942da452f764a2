//! A system whose root file system can be encrypted.

/// All files that are checked for before anything is changed. None of them can run.
pub const SYSTEM: &[(&str, &str)] = &[
    ("etc/os-release", "NAME=Debian"),
    ("lib/modules/6.1/modules.dep", ""),
    ("boot/initrd.img-6.1", ""),
    ("boot/vmlinuz-6.1", ""),
    ("usr/bin/dracut", ""),
    ("usr/bin/lsinitrd", ""),
    ("usr/bin/tpm2", ""),
    ("usr/lib/systemd/systemd-cryptsetup", ""),
    ("usr/sbin/cryptsetup", ""),
];
