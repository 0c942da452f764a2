//! Composes the workflow that installs an operating system.

use slipway_protocol::{
    Action, BootPosition, BootReporter, Digest, EfiBootOrder, EnrolSecureBoot, EraseDisk, KernelArgs, Network, Reboot,
    SecureBootUpdate, SecureBootVariable, SeedCloudInit, Step, StreamImage,
};
use slipway_secure_boot::{Variable, Write};

pub mod network;
pub mod phone_home;

use crate::base::random;
use crate::keys::secure_boot::Update;
use crate::store::systems::System;

const MINUTE: u64 = 60;
/// A 100 GB image over 1 Gbit/s takes a quarter of an hour; two hours leave room for a busy site.
const STREAM_TIMEOUT: u64 = 120 * MINUTE;
const STREAM_RETRIES: u32 = 2;
const SHORT_TIMEOUT: u64 = 10 * MINUTE;
const INSTANCE_PREFIX: &str = "slipway-";

/// The steps that install a system on a node. They have no instance id yet, and their user-data has yet to be made to
/// report or not; see [`phone_home`].
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
    if system.boot_reporter {
        let action = Action::BootReporter(BootReporter { disk: disk(), ..BootReporter::default() });
        steps.push(step("boot-reporter", action, SHORT_TIMEOUT));
    }
    // For the next boot only. The operator decides whether later boots come from the network or the disk.
    let order = EfiBootOrder { disk: disk(), position: BootPosition::Next, optional: true, ..EfiBootOrder::default() };
    steps.push(step("efi-boot-order", Action::EfiBootOrder(order), SHORT_TIMEOUT));
    steps.push(step("reboot", Action::Reboot(Reboot::default()), SHORT_TIMEOUT));
    steps
}

/// A new instance id that is unique and cannot be guessed. The installed system may report with nothing else.
pub fn instance_id() -> String {
    format!("{INSTANCE_PREFIX}{}", random::unguessable_id())
}

/// Whether an instance id is one of ours, not one that an operator chose and others may guess.
pub fn is_unguessable(instance_id: &str) -> bool {
    let digits = instance_id.strip_prefix(INSTANCE_PREFIX).unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The URL of an image on this server.
pub fn image_url(server: &str, digest: &Digest) -> String {
    format!("{server}/images/{digest}")
}

/// The digest in a URL of this server's images, with or without a token. Whether the host is this server, or a cache in
/// front of it, does not matter.
pub fn image_at(url: &str) -> Option<Digest> {
    let (_, path) = url.strip_prefix("https://")?.split_once('/')?;
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    path.rsplit('/').next().filter(|last| path.ends_with(&format!("images/{last}")))?.parse().ok()
}

/// Adds the node's settings to every `seed-cloud-init` step: host name and network if the step has none, and SSH keys
/// in addition to those of the step.
pub fn set_up(steps: &mut [Step], name: Option<&str>, network: Option<&Network>, ssh_keys: &[String]) {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &mut step.action {
            seed.hostname = seed.hostname.take().or_else(|| name.map(str::to_owned));
            seed.network_config = seed.network_config.take().or_else(|| network.map(network::text));
            let further = ssh_keys.iter().filter(|key| !seed.ssh_keys.contains(key)).cloned().collect::<Vec<_>>();
            seed.ssh_keys.extend(further);
        }
    }
}

/// Makes every `boot-reporter` step report the system's boots to `server` with `token`, over TLS that trusts `ca`.
pub fn ask_to_report_boots(steps: &mut [Step], server: &str, token: &str, ca: &str) {
    for step in steps {
        if let Action::BootReporter(reporter) = &mut step.action {
            reporter.url = server.to_owned();
            reporter.token = token.to_owned().into();
            reporter.ca = ca.to_owned();
        }
    }
}

/// Whether steps give the firmware keys that are yet to be filled in.
pub fn wants_keys(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(&step.action, Action::EnrolSecureBoot(enrol) if enrol.updates.is_empty()))
}

/// Gives every `enrol-secure-boot` step without updates those of the site's keys.
pub fn fill_in_keys(steps: &mut [Step], updates: &[Update]) {
    let variable = |variable: Variable| match variable {
        Variable::Dbx => SecureBootVariable::Dbx,
        Variable::Db => SecureBootVariable::Db,
        Variable::Kek => SecureBootVariable::Kek,
        Variable::Pk => SecureBootVariable::Pk,
    };
    let update = |update: &Update| {
        SecureBootUpdate::new(variable(update.variable), update.write == Write::Append, &update.signed)
    };
    for step in steps {
        if let Action::EnrolSecureBoot(enrol) = &mut step.action
            && enrol.updates.is_empty()
        {
            enrol.updates = updates.iter().map(update).collect();
        }
    }
}

/// The steps that give the firmware of a machine the site's keys, and restart it.
pub fn enrol_keys() -> Vec<Step> {
    let enrol = Action::EnrolSecureBoot(EnrolSecureBoot::default());
    vec![
        step("enrol-secure-boot", enrol, SHORT_TIMEOUT),
        step("reboot", Action::Reboot(Reboot::default()), SHORT_TIMEOUT),
    ]
}

fn step(name: &str, action: Action, timeout: u64) -> Step {
    Step { name: name.to_owned(), action, retries: 0, timeout: Some(timeout) }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{Algorithm, DiskHints, Interface};

    use super::*;

    fn system() -> System {
        System {
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
            keep_metadata: false,
            known_steps: Vec::new(),
            require: slipway_protocol::Proof::default(),
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
    fn a_node_has_its_name_its_network_and_its_keys_beside_those_of_the_system() {
        let mut steps = install(&system(), "https://s", None);
        let interface = Interface { name: "lan0".to_owned(), dhcp4: true, ..Interface::default() };
        let network = Network { interfaces: vec![interface], ..Network::default() };
        set_up(&mut steps, Some("web1"), Some(&network), &["ssh-rsa B".to_owned(), "ssh-rsa A".to_owned()]);
        assert_eq!(seed(&steps).hostname.as_deref(), Some("web1"));
        assert_eq!(seed(&steps).network_config.as_deref(), Some(&*network::text(&network)));
        assert_eq!(seed(&steps).ssh_keys, ["ssh-rsa A", "ssh-rsa B"]);
        let before = steps.clone();
        set_up(&mut steps, Some("web2"), Some(&Network::default()), &[]);
        assert_eq!(steps, before, "what a step says itself stays");
    }

    #[test]
    fn the_runs_user_data_wins_over_the_systems() {
        assert_eq!(seed(&install(&system(), "https://s", None)).user_data, "#cloud-config\n");
        for brought in ["#!/bin/sh\n", ""] {
            assert_eq!(seed(&install(&system(), "https://s", Some(brought))).user_data, brought);
        }
    }

    #[test]
    fn an_instance_id_is_new_and_known_for_one_of_ours() {
        assert_ne!(instance_id(), instance_id());
        assert!(is_unguessable(&instance_id()));
        for guessable in ["", "slipway-", "slipway-web1", "web1"] {
            assert!(!is_unguessable(guessable), "{guessable}");
        }
    }

    #[test]
    fn a_boot_reporter_is_told_who_it_reports_to() {
        let mut steps = install(&system(), "https://s", None);
        ask_to_report_boots(&mut steps, "https://s", "T", "PEM\n");
        let reporter = steps.iter().find_map(|step| match &step.action {
            Action::BootReporter(reporter) => Some(reporter),
            _ => None,
        });
        let reporter = reporter.expect("the system asks for one");
        assert_eq!((reporter.url.as_str(), reporter.token.reveal(), reporter.ca.as_str()), ("https://s", "T", "PEM\n"));
    }
}
