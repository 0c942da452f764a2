//! Nodes that are known by their TPMs. The TPMs are swtpm's.

use std::path::Path;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use slipway_protocol::node::attestation::CHALLENGE_TYPE;
use slipway_protocol::{
    Blob, ClaimReason, EkCertificate, ErrorCode, Identity, KeyOrigin, NodeKey, NodeTpm, Proof, Tpm, TpmChallenge,
    TpmKeys, TpmOrigin, TpmProof, Wait,
};
use slipway_server::boot_files::builds;
use slipway_server::node::admission::Policy;
use slipway_server::operate::{self, NewNode, NodeChange};
use slipway_server::store;
use slipway_server::store::nodes;

use crate::enrolment::{reason, waits};
use crate::event_logs::{IPL, event_log, sha256};
use crate::installing::web1;
use crate::support::{Machine, TestServer, UUID, refusal};
use crate::swtpm::Swtpm;

/// What the firmware measures.
const FIRMWARE: &[u8] = b"the firmware";

pub fn machine() -> Machine {
    Machine::with_uuid(UUID)
}

/// Registers the node. What its machine starts does not matter here.
pub async fn add_web1(server: &TestServer, require: Proof, ek: &[String]) {
    builds::require(&server.store().await, false).await.unwrap();
    let identity = Identity { uuid: Some(UUID.to_owned()), ..Identity::default() };
    let new = NewNode { name: Some("web1".to_owned()), identity, release: true, require, ..NewNode::default() };
    operate::add_node(&server.store().await, NewNode { ek: ek.to_vec(), ..new }).await.unwrap();
}

/// The node has nothing to do, so no machine gets in by its identifiers.
async fn disarm(server: &TestServer) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let mut node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    node.armed = false;
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
}

/// Starts the machine: the firmware measures, and has a log of it.
pub fn boot(tpm: &mut Swtpm) -> Vec<u8> {
    tpm.power_cycle();
    let digest = base16ct::lower::encode_string(&sha256(FIRMWARE));
    tpm.run("tpm2_pcrextend", &[&format!("0:sha256={digest}")]);
    event_log(&[(0, IPL, FIRMWARE)])
}

/// Says which TPM the machine has.
pub fn claim(machine: &mut Machine, tpm: &Swtpm) {
    machine.tpm = Some(Tpm::Present { keys: tpm.attester().keys().unwrap(), proof: None });
}

async fn challenge(response: Response) -> TpmChallenge {
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()[CONTENT_TYPE], CHALLENGE_TYPE);
    response.json().await.unwrap()
}

/// Asks, is challenged, and sends the answer.
pub async fn enrol(server: &TestServer, machine: &mut Machine, tpm: &Swtpm, log: &[u8]) -> Response {
    enrol_with(server, machine, tpm, log, |_| {}).await
}

/// The same with another answer.
async fn enrol_with(
    server: &TestServer,
    machine: &mut Machine,
    tpm: &Swtpm,
    log: &[u8],
    alter: impl FnOnce(&mut TpmProof),
) -> Response {
    claim(machine, tpm);
    let challenge = challenge(machine.try_enrol(server).await).await;
    let mut attester = tpm.attester();
    let mut proof = attester.prove(&challenge, Some(log.to_vec())).unwrap();
    alter(&mut proof);
    machine.tpm = Some(Tpm::Present { keys: attester.keys().unwrap(), proof: Some(proof) });
    machine.try_enrol(server).await
}

async fn key(server: &TestServer) -> NodeKey {
    web1(server).await.key.unwrap()
}

async fn tpm_of(server: &TestServer) -> NodeTpm {
    web1(server).await.tpm.unwrap()
}

/// A server with web1, whose machine was let in once and whose TPM is known since.
async fn known() -> (TestServer, Swtpm, Vec<u8>) {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered, &[]).await;
    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    assert_eq!(enrol(&server, &mut machine(), &tpm, &log).await.status(), StatusCode::OK);
    disarm(&server).await;
    (server, tpm, log)
}

#[tokio::test]
async fn a_nodes_own_tpm_gets_in_after_a_power_cycle_without_an_operator() {
    let (server, mut tpm, _) = known().await;
    let (first, pinned) = (key(&server).await, tpm_of(&server).await);
    assert_eq!((first.proof, first.origin), (Proof::Registered, KeyOrigin::First));
    assert_eq!((pinned.origin, pinned.certificate), (TpmOrigin::Release, Some(EkCertificate::None)));
    assert!(pinned.has_event_log && pinned.proved_at.is_some());

    let log = boot(&mut tpm);
    assert_eq!(enrol(&server, &mut machine(), &tpm, &log).await.status(), StatusCode::OK);
    let second = key(&server).await;
    assert_ne!(second.fingerprint, first.fingerprint);
    assert_eq!((second.proof, second.origin), (Proof::Attested, KeyOrigin::Attested));
    assert_eq!(tpm_of(&server).await.ek, pinned.ek);
    // What was proved is kept.
    let kept = operate::node_attestation(&server.store().await, "web1").await.unwrap();
    assert_eq!(kept.proof.event_log, Some(Blob(log)));
    assert_eq!(kept.pcrs[&0].len(), 64);
    assert_ne!(kept.pcrs[&0], kept.pcrs[&1]);
}

#[tokio::test]
async fn a_machine_with_the_identifiers_and_another_tpm_or_none_is_held() {
    let (server, tpm, _) = known().await;
    let first = key(&server).await;
    let mut other = Swtpm::start();
    let log = boot(&mut other);
    let mut stranger = machine();
    claim(&mut stranger, &other);
    waits(&server, &stranger).await;
    assert_eq!(reason(&server).await, ClaimReason::TpmReplaced, "it is not even asked");
    for tpm in [None, Some(Tpm::Absent), Some(Tpm::Broken { reason: "it is silent".to_owned() })] {
        stranger.tpm = tpm;
        waits(&server, &stranger).await;
        assert_eq!(reason(&server).await, ClaimReason::TpmMissing);
    }
    // Public keys of the node's TPM are no proof: the stranger's TPM cannot open what is encrypted to them.
    claim(&mut stranger, &tpm);
    let sealed = challenge(stranger.try_enrol(&server).await).await;
    assert!(other.attester().prove(&sealed, Some(log.clone())).is_err());
    // Not even with the keys mixed.
    let keys = |tpm: &Swtpm| tpm.attester().keys().unwrap();
    let mut mixed = keys(&tpm);
    mixed.ak = keys(&other).ak;
    stranger.tpm = Some(Tpm::Present { keys: mixed, proof: None });
    waits(&server, &stranger).await;
    assert_eq!(reason(&server).await, ClaimReason::TpmCleared);
    assert_eq!(key(&server).await, first);
}

#[tokio::test]
async fn an_endorsement_key_that_nobody_can_have_is_refused() {
    let server = TestServer::start().await;
    add_web1(&server, Proof::Registered, &[]).await;
    let mut keys = Swtpm::start().attester().keys().unwrap();
    // A point beside the curve.
    *keys.ek.0.last_mut().unwrap() ^= 1;
    let mut machine = machine();
    machine.tpm = Some(Tpm::Present { keys, proof: None });
    assert_eq!(refusal(machine.try_enrol(&server).await).await.code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn a_replayed_quote_or_an_altered_log_is_refused() {
    let (server, tpm, log) = known().await;
    let first = key(&server).await;
    let mut old = machine();
    assert_eq!(enrol(&server, &mut old, &tpm, &log).await.status(), StatusCode::OK);
    let Some(Tpm::Present { keys, proof: Some(recorded) }) = old.tpm.clone() else { panic!("it proved its TPM") };
    let second = key(&server).await;
    assert_ne!(second, first);

    // The whole exchange, by somebody who has none of the keys.
    challenge(old.try_enrol(&server).await).await;
    // The whole exchange, for another key: the number belongs to the key.
    let mut thief = machine();
    thief.tpm = Some(Tpm::Present { keys, proof: Some(recorded.clone()) });
    challenge(thief.try_enrol(&server).await).await;
    // What the TPM signed before, in the answer to a new challenge.
    let TpmProof { quote, signature, .. } = recorded;
    type Alter = Box<dyn FnOnce(&mut TpmProof)>;
    let altered: [(&str, Alter); 6] = [
        ("replayed quote", Box::new(move |proof| (proof.quote, proof.signature) = (quote, signature))),
        ("other signature", Box::new(|proof| *proof.signature.0.last_mut().unwrap() ^= 1)),
        ("other secret", Box::new(|proof| proof.secret.0[0] ^= 1)),
        ("other value", Box::new(|proof| proof.pcrs[0].0[0] ^= 1)),
        ("log of something else", Box::new(|proof| proof.event_log = Some(Blob(event_log(&[(0, IPL, b"other")]))))),
        ("damaged log", Box::new(|proof| proof.event_log.as_mut().unwrap().0.truncate(100))),
    ];
    for (what, alter) in altered {
        let response = enrol_with(&server, &mut thief, &tpm, &log, alter).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED, "{what}");
        assert_eq!(reason(&server).await, ClaimReason::TpmRefused, "{what}");
        let claims = web1(&server).await.claims;
        assert!(claims[0].tpm.as_ref().unwrap().problem.is_some(), "{what}: {claims:?}");
    }
    let response = enrol_with(&server, &mut thief, &tpm, &log, |proof| proof.event_log = None).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(reason(&server).await, ClaimReason::EventLogMissing);
    assert_eq!(key(&server).await, second);
    // It was the answer alone that was wrong.
    assert_eq!(enrol(&server, &mut thief, &tpm, &log).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_cleared_tpm_is_the_nodes_again_when_an_operator_says_so() {
    let (server, mut tpm, _) = known().await;
    tpm.run("tpm2_clear", &["-c", "p"]);
    let log = boot(&mut tpm);
    let mut machine = machine();
    claim(&mut machine, &tpm);
    let wait = waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::TpmCleared);
    let before = tpm_of(&server).await;
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    assert_eq!(enrol(&server, &mut machine, &tpm, &log).await.status(), StatusCode::OK);
    let after = tpm_of(&server).await;
    assert_eq!(after.ek, before.ek);
    assert_ne!(after.ak, before.ak);
    assert_eq!((key(&server).await.origin, key(&server).await.proof), (KeyOrigin::Operator, Proof::Attested));
}

#[tokio::test]
async fn a_machine_that_only_says_that_its_tpm_was_cleared_must_prove_it_when_it_is_released() {
    let (server, tpm, _) = known().await;
    let mut other = Swtpm::start();
    let log = boot(&mut other);
    let mut stranger = machine();
    let keys = |tpm: &Swtpm| tpm.attester().keys().unwrap();
    stranger.tpm = Some(Tpm::Present { keys: TpmKeys { ak: keys(&other).ak, ..keys(&tpm) }, proof: None });
    let wait = waits(&server, &stranger).await;
    assert_eq!(reason(&server).await, ClaimReason::TpmCleared);
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    claim(&mut stranger, &other);
    waits(&server, &stranger).await;
    assert_eq!(reason(&server).await, ClaimReason::TpmReplaced);

    // A machine that has the TPM is let in without its log, if it is released without.
    let mut machine = machine();
    let response = enrol_with(&server, &mut machine, &tpm, &log, |proof| proof.event_log = None).await;
    let wait: Wait = response.json().await.unwrap();
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    let response = enrol_with(&server, &mut machine, &tpm, &log, |proof| proof.event_log = None).await;
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_registered_endorsement_key_is_proof_from_the_first_boot() {
    let server = TestServer::start().await;
    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    // The digest that an operator gets from tpm2-tools.
    tpm.run("tpm2_createek", &["-G", "ecc", "-c", "ek.ctx", "-u", "ek.der", "-f", "der"]);
    let digest = base16ct::lower::encode_string(&sha256(&std::fs::read(tpm.path("ek.der")).unwrap()));
    add_web1(&server, Proof::Attested, &[format!("sha256:{digest}")]).await;
    tpm.power_cycle();
    let log = {
        drop(log);
        boot(&mut tpm)
    };
    let mut other = Swtpm::start();
    boot(&mut other);
    let mut stranger = machine();
    claim(&mut stranger, &other);
    let another = stranger.tpm.clone();
    for (tpm, expect) in [(another, ClaimReason::TpmReplaced), (Some(Tpm::Absent), ClaimReason::TpmMissing)] {
        stranger.tpm = tpm;
        let code = waits(&server, &stranger).await.claim_code;
        assert_eq!(reason(&server).await, expect);
        let refused = operate::release_node(&server.store().await, &code, None).await.unwrap_err().to_string();
        assert!(refused.contains("node set web1 --ek"), "{refused}");
    }

    assert_eq!(enrol(&server, &mut machine(), &tpm, &log).await.status(), StatusCode::OK);
    assert_eq!(key(&server).await.proof, Proof::Attested);
    assert_eq!(tpm_of(&server).await.origin, TpmOrigin::Registered);
    for bad in ["sha256:12", "b4fe", &format!("sha512:{}", "0".repeat(128))] {
        let change = NodeChange { ek: Some(vec![bad.to_owned()]), ..NodeChange::default() };
        let refused = operate::change_node(&server.store().await, "web1", change).await.unwrap_err().to_string();
        assert!(refused.contains("64 hexadecimal digits"), "{refused}");
    }
}

#[tokio::test]
async fn where_attestation_is_required_an_operator_vouches_for_the_first_machine() {
    let server = TestServer::start_asking(Policy { require: Proof::Attested, strict: true }).await;
    add_web1(&server, Proof::Registered, &[]).await;
    let wait = waits(&server, &machine()).await;
    assert_eq!(reason(&server).await, ClaimReason::ProofMissing);
    let refused = operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap_err().to_string();
    assert!(refused.contains("no TPM"), "{refused}");
    operate::remove_node(&server.store().await, &wait.claim_code).await.unwrap();

    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    let mut machine = machine();
    claim(&mut machine, &tpm);
    let wait = waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::ProofMissing, "nobody knows this TPM");
    operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap();
    assert_eq!(enrol(&server, &mut machine, &tpm, &log).await.status(), StatusCode::OK);
    assert_eq!(key(&server).await.proof, Proof::Attested);

    let log = boot(&mut tpm);
    assert_eq!(enrol(&server, &mut Machine::with_uuid(UUID), &tpm, &log).await.status(), StatusCode::OK);
    assert_eq!(
        key(&server).await.origin,
        KeyOrigin::Attested,
        "no operator is asked again, although the site is strict"
    );
}

#[tokio::test]
async fn a_bootstrap_token_is_not_the_attestation_that_a_site_requires() {
    let server = TestServer::start_asking(Policy { require: Proof::Attested, strict: false }).await;
    let store = server.store().await;
    builds::require(&store, false).await.unwrap();
    let mut machine = machine();
    machine.token = Some(operate::add_token(&store, None, None).await.unwrap().token);
    waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::Unregistered);

    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    claim(&mut machine, &tpm);
    let wait = waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::Unregistered, "nobody knows this TPM");
    operate::release_node(&store, &wait.claim_code, Some("web1".to_owned())).await.unwrap();
    assert_eq!(enrol(&server, &mut machine, &tpm, &log).await.status(), StatusCode::OK);
    assert_eq!(key(&server).await.proof, Proof::Attested);
}

#[tokio::test]
async fn a_manufacturer_that_the_site_trusts_vouches_for_the_first_machine() {
    let mut tpm = Swtpm::manufacture();
    let ca = |name: &str| std::fs::read_to_string(tpm.path("ca").join(name)).unwrap();
    let bundle = tpm.path("manufacturers.pem");
    std::fs::write(&bundle, ca("swtpm-localca-rootca-cert.pem") + &ca("ca.pem")).unwrap();
    let log = boot(&mut tpm);

    let strangers_are_refused = |trusted: Option<&Path>, expect: EkCertificate| {
        let trusted = trusted.map(Path::to_owned);
        let (tpm, log) = (&tpm, &log);
        async move {
            let server = TestServer::start_trusting(trusted.as_deref()).await;
            add_web1(&server, Proof::Attested, &[]).await;
            let mut machine = machine();
            claim(&mut machine, tpm);
            if expect == EkCertificate::Verified {
                assert_eq!(enrol(&server, &mut machine, tpm, log).await.status(), StatusCode::OK);
                let known = tpm_of(&server).await;
                assert_eq!((known.origin, known.certificate), (TpmOrigin::Certificate, Some(expect)));
                assert_eq!(key(&server).await.proof, Proof::Attested);
                return;
            }
            waits(&server, &machine).await;
            assert_eq!(reason(&server).await, ClaimReason::ProofMissing);
            let claimed = web1(&server).await.claims[0].tpm.clone().unwrap();
            assert_eq!(claimed.certificate, Some(expect));
        }
    };
    strangers_are_refused(None, EkCertificate::UnknownIssuer).await;
    strangers_are_refused(Some(&bundle), EkCertificate::Verified).await;

    // A certificate of another TPM is worse than none.
    let server = TestServer::start_trusting(Some(&bundle)).await;
    add_web1(&server, Proof::Attested, &[]).await;
    let other = Swtpm::start();
    let mut machine = machine();
    let mut keys = other.attester().keys().unwrap();
    keys.ek_certificate = tpm.attester().keys().unwrap().ek_certificate;
    machine.tpm = Some(Tpm::Present { keys, proof: None });
    waits(&server, &machine).await;
    assert_eq!(reason(&server).await, ClaimReason::EkCertificateBad);
}

#[tokio::test]
async fn a_registered_tpm_is_not_forgotten_by_a_release() {
    let (server, _tpm, _) = known().await;
    let ek = tpm_of(&server).await.ek;
    let change = NodeChange { ek: Some(ek.clone()), ..NodeChange::default() };
    operate::change_node(&server.store().await, "web1", change).await.unwrap();
    let wait = waits(&server, &machine()).await;
    assert_eq!(reason(&server).await, ClaimReason::TpmMissing);
    let refused = operate::release_node(&server.store().await, &wait.claim_code, None).await.unwrap_err().to_string();
    assert!(refused.contains("--no-ek"), "{refused}");
    assert_eq!(tpm_of(&server).await.ek, ek);

    // A TPM that became the node's by itself is replaced by none, if an operator says so.
    let change = NodeChange { ek: Some(Vec::new()), ..NodeChange::default() };
    operate::change_node(&server.store().await, "web1", change).await.unwrap();
    assert_eq!(web1(&server).await.tpm, None);
}

#[tokio::test]
async fn a_tpm_is_in_one_machine() {
    let (server, tpm, log) = known().await;
    let store = server.store().await;
    let ek = tpm_of(&server).await.ek;
    let other_uuid = "5d5d4544-0042-3010-8058-b7c04f503432";
    let identity = Identity { uuid: Some(other_uuid.to_owned()), ..Identity::default() };
    let web2 = NewNode { name: Some("web2".to_owned()), identity, release: true, ..NewNode::default() };
    let refused = operate::add_node(&store, NewNode { ek: ek.clone(), ..web2.clone() }).await.unwrap_err().to_string();
    assert!(refused.contains("node set web1 --no-ek"), "{refused}");
    operate::add_node(&store, web2).await.unwrap();

    // The machine of web1 claims to be web2.
    let mut rogue = Machine::with_uuid(other_uuid);
    claim(&mut rogue, &tpm);
    let wait = waits(&server, &rogue).await;
    let claims = operate::show_node(&store, "web2").await.unwrap().claims;
    assert_eq!(claims[0].reason, ClaimReason::TpmOfAnotherNode);
    let refused = operate::release_node(&store, &wait.claim_code, None).await.unwrap_err().to_string();
    assert!(refused.contains("node set web1 --no-ek"), "{refused}");
    // Its board was moved: the operator says so.
    operate::change_node(&store, "web1", NodeChange { ek: Some(Vec::new()), ..NodeChange::default() }).await.unwrap();
    assert!(operate::node_attestation(&store, "web1").await.is_err(), "what was proved with it is forgotten too");
    assert_eq!(enrol(&server, &mut rogue, &tpm, &log).await.status(), StatusCode::OK);
    assert_eq!(operate::show_node(&store, "web2").await.unwrap().tpm.unwrap().ek, ek);
}

#[tokio::test]
async fn a_released_machine_proves_the_tpm_that_it_showed_or_none() {
    let server = TestServer::start().await;
    let mut tpm = Swtpm::start();
    let log = boot(&mut tpm);
    let mut new = machine();
    claim(&mut new, &tpm);
    let wait = waits(&server, &new).await;
    operate::release_node(&server.store().await, &wait.claim_code, Some("web1".to_owned())).await.unwrap();
    let shown = tpm_of(&server).await;
    assert_eq!(shown.proved_at, None);

    let other = Swtpm::start();
    claim(&mut new, &other);
    waits(&server, &new).await;
    assert_eq!(web1(&server).await.claims[0].reason, ClaimReason::TpmReplaced, "the operator saw another digest");
    // A log that does not explain the registers keeps a machine from being attested, not from being installed.
    let response =
        enrol_with(&server, &mut new, &tpm, &log, |proof| proof.event_log.as_mut().unwrap().0.truncate(9)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(key(&server).await.proof, Proof::Registered);
    assert_eq!(enrol(&server, &mut new, &tpm, &log).await.status(), StatusCode::OK);
    assert_eq!((key(&server).await.proof, tpm_of(&server).await.ek), (Proof::Attested, shown.ek));
}
