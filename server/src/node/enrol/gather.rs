//! Reads what is known about a machine that asks to enrol.

use slipway_media::judge::{self, Known};
use slipway_protocol::{MachineSettings, Secret};

use super::applicant::Applicant;
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::Millis;
use crate::node::admission::{self, Facts, ShownToken, ShownTpm, TpmAnswer};
use crate::node::contacts::Contacts;
use crate::rules::state;
use crate::store::nodes;
use crate::store::{Connection, attestations, boot_builds, claimants, runs, settings, tokens};

/// Reads all facts that [`admission::decide`] needs.
pub(super) async fn gather(
    connection: &mut Connection,
    contacts: &Contacts,
    applicant: &Applicant<'_>,
    now: Millis,
) -> Result<Facts, Error> {
    let (key, identity) = (applicant.key.clone(), applicant.identity.clone());
    let mut nodes = nodes::matching(connection, &identity).await?;
    for node in &mut nodes {
        node.last_seen = contacts.last_seen(&node.id, node.last_seen, now);
    }
    // A machine that is not a node yet has no node id.
    let node = admission::node_of(&nodes, &identity).map(|node| (node.id.clone(), node.anew.clone()));
    let (node, anew) = node.unwrap_or_default();
    let (mut tpm, mut last_answer) = (applicant.tpm.shown().cloned(), None);
    if let Some(ShownTpm { answer: TpmAnswer::Right { has_event_log, boot_problem, .. }, .. }) = &mut tpm {
        *boot_problem = compare_boot(connection, applicant, *has_event_log).await?;
        last_answer = attestations::of_node(connection, &node).await?.map(|last| (last.at, last.proof.nonce.0));
    }
    let has_tpm_of_another = match &tpm {
        Some(tpm) => nodes::other_with_ek(connection, &node, &tpm.ek).await?.is_some(),
        None => false,
    };
    let token = match &applicant.request.bootstrap_token {
        None => ShownToken::None,
        Some(token) => match tokens::get_by_hash(connection, &random::token_hash(token)).await? {
            None => ShownToken::Unknown,
            Some(token) => ShownToken::Known(token),
        },
    };
    let run = runs::newest_of(connection, &node).await?;
    let run = match (run.filter(|run| state::is_open(run.progress.state)), anew) {
        (None, Some(anew)) => runs::get_by_id(connection, &anew).await?,
        (run, _) => run,
    };
    let run_requires = run.map(|run| run.require).unwrap_or_default();
    let claimant = claimants::get_by_key(connection, &key).await?;
    Ok(Facts { key, identity, token, tpm, nodes, has_tpm_of_another, run_requires, last_answer, claimant })
}

/// Returns why a machine did not start boot files of the site. `None` if it did, or if the site does not require that.
/// A boot medium may carry settings for the machine: the token that it presents, or no token. Other settings are
/// unknown here.
async fn compare_boot(
    connection: &mut Connection,
    applicant: &Applicant<'_>,
    has_event_log: bool,
) -> Result<Option<String>, Error> {
    if settings::read(connection, settings::ATTESTED_BOOT).await?.is_some() {
        return Ok(None);
    }
    if !has_event_log {
        return Ok(Some("measured boot: it did not send its event log".to_owned()));
    }
    let known = Known {
        builds: boot_builds::all(connection).await?.into_iter().flat_map(|build| build.measurements).collect(),
        programs: boot_builds::programs(connection).await?.into_iter().map(|program| program.digest).collect(),
    };
    let tokens = [None, applicant.request.bootstrap_token.clone().map(Secret::from)];
    let settings = tokens.into_iter().map(|token| MachineSettings { token, ..MachineSettings::default() });
    let settings: Vec<_> = settings.filter_map(|settings| slipway_media::measured(&settings)).collect();
    let compared = judge::judge(&applicant.tpm.events, &known, &settings);
    Ok(compared.err().map(|mismatch| format!("measured boot: {mismatch}")))
}
