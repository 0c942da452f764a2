//! `seed-cloud-init`: gives the installed system its user-data as a NoCloud seed (cloud-init documentation, "NoCloud").

use slipway_protocol::SeedCloudInit;
use slipway_user_data::{inject_phone_home, quoted};

use crate::error::Error;
use crate::machine::Machine;
use crate::open_disk::Access;
use crate::target::{self, Target};
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
    let Target { root, name: partition, mut warnings, .. } = target::find_root(&disk, report)?;
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
