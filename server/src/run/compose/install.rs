//! The steps that install an operating system.

use slipway_protocol::{
    Action, BootPosition, BootReporter, EfiBootOrder, EraseDisk, KernelArgs, Reboot, SeedCloudInit, Step, StreamImage,
};

use super::images::image_url;
use crate::store::systems::System;

const MINUTE: u64 = 60;
/// Timeout of the step that streams the image, in seconds. A 100 GB image over 1 Gbit/s takes a quarter of an hour; two
/// hours leave room for a busy site.
const STREAM_TIMEOUT: u64 = 120 * MINUTE;
const STREAM_RETRIES: u32 = 2;
const SHORT_TIMEOUT: u64 = 10 * MINUTE;

/// Returns the steps that install a system on a node. They have no instance id yet, and their user-data has yet to be
/// made to report or not; see [`compose`](super::compose).
///
/// `server` is the URL at which machines reach the server. `user_data` is that of the run. The system's user-data is
/// used only if the run has none. Empty user-data counts as user-data.
pub fn install(system: &System, server: &str, user_data: Option<&str>) -> Vec<Step> {
    let disk = || system.disk.clone();
    let user_data = user_data.or(system.user_data.as_deref()).unwrap_or_default().to_owned();
    let mut steps = vec![
        step("erase-disk", Action::EraseDisk(EraseDisk { disk: disk(), ..EraseDisk::default() }), SHORT_TIMEOUT),
        Step {
            retries: STREAM_RETRIES,
            ..step(
                "stream-image",
                Action::StreamImage(StreamImage {
                    url: image_url(server, &system.image),
                    digest: Some(system.image.clone()),
                    raw_digest: system.raw_digest.clone(),
                    raw_size: system.raw_size,
                    disk: disk(),
                    ..StreamImage::default()
                }),
                STREAM_TIMEOUT,
            )
        },
        step(
            "seed-cloud-init",
            Action::SeedCloudInit(SeedCloudInit {
                disk: disk(),
                user_data,
                vendor_data: system.vendor_data.clone(),
                ssh_keys: system.ssh_keys.clone(),
                ..SeedCloudInit::default()
            }),
            SHORT_TIMEOUT,
        ),
    ];
    if !system.kernel_args.is_empty() {
        let append = system.kernel_args.clone();
        let action = Action::KernelArgs(KernelArgs { disk: disk(), append, ..KernelArgs::default() });
        steps.push(step("kernel-args", action, SHORT_TIMEOUT));
    }
    if system.boot_reporter || system.agent.is_some() {
        let agent = system.agent.clone();
        let action = Action::BootReporter(BootReporter { disk: disk(), agent, ..BootReporter::default() });
        steps.push(step("boot-reporter", action, SHORT_TIMEOUT));
    }
    // For the next boot only, because the operator decides whether later boots come from the network or the disk.
    let order = EfiBootOrder { disk: disk(), position: BootPosition::Next, optional: true, ..EfiBootOrder::default() };
    steps.push(step("efi-boot-order", Action::EfiBootOrder(order), SHORT_TIMEOUT));
    steps.push(step("reboot", Action::Reboot(Reboot::default()), SHORT_TIMEOUT));
    steps
}

fn step(name: &str, action: Action, timeout: u64) -> Step {
    Step { name: name.to_owned(), action, retries: 0, timeout: Some(timeout) }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{Algorithm, Digest, DiskHints};

    use super::*;

    fn system() -> System {
        System {
            arch: None,
            name: "debian".to_owned(),
            image: Digest::new(Algorithm::Sha256, &"a".repeat(64)).expect("digest"),
            raw_size: None,
            raw_digest: None,
            user_data: Some("#cloud-config\n".to_owned()),
            vendor_data: None,
            kernel_args: vec!["quiet".to_owned()],
            ssh_keys: vec!["ssh-rsa A".to_owned()],
            phone_home: true,
            phone_home_post: None,
            phone_home_tries: None,
            allow_override: true,
            boot_reporter: true,
            agent: None,
            keep_metadata: false,
            known_steps: Vec::new(),
            require: slipway_protocol::Proof::default(),
            limits: Default::default(),
            disk: DiskHints { serial: "S1".parse().ok(), ..DiskHints::default() },
        }
    }

    fn seed(steps: &[Step]) -> &SeedCloudInit {
        let seed = steps.iter().find_map(|step| match &step.action {
            Action::SeedCloudInit(seed) => Some(seed),
            _ => None,
        });
        seed.expect("a seed step")
    }

    #[test]
    fn a_system_becomes_steps_on_one_disk() {
        let steps = install(&system(), "https://s", None);
        let names: Vec<&str> = steps.iter().map(|step| step.action.name()).collect();
        let expect =
            ["erase-disk", "stream-image", "seed-cloud-init", "kernel-args", "boot-reporter", "efi-boot-order"];
        assert_eq!(names, [&expect[..], &["reboot"]].concat());
        let text = serde_json::to_string(&steps).expect("JSON");
        assert_eq!(text.matches(r#""serial":"S1""#).count(), 6, "{text}");
        assert!(text.contains(&format!("https://s/images/sha256:{}", "a".repeat(64))));
    }

    #[test]
    fn the_runs_user_data_wins_over_the_systems() {
        assert_eq!(seed(&install(&system(), "https://s", None)).user_data, "#cloud-config\n");
        for brought in ["#!/bin/sh\n", ""] {
            assert_eq!(seed(&install(&system(), "https://s", Some(brought))).user_data, brought);
        }
    }
}
