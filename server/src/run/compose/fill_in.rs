//! Fills in what steps leave to the server: keys, the node's settings, instance ids, and where boot reporters report.

use slipway_protocol::{Action, Network, SecureBootUpdate, SecureBootVariable, Step};
use slipway_secure_boot::{Variable, Write};

use super::network;
use crate::base::error::Error;
use crate::base::random;
use crate::keys::secure_boot::Update;
use crate::run::facts::Facts;

const INSTANCE_PREFIX: &str = "slipway-";
/// Number of hexadecimal digits after the prefix: 128 bits.
const INSTANCE_DIGITS: usize = 32;

/// Fills in the updates for the site's keys in every `enrol-secure-boot` step that has no updates.
pub fn keys(steps: &mut [Step], updates: &[Update]) {
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

/// Adds the node's settings to every `seed-cloud-init` step: host name and network if the step has none, and SSH keys
/// in addition to those of the step.
pub fn node_settings(steps: &mut [Step], name: Option<&str>, network: Option<&Network>, ssh_keys: &[String]) {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &mut step.action {
            seed.hostname = seed.hostname.take().or_else(|| name.map(str::to_owned));
            seed.network_config = seed.network_config.take().or_else(|| network.map(network::text));
            let further = ssh_keys.iter().filter(|key| !seed.ssh_keys.contains(key)).cloned().collect::<Vec<_>>();
            seed.ssh_keys.extend(further);
        }
    }
}

/// Gives every seed without an instance id a new one, so that cloud-init treats the system as a new machine. An id that
/// slipway made is replaced too, because it is from an older run, whose system may still report with it.
pub fn instance_ids(steps: &mut [Step], secret: &str) {
    for (number, step) in steps.iter_mut().enumerate() {
        if let Action::SeedCloudInit(seed) = &mut step.action
            && (seed.instance_id.is_empty() || is_unguessable(&seed.instance_id))
        {
            seed.instance_id = instance_id(secret, number);
        }
    }
}

/// Returns the instance ids that systems may report with: those that cannot be guessed.
pub fn instances(steps: &[Step]) -> Vec<String> {
    let instances = steps.iter().filter_map(|step| match &step.action {
        Action::SeedCloudInit(seed) => Some(&seed.instance_id),
        _ => None,
    });
    instances.filter(|instance| is_unguessable(instance)).cloned().collect()
}

/// Returns an instance id for the seed of the step with this number. Nobody can guess the id without the secret, so the
/// installed system needs nothing else to report.
fn instance_id(secret: &str, number: usize) -> String {
    let digest = random::token_hash(&format!("{secret} {number}"));
    format!("{INSTANCE_PREFIX}{digest:.INSTANCE_DIGITS$}")
}

/// Returns whether slipway made this instance id. An id that an operator chose may be guessed by others.
fn is_unguessable(instance_id: &str) -> bool {
    let digits = instance_id.strip_prefix(INSTANCE_PREFIX).unwrap_or_default();
    digits.len() == INSTANCE_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Makes every `boot-reporter` step report the system's boots to this server with `token`, over TLS that trusts `ca`.
/// Returns the hash of the token, if there is such a step.
pub fn boot_reporters(steps: &mut [Step], facts: &Facts, token: &str, ca: &str) -> Result<Option<String>, Error> {
    let mut hash = None;
    let image = steps.iter().find_map(|step| match &step.action {
        Action::StreamImage(stream) => stream.digest.clone(),
        _ => None,
    });
    for step in steps {
        if let Action::BootReporter(reporter) = &mut step.action {
            reporter.url = facts.server()?.to_owned();
            reporter.token = token.to_owned().into();
            reporter.ca = ca.to_owned();
            if let Some(agent) = &mut reporter.agent {
                agent.image = agent.image.take().or_else(|| image.clone());
            }
            hash = Some(random::token_hash(token));
        }
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{BootReporter, Interface, SeedCloudInit};

    use super::*;

    fn step(action: Action) -> [Step; 1] {
        [Step { name: "x".to_owned(), action, retries: 0, timeout: None }]
    }

    fn seed([step]: &[Step; 1]) -> &SeedCloudInit {
        match &step.action {
            Action::SeedCloudInit(seed) => seed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_has_its_name_its_network_and_its_keys_beside_those_of_the_system() {
        let ssh_keys = vec!["ssh-rsa A".to_owned()];
        let mut steps = step(Action::SeedCloudInit(SeedCloudInit { ssh_keys, ..SeedCloudInit::default() }));
        let interface = Interface { name: "lan0".to_owned(), dhcp4: true, ..Interface::default() };
        let network = Network { interfaces: vec![interface], ..Network::default() };
        node_settings(&mut steps, Some("web1"), Some(&network), &["ssh-rsa B".to_owned(), "ssh-rsa A".to_owned()]);
        assert_eq!(seed(&steps).hostname.as_deref(), Some("web1"));
        assert_eq!(seed(&steps).network_config.as_deref(), Some(&*network::text(&network)));
        assert_eq!(seed(&steps).ssh_keys, ["ssh-rsa A", "ssh-rsa B"]);
        let before = steps.clone();
        node_settings(&mut steps, Some("web2"), Some(&Network::default()), &[]);
        assert_eq!(steps, before, "what a step says itself stays");
    }

    #[test]
    fn an_instance_id_is_new_and_known_for_one_of_ours() {
        let ids = [instance_id("s", 0), instance_id("s", 1), instance_id("t", 0)];
        assert!(ids.iter().all(|id| is_unguessable(id)), "{ids:?}");
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
        for guessable in ["", "slipway-", "slipway-web1", "web1"] {
            assert!(!is_unguessable(guessable), "{guessable}");
        }
    }

    #[test]
    fn a_boot_reporter_is_told_who_it_reports_to() {
        let facts = Facts { server: Some("https://s".to_owned()), ..Facts::default() };
        let mut steps = step(Action::BootReporter(BootReporter::default()));
        let hash = boot_reporters(&mut steps, &facts, "T", "PEM\n").expect("a URL");
        let [Step { action: Action::BootReporter(reporter), .. }] = &steps else { panic!("{steps:?}") };
        assert_eq!((reporter.url.as_str(), reporter.token.reveal(), reporter.ca.as_str()), ("https://s", "T", "PEM\n"));
        assert_eq!(hash, Some(random::token_hash("T")));
    }
}
