//! Who is let in as a node: the whole rule. [`decide`] is pure. [`crate::node::enrol`] reads the [`Facts`] and stores
//! the [`Outcome`].
//!
//! 1. A machine is a node if it has all identifiers that the node is registered with ([`fn@matches`]). It is held if it
//!    has all identifiers of several nodes, or only some identifiers of a node.
//! 2. A machine with no identifier of any node becomes a new node by a bootstrap token. Such a token is not made for a
//!    node, is valid for one machine, and proves as much as a token that was made for a node. Where the site requires a
//!    TPM, a token alone is not enough. Without a token, the machine is held.
//! 3. A node's machine is held until an operator or a token releases the node. A token that is unknown, expired or used
//!    up is refused, except if the node is released already.
//! 4. A TPM is in one machine. If a node is known by its TPM, its machine must have that TPM, not cleared, and must
//!    send an event log if it sent one before. If an operator released a machine that only claimed its TPM, that TPM is
//!    not required before it was proved. Nobody is let in with the TPM of another node.
//! 5. The machine must prove the most that the site, the node and its unfinished run require: only the identifiers; or
//!    a token that was made for the node; or its TPM. The TPM counts as proof if the node is known by it, if an
//!    operator released the machine's key, or if its manufacturer certifies it and the node never had a key. What the
//!    node's key proved before still counts. Where the TPM is required, the machine must also have started boot files
//!    of the site.
//! 6. The node's current key stays valid until another key replaces it. The key of a machine that proves the node's TPM
//!    does so at once. For any other key, the machine must have a token that was made for the node, or the node must
//!    have something to do. If the node had a key before, the machine with that key must also be gone (it left for the
//!    system that it installed, or is silent), and the site must not require an operator's decision each time.
//! 7. A machine with a TPM that would be let in is asked to prove it first. An answer counts once. A machine that must
//!    wait is not asked for a proof.
//!
//! Two refusals are elsewhere, because they do not depend on who the machine is: of a request that cannot be read or
//! has no usable identifier (`enrol/applicant.rs`), and of a further machine when too many wait (`enrol/apply.rs`).
//! What the release of a waiting machine changes, and when the release is refused, is in `operate/release.rs`.

use slipway_protocol::{ClaimReason, EkCertificate, ErrorCode, HEARTBEAT_SECONDS, Identity, KeyOrigin, NodeKey, Proof};

use crate::base::time::Millis;
use crate::node::contacts::STORE_EVERY;
use crate::rules::limits::SILENT_IN_A_STEP;
use crate::store::claimants::Claimant;
use crate::store::nodes::Node;
use crate::store::tokens::Token;

/// Milliseconds after which a machine counts as silent: it sends a heartbeat every `HEARTBEAT_SECONDS` while it works,
/// two of these may be lost, and the third is stored up to two seconds later. An open poll is noted about as often.
pub const SILENT: Millis = (3 * HEARTBEAT_SECONDS + STORE_EVERY.as_secs()) * 1000;
const _: () = assert!(SILENT == 1000 * SILENT_IN_A_STEP);

/// Milliseconds in which a repeated request of a waiting machine, if nothing else changed, is not stored.
const STILL_WAITS: Millis = 5_000;

const UNKNOWN: &str = "the bootstrap token was never issued, was revoked or was used before";
const EXPIRED: &str = "the bootstrap token has expired; an operator can issue another with `token add`";

/// What a machine must prove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The least that the machine must prove.
    pub require: Proof,
    /// Whether an operator must agree to each further key of a node.
    pub strict: bool,
}

/// What is known about a machine that asks to be let in, and about the node that it may be.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Fingerprint of the machine's key. Its request proved that the machine has the private key.
    pub key: String,
    /// Usable identifiers of the machine.
    pub identity: Identity,
    /// Bootstrap token of the machine.
    pub token: ShownToken,
    /// The TPM that the machine presents. `None` if it has none, or none that it can use.
    pub tpm: Option<ShownTpm>,
    /// The nodes that are registered with any of these identifiers, strongest identifier first.
    pub nodes: Vec<Node>,
    /// Whether a node other than [`Facts::node`] is known by this TPM.
    pub has_tpm_of_another: bool,
    /// What the unfinished run of the node requires; the least if it has none.
    pub run_requires: Proof,
    /// When the TPM of the node last gave an answer that counted, and the nonce of that challenge.
    pub last_answer: Option<(Millis, Vec<u8>)>,
    /// The stored record of the machine, if it waits already.
    pub claimant: Option<Claimant>,
}

/// The bootstrap token that a machine presents.
#[derive(Clone, Debug, Default)]
pub enum ShownToken {
    /// The machine presents no token.
    #[default]
    None,
    /// The token was never issued or was revoked.
    Unknown,
    /// The token was issued. It may have expired or been used up.
    Known(Token),
}

/// The TPM that a machine presents, and what the server found when it checked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownTpm {
    /// Digest of the endorsement key.
    pub ek: String,
    /// Digest of the attestation key.
    pub ak: String,
    /// What the certificate of the endorsement key says.
    pub certificate: EkCertificate,
    /// The answer to a challenge.
    pub answer: TpmAnswer,
}

/// What a machine answered to a challenge to its TPM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TpmAnswer {
    /// The machine was not asked yet, or answered too late. Until it is asked, it is taken to have the TPM that it
    /// claims.
    None,
    /// What the machine says differs from what the TPM signed.
    Wrong,
    /// The machine proved to have the TPM.
    Right {
        /// Nonce of the challenge. It begins with the time of the challenge, so nonces are in order of time.
        nonce: Vec<u8>,
        /// Whether the machine sent an event log. The log agrees with what the TPM signed.
        has_event_log: bool,
        /// Why the log does not show boot files of the site. `None` if it does, or if the site does not require that.
        boot_problem: Option<String>,
    },
}

/// The decision about a machine that asks to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Let the machine in as [`Facts::node`], or as a new node if no node has any of its identifiers.
    LetIn(LetIn),
    /// Ask the machine to prove its TPM. It is let in if it does.
    Prove,
    /// Hold the machine until an operator acts.
    Hold(ClaimReason),
    /// The machine waits with this claim code as it did a moment ago, so nothing need be stored.
    StillWaits(String),
    /// Refuse the request, with this error code and message.
    Refuse(ErrorCode, &'static str),
}

/// How a machine is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetIn {
    /// How the machine's key becomes the node's key. `None` if it already is.
    pub origin: Option<KeyOrigin>,
    /// What the machine proved.
    pub proof: Proof,
    /// Whether the node is known by its TPM from now on, if the machine proved one.
    pub keep_tpm: bool,
    /// Hash of the token that this uses, if any. The token releases the node if it is not released yet.
    pub token: Option<String>,
}

/// How the TPM of a machine relates to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing tells whether the TPM is the node's, or the machine presents no TPM.
    Unknown,
    /// The manufacturer of the TPM confirms it, or an operator who let in the machine's key.
    Vouched,
    /// The node is known by this TPM.
    Own,
}

impl From<ClaimReason> for Outcome {
    fn from(reason: ClaimReason) -> Self {
        Self::Hold(reason)
    }
}

impl Facts {
    /// Returns the node that the machine may be: the only node all of whose identifiers it has, else the first node
    /// with some of them.
    pub fn node(&self) -> Option<&Node> {
        node_of(&self.nodes, &self.identity)
    }

    /// Returns why the machine did not start boot files of the site. `None` if it did, or if the site does not require
    /// that.
    pub fn boot_problem(&self) -> Option<&str> {
        match &self.tpm.as_ref()?.answer {
            TpmAnswer::Right { boot_problem, .. } => boot_problem.as_deref(),
            TpmAnswer::None | TpmAnswer::Wrong => None,
        }
    }
}

/// Returns whether a machine has the identifiers of a node: each kind that was registered is there and the same. Of
/// several MAC addresses, one is enough.
pub fn matches(registered: &Identity, found: &Identity) -> bool {
    let same = |registered: &Option<String>, found: &Option<String>| registered.is_none() || registered == found;
    let a_mac = registered.macs.is_empty() || registered.macs.iter().any(|mac| found.macs.contains(mac));
    same(&registered.uuid, &found.uuid) && same(&registered.serial, &found.serial) && a_mac
}

/// Divides nodes into those all of whose identifiers a machine has, and the others. An identifier that many machines
/// share is ignored, even if it was registered before that was known.
pub fn candidates<'a>(nodes: &'a [Node], found: &Identity) -> (Vec<&'a Node>, Vec<&'a Node>) {
    nodes.iter().partition(|node| matches(&node.identity.usable(), found))
}

/// Picks [`Facts::node`] among these nodes.
pub fn node_of<'a>(nodes: &'a [Node], found: &Identity) -> Option<&'a Node> {
    let (all, some) = candidates(nodes, found);
    match all.as_slice() {
        [node] => Some(node),
        [] => some.first().copied(),
        _ => None,
    }
}

/// Decides what is to be done with a machine.
pub fn decide(facts: &Facts, site: Policy, now: Millis) -> Outcome {
    match admit(facts, site, now) {
        Ok(_) if must_prove(facts, now) => Outcome::Prove,
        Ok(let_in) => Outcome::LetIn(let_in),
        Err(Outcome::Hold(reason)) => still_waits(facts, reason, now).unwrap_or(Outcome::Hold(reason)),
        Err(outcome) => outcome,
    }
}

fn admit(facts: &Facts, site: Policy, now: Millis) -> Result<LetIn, Outcome> {
    let (all, some) = candidates(&facts.nodes, &facts.identity);
    match all.as_slice() {
        [node] => admit_as(node, facts, site, now),
        [] if some.is_empty() => admit_as_new(facts, site, now),
        [] => Err(ClaimReason::IdentifiersDiffer.into()),
        _ => Err(ClaimReason::SeveralNodes.into()),
    }
}

fn admit_as_new(facts: &Facts, site: Policy, now: Millis) -> Result<LetIn, Outcome> {
    let token = usable(&facts.token, now)?.ok_or(ClaimReason::Unregistered)?;
    if token.made_for.is_some() {
        return Err(ClaimReason::IdentifiersDiffer.into());
    }
    if facts.has_tpm_of_another {
        return Err(ClaimReason::TpmOfAnotherNode.into());
    }
    // A token that does not prove what the site requires is ignored.
    let let_in = weigh(None, facts, Proof::Token, site, now).map_err(|_| ClaimReason::Unregistered)?;
    Ok(LetIn { token: Some(token.hash.clone()), ..let_in })
}

fn admit_as(node: &Node, facts: &Facts, site: Policy, now: Millis) -> Result<LetIn, Outcome> {
    if facts.has_tpm_of_another {
        return Err(ClaimReason::TpmOfAnotherNode.into());
    }
    // A node that was let in needs no further consent, and its machine may itself have used up the token long ago.
    let token = match usable(&facts.token, now) {
        Err(refusal) if !node.released => return Err(refusal),
        token => token.unwrap_or_default().filter(|token| match &token.made_for {
            Some(made_for) => *made_for == node.id,
            None => !node.released,
        }),
    };
    if !node.released && token.is_none() {
        return Err(ClaimReason::NotReleased.into());
    }
    let is_made_for_it = token.is_some_and(|token| token.made_for.is_some());
    let proof = if is_made_for_it { Proof::Token } else { Proof::Registered };
    let require = site.require.max(node.require).max(facts.run_requires);
    let let_in = weigh(Some(node), facts, proof, Policy { require, ..site }, now)?;
    Ok(LetIn { token: token.map(|token| token.hash.clone()), ..let_in })
}

/// Returns the token if it is valid, and refuses an invalid one. A token that was made for a node is valid at each boot
/// of its machine, any other for one machine.
fn usable(token: &ShownToken, now: Millis) -> Result<Option<&Token>, Outcome> {
    match token {
        ShownToken::None => Ok(None),
        ShownToken::Unknown => Err(Outcome::Refuse(ErrorCode::TokenUnknown, UNKNOWN)),
        ShownToken::Known(token) if token.expires_at.is_some_and(|expires| expires <= now) => {
            Err(Outcome::Refuse(ErrorCode::TokenExpired, EXPIRED))
        }
        ShownToken::Known(token) if token.made_for.is_none() && token.used_at.is_some() => {
            Err(Outcome::Refuse(ErrorCode::TokenUnknown, UNKNOWN))
        }
        ShownToken::Known(token) => Ok(Some(token)),
    }
}

/// Compares what a machine proves with what the policy requires of this node, or of a new one. `proof` is what the
/// machine proves without its TPM.
fn weigh(node: Option<&Node>, facts: &Facts, proof: Proof, policy: Policy, now: Millis) -> Result<LetIn, ClaimReason> {
    let own_key = node.and_then(|node| node.key.as_ref()).filter(|key| key.fingerprint == facts.key);
    let standing = standing(node, facts.tpm.as_ref(), own_key)?;
    let shown = if standing == Standing::Unknown { proof } else { Proof::Attested };
    let proved = own_key.map_or(shown, |key| key.proof.max(shown));
    if proved < policy.require {
        return Err(match &facts.tpm {
            Some(ShownTpm { answer: TpmAnswer::Wrong, .. }) => ClaimReason::TpmRefused,
            Some(ShownTpm { certificate: EkCertificate::Bad, .. }) => ClaimReason::EkCertificateBad,
            _ => ClaimReason::ProofMissing,
        });
    }
    if policy.require == Proof::Attested && facts.boot_problem().is_some() {
        return Err(ClaimReason::BootFilesUnknown);
    }
    let origin = match (own_key, node) {
        (Some(_), _) => None,
        // The TPM is in the node's machine, so the earlier keys were of the same machine.
        _ if standing == Standing::Own => Some(KeyOrigin::Attested),
        (None, Some(node)) => {
            let asked = facts.claimant.as_ref().map_or(now, |claimant| claimant.first_asked);
            Some(next_key(node, proof, policy, asked, now)?)
        }
        (None, None) => Some(KeyOrigin::First),
    };
    // A machine that took over from another with the same identifiers may be a stranger. It is let in if the policy
    // allows that, but does not keep the node's own machine out permanently, no matter how often it asks.
    let taken_over = matches!(
        own_key.map(|key| key.origin).or(origin),
        Some(KeyOrigin::AfterInstallation | KeyOrigin::AfterSilence)
    );
    let keep_tpm = standing == Standing::Own || !taken_over;
    Ok(LetIn { origin, proof: proved, keep_tpm, token: None })
}

/// Compares the TPM of a machine with the one that the node is known by. `own_key` is the key of the machine, if it is
/// the node's.
fn standing(node: Option<&Node>, shown: Option<&ShownTpm>, own_key: Option<&NodeKey>) -> Result<Standing, ClaimReason> {
    let without = if shown.is_some() { ClaimReason::TpmRefused } else { ClaimReason::TpmMissing };
    let shown = shown.filter(|shown| shown.answer != TpmAnswer::Wrong);
    match (node.and_then(|node| node.tpm.as_ref()), shown) {
        (None, None) => Ok(Standing::Unknown),
        (Some(tpm), None) if !tpm.is_required() => Ok(Standing::Unknown),
        (Some(_), None) => Err(without),
        (None, Some(shown)) => {
            let is_released_key = own_key.is_some_and(|key| key.origin == KeyOrigin::Operator);
            // A certificate shows that a TPM is genuine, not that it belongs to a node whose earlier machine had no
            // TPM.
            let is_first = node.is_none_or(|node| node.key.is_none());
            let vouched = is_released_key || (is_first && shown.certificate == EkCertificate::Verified);
            Ok(if vouched { Standing::Vouched } else { Standing::Unknown })
        }
        (Some(tpm), Some(shown)) if !tpm.ek.contains(&shown.ek) => Err(ClaimReason::TpmReplaced),
        (Some(tpm), Some(shown)) if tpm.ak.as_ref().is_some_and(|known| *known != shown.ak) => {
            Err(ClaimReason::TpmCleared)
        }
        (Some(tpm), Some(ShownTpm { answer: TpmAnswer::Right { has_event_log: false, .. }, .. }))
            if tpm.has_event_log =>
        {
            Err(ClaimReason::EventLogMissing)
        }
        (Some(_), Some(_)) => Ok(Standing::Own),
    }
}

/// Returns how another key may replace the node's key, or why it may not. `asked` is when the machine with that key
/// first asked.
fn next_key(node: &Node, proof: Proof, policy: Policy, asked: Millis, now: Millis) -> Result<KeyOrigin, ClaimReason> {
    let silent = node.last_seen.is_none_or(|seen| now.saturating_sub(seen) > SILENT);
    let gone = node.key.is_none() || node.key_left || silent;
    // An operator or a token that lets in a node that is not released yet also arms it.
    let is_armed = node.armed || !node.released || node.is_due_anew(asked);
    // A token can be copied, so it replaces no key of an active machine. But it proves more than identifiers that
    // anybody can read.
    if !is_armed && proof < Proof::Token {
        return Err(if gone { ClaimReason::NothingToDo } else { ClaimReason::KeyInUse });
    }
    match () {
        () if node.key.is_none() => Ok(KeyOrigin::First),
        () if policy.strict => Err(ClaimReason::KeyChanged),
        () if node.key_left => Ok(KeyOrigin::AfterInstallation),
        () if silent => Ok(KeyOrigin::AfterSilence),
        () => Err(ClaimReason::KeyInUse),
    }
}

/// Returns whether a machine that would be let in must prove its TPM first. An answer is valid for some minutes, and
/// anyone who sent it a second time would get a JWT without having the key, so it counts only once. If the time of the
/// last answer is in the future, that answer is from before the clock was corrected, and is ignored.
fn must_prove(facts: &Facts, now: Millis) -> bool {
    match facts.tpm.as_ref().map(|tpm| &tpm.answer) {
        None | Some(TpmAnswer::Wrong) => false,
        Some(TpmAnswer::None) => true,
        Some(TpmAnswer::Right { nonce, .. }) => {
            facts.last_answer.as_ref().is_some_and(|(at, last)| *at <= now && nonce <= last)
        }
    }
}

fn still_waits(facts: &Facts, reason: ClaimReason, now: Millis) -> Option<Outcome> {
    let known = facts.claimant.as_ref()?;
    let is_same = known.reason == reason && known.identity == facts.identity;
    let is_recent = now.saturating_sub(known.last_asked) <= STILL_WAITS;
    (is_same && is_recent).then(|| Outcome::StillWaits(known.code.clone()))
}

#[cfg(test)]
mod tests;
