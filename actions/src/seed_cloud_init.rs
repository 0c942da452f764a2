//! `seed-cloud-init`: gives the installed system its user-data as a NoCloud seed (cloud-init documentation, "NoCloud").

use slipway_protocol::SeedCloudInit;
use slipway_user_data::{inject_phone_home, quoted};

use crate::error::Error;
use crate::machine::Machine;
use crate::mount::{self, LookedAt};
use crate::open_disk::{Access, OpenDisk};
use crate::partitions::{self, Partition};
use crate::probe::FileSystem;
use crate::target_root::TargetRoot;
use crate::{Done, Report, choose};

const SEED: &str = "var/lib/cloud/seed/nocloud";
/// One line, because ds-identify, which decides at boot whether cloud-init runs at all, reads no more than that.
const DATASOURCE: (&str, &str) = ("etc/cloud/cloud.cfg.d/99_slipway.cfg", "datasource_list: [ NoCloud, None ]\n");
/// What keeps cloud-init from running, or makes it believe that it has run.
const LEFTOVERS: &[&str] = &[
    "etc/cloud/cloud-init.disabled",
    "var/lib/cloud/instance",
    "var/lib/cloud/instances",
    "var/lib/cloud/sem",
    "var/lib/cloud/data",
];
/// The seed holds secrets.
const SEED_MODE: u32 = 0o600;
/// Types of root partitions (The Discoverable Partitions Specification), by machine architecture.
const ROOT_TYPES: &[(&str, &str)] =
    &[("x86_64", "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"), ("aarch64", "b921b045-1df0-41c3-af44-4c6f280d3fae")];
const OS_RELEASE: &[&str] = &["etc/os-release", "usr/lib/os-release"];

pub(crate) fn run(
    inputs: &SeedCloudInit,
    machine: &dyn Machine,
    report: &mut dyn FnMut(Report),
) -> Result<Done, Error> {
    let user_data = match &inputs.phone_home {
        Some(phone_home) => {
            inject_phone_home(&inputs.user_data, phone_home).map_err(|source| Error::UserData { source })?
        }
        None => inputs.user_data.clone(),
    };
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let (root, partition, mut warnings) = find_root(&disk, report)?;
    machine.cancel().check()?;
    for path in LEFTOVERS {
        root.remove(path)?;
    }
    let seed = |name: &str, content: &str| root.write(&format!("{SEED}/{name}"), content.as_bytes(), SEED_MODE);
    seed("user-data", &user_data)?;
    seed("meta-data", &meta_data(inputs))?;
    for (name, content) in [("vendor-data", &inputs.vendor_data), ("network-config", &inputs.network_config)] {
        match content {
            Some(content) => seed(name, content)?,
            None => root.remove(&format!("{SEED}/{name}"))?,
        }
    }
    root.write(DATASOURCE.0, DATASOURCE.1.as_bytes(), 0o644)?;
    root.sync()?;
    if !root.exists("usr/bin/cloud-init") {
        warnings.push("the installed system has no /usr/bin/cloud-init, so nothing will read the seed".to_owned());
    }
    let summary = format!("seeded cloud-init in {partition} for instance {}", inputs.instance_id);
    Ok(Done::go_on(summary, warnings))
}

fn meta_data(inputs: &SeedCloudInit) -> String {
    let mut meta_data = format!("instance-id: {}\n", quoted(&inputs.instance_id));
    if let Some(hostname) = &inputs.hostname {
        meta_data.push_str(&format!("local-hostname: {}\n", quoted(hostname)));
    }
    meta_data
}

/// Mounts the root file system of the installed system: the partition whose type says so, else one whose name or label
/// does, else the first that holds an operating system. With it come its name and the refusals on the way, as warnings.
fn find_root(disk: &OpenDisk, report: &mut dyn FnMut(Report)) -> Result<(TargetRoot, String, Vec<String>), Error> {
    let mut found = Vec::new();
    for partition in partitions::read(disk)? {
        found.push((mount::probe(disk, &partition)?, partition));
    }
    found.sort_by_key(|(file_system, partition)| rank(partition, file_system.as_ref()));
    let mut looked_at = LookedAt::default();
    for (file_system, partition) in &found {
        let name = partition.describe(disk);
        let Some(file_system) = file_system else {
            looked_at.in_vain(format!("{name} has no file system"));
            continue;
        };
        if !mount::is_mountable(file_system.kind) || file_system.kind == "vfat" {
            looked_at.in_vain(format!("{name} is {}", file_system.kind));
            continue;
        }
        let root = match mount::mount(disk, partition, file_system.kind) {
            Ok(root) => root,
            Err(error) => {
                looked_at.refused(&name, &error);
                if rank(partition, Some(file_system)) == 0 {
                    // This one is meant. Another system beside it must not get its user-data.
                    break;
                }
                continue;
            }
        };
        if OS_RELEASE.iter().any(|path| root.exists(path)) {
            report(Report::Note(format!("the root file system is {} of {name}", file_system.kind)));
            return Ok((root, name, looked_at.refusals));
        }
        looked_at.in_vain(format!("{name} ({}) has no /etc/os-release", file_system.kind));
    }
    Err(looked_at.not_found("a root file system", disk))
}

fn rank(partition: &Partition, file_system: Option<&FileSystem>) -> u8 {
    let own_type = ROOT_TYPES.iter().find(|(arch, _)| *arch == std::env::consts::ARCH).map(|(_, guid)| *guid);
    let label = file_system.and_then(|file_system| file_system.label.as_deref()).unwrap_or_default();
    let says_root = |name: &str| name.to_ascii_lowercase().contains("root");
    match partition.type_guid.as_deref() {
        Some(guid) if Some(guid) == own_type => 0,
        _ if says_root(&partition.name) || says_root(label) => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_data_is_yaml_whatever_the_names_hold() {
        let inputs = SeedCloudInit {
            instance_id: "i-\"1\": x".to_owned(),
            hostname: Some("node #1".to_owned()),
            ..SeedCloudInit::default()
        };
        assert_eq!(meta_data(&inputs), "instance-id: \"i-\\\"1\\\": x\"\nlocal-hostname: \"node #1\"\n");
    }
}
