//! Removes secrets from the store when they are no longer needed: a run's secrets when it has ended, except user-data
//! that the metadata service still serves.

use slipway_protocol::workflow::{is_ignition, shown_url};
use slipway_protocol::{Action, NodeState, RegistryAuth, RunState, Secret, Step};

use crate::base::error::Error;
use crate::rules::changes;
use crate::rules::state;
use crate::store;
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, nodes, run_requests};

/// The text that replaces a removed secret.
pub const REMOVED: &str = "(removed when the run was over)";

/// Removes the secrets of a node's runs that no longer need them.
pub async fn forget_of_node(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let node = nodes::get_by_id(connection, node).await?;
    let Some(node) = node else { return Ok(()) };
    if node.state == NodeState::Decommissioned {
        run_requests::remove_of_node(connection, &node.id).await?;
    }
    for run in runs::unforgotten_of(connection, &node.id).await? {
        let is_served = node.state != NodeState::Decommissioned && runs::is_current(connection, &node, &run.id).await?;
        if run.progress.state == RunState::Succeeded && node.anew.as_ref() != Some(&run.id) {
            run_requests::remove(connection, &run.id).await?;
        }
        if !needs_secrets(&run, is_served) {
            runs::forget(connection, &run.id, &without_secrets(run.workflow)).await?;
        }
    }
    Ok(())
}

/// Removes secrets that an earlier version, or a server that was killed, left in the store.
pub async fn forget_of_all(store: &Store) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    for node in runs::nodes_with_unforgotten(&mut transaction).await? {
        forget_of_node(&mut transaction, &node).await?;
    }
    run_requests::remove_stale(&mut transaction).await?;
    store::commit(transaction).await
}

/// Returns whether a machine may fetch the run again, or its installed system may ask for metadata. `is_served` says
/// whether the run is the current one of a node in service.
fn needs_secrets(run: &Run, is_served: bool) -> bool {
    state::is_open(run.progress.state)
        || is_served
            && run.progress.state == RunState::Succeeded
            && (run.keep_metadata || run.has_metadata_url && run.phoned_home_at.is_none())
}

/// Returns the steps for an operator to read: with `(secret)` in place of tokens and passwords. User-data stays,
/// because operators gave it, but without the token that the server put in.
pub fn masked(steps: Vec<Step>) -> Vec<Step> {
    let hide = |secret: &mut Secret| *secret = Secret::from("(secret)".to_owned());
    let mask = |mut step: Step| {
        match &mut step.action {
            Action::StreamImage(image) => image.registry_auth.iter_mut().for_each(|login| hide(&mut login.password)),
            Action::WriteFile(file) => file.registry_auth.iter_mut().for_each(|login| hide(&mut login.password)),
            Action::UnpackArchive(archive) => {
                archive.registry_auth.iter_mut().for_each(|login| hide(&mut login.password));
            }
            Action::SeedCloudInit(seed) => {
                seed.phone_home.iter_mut().for_each(|phone_home| phone_home.url = without_tokens(&phone_home.url));
                seed.user_data = match is_ignition(&seed.user_data) {
                    // It may have the token in Base64.
                    true => format!("(an Ignition config of {} bytes)", seed.user_data.len()),
                    false => without_tokens(&seed.user_data),
                };
                seed.vendor_data = seed.vendor_data.as_deref().map(without_tokens);
            }
            Action::BootReporter(reporter) => hide(&mut reporter.token),
            _ => {}
        }
        sources_of(&mut step.action).into_iter().for_each(|url| *url = shown_url(url));
        step
    };
    steps.into_iter().map(mask).collect()
}

/// What precedes a token in the URL that a system reports to.
const BEFORE_TOKEN: &str = "/v1/phone-home/";

/// Returns a text with `(secret)` in place of the tokens of URLs that systems report to.
fn without_tokens(text: &str) -> String {
    let mut parts = text.split(BEFORE_TOKEN);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        shown += BEFORE_TOKEN;
        shown += "(secret)";
        shown += part.trim_start_matches(is_token);
    }
    shown
}

/// Returns the steps with [`REMOVED`] in place of each secret.
fn without_secrets(steps: Vec<Step>) -> Vec<Step> {
    replaced(steps, |_| REMOVED.to_owned())
}

/// Returns the steps with a few digits in place of each secret, to compare them with those of another run.
pub fn hidden(steps: Vec<Step>) -> Vec<Step> {
    replaced(steps, changes::hidden)
}

/// Returns the steps with another text in place of each secret. An empty text is not a secret and stays.
fn replaced(mut steps: Vec<Step>, by: fn(&str) -> String) -> Vec<Step> {
    let mark = |text: &mut String| {
        if !text.is_empty() {
            *text = by(text);
        }
    };
    let remove = |text: &mut Option<String>| text.iter_mut().for_each(mark);
    let hide = |secret: &mut Secret| {
        if !secret.is_empty() {
            *secret = Secret::from(by(secret.reveal()));
        }
    };
    let remove_login = |login: &mut Option<RegistryAuth>| login.iter_mut().for_each(|login| hide(&mut login.password));
    for step in &mut steps {
        match &mut step.action {
            Action::StreamImage(image) => remove_login(&mut image.registry_auth),
            Action::WriteFile(file) => {
                remove(&mut file.content);
                remove_login(&mut file.registry_auth);
            }
            Action::UnpackArchive(archive) => remove_login(&mut archive.registry_auth),
            Action::RunInTarget(run) => {
                remove(&mut run.script);
                run.command.iter_mut().skip(1).chain(run.environment.values_mut()).for_each(mark);
            }
            Action::SeedCloudInit(seed) => {
                mark(&mut seed.user_data);
                remove(&mut seed.vendor_data);
                remove(&mut seed.network_config);
                seed.phone_home.iter_mut().for_each(|phone_home| mark(&mut phone_home.url));
            }
            Action::BootReporter(reporter) => hide(&mut reporter.token),
            _ => {}
        }
        sources_of(&mut step.action).into_iter().for_each(|url| *url = shown_url(url));
    }
    steps
}

/// Returns the URLs that an action fetches from, which may have a login in them.
fn sources_of(action: &mut Action) -> Vec<&mut String> {
    match action {
        Action::StreamImage(image) => {
            let signature = image.signature.as_mut().map(|signature| &mut signature.url);
            let others = [image.sums.as_mut(), image.bmap.as_mut(), signature].into_iter().flatten();
            std::iter::once(&mut image.url).chain(others).chain(&mut image.mirrors).collect()
        }
        Action::WriteFile(file) => {
            let signature = file.signature.as_mut().map(|signature| &mut signature.url);
            let others = [file.url.as_mut(), file.sums.as_mut(), signature].into_iter().flatten();
            others.chain(&mut file.mirrors).collect()
        }
        Action::UnpackArchive(archive) => {
            let signature = archive.signature.as_mut().map(|signature| &mut signature.url);
            let others = [archive.sums.as_mut(), signature].into_iter().flatten();
            std::iter::once(&mut archive.url).chain(others).chain(&mut archive.mirrors).collect()
        }
        _ => Vec::new(),
    }
}
