//! The metadata service of installed systems, as a tree like EC2's. Listings name only what exists, because
//! cloud-init's Ec2 data source requests everything listed, and gives up if one item is not found
//! (cloudinit/sources/helpers/ec2.py).

use slipway_protocol::{Action, ErrorCode, NodeState, SeedCloudInit, Step};
use slipway_user_data::quoted;

use crate::base::error::Error;
use crate::store::nodes::Node;
use crate::store::{Connection, nodes, runs};

/// The versions of the tree. cloud-init's Ec2 data source asks for newer versions first, then for the older of these.
pub const VERSIONS: [&str; 2] = ["latest", "2009-04-04"];

/// The data in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Id of the node.
    pub node: String,
    /// Host name of this server, used as the name of the site.
    pub site: String,
    /// The cloud-init seed of the node's newest run.
    pub seed: SeedCloudInit,
}

impl Metadata {
    /// Returns the content at a path below the version. `None` if the path does not exist.
    pub fn get(&self, path: &str) -> Option<String> {
        let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
        match path {
            "user-data" => Some(self.seed.user_data.clone()),
            // NoCloud keeps requesting vendor-data and network-config if they are not found.
            "vendor-data" => Some(or_empty(&self.seed.vendor_data)),
            "network-config" => Some(or_empty(&self.seed.network_config)),
            // Without a slash: the YAML document that NoCloud requests (cloud-init documentation, "NoCloud").
            "meta-data" => Some(self.document()),
            "meta-data/" => {
                let keys = (!self.seed.ssh_keys.is_empty()).then_some("public-keys/");
                Some(self.keys().map(|(key, _)| key).chain(keys).collect::<Vec<_>>().join("\n"))
            }
            _ => {
                let wanted = path.strip_prefix("meta-data/")?;
                let found = self.keys().find(|(key, _)| *key == wanted).map(|(_, value)| value.to_owned());
                found.or_else(|| self.ssh_key(wanted.strip_prefix("public-keys/")?))
            }
        }
    }

    /// Returns all metadata as YAML.
    fn document(&self) -> String {
        let mut text: String = self.keys().map(|(key, value)| format!("{key}: {}\n", quoted(value))).collect();
        if !self.seed.ssh_keys.is_empty() {
            text.push_str("public-keys:\n");
            text.extend(self.seed.ssh_keys.iter().map(|key| format!("- {}\n", quoted(key))));
        }
        text
    }

    /// Returns the content at a path below `public-keys/`. Each key has a number, a name, and a folder for its formats.
    fn ssh_key(&self, path: &str) -> Option<String> {
        let keys = &self.seed.ssh_keys;
        if path.is_empty() {
            let names: Vec<String> = (0..keys.len()).map(|number| format!("{number}=key-{number}")).collect();
            return Some(names.join("\n")).filter(|_| !keys.is_empty());
        }
        let (number, format) = path.split_once('/')?;
        let key = keys.get(number.parse::<usize>().ok()?)?;
        match format {
            "" => Some("openssh-key".to_owned()),
            "openssh-key" => Some(key.clone()),
            _ => None,
        }
    }

    fn keys(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let hostname = self.seed.hostname.as_deref();
        let keys = [
            ("hostname", hostname),
            ("instance-id", Some(self.seed.instance_id.as_str())),
            ("local-hostname", hostname),
            ("machine-id", Some(self.node.as_str())),
            ("sitename", Some(self.site.as_str())),
        ];
        keys.into_iter().filter_map(|(key, value)| value.map(|value| (key, value)))
    }
}

/// Returns the metadata of a run. `None` unless it is the newest run of a node in service and has a cloud-init seed:
/// the token of an old system must not give access to the data of a new one. Also `None` if the run ended without a
/// system, or if its system has reported, unless the run keeps its metadata.
pub async fn of_run(connection: &mut Connection, run: &str, site: &str) -> Result<Option<Metadata>, Error> {
    let Some(run) = runs::get_by_id(connection, run).await? else { return Ok(None) };
    let Some(node) = nodes::get_by_id(connection, &run.node).await? else { return Ok(None) };
    let is_closed = run.forgotten || run.phoned_home_at.is_some() && !run.keep_metadata;
    if is_closed || !is_served(connection, &node, &run.id).await? {
        return Ok(None);
    }
    let seed = run.workflow.into_iter().find_map(seed);
    Ok(seed.map(|seed| Metadata { node: node.id, site: site.to_owned(), seed }))
}

async fn has_seed(connection: &mut Connection, run: &str) -> Result<bool, Error> {
    let run = runs::get_by_id(connection, run).await?;
    Ok(run.is_some_and(|run| run.workflow.into_iter().find_map(seed).is_some()))
}

async fn is_served(connection: &mut Connection, node: &Node, run: &str) -> Result<bool, Error> {
    Ok(node.state != NodeState::Decommissioned && runs::is_current(connection, node, run).await?)
}

fn seed(step: Step) -> Option<SeedCloudInit> {
    match step.action {
        Action::SeedCloudInit(seed) => Some(seed),
        _ => None,
    }
}

/// Returns the id of the newest run of a node. Fails if the run has no metadata.
pub async fn newest_run(connection: &mut Connection, node: &Node) -> Result<String, Error> {
    if let Some(run) = &node.run
        && of_run(connection, run, "").await?.is_some()
    {
        return Ok(run.clone());
    }
    let label = node.label();
    let message = match &node.run {
        _ if node.state == NodeState::Decommissioned => {
            format!("node {label} is out of service, and therefore has no metadata")
        }
        None => format!("node {label} has no run, and therefore no metadata; start one with `run start`"),
        Some(run) if has_seed(connection, run).await? => format!(
            "run {run}, the newest of node {label}, has ended, and its metadata is closed: ask for the URL before \
             that, or add the operating system with --keep-metadata"
        ),
        Some(run) => {
            format!("run {run}, the newest of node {label}, has no seed-cloud-init step, and therefore no metadata")
        }
    };
    Err(Error::refused(ErrorCode::NotFound, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(hostname: Option<&str>) -> Metadata {
        let seed = SeedCloudInit {
            instance_id: "i-1".to_owned(),
            hostname: hostname.map(str::to_owned),
            user_data: "#!/bin/sh".to_owned(),
            ..SeedCloudInit::default()
        };
        Metadata { node: "n1".to_owned(), site: "s.example".to_owned(), seed }
    }

    #[test]
    fn everything_that_is_listed_is_there() {
        for (hostname, expect) in [
            (Some("web1"), "hostname\ninstance-id\nlocal-hostname\nmachine-id\nsitename"),
            (None, "instance-id\nmachine-id\nsitename"),
        ] {
            let metadata = metadata(hostname);
            let listing = metadata.get("meta-data/").expect("a listing");
            assert_eq!(listing, expect);
            for key in listing.lines() {
                let value = metadata.get(&format!("meta-data/{key}"));
                assert!(value.is_some_and(|value| !value.is_empty()), "{key}");
            }
        }
        for nothing in ["", "meta-data/x", "meta-data/instance-id/", "meta-data//", "user-data/", "../user-data"] {
            assert_eq!(metadata(None).get(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn no_cloud_finds_a_seed() {
        let metadata = metadata(Some("a\"b"));
        let expect = "hostname: \"a\\\"b\"\ninstance-id: \"i-1\"\nlocal-hostname: \"a\\\"b\"\nmachine-id: \"n1\"\n\
                      sitename: \"s.example\"\n";
        assert_eq!(metadata.get("meta-data").as_deref(), Some(expect));
        assert_eq!(metadata.get("user-data").as_deref(), Some("#!/bin/sh"));
        assert_eq!(metadata.get("vendor-data").as_deref(), Some(""));
    }
    #[test]
    fn keys_are_listed_as_ec2_does() {
        let with = |keys: &[&str]| {
            let mut metadata = metadata(None);
            metadata.seed.ssh_keys = keys.iter().map(|key| (*key).to_owned()).collect();
            metadata
        };
        let check = |keys: &[&str], path: &str, expect: Option<&str>| {
            assert_eq!(with(keys).get(&format!("meta-data/{path}")).as_deref(), expect, "{path}");
        };
        let keys = ["ssh-rsa A a: b", "ssh-rsa B"];
        check(&keys, "", Some("instance-id\nmachine-id\nsitename\npublic-keys/"));
        check(&keys, "public-keys/", Some("0=key-0\n1=key-1"));
        check(&keys, "public-keys/1/", Some("openssh-key"));
        check(&keys, "public-keys/1/openssh-key", Some("ssh-rsa B"));
        for nothing in ["public-keys", "public-keys/2/", "public-keys/x/", "public-keys/0", "public-keys/0/dsa"] {
            check(&keys, nothing, None);
        }
        check(&[], "public-keys/", None);
        let document = with(&keys).get("meta-data").unwrap_or_default();
        assert!(document.ends_with("\npublic-keys:\n- \"ssh-rsa A a: b\"\n- \"ssh-rsa B\"\n"), "{document}");
    }
}
