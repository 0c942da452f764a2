//! Texts about machines that claim to be nodes, and about nodes' keys.

use slipway_protocol::{
    Claim, ClaimReason, ClaimedTpm, EkCertificate, Identity, KeyOrigin, NodeKey, NodeState, NodeStatus, NodeTpm, Proof,
    TpmOrigin,
};
use slipway_server::base::time::Millis;
use slipway_server::rules::trouble::{WAITS, is_contested};

use slipway_protocol::shared::printable::line;

use super::words::duration;

/// Milliseconds for which the table shows that a node's key has changed.
const NEWS: Millis = 24 * 60 * 60 * 1000;

/// Returns the claims of machines that still wait: those that last asked at most [`WAITS`] ms ago.
fn waiting(node: &NodeStatus, now: Millis) -> impl Iterator<Item = &Claim> {
    node.claims.iter().filter(move |claim| now.saturating_sub(claim.last_asked) <= WAITS)
}

/// Says what is wrong or needs action, if machines claim to be this node.
pub fn notice(node: &NodeStatus, now: Millis) -> Option<String> {
    let contested = || node.claims.iter().filter(|claim| is_contested(claim, now));
    let others = contested().count();
    if let Some(claim) = contested().next() {
        let more = if others > 1 { format!(", and {} more", others - 1) } else { String::new() };
        let shared = claim.shared.join(" and ");
        let shared = if shared.is_empty() { shared } else { format!("; probably shared by both: {shared}") };
        return Some(format!(
            "{}: for {}, from {}, claim code {}{more}{shared}",
            contest(claim.reason),
            duration(claim.last_asked.saturating_sub(claim.first_asked)),
            claim.address,
            claim.code
        ));
    }
    if let Some(idle) = waiting(node, now).find(|claim| claim.reason == ClaimReason::NothingToDo) {
        return Some(format!("a machine with its identifiers waits for work, at {}: start a run", idle.address));
    }
    if let Some(claim) = waiting(node, now).find(|claim| claim.node.is_some() && !claim.shared.is_empty()) {
        let (shared, code) = (claim.shared.join(" and "), &claim.code);
        let label = node.name.as_ref().unwrap_or(&node.id);
        return (node.claim_code.as_ref() != Some(code)).then(|| {
            format!(
                "another machine ({code}) has {shared} too: probably shared by several machines; register only unique \
                 identifiers (`node set {label}`)"
            )
        });
    }
    placeholder(&node.identity)
}

/// Says what is wrong with identifiers that were registered before they were known to be shared by many machines.
fn placeholder(identity: &Identity) -> Option<String> {
    let found = identity.placeholders();
    let named: Vec<String> = found.iter().map(|(kind, value)| format!("{kind} {value}")).collect();
    let left = identity.usable() != Identity::default();
    let effect = match (left, found.len()) {
        (true, 1) => "it is ignored",
        (true, _) => "they are ignored",
        (false, 1) => "it does not let a machine in",
        (false, _) => "they do not let a machine in",
    };
    (!found.is_empty()).then(|| {
        format!("many machines have {}, so {effect}: register unique identifiers (`node set`)", named.join(" and "))
    })
}

/// Returns a sentence about a machine that has the node's identifiers and is not let in. The row of the table is about
/// the node's own machine, so the sentence says "another machine" or "a machine".
fn contest(reason: ClaimReason) -> &'static str {
    match reason {
        ClaimReason::ProofMissing => "another machine claims to be this node without the proof that is required",
        ClaimReason::TpmMissing => "TPM missing: a machine claims to be this node, but has no TPM",
        ClaimReason::TpmReplaced => "TPM replaced: a machine claims to be this node, but has another TPM",
        ClaimReason::TpmCleared => "TPM cleared: a machine claims to have this node's TPM, with its keys cleared",
        ClaimReason::TpmRefused => "TPM refused: a machine claims to be this node, but its TPM proof is not valid",
        ClaimReason::EventLogMissing => {
            "event log missing: a machine has this node's TPM, but sent no log of what it booted"
        }
        ClaimReason::EkCertificateBad => {
            "bad EK certificate: a machine claims to be this node, but its TPM is not trusted"
        }
        ClaimReason::TpmOfAnotherNode => {
            "TPM of another node: a machine claims to be this node, and to have another node's TPM"
        }
        ClaimReason::BootFilesUnknown => {
            "other boot files: a machine has this node's TPM, but did not boot this site's boot files"
        }
        _ => "another machine claims to be this node",
    }
}

/// Says why a machine waits to be let in for the first time, as this node or as a new one.
pub fn held(node: &NodeStatus) -> Option<String> {
    let is_its_own = |claim: &&Claim| claim.reason.identifiers_match() || node.claim_code.as_ref() == Some(&claim.code);
    let claim = node.claims.iter().find(is_its_own).filter(|_| node.state == NodeState::Held)?;
    let other = claim.node.as_deref().unwrap_or("a node");
    Some(match claim.reason {
        ClaimReason::IdentifiersDiffer => {
            let shared = claim.shared.join(" and ");
            let shared = if shared.is_empty() { shared } else { format!("; {shared} is probably shared by both") };
            format!("has some identifiers of {other}, but not all; claim code {}{shared}", claim.code)
        }
        ClaimReason::SeveralNodes => format!("has the identifiers of several nodes; claim code {}", claim.code),
        _ if claim.shared.is_empty() => format!("waiting to be released, claim code {}", claim.code),
        _ => format!(
            "waiting to be released, claim code {}; {} is probably shared by several waiting machines",
            claim.code,
            claim.shared.join(" and ")
        ),
    })
}

/// Describes a recent change of the node's key that no operator decided.
pub fn takeover(node: &NodeStatus, now: Millis) -> Option<String> {
    let key = node.key.as_ref().filter(|key| key.origin == KeyOrigin::AfterSilence)?;
    let age = now.saturating_sub(key.since);
    (age <= NEWS).then(|| format!("another key took over {} ago, from {}", duration(age), key.address))
}

/// Describes everything known about a node's key and TPM, and the machines that claim to be the node.
pub fn details(node: &NodeStatus, now: Millis) -> String {
    let mut text = String::new();
    if let Some(key) = &node.key {
        text += &format!("\nKey: {}\n", key_line(key, now));
        for earlier in &node.earlier_keys {
            text += &format!("Earlier key: {}\n", key_line(earlier, now));
        }
    }
    if let Some(tpm) = &node.tpm {
        text += &format!("\nTPM: {}\n", tpm_line(tpm, now));
    }
    for claim in &node.claims {
        text += &format!(
            "\nClaim {}: {}, from {}, first asked {} ago, last asked {} ago\n  {}\n",
            claim.code,
            claim.reason.in_words(),
            claim.address,
            duration(now.saturating_sub(claim.first_asked)),
            duration(now.saturating_sub(claim.last_asked)),
            line(&claim.identity.in_words()),
        );
        if !claim.shared.is_empty() {
            text += &format!("  probably shared by several machines: {}\n", line(&claim.shared.join(", ")));
        }
        if let Some(tpm) = &claim.tpm {
            text += &format!("  TPM as reported: {}\n", line(&claimed_tpm(tpm)));
        }
    }
    text
}

fn key_line(key: &NodeKey, now: Millis) -> String {
    let short: String = key.fingerprint.chars().take(16).collect();
    let age = duration(now.saturating_sub(key.since));
    let (origin, proof) = (key_origin(key.origin), proved(key.proof));
    format!("{short}, from {}, the node's for {age}: {origin}; {proof}", key.address)
}

fn key_origin(origin: KeyOrigin) -> &'static str {
    match origin {
        KeyOrigin::First => "the node had no key before",
        KeyOrigin::AfterInstallation => "the previous machine had left for its installed system",
        KeyOrigin::AfterSilence => "the previous machine was silent",
        KeyOrigin::Operator => "an operator released it",
        KeyOrigin::Attested => "its machine has the node's TPM",
    }
}

fn proved(proof: Proof) -> &'static str {
    match proof {
        Proof::Registered => "its machine sent the registered identifiers",
        Proof::Token => "its machine proved a bootstrap token",
        Proof::Attested => "its machine proved its TPM",
    }
}

fn certificate(certificate: EkCertificate) -> &'static str {
    match certificate {
        EkCertificate::None => "without a certificate",
        EkCertificate::UnknownIssuer => "with a certificate of an untrusted manufacturer",
        EkCertificate::Bad => "with an invalid certificate",
        EkCertificate::Verified => "certified by a trusted manufacturer",
    }
}

fn tpm_line(tpm: &NodeTpm, now: Millis) -> String {
    let origin = match tpm.origin {
        TpmOrigin::Registered => "registered by an operator",
        TpmOrigin::Certificate => "recorded because a trusted manufacturer certified it",
        TpmOrigin::Release => "recorded from the first machine, or from a released one",
    };
    let ek = format!("{}, {origin}", tpm.ek.join(" or "));
    let certificate = tpm.certificate.map(|found| format!(", {}", certificate(found)));
    let proved = tpm.proved_at.map_or_else(
        || ", not proved yet".to_owned(),
        |at| format!(", proved {} ago", duration(now.saturating_sub(at))),
    );
    let log = if tpm.has_event_log { ", with event log" } else { "" };
    format!("{ek}{}{proved}{log}", certificate.unwrap_or_default())
}

fn claimed_tpm(tpm: &ClaimedTpm) -> String {
    let ek = tpm.ek.clone().unwrap_or_else(|| "not usable".to_owned());
    let certificate = tpm.certificate.map(|found| format!(", {}", certificate(found)));
    let problem = tpm.problem.as_ref().map(|problem| format!(" ({problem})"));
    format!("{ek}{}{}", certificate.unwrap_or_default(), problem.unwrap_or_default())
}
