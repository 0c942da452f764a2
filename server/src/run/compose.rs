//! Composes the steps of a run: a pure function of the loaded data, without queries or random values.

mod fill_in;
pub mod images;
mod install;
pub mod network;
pub mod phone_home;
mod task;

use slipway_protocol::{Action, ErrorCode, MAX_WORKFLOW_BYTES, Proof, Step, workflow};
use slipway_user_data::ignition::Additions;
use slipway_user_data::seed;

pub use self::install::install;
use self::task::Said;
use crate::base::error::Error;
use crate::base::random;
use crate::rules::phone_home_settings::PhoneHomeSettings;
use crate::run::facts::Facts;
use crate::run::new_run::{NewRun, check_known};
use crate::store::nodes::Node;
use crate::store::systems::System;
use crate::store::to_json;

/// Number of bytes that a workflow needs in addition to its steps when it is sent, with some to spare.
const ROOM: usize = 1 << 10;

/// What a run is composed of besides the request, loaded from the database.
pub struct Loaded<'a> {
    /// The node.
    pub node: &'a Node,
    /// The operating system that the request names, if there is one of this name.
    pub system: Option<System>,
    /// The server's URL and images.
    pub facts: &'a Facts,
    /// Certificates, in PEM, that the installed system must trust to report.
    pub ca: &'a str,
}

/// Random texts for one run.
pub struct Secrets {
    /// Token in the URL that the installed system reports to.
    pub phone_home: String,
    /// Token of the installed system's boot reporter.
    pub boot: String,
    /// Token in the URLs of captured images.
    pub image: String,
    /// Secret from which instance ids are derived.
    pub instance: String,
}

impl Secrets {
    /// Draws new random texts.
    pub fn draw() -> Self {
        let [phone_home, boot, image, instance] = std::array::from_fn(|_| random::token());
        Self { phone_home, boot, image, instance }
    }
}

/// A run as it is stored. The server recognises the tokens in its steps by their hashes.
#[derive(Debug)]
pub struct Composed {
    /// The steps.
    pub steps: Vec<Step>,
    /// The steps before anything was added that is of this run alone: keys, tokens and instance ids.
    pub plain: Vec<Step>,
    /// The instance ids that the installed system may report with, all of them impossible to guess.
    pub instances: Vec<String>,
    /// Hash of the token that the installed system reports with, if it is asked to report.
    pub phone_home_hash: Option<String>,
    /// Hash of the boot reporter's token. `None` if no step installs a boot reporter.
    pub boot_hash: Option<String>,
    /// Hashes of the tokens in the URLs of captured images.
    pub image_hashes: Vec<String>,
    /// Whether the metadata can still be read after the system reported.
    pub keep_metadata: bool,
    /// Names of the expected external steps.
    pub known_steps: Vec<String>,
    /// The least that the machine must prove.
    pub require: Proof,
}

/// Composes a run. Anything that the node would refuse is refused here, before a disk is erased.
///
/// Every change to the steps is made here. The comments say why in this order.
pub fn compose(mut new: NewRun, loaded: Loaded<'_>, secrets: &Secrets) -> Result<Composed, Error> {
    let Loaded { node, system, facts, ca } = loaded;
    let keys = std::mem::take(&mut new.keys);
    let Said { mut steps, reporting, keep_metadata, known_steps, require } = task::said(new, system, node, facts)?;
    check_known(&known_steps)?;
    // Before anything changes the user-data, because the problems name lines and columns of what the operator wrote.
    refuse(seed::problems(&steps))?;
    // Resolves names and fills in omitted values. The four changes are independent of each other, and judged below.
    images::resolve(&mut steps, facts)?;
    fill_in::node_settings(&mut steps, node.name.as_deref(), node.network.as_ref(), &node.ssh_keys);
    let plain = steps.clone();
    fill_in::keys(&mut steps, &keys);
    fill_in::instance_ids(&mut steps, &secrets.instance);
    // The report is added to the user-data after the user-data was judged. The boot reporters get their URL and token
    // here, because the judgement below requires both.
    let phone_home_hash = report(&mut steps, reporting, facts, &secrets.phone_home, ca)?;
    let boot_hash = fill_in::boot_reporters(&mut steps, facts, &secrets.boot, ca)?;
    // Nothing is missing from the steps any more, so they are judged as the node judges them.
    refuse(workflow::validate(&steps))?;
    // After the judgement, so that none of its messages can contain a token.
    let image_hashes = images::open_captured(&mut steps, facts, &secrets.image)?;
    images::welcome_redirects(&mut steps, facts);
    // Last, because these two judge the steps as they are sent, with everything that was added above.
    check_ignition(&steps)?;
    refuse_too_large(&steps)?;
    let instances = fill_in::instances(&steps);
    Ok(Composed {
        steps,
        plain,
        instances,
        phone_home_hash,
        boot_hash,
        image_hashes,
        keep_metadata,
        known_steps,
        require,
    })
}

/// Makes the installed system report or not, as set. Returns the hash of the token in the URL that it reports to.
fn report(
    steps: &mut [Step],
    reporting: PhoneHomeSettings,
    facts: &Facts,
    token: &str,
    ca: &str,
) -> Result<Option<String>, Error> {
    reporting.check()?;
    if !reporting.on.unwrap_or_default() {
        phone_home::disable_phone_home(steps, facts.server.as_deref())?;
        return Ok(None);
    }
    let url = format!("{}/v1/phone-home/{token}", facts.server()?);
    phone_home::enable_phone_home(steps, &reporting.block(url), ca)?;
    Ok(Some(random::token_hash(token)))
}

fn refuse(problems: Vec<String>) -> Result<(), Error> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::refused(ErrorCode::InvalidRequest, problems.join("; ")))
}

/// Refuses steps that are too large for any node to read.
fn refuse_too_large(steps: &[Step]) -> Result<(), Error> {
    let size = to_json(&steps).len() + ROOM;
    if size <= MAX_WORKFLOW_BYTES {
        return Ok(());
    }
    let message = format!(
        "the steps are {size} bytes of JSON, including user-data and the content of files, but a machine accepts at \
         most {MAX_WORKFLOW_BYTES}; put large files on the server, and fetch them with write-file or from user-data"
    );
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Refuses an Ignition config that the node would refuse.
fn check_ignition(steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        if let Action::SeedCloudInit(seed) = &step.action
            && seed.is_for_ignition()
        {
            phone_home::complete_config(&seed.user_data, &Additions::of(seed))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slipway_protocol::Identity;

    use super::*;
    use crate::run::facts::Stored;
    use crate::run::new_run::Task;
    use crate::store::images::Image;

    /// Composes a run of these actions on a server with one captured image.
    fn composed(actions: &[serde_json::Value]) -> Result<Composed, Error> {
        let digest = format!("sha256:{}", "a".repeat(64)).parse().expect("a digest");
        let file_name = "a.img".to_owned();
        let (raw_size, raw_digest) = (None, None);
        let image = Image { digest, file_name, size: 1, raw_size, raw_digest, added_at: 0, captured: true };
        let images = vec![Stored { image, finding: None }];
        let facts = Facts { server: Some("https://s".to_owned()), images, images_ca: None };
        let step = |(number, action)| json!({ "name": format!("s{number}"), "action": action });
        let steps: Vec<_> = actions.iter().enumerate().map(step).collect();
        let workflow = serde_json::from_value(json!({ "steps": steps, "phone_home": true })).expect("a workflow");
        let node = Node::new(Identity::default(), 0);
        let ca = "-----BEGIN CERTIFICATE-----\nPEM\n-----END CERTIFICATE-----\n";
        let loaded = Loaded { node: &node, system: None, facts: &facts, ca };
        let [phone_home, boot, image, instance] = ["PHONE", "BOOT", "IMAGE", "INSTANCE"].map(str::to_owned);
        compose(NewRun::new(Task::Workflow(workflow)), loaded, &Secrets { phone_home, boot, image, instance })
    }

    #[test]
    fn the_same_arguments_give_the_same_run_with_each_token_in_its_place() {
        let named = json!({ "stream-image": { "url": "https://s/images/a.img" } });
        let actions = [named, json!({ "seed-cloud-init": {} }), json!({ "boot-reporter": {} })];
        let run = composed(&actions).expect("a run");
        let again = composed(&actions).expect("the same");
        assert_eq!((&run.steps, &run.instances), (&again.steps, &again.instances));
        let text = to_json(&run.steps);
        for token in ["PHONE", "BOOT", "IMAGE"] {
            assert_eq!(text.matches(token).count(), 1, "{token}: {text}");
        }
        let [image] = &run.image_hashes[..] else { panic!("{:?}", run.image_hashes) };
        let hashes = [run.phone_home_hash.as_ref(), run.boot_hash.as_ref()];
        assert_eq!(hashes, [Some(&random::token_hash("PHONE")), Some(&random::token_hash("BOOT"))]);
        assert_ne!(*image, random::token_hash("IMAGE"), "it is good for one image");
        assert_eq!(run.instances.len(), 1);
    }

    #[test]
    fn a_refusal_has_the_lines_of_what_the_operator_wrote() {
        let seed = json!({ "seed-cloud-init": { "user_data": "#cloud-config\na: [b\n" } });
        let refused = composed(&[seed]).expect_err("a list without an end").to_string();
        assert!(refused.starts_with("step \"s0\": the user-data cannot be used: line 2, column 4"), "{refused}");
    }
}
