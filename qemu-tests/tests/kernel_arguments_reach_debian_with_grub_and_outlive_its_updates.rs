//! Debian with shim, GRUB and two kernels, whose menu is not there yet: arguments are added and replaced, for which its own tools make
//! the menu; one is deleted from that, then they make it anew, as they do for a new kernel, and the firmware starts it.

use anyhow::{Context, Result};
use qemu_tests::installed::install;
use qemu_tests::timed;
use serde_json::json;
use slipway_protocol::SeedPlace;
use xtask::lab::FOR_EMULATION;
use xtask::target_image::System;

/// What Debian runs when a kernel comes or goes.
const UPDATE: &str = "run-parts --verbose --regex zz-update-grub --arg=$(ls /lib/modules) /etc/kernel/postinst.d";

/// A second kernel beside the one there is.
const SECOND: &str = "for file in /boot/vmlinuz-* /boot/initrd.img-*; do cp $file $file-second; done";
/// Looks for what was asked for on the lines of both, and for what was deleted on any.
const CHECK: &str = "menu=/boot/grub/grub.cfg; if grep console=tty0 $menu; then exit 1; fi; \
                     test 2 = $(grep 'slipway.note=of two words' $menu | grep -o 'vmlinuz-[^ ]*' | sort -u | wc -l)";

#[test]
fn kernel_arguments_reach_debian_with_grub_and_outlive_its_updates() -> Result<()> {
    timed("kernel arguments reach Debian with GRUB and outlive its updates", || {
        let installed = install(
            System::Grub,
            SeedPlace::Auto,
            &[
                json!({"run-in-target": {"script": SECOND}}),
                json!({"kernel-args": {
                    "append": ["slipway.note=\"of two words\""],
                    "append_if_missing": ["console=tty0", FOR_EMULATION],
                    "replace": [{"old": "console=ttyS0,115200", "new": "console=ttyS0,57600"}],
                }}),
                json!({"kernel-args": {"delete": ["console=tty0"]}}),
                json!({"run-in-target": {"script": UPDATE}}),
                json!({"run-in-target": {"script": CHECK}}),
            ],
        )?;
        let steps = &installed.node.run.as_ref().context("a run")?.steps;
        let made = "there is no /boot/grub/grub.cfg yet: grub-mkconfig of the installed system makes it";
        let makers = steps.iter().filter(|step| step.notes.iter().any(|note| note == made));
        assert_eq!(makers.map(|step| step.name.as_str()).collect::<Vec<_>>(), ["3"], "{steps:#?}");
        let arguments = installed.kernel_arguments()?;
        let root = arguments.iter().find(|argument| argument.starts_with("root="));
        assert!(root.is_some_and(|root| root.starts_with("root=UUID=")), "{arguments:?}");
        // GRUB puts quotes around the whole of an argument with spaces.
        let ours = ["console=ttyS0,57600", FOR_EMULATION, "\"slipway.note=of", "two", "words\""];
        assert!(arguments.ends_with(&ours) && !arguments.contains(&"console=tty0"), "{arguments:?}");
        Ok(())
    })
}
