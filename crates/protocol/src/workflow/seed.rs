//! The data that the installed system gets for its first boot.

use serde::{Deserialize, Serialize};

use crate::shared::ssh_key;
use crate::workflow::disk::DiskHints;

/// The options of `seed-cloud-init`. The action writes a seed for cloud-init's NoCloud source, or a config for
/// Ignition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SeedCloudInit {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The place of the seed. Default: `auto`.
    #[serde(default, skip_serializing_if = "SeedPlace::is_auto")]
    pub seed: SeedPlace,
    /// The `instance-id` of the meta-data. cloud-init runs once for each instance-id, so each run needs a new one.
    /// Without it, the server makes one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance_id: String,
    /// The `local-hostname` of the meta-data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The user-data as the operator wrote it: anything that cloud-init knows, or an Ignition config.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user_data: String,
    /// The vendor-data, which the site adds to the user's own data. If both have a key, the user's key counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_data: Option<String>,
    /// The network configuration, version 1 or 2, as YAML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<String>,
    /// SSH public keys that may log in, one line each, in addition to those in the user-data. They are for the user
    /// that cloud-init makes, or for `core`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Makes the installed system report that it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home: Option<PhoneHome>,
    /// CA certificates in PEM. A system that Ignition sets up trusts them when it reports. cloud-init gets its
    /// certificates by vendor-data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// The place of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SeedPlace {
    /// An Ignition config goes where Ignition looks for it. Anything else goes into the root file system or, if that
    /// cannot be written to, into a partition.
    #[default]
    Auto,
    /// A folder in the root file system.
    Root,
    /// A partition of its own with the label CIDATA.
    Cidata,
    /// The place where Ignition looks for its config.
    Ignition,
}

impl SeedPlace {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// The `phone_home` block that is put into the user-data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PhoneHome {
    /// The URL that cloud-init posts to.
    pub url: String,
    /// How often cloud-init tries, 3 seconds apart. cloud-init's own default is 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
}

/// Returns whether user-data is for Ignition: it is a JSON object, which means nothing to cloud-init.
pub fn is_ignition(user_data: &str) -> bool {
    user_data.trim_ascii_start().starts_with('{')
}

impl SeedCloudInit {
    /// Returns whether the seed is a config for Ignition.
    pub fn is_for_ignition(&self) -> bool {
        self.seed == SeedPlace::Ignition || self.seed == SeedPlace::Auto && is_ignition(&self.user_data)
    }

    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        match (self.is_for_ignition(), is_ignition(&self.user_data)) {
            (true, _) if self.vendor_data.is_some() || self.network_config.is_some() => {
                let reason = "which Ignition does not support: put this into its config, and give the node no network";
                problems.push(format!("has vendor_data or network_config, {reason}"));
            }
            (true, false) => problems.push("has user_data that is not an Ignition config".to_owned()),
            (false, true) => {
                problems.push("has an Ignition config as its user_data, which cloud-init does not know".to_owned());
            }
            _ => {}
        }
        for (number, key) in (1..).zip(&self.ssh_keys) {
            // The problem does not show the key's text: it may be a private key, and this is logged.
            problems.extend(ssh_key::problem(key).map(|problem| format!("cannot use SSH key {number}: {problem}")));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    #[test]
    fn keys_are_looked_at_before_a_disk_is() {
        let seed = |key: &str| SeedCloudInit { ssh_keys: vec![key.to_owned()], ..SeedCloudInit::default() };
        check(Action::SeedCloudInit(seed("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@home")), &[]);
        let expect = "cannot use SSH key 1: it has more than one line";
        check(Action::SeedCloudInit(seed("a\nb")), &[expect]);
    }

    #[test]
    fn ignition_and_cloud_init_are_not_mixed() {
        let seed = |seed, user_data: &str, vendor_data: Option<&str>| {
            let (user_data, vendor_data) = (user_data.to_owned(), vendor_data.map(str::to_owned));
            Action::SeedCloudInit(SeedCloudInit { seed, user_data, vendor_data, ..SeedCloudInit::default() })
        };
        check(seed(SeedPlace::Auto, " {\"ignition\": {}}", None), &[]);
        check(seed(SeedPlace::Root, "#cloud-config\n{a: 1}", Some("#!/bin/sh")), &[]);
        let foreign = "has vendor_data or network_config, which Ignition does not support: put this into its config, \
                       and give the node no network";
        check(seed(SeedPlace::Auto, "{}", Some("#!/bin/sh")), &[foreign]);
        check(seed(SeedPlace::Ignition, "", None), &["has user_data that is not an Ignition config"]);
        let unknown = "has an Ignition config as its user_data, which cloud-init does not know";
        check(seed(SeedPlace::Cidata, "{}", None), &[unknown]);
    }

    #[test]
    fn a_seed_without_a_place_is_written_as_it_was_before_there_were_any() {
        let text = serde_json::to_string(&SeedCloudInit::default()).expect("JSON");
        assert!(!text.contains("\"seed\"") && !text.contains("ssh_keys"), "{text}");
        let read: SeedCloudInit = serde_json::from_str(r#"{"instance_id": "i", "seed": "cidata"}"#).expect("a seed");
        assert_eq!(read.seed, SeedPlace::Cidata);
    }
}
