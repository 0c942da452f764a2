//! The rule as one table: what is known of a machine, and what is done with it.

use std::collections::HashSet;

use slipway_protocol::{Inventory, NodeState, NodeTpm, TpmOrigin};

use super::*;
use crate::store::claimants::Report;
use ClaimReason as R;
use KeyOrigin as O;
use Outcome::{Hold, Prove, Refuse, StillWaits};
use Proof::{Attested, Registered};

/// When the node's machine was last heard from; the last moment at which it is not silent; the first at which it is.
const HEARD: Millis = 100_000;
const SOON: Millis = HEARD + SILENT;
const LATE: Millis = SOON + 1;

const LAX: Policy = Policy { require: Registered, strict: false };
const STRICT: Policy = Policy { strict: true, ..LAX };
const TOKEN: Policy = Policy { require: Proof::Token, ..LAX };
const ATTESTED: Policy = Policy { require: Attested, ..LAX };

/// A case: its name, what is known, what the site requires, the time, and the expected outcome.
type Row = (String, Facts, Policy, Millis, Outcome);

fn row(tried: &str, facts: Facts, site: Policy, now: Millis, expect: Outcome) -> Row {
    (tried.to_owned(), facts, site, now, expect)
}

fn let_in(origin: impl Into<Option<KeyOrigin>>, proof: Proof, keep_tpm: bool) -> Outcome {
    Outcome::LetIn(LetIn { origin: origin.into(), proof, keep_tpm, token: None })
}

/// Returns the outcome of [`let_in`], with the [`token`] used up.
fn by_token(origin: impl Into<Option<KeyOrigin>>, proof: Proof, keep_tpm: bool) -> Outcome {
    Outcome::LetIn(LetIn { origin: origin.into(), proof, keep_tpm, token: Some("hash".to_owned()) })
}

fn identity(uuid: &str, serial: &str, macs: &[u8]) -> Identity {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let macs = macs.iter().map(|mac| format!("52:54:00:12:34:{mac:02x}")).collect();
    Identity { uuid: given(uuid), serial: given(serial), macs }
}

const UUID: &str = "4c4c4544-0042-3010-8058-b7c04f503432";
const OTHER_UUID: &str = "5d5d4544-0042-3010-8058-b7c04f503432";

/// A released node with the key "old", heard from at [`HEARD`].
fn node(armed: bool) -> Node {
    let node = Node::new(identity(UUID, "7CZ1", &[1, 2]), 1);
    let (id, state) = ("web1".to_owned(), NodeState::Enrolled);
    let key = Some(key("old", O::First));
    Node { id, state, released: true, armed, key, last_seen: Some(HEARD), ..node }
}

fn key(fingerprint: &str, origin: KeyOrigin) -> NodeKey {
    let (fingerprint, address) = (fingerprint.to_owned(), "192.0.2.1".to_owned());
    NodeKey { fingerprint, proof: Registered, origin, since: 1, address }
}

/// Returns the facts of a machine with this key and all identifiers of the node.
fn of(node: &Node, key: &str) -> Facts {
    Facts { key: key.to_owned(), identity: node.identity.clone(), nodes: vec![node.clone()], ..Facts::default() }
}

/// A machine with a key and identifiers that are no node's.
fn stranger() -> Facts {
    Facts { nodes: Vec::new(), ..of(&node(true), "new") }
}

/// Returns a token that was made for this node, or for any one machine.
fn token(made_for: Option<&str>) -> Token {
    Token {
        hash: "hash".to_owned(),
        created_at: 1,
        expires_at: None,
        used_at: None,
        used_by_address: None,
        node: None,
        made_for: made_for.map(str::to_owned),
    }
}

fn with_token(facts: Facts, token: Token) -> Facts {
    Facts { token: ShownToken::Known(token), ..facts }
}

/// A TPM with this endorsement key that was proved, with an event log.
fn tpm(ek: &str) -> ShownTpm {
    let answer = TpmAnswer::Right { nonce: vec![5], has_event_log: true, boot_problem: None };
    ShownTpm { ek: ek.to_owned(), ak: "ak".to_owned(), certificate: EkCertificate::None, answer }
}

fn certified(certificate: EkCertificate) -> ShownTpm {
    let answer = TpmAnswer::Right { nonce: vec![5], has_event_log: false, boot_problem: None };
    ShownTpm { certificate, answer, ..tpm("ek") }
}

fn answered(answer: TpmAnswer) -> ShownTpm {
    ShownTpm { answer, ..tpm("ek") }
}

fn with_tpm(facts: Facts, tpm: ShownTpm) -> Facts {
    Facts { tpm: Some(tpm), ..facts }
}

/// The identifiers decide which node a machine is.
fn identifiers() -> Vec<Row> {
    let (node, uuid_alone) = (node(true), identity(UUID, "", &[]));
    let has = |identity: Identity| Facts { identity, ..of(&node, "old") };
    let registered = |identity: Identity| Node { identity, ..node.clone() };
    let two = vec![registered(uuid_alone.clone()), registered(identity("", "7CZ1", &[]))];
    let differ = Hold(R::IdentifiersDiffer);
    let own = || let_in(None, Registered, true);
    let by_uuid = Facts { identity: node.identity.clone(), ..of(&registered(uuid_alone), "old") };
    let placeholder =
        Facts { identity: identity("", "7CZ1", &[]), ..of(&registered(identity("0", "7CZ1", &[])), "old") };
    vec![
        row("one MAC of two", has(identity(UUID, "7CZ1", &[2, 3])), LAX, SOON, own()),
        row("no MAC", has(identity(UUID, "7CZ1", &[])), LAX, SOON, differ.clone()),
        row("another MAC", has(identity(UUID, "7CZ1", &[3])), LAX, SOON, differ.clone()),
        row("no serial number", has(identity(UUID, "", &[1])), LAX, SOON, differ.clone()),
        row("no UUID", has(identity("", "7CZ1", &[1])), LAX, SOON, differ.clone()),
        row("another UUID", has(identity(OTHER_UUID, "7CZ1", &[1])), LAX, SOON, differ.clone()),
        row("more than was registered", by_uuid, LAX, SOON, own()),
        row("all but a placeholder that was registered", placeholder, LAX, SOON, own()),
        row("those of two nodes", Facts { nodes: two, ..stranger() }, LAX, SOON, Hold(R::SeveralNodes)),
        row("some of a node, with a token", with_token(has(identity(UUID, "", &[])), token(None)), LAX, SOON, differ),
        row("none of any node", stranger(), LAX, SOON, Hold(R::Unregistered)),
    ]
}

/// A token lets in a machine that no operator has let in.
fn tokens() -> Vec<Row> {
    let held = Node { released: false, key: None, ..node(false) };
    let new = |token| with_token(stranger(), token);
    let first = |token| with_token(of(&held, "new"), token);
    let again = |token| with_token(of(&node(false), "old"), token);
    let unknown = |facts| Facts { token: ShownToken::Unknown, ..facts };
    let (plain, own, of_another) = (|| token(None), || token(Some("web1")), || token(Some("web2")));
    let used = |token| Token { used_at: Some(1), ..token };
    let expires = |at| Token { expires_at: Some(at), ..plain() };
    let refused = Refuse(ErrorCode::TokenUnknown, UNKNOWN);
    let too_late = Refuse(ErrorCode::TokenExpired, EXPIRED);
    let as_new = by_token(O::First, Proof::Token, true);
    let as_own = let_in(None, Registered, true);
    let rogue = Facts { has_tpm_of_another: true, ..with_tpm(new(plain()), tpm("ek")) };
    let bad = with_tpm(new(plain()), certified(EkCertificate::Bad));
    let trusted = with_tpm(new(plain()), certified(EkCertificate::Verified));
    vec![
        row("a stranger's token", new(plain()), LAX, SOON, as_new.clone()),
        row("a stranger's token, in the token's last millisecond", new(expires(SOON + 1)), LAX, SOON, as_new.clone()),
        row("a stranger's token, expired", new(expires(SOON)), LAX, SOON, too_late.clone()),
        row("a stranger's token, used", new(used(plain())), LAX, SOON, refused.clone()),
        row("a stranger's token, unknown", unknown(stranger()), LAX, SOON, refused.clone()),
        row("a stranger's token, made for a node", new(own()), LAX, SOON, Hold(R::IdentifiersDiffer)),
        row("a stranger with the TPM of a node", rogue, LAX, SOON, Hold(R::TpmOfAnotherNode)),
        row("a stranger without a TPM where one is required", new(plain()), ATTESTED, SOON, Hold(R::Unregistered)),
        row("a stranger with a bad TPM there", bad, ATTESTED, SOON, Hold(R::Unregistered)),
        row("a stranger with a TPM that the site trusts", trusted, ATTESTED, SOON, by_token(O::First, Attested, true)),
        row("first machine of a node without a token", of(&held, "new"), LAX, SOON, Hold(R::NotReleased)),
        row("token of the first machine", first(plain()), LAX, SOON, by_token(O::First, Registered, true)),
        row("token of the first machine, made for it", first(own()), LAX, SOON, as_new.clone()),
        row("token of the first machine, made for it, used", first(used(own())), LAX, SOON, as_new),
        row("token of the first machine, made for another", first(of_another()), LAX, SOON, Hold(R::NotReleased)),
        row("token of the first machine, used", first(used(plain())), LAX, SOON, refused.clone()),
        row("token of the first machine, unknown", unknown(of(&held, "new")), LAX, SOON, refused),
        row("token of the first machine, expired", first(expires(SOON)), LAX, SOON, too_late),
        row("released node's machine keeps its token", again(plain()), LAX, SOON, as_own.clone()),
        row("released node's machine, used", again(used(plain())), LAX, SOON, as_own.clone()),
        row("released node's machine, unknown", unknown(of(&node(false), "old")), LAX, SOON, as_own.clone()),
        row("released node's machine, expired", again(expires(SOON)), LAX, SOON, as_own),
    ]
}

/// Another key needs an armed node and a silent machine.
fn keys() -> Vec<Row> {
    let (armed, idle) = (node(true), node(false));
    let without_key = |node: &Node| Node { key: None, ..node.clone() };
    let left = |node: &Node| Node { key_left: true, ..node.clone() };
    let held = Node { released: false, ..node(true) };
    let other = |node: &Node| of(node, "new");
    let token = |node: &Node| with_token(of(node, "new"), token(Some("web1")));
    let same = |node: &Node| of(node, "old");
    let own = let_in(None, Registered, true);
    let first = let_in(O::First, Registered, true);
    let silent = let_in(O::AfterSilence, Registered, false);
    let proved = by_token(O::AfterSilence, Proof::Token, false);
    let asks = |node: &Node| Node { require: Proof::Token, ..node.clone() };
    let run_asks = Facts { run_requires: Proof::Token, ..other(&armed) };
    vec![
        row("not released", same(&held), LAX, SOON, Hold(R::NotReleased)),
        row("the node's key", same(&idle), LAX, LATE, own.clone()),
        row("nothing to do, and heard", other(&idle), LAX, SOON, Hold(R::KeyInUse)),
        row("nothing to do, and silent", other(&idle), LAX, LATE, Hold(R::NothingToDo)),
        row("nothing to do, token, and heard", token(&idle), LAX, SOON, Hold(R::KeyInUse)),
        row("nothing to do, token, and silent", token(&idle), LAX, LATE, proved.clone()),
        row("armed, and heard", other(&armed), LAX, SOON, Hold(R::KeyInUse)),
        row("armed, and silent", other(&armed), LAX, LATE, silent.clone()),
        row("armed, and left", other(&left(&armed)), LAX, SOON, let_in(O::AfterInstallation, Registered, false)),
        row("nothing to do, and left", other(&left(&idle)), LAX, SOON, Hold(R::NothingToDo)),
        row("armed, without a key", other(&without_key(&armed)), LAX, SOON, first.clone()),
        row("nothing to do, without a key", other(&without_key(&idle)), LAX, SOON, Hold(R::NothingToDo)),
        row("without a key, token", token(&without_key(&idle)), LAX, SOON, by_token(O::First, Proof::Token, true)),
        row("an operator is asked, another key", other(&armed), STRICT, LATE, Hold(R::KeyChanged)),
        row("an operator is asked, the node's key", same(&armed), STRICT, LATE, own),
        row("an operator is asked, the first key", other(&without_key(&armed)), STRICT, LATE, first),
        row("the site requires a token, another key", other(&armed), TOKEN, LATE, Hold(R::ProofMissing)),
        row("the site requires a token, the node's key", same(&armed), TOKEN, LATE, Hold(R::ProofMissing)),
        row("the site requires a token, token", token(&armed), TOKEN, LATE, proved.clone()),
        row("the node requires a token, another key", other(&asks(&armed)), LAX, LATE, Hold(R::ProofMissing)),
        row("the node requires a token, token", token(&asks(&armed)), LAX, LATE, proved),
        row("the unfinished run requires a token", run_asks, LAX, LATE, Hold(R::ProofMissing)),
    ]
}

/// A node with a TPM lets in that and no other, whatever else it requires.
fn own_tpm() -> Vec<Row> {
    let known = NodeTpm {
        ek: vec!["ek".to_owned(), "rsa".to_owned()],
        origin: TpmOrigin::Release,
        ak: Some("ak".to_owned()),
        certificate: None,
        has_event_log: true,
        proved_at: Some(1),
    };
    let cleared = ShownTpm { ak: "other".to_owned(), certificate: EkCertificate::Verified, ..tpm("ek") };
    let table = [
        ("its TPM", Some(tpm("ek")), None),
        ("its TPM by the other algorithm", Some(tpm("rsa")), None),
        ("another TPM", Some(tpm("other")), Some(R::TpmReplaced)),
        ("its TPM, cleared", Some(cleared), Some(R::TpmCleared)),
        ("its TPM without the log", Some(certified(EkCertificate::None)), Some(R::EventLogMissing)),
        ("no TPM", None, Some(R::TpmMissing)),
        ("a wrong answer", Some(answered(TpmAnswer::Wrong)), Some(R::TpmRefused)),
    ];
    let mut rows = Vec::new();
    for (tried, tpm, reason) in table {
        for (armed, key) in [(false, "new"), (false, "old"), (true, "new"), (true, "old")] {
            let facts = Facts { tpm: tpm.clone(), ..of(&Node { tpm: Some(known.clone()), ..node(armed) }, key) };
            let origin = (key == "new").then_some(O::Attested);
            let expect = reason.map_or_else(|| let_in(origin, Attested, true), Hold);
            for site in [Policy { strict: true, ..ATTESTED }, LAX] {
                let tried = format!("{tried}, key {key}, armed: {armed}");
                rows.push((tried, facts.clone(), site, HEARD, expect.clone()));
            }
        }
    }
    let promised = NodeTpm::unproved(vec!["ek".to_owned()], TpmOrigin::Release);
    let of_promised = |tpm| Facts { tpm, ..of(&Node { tpm: Some(promised.clone()), ..node(false) }, "old") };
    let rogue = Facts { has_tpm_of_another: true, ..with_tpm(of(&node(true), "old"), tpm("ek")) };
    let without = let_in(None, Registered, true);
    rows.extend([
        row("no TPM where one was only promised", of_promised(None), LAX, HEARD, without.clone()),
        row("a wrong answer there", of_promised(Some(answered(TpmAnswer::Wrong))), LAX, HEARD, without),
        row("another TPM there", of_promised(Some(tpm("other"))), LAX, HEARD, Hold(R::TpmReplaced)),
        row("the TPM of another node", rogue, LAX, HEARD, Hold(R::TpmOfAnotherNode)),
    ]);
    rows
}

/// Started boot files are judged only where attestation is required, and after all that is wrong with the TPM.
fn boot_files() -> Vec<Row> {
    let known = NodeTpm { proved_at: Some(1), ..NodeTpm::unproved(vec!["ek".to_owned()], TpmOrigin::Release) };
    let own = Node { tpm: Some(known), ..node(false) };
    let answer = || TpmAnswer::Right { nonce: vec![5], has_event_log: true, boot_problem: Some("why".to_owned()) };
    let started_other = |ek| with_tpm(of(&own, "new"), ShownTpm { answer: answer(), ..tpm(ek) });
    let attested = let_in(O::Attested, Attested, true);
    vec![
        row("other boot files", started_other("ek"), ATTESTED, HEARD, Hold(R::BootFilesUnknown)),
        row("those of the site", with_tpm(of(&own, "new"), tpm("ek")), ATTESTED, HEARD, attested.clone()),
        row("other boot files, where a token is enough", started_other("ek"), TOKEN, HEARD, attested),
        row("other boot files and another TPM", started_other("other"), ATTESTED, HEARD, Hold(R::TpmReplaced)),
    ]
}

/// A TPM becomes the node's with the first machine or a released one, not with a machine that took over.
fn new_tpm() -> Vec<Row> {
    let (had, fresh) = (node(true), Node { key: None, ..node(true) });
    let verified = || certified(EkCertificate::Verified);
    let bad = || certified(EkCertificate::Bad);
    let shows = |node: &Node, tpm| with_tpm(of(node, "new"), tpm);
    let with_key = |origin| Node { key: Some(key("new", origin)), ..node(true) };
    let silent = let_in(O::AfterSilence, Registered, false);
    let released = let_in(None, Attested, true);
    let mut rows = vec![
        row("first machine", shows(&fresh, tpm("ek")), LAX, LATE, let_in(O::First, Registered, true)),
        row("first machine, certified", shows(&fresh, verified()), LAX, LATE, let_in(O::First, Attested, true)),
        row("first machine, bad certificate", shows(&fresh, bad()), LAX, LATE, let_in(O::First, Registered, true)),
        row("after silence", shows(&had, tpm("ek")), LAX, LATE, silent.clone()),
        row("after silence, certified", shows(&had, verified()), LAX, LATE, silent),
        row("required, of nobody known", shows(&fresh, tpm("ek")), ATTESTED, LATE, Hold(R::ProofMissing)),
        row("required, bad certificate", shows(&fresh, bad()), ATTESTED, LATE, Hold(R::EkCertificateBad)),
        row("required, wrong", shows(&fresh, answered(TpmAnswer::Wrong)), ATTESTED, LATE, Hold(R::TpmRefused)),
        row("required, none", of(&fresh, "new"), ATTESTED, LATE, Hold(R::ProofMissing)),
        row("required, released key", shows(&with_key(O::Operator), tpm("ek")), ATTESTED, LATE, released),
        row("required, a node that had a machine", shows(&had, verified()), ATTESTED, LATE, Hold(R::ProofMissing)),
        row("nothing to do, certified", shows(&node(false), verified()), LAX, LATE, Hold(R::NothingToDo)),
    ];
    for (origin, proof, keep_tpm) in [
        (O::First, Registered, true),
        (O::Operator, Attested, true),
        (O::Attested, Registered, true),
        (O::AfterSilence, Registered, false),
        (O::AfterInstallation, Registered, false),
    ] {
        let expect = let_in(None, proof, keep_tpm);
        rows.push((format!("again with its key {origin:?}"), shows(&with_key(origin), tpm("ek")), LAX, LATE, expect));
    }
    rows
}

/// A machine that would be let in is asked for a proof, which counts once. A machine that must wait is not asked.
fn proofs() -> Vec<Row> {
    let unasked = || answered(TpmAnswer::None);
    let first = || with_tpm(of(&Node { key: None, ..node(true) }, "new"), unasked());
    let known = NodeTpm { has_event_log: true, ..NodeTpm::unproved(vec!["ek".to_owned()], TpmOrigin::Registered) };
    let own = Node { tpm: Some(known), ..node(false) };
    let repeated = |last: u8, at| Facts { last_answer: Some((at, vec![last])), ..with_tpm(of(&own, "new"), tpm("ek")) };
    let attested = let_in(O::Attested, Attested, true);
    let held = Node { released: false, ..own.clone() };
    vec![
        row("first machine of a node", first(), LAX, SOON, Prove),
        row("stranger with a token", with_token(with_tpm(stranger(), unasked()), token(None)), LAX, SOON, Prove),
        row("the TPM of the node", with_tpm(of(&own, "new"), unasked()), ATTESTED, SOON, Prove),
        row("an answer that counted", repeated(5, HEARD), ATTESTED, SOON, Prove),
        row("an answer before it", repeated(6, SOON), ATTESTED, SOON, Prove),
        row("a later answer", repeated(4, HEARD), ATTESTED, SOON, attested.clone()),
        row("an answer, the last from before the clock was set", repeated(6, SOON + 1), ATTESTED, SOON, attested),
        row("required and unknown", first(), ATTESTED, SOON, Hold(R::ProofMissing)),
        row("not released", with_tpm(of(&held, "new"), unasked()), LAX, SOON, Hold(R::NotReleased)),
        row("stranger", with_tpm(stranger(), unasked()), LAX, SOON, Hold(R::Unregistered)),
    ]
}

/// A machine that waits and changes nothing keeps waiting, and is not stored again.
fn waiting() -> Vec<Row> {
    let inventory = Inventory::default();
    let report = Report { inventory, timing: None, agent_version: "1".to_owned(), boot_id: "b".to_owned(), tpm: None };
    let claimant = Claimant {
        key: "new".to_owned(),
        id: "id".to_owned(),
        code: "CODE".to_owned(),
        reason: R::Unregistered,
        node: None,
        address: "192.0.2.1".to_owned(),
        network: "192.0.2.0/24".to_owned(),
        identity: stranger().identity,
        report,
        first_asked: 1,
        last_asked: HEARD,
    };
    let waits = |claimant: Claimant| Facts { claimant: Some(claimant), ..stranger() };
    let moved = Claimant { identity: identity(OTHER_UUID, "", &[]), ..claimant.clone() };
    let was_another = Claimant { reason: R::NotReleased, ..claimant.clone() };
    let (soon, code) = (HEARD + STILL_WAITS, StillWaits("CODE".to_owned()));
    let got_token = with_token(waits(claimant.clone()), token(None));
    vec![
        row("it asked a moment ago", waits(claimant.clone()), LAX, soon, code),
        row("it asked before", waits(claimant), LAX, soon + 1, Hold(R::Unregistered)),
        row("it has other identifiers", waits(moved), LAX, soon, Hold(R::Unregistered)),
        row("it waits for something else", waits(was_another), LAX, soon, Hold(R::Unregistered)),
        row("it has a token now", got_token, LAX, soon, by_token(O::First, Proof::Token, true)),
    ]
}

#[test]
fn the_rule() {
    let table = [
        ("identifiers", identifiers()),
        ("tokens", tokens()),
        ("keys", keys()),
        ("own TPM", own_tpm()),
        ("boot files", boot_files()),
        ("new TPM", new_tpm()),
        ("proofs", proofs()),
        ("waiting", waiting()),
    ];
    let rows = table.into_iter().flat_map(|(section, rows)| rows.into_iter().map(move |row| (section, row)));
    let (mut wrong, mut reasons, mut others) = (Vec::new(), HashSet::new(), HashSet::new());
    for (section, (tried, facts, site, now, expect)) in rows {
        let outcome = decide(&facts, site, now);
        if outcome != expect {
            wrong.push(format!("{section}, {tried} ({site:?}): {outcome:?} instead of {expect:?}"));
        }
        match expect {
            Hold(reason) => drop(reasons.insert(reason as usize)),
            Outcome::LetIn(how) => drop(others.insert(format!("{:?}", how.origin))),
            other => drop(others.insert(format!("{other:?}"))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(reasons.len(), R::BootFilesUnknown as usize + 1, "every reason is in the table: {reasons:?}");
    // Letting in with the node's own key and with another key in four ways; a proof; waiting on; and two refusals.
    assert_eq!(others.len(), 5 + 1 + 1 + 2, "{others:?}");
}
