//! A system whose root file system may be encrypted.

/// All that is looked for before anything is changed. None of it can run.
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
