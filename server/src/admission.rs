//! Who is let in as a node. The functions are pure: [`crate::enrol`] reads the store and keeps what they return.

use slipway_protocol::{ClaimReason, HEARTBEAT_SECONDS, Identity, KeyOrigin, Proof};

use crate::store::nodes::Node;
use crate::time::Millis;

/// Milliseconds after which a machine counts as silent: it lets itself be heard every `HEARTBEAT_SECONDS`, and two of
/// these signs may be lost.
pub const SILENT: Millis = 3 * HEARTBEAT_SECONDS * 1000;

/// Milliseconds since a machine last asked to be let in, within which it still waits. It asks every two seconds.
pub const WAITS: Millis = 60_000;

/// What a machine shows, besides the identifiers, when it asks to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown<'a> {
    /// Fingerprint of its key. The request proved that the machine has it.
    pub key: &'a str,
    /// What it proved.
    pub proof: Proof,
}

/// What is asked of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The least that it must prove.
    pub require: Proof,
    /// Whether an operator must agree to each further key of a node.
    pub strict: bool,
}

/// Whether the identifiers of a machine are those of a node: each kind that was registered is there and the same, of
/// MAC addresses at least one.
pub fn matches(registered: &Identity, found: &Identity) -> bool {
    let same = |registered: &Option<String>, found: &Option<String>| registered.is_none() || registered == found;
    let a_mac = registered.macs.is_empty() || registered.macs.iter().any(|mac| found.macs.contains(mac));
    same(&registered.uuid, &found.uuid) && same(&registered.serial, &found.serial) && a_mac
}

/// Whether a machine that has the identifiers of the node is let in: how its key becomes the node's, `None` if it is
/// the node's already, or why it is held.
pub fn judge(node: &Node, shown: Shown<'_>, policy: Policy, now: Millis) -> Result<Option<KeyOrigin>, ClaimReason> {
    if !node.released {
        return Err(ClaimReason::NotReleased);
    }
    let known = node.key.as_ref().filter(|known| known.fingerprint == shown.key);
    let proof = known.map_or(shown.proof, |known| known.proof.max(shown.proof));
    if proof < policy.require {
        return Err(ClaimReason::ProofMissing);
    }
    if known.is_some() {
        return Ok(None);
    }
    let silent = node.last_seen.is_none_or(|seen| now.saturating_sub(seen) > SILENT);
    let gone = node.key.is_none() || node.key_left || silent;
    // A token can be copied, so it takes nothing from a machine that is there. But it is more than what anybody can read.
    if !node.armed && shown.proof < Proof::Token {
        return Err(if gone { ClaimReason::NothingToDo } else { ClaimReason::KeyInUse });
    }
    match () {
        () if node.key.is_none() => Ok(Some(KeyOrigin::First)),
        () if policy.strict => Err(ClaimReason::KeyChanged),
        () if node.key_left => Ok(Some(KeyOrigin::AfterInstallation)),
        () if silent => Ok(Some(KeyOrigin::AfterSilence)),
        () => Err(ClaimReason::KeyInUse),
    }
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{NodeKey, NodeState};

    use super::*;

    fn identity(uuid: &str, serial: &str, macs: &[&str]) -> Identity {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
        Identity { uuid: given(uuid), serial: given(serial), macs }
    }

    #[test]
    fn every_kind_that_was_registered_must_be_the_same() {
        let all = identity("u", "s", &["m1", "m2"]);
        let table = [
            (identity("u", "s", &["m2", "m3"]), true),
            (identity("u", "s", &[]), false),
            (identity("u", "s", &["m3"]), false),
            (identity("u", "", &["m1"]), false),
            (identity("", "s", &["m1"]), false),
            (identity("x", "s", &["m1"]), false),
        ];
        for (found, expect) in table {
            assert_eq!(matches(&all, &found), expect, "{found:?}");
        }
        assert!(matches(&identity("u", "", &[]), &all), "what was not registered does not count");
    }

    /// A released node with the key "old", heard from at 100,000 ms.
    fn node(armed: bool) -> Node {
        let key = NodeKey {
            fingerprint: "old".to_owned(),
            proof: Proof::Registered,
            origin: KeyOrigin::First,
            since: 1,
            address: "192.0.2.1".to_owned(),
        };
        let node = Node::new(Identity::default(), 1);
        Node { state: NodeState::Enrolled, released: true, armed, key: Some(key), last_seen: Some(100_000), ..node }
    }

    #[test]
    fn another_key_needs_an_armed_node_and_a_silent_machine() {
        use ClaimReason as R;
        use KeyOrigin as O;
        let (soon, late) = (100_000 + SILENT, 100_001 + SILENT);
        let policy = Policy::default();
        let other = Shown { key: "new", proof: Proof::Registered };
        let token = Shown { proof: Proof::Token, ..other };
        let same = Shown { key: "old", ..other };
        let (armed, idle) = (node(true), node(false));
        let without_key = |node: &Node| Node { key: None, ..node.clone() };
        let left = |node: &Node| Node { key_left: true, ..node.clone() };
        let held = Node { released: false, ..node(true) };
        let table = [
            (&held, same, soon, Err(R::NotReleased)),
            (&idle, same, late, Ok(None)),
            (&idle, other, soon, Err(R::KeyInUse)),
            (&idle, other, late, Err(R::NothingToDo)),
            (&idle, token, soon, Err(R::KeyInUse)),
            (&idle, token, late, Ok(Some(O::AfterSilence))),
            (&armed, other, soon, Err(R::KeyInUse)),
            (&armed, other, late, Ok(Some(O::AfterSilence))),
            (&left(&armed), other, soon, Ok(Some(O::AfterInstallation))),
            (&left(&idle), other, soon, Err(R::NothingToDo)),
            (&without_key(&armed), other, soon, Ok(Some(O::First))),
            (&without_key(&idle), other, soon, Err(R::NothingToDo)),
            (&without_key(&idle), token, soon, Ok(Some(O::First))),
        ];
        for (node, shown, now, expect) in table {
            assert_eq!(judge(node, shown, policy, now), expect, "{shown:?} at {now}, armed: {}", node.armed);
        }

        let strict = Policy { strict: true, ..policy };
        assert_eq!(judge(&armed, other, strict, late), Err(R::KeyChanged));
        assert_eq!(judge(&armed, same, strict, late), Ok(None));
        assert_eq!(judge(&without_key(&armed), other, strict, late), Ok(Some(O::First)));
        let proven = Policy { require: Proof::Token, ..policy };
        assert_eq!(judge(&armed, other, proven, late), Err(R::ProofMissing));
        assert_eq!(judge(&armed, same, proven, late), Err(R::ProofMissing));
        assert_eq!(judge(&armed, token, proven, late), Ok(Some(O::AfterSilence)));
    }
}
