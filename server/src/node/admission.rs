//! Who is let in as a node. The functions are pure: [`crate::node::enrol`] reads the store and keeps what they return.

use slipway_protocol::{ClaimReason, EkCertificate, HEARTBEAT_SECONDS, Identity, KeyOrigin, Proof};

use crate::base::time::Millis;
use crate::store::nodes::Node;

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
    /// What it proved without a TPM.
    pub proof: Proof,
    /// Its TPM.
    pub tpm: ShownTpm<'a>,
}

/// What a machine shows of its TPM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownTpm<'a> {
    /// It has none that it can use.
    None,
    /// What it says is not what the TPM signed.
    Refused,
    /// It proved to have it.
    Proved {
        /// Digest of the endorsement key.
        ek: &'a str,
        /// Digest of the attestation key.
        ak: &'a str,
        /// What the certificate of the endorsement key says.
        certificate: EkCertificate,
        /// Whether it sent an event log, which agrees with the quote.
        has_event_log: bool,
        /// Whether the log shows that it started boot files of the site, or the site does not ask for that.
        boot_is_known: bool,
    },
}

/// How the TPM of a machine stands to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing says that it is the node's, and nothing says that it is not.
    Unknown,
    /// Its manufacturer, or an operator who let in the key of the machine, says that it is what it seems.
    Vouched,
    /// It is the one that the node is known by.
    Own,
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

/// How a machine is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// How its key becomes the node's. `None`: it is the node's already.
    pub origin: Option<KeyOrigin>,
    /// What it proved.
    pub proof: Proof,
    /// Whether the node is known by its TPM from now on, if the machine proved one.
    pub keep_tpm: bool,
}

/// Whether a machine that has the identifiers of the node is let in, and how, or why it is held.
pub fn judge(node: &Node, shown: Shown<'_>, policy: Policy, now: Millis) -> Result<Admitted, ClaimReason> {
    if !node.released {
        return Err(ClaimReason::NotReleased);
    }
    let known = node.key.as_ref().filter(|known| known.fingerprint == shown.key);
    let is_released_key = known.is_some_and(|known| known.origin == KeyOrigin::Operator);
    let standing = standing(node, shown.tpm, is_released_key)?;
    let proof = if standing == Standing::Unknown { shown.proof } else { Proof::Attested };
    let proof = known.map_or(proof, |known| known.proof.max(proof));
    if proof < policy.require {
        return Err(match shown.tpm {
            ShownTpm::Refused => ClaimReason::TpmRefused,
            ShownTpm::Proved { certificate: EkCertificate::Bad, .. } => ClaimReason::EkCertificateBad,
            _ => ClaimReason::ProofMissing,
        });
    }
    if policy.require == Proof::Attested && matches!(shown.tpm, ShownTpm::Proved { boot_is_known: false, .. }) {
        return Err(ClaimReason::BootFilesUnknown);
    }
    let origin = match known {
        Some(_) => None,
        None => Some(next_key(node, standing == Standing::Own, shown.proof, policy, now)?),
    };
    // A machine that took over from another with the same identifiers may be a stranger. It is let in if the policy says
    // so, but does not keep the node's own machine out for good, however often it asks.
    let taken_over = matches!(
        known.map(|known| known.origin).or(origin),
        Some(KeyOrigin::AfterInstallation | KeyOrigin::AfterSilence)
    );
    let keep_tpm = standing == Standing::Own || !taken_over;
    Ok(Admitted { origin, proof, keep_tpm })
}

/// Compares the TPM of a machine with the one that the node is known by.
fn standing(node: &Node, shown: ShownTpm<'_>, is_released_key: bool) -> Result<Standing, ClaimReason> {
    match (&node.tpm, shown) {
        (None, ShownTpm::None | ShownTpm::Refused) => Ok(Standing::Unknown),
        (Some(tpm), ShownTpm::None | ShownTpm::Refused) if !tpm.is_required() => Ok(Standing::Unknown),
        (Some(_), ShownTpm::None) => Err(ClaimReason::TpmMissing),
        (Some(_), ShownTpm::Refused) => Err(ClaimReason::TpmRefused),
        (None, ShownTpm::Proved { certificate, .. }) => {
            // A certificate says that a TPM is genuine, not that it is where an earlier machine of the node had none.
            let vouched = is_released_key || (node.key.is_none() && certificate == EkCertificate::Verified);
            Ok(if vouched { Standing::Vouched } else { Standing::Unknown })
        }
        (Some(tpm), ShownTpm::Proved { ek, .. }) if !tpm.ek.iter().any(|known| known == ek) => {
            Err(ClaimReason::TpmReplaced)
        }
        (Some(tpm), ShownTpm::Proved { ak, .. }) if tpm.ak.as_ref().is_some_and(|known| known != ak) => {
            Err(ClaimReason::TpmCleared)
        }
        (Some(tpm), ShownTpm::Proved { has_event_log: false, .. }) if tpm.has_event_log => {
            Err(ClaimReason::EventLogMissing)
        }
        (Some(_), ShownTpm::Proved { .. }) => Ok(Standing::Own),
    }
}

/// How another key becomes that of the node, or why it does not.
fn next_key(
    node: &Node,
    is_own_tpm: bool,
    proof: Proof,
    policy: Policy,
    now: Millis,
) -> Result<KeyOrigin, ClaimReason> {
    // The TPM is in the node's machine, and so were the keys before.
    if is_own_tpm {
        return Ok(KeyOrigin::Attested);
    }
    let silent = node.last_seen.is_none_or(|seen| now.saturating_sub(seen) > SILENT);
    let gone = node.key.is_none() || node.key_left || silent;
    // A token can be copied, so it takes nothing from a machine that is there. But it is more than what anybody can read.
    if !node.armed && proof < Proof::Token {
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

#[cfg(test)]
mod tests {
    use slipway_protocol::{NodeKey, NodeState, NodeTpm, TpmOrigin};

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
        let judge = |node: &Node, shown, policy, now| judge(node, shown, policy, now).map(|admitted| admitted.origin);
        let other = Shown { key: "new", proof: Proof::Registered, tpm: ShownTpm::None };
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

    /// What a machine with this endorsement key proved.
    fn proved(ek: &str) -> ShownTpm<'_> {
        ShownTpm::Proved { ek, ak: "ak", certificate: EkCertificate::None, has_event_log: true, boot_is_known: true }
    }

    #[test]
    fn a_node_with_a_tpm_lets_in_that_and_no_other() {
        use ClaimReason as R;
        let tpm = NodeTpm {
            ek: vec!["ek".to_owned(), "rsa".to_owned()],
            origin: TpmOrigin::Release,
            ak: Some("ak".to_owned()),
            certificate: None,
            has_event_log: true,
            proved_at: Some(1),
        };
        let idle = Node { tpm: Some(tpm), ..node(false) };
        let armed = Node { armed: true, ..idle.clone() };
        let cleared = ShownTpm::Proved {
            ek: "ek",
            ak: "other",
            certificate: EkCertificate::Verified,
            has_event_log: true,
            boot_is_known: true,
        };
        let silent = ShownTpm::Proved {
            ek: "ek",
            ak: "ak",
            certificate: EkCertificate::None,
            has_event_log: false,
            boot_is_known: true,
        };
        let policy = Policy { require: Proof::Attested, strict: true };
        let own = Admitted { origin: Some(KeyOrigin::Attested), proof: Proof::Attested, keep_tpm: true };
        let table = [
            (proved("ek"), Ok(own)),
            (proved("rsa"), Ok(own)),
            (proved("other"), Err(R::TpmReplaced)),
            (cleared, Err(R::TpmCleared)),
            (silent, Err(R::EventLogMissing)),
            (ShownTpm::None, Err(R::TpmMissing)),
            (ShownTpm::Refused, Err(R::TpmRefused)),
        ];
        for (tpm, expect) in table {
            for node in [&idle, &armed] {
                let shown = Shown { key: "new", proof: Proof::Registered, tpm };
                assert_eq!(judge(node, shown, policy, 100_000), expect, "{tpm:?}");
                assert_eq!(judge(node, shown, Policy::default(), 100_000), expect, "{tpm:?}, nothing required");
                let known = Shown { key: "old", ..shown };
                let origin = judge(node, known, policy, 100_000).map(|admitted| admitted.origin);
                assert_eq!(origin, expect.map(|_| None), "{tpm:?}, with the key of the node");
            }
        }
    }

    #[test]
    fn what_was_started_counts_where_attestation_is_required_and_after_all_that_is_wrong_with_the_tpm() {
        use ClaimReason as R;
        let tpm = NodeTpm { proved_at: Some(1), ..NodeTpm::unproved(vec!["ek".to_owned()], TpmOrigin::Release) };
        let own = Node { tpm: Some(tpm), ..node(false) };
        let shown = |ek, boot_is_known| {
            let tpm =
                ShownTpm::Proved { ek, ak: "ak", certificate: EkCertificate::None, has_event_log: true, boot_is_known };
            Shown { key: "new", proof: Proof::Registered, tpm }
        };
        let judge = |shown, require| judge(&own, shown, Policy { require, strict: false }, 100_000).err();
        assert_eq!(judge(shown("ek", false), Proof::Attested), Some(R::BootFilesUnknown));
        assert_eq!(judge(shown("ek", true), Proof::Attested), None);
        assert_eq!(judge(shown("ek", false), Proof::Token), None);
        assert_eq!(judge(shown("other", false), Proof::Attested), Some(R::TpmReplaced));
    }

    #[test]
    fn a_tpm_becomes_the_nodes_at_its_release_and_by_nothing_weaker() {
        let late = 100_001 + SILENT;
        let fresh = Node { key: None, ..node(true) };
        let with_verified = ShownTpm::Proved {
            ek: "ek",
            ak: "ak",
            certificate: EkCertificate::Verified,
            has_event_log: false,
            boot_is_known: true,
        };
        let with_bad = ShownTpm::Proved {
            ek: "ek",
            ak: "ak",
            certificate: EkCertificate::Bad,
            has_event_log: false,
            boot_is_known: true,
        };
        let shown = |tpm| Shown { key: "new", proof: Proof::Registered, tpm };
        let admitted = |node: &Node, tpm| {
            let admitted = judge(node, shown(tpm), Policy::default(), late).expect("nothing is required");
            (admitted.proof, admitted.keep_tpm)
        };
        assert_eq!(admitted(&fresh, proved("ek")), (Proof::Registered, true));
        assert_eq!(admitted(&fresh, with_verified), (Proof::Attested, true));
        assert_eq!(admitted(&fresh, with_bad), (Proof::Registered, true));
        assert_eq!(admitted(&node(true), proved("ek")), (Proof::Registered, false), "after silence");
        assert_eq!(admitted(&node(true), with_verified), (Proof::Registered, false), "after silence");
        let mut taken = node(true);
        for (origin, expect) in [
            (KeyOrigin::First, true),
            (KeyOrigin::Operator, true),
            (KeyOrigin::Attested, true),
            (KeyOrigin::AfterSilence, false),
            (KeyOrigin::AfterInstallation, false),
        ] {
            taken.key = taken.key.map(|key| NodeKey { fingerprint: "new".to_owned(), origin, ..key });
            assert_eq!(admitted(&taken, proved("ek")).1, expect, "it asks again with its key, which came {origin:?}");
        }

        let required = Policy { require: Proof::Attested, strict: false };
        let reason = |node: &Node, tpm| judge(node, shown(tpm), required, late).expect_err("it is required");
        assert_eq!(reason(&fresh, proved("ek")), ClaimReason::ProofMissing);
        assert_eq!(reason(&fresh, with_bad), ClaimReason::EkCertificateBad);
        assert_eq!(reason(&fresh, ShownTpm::Refused), ClaimReason::TpmRefused);
        assert_eq!(reason(&fresh, ShownTpm::None), ClaimReason::ProofMissing);

        let mut released = node(true);
        released.key =
            released.key.map(|key| NodeKey { fingerprint: "new".to_owned(), origin: KeyOrigin::Operator, ..key });
        let expect = Admitted { origin: None, proof: Proof::Attested, keep_tpm: true };
        assert_eq!(judge(&released, shown(proved("ek")), required, late), Ok(expect));
        assert_eq!(reason(&node(true), with_verified), ClaimReason::ProofMissing, "a node that had a machine");
        let idle = judge(&node(false), shown(with_verified), Policy::default(), late);
        assert_eq!(idle, Err(ClaimReason::NothingToDo));
    }
}
