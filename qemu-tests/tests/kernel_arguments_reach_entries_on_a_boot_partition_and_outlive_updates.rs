//! Kernels and their entries are on an extended boot loader partition (Boot Loader Specification). Arguments are added,
//! the system installs its kernel again, and the firmware starts it. cloud-init finds the seed in a partition.

use anyhow::Result;
use qemu_tests::installed::install;
use qemu_tests::timed;
use serde_json::json;
use slipway_protocol::SeedPlace;
use xtask::lab::server::FOR_EMULATION;
use xtask::lab::target_image::System;

/// What Debian's systemd-boot runs when a kernel is installed.
const UPDATE: &str = "version=$(ls /lib/modules)\nkernel-install add $version /boot/vmlinuz-$version";

#[test]
fn kernel_arguments_reach_entries_on_a_boot_partition_and_outlive_updates() -> Result<()> {
    timed("kernel arguments reach entries on a boot partition and outlive updates", || {
        let arguments = json!({"kernel-args": {"append": [FOR_EMULATION], "delete": ["console=tty0"]}});
        let update = json!({"run-in-target": {"script": UPDATE}});
        let installed = install(System::BootPartition, SeedPlace::Cidata, &[arguments, update])?;
        let arguments = installed.kernel_arguments()?;
        assert!(
            arguments.ends_with(&["root=LABEL=root", "ro", "console=ttyS0,115200", FOR_EMULATION]),
            "{arguments:?}"
        );
        Ok(())
    })
}
