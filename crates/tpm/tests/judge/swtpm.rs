//! A software TPM, tpm2-tools and swtpm's certificate authority judge what the crate makes and accepts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use base16ct::lower::encode_string as hex;
use slipway_protocol::node::attestation::{Blob, TpmChallenge, TpmKeys, TpmProof};
use slipway_tpm::judge::{Challenger, Endorsement, Keys, ProofError, Roots};
use tempfile::TempDir;

use super::common::{Swtpm, run};
use super::log::{IPL, NO_ACTION, SEPARATOR, event_log, sha256};

/// The selection of `QUOTED_PCRS` as tpm2-tools write it.
const QUOTED: &str = "sha256:0,1,2,3,4,5,6,7,9,11,12,13";
/// What the machine has measured.
const EVENTS: &[(u32, u32, &[u8])] = &[
    (0, 8, b"version"),
    (7, SEPARATOR, &[0; 4]),
    (0, NO_ACTION, b"not measured"),
    (9, IPL, b"initrd"),
    (11, IPL, b".linux"),
    (0, SEPARATOR, &[0; 4]),
];
const MACHINE: &str = "sha256:machine";
/// A time in milliseconds.
const NOW: u64 = 1_800_000_000_000;

/// A software TPM with keys that tpm2-tools made.
struct Tpm(Swtpm);

impl Tpm {
    /// Starts a new TPM with an endorsement key of a kind of tpm2-tools and an attestation key.
    fn start(kind: &str) -> Self {
        Self(Swtpm::start()).with_keys(kind)
    }

    fn with_keys(self, kind: &str) -> Self {
        self.run("tpm2_createek", &["-G", kind, "-c", "ek.ctx", "-u", "ek.pub"]);
        let ak = [
            "-C", "ek.ctx", "-c", "ak.ctx", "-G", "ecc", "-g", "sha256", "-s", "ecdsa", "-u", "ak.pub", "-n", "ak.name",
        ];
        self.run("tpm2_createak", &ak);
        self.run("tpm2_flushcontext", &["-t"]);
        self
    }

    /// Runs a program in the folder of the TPM. Returns what it printed.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.0.run(program, arguments)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.path(name)).unwrap()
    }

    fn keys(&self) -> TpmKeys {
        // TPM2B_PUBLIC: two bytes of size come first.
        let public = |name| Blob(self.read(name)[2..].to_vec());
        TpmKeys { ek: public("ek.pub"), ek_certificate: None, ak: public("ak.pub") }
    }

    /// Extends registers like firmware that writes this log.
    fn measure(&self, events: &[(u32, u32, &[u8])]) {
        for (pcr, kind, data) in events {
            if *kind != NO_ACTION {
                let digest = hex(&sha256(data));
                self.run("tpm2_pcrextend", &[&format!("{pcr}:sha256={digest}")]);
            }
        }
    }

    /// The secret of a challenge, if the TPM opens it.
    fn open(&self, challenge: &TpmChallenge) -> Vec<u8> {
        let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
        let header = [0xbadc_c0de_u32.to_be_bytes(), 1_u32.to_be_bytes()].concat();
        let credential = [header, sized(&challenge.credential.0), sized(&challenge.secret.0)].concat();
        fs::write(self.0.path("credential"), credential).unwrap();
        self.run("tpm2_startauthsession", &["--policy-session", "-S", "session"]);
        self.run("tpm2_policysecret", &["-S", "session", "-c", "e"]);
        let activate = ["-c", "ak.ctx", "-C", "ek.ctx", "-i", "credential", "-o", "opened", "-P", "session:session"];
        self.run("tpm2_activatecredential", &activate);
        self.run("tpm2_flushcontext", &["session"]);
        self.run("tpm2_flushcontext", &["-t"]);
        self.read("opened")
    }

    /// A quote over a nonce and a selection of registers, and its signature.
    fn quote(&self, nonce: &[u8], selection: &str) -> (Blob, Blob) {
        let nonce = hex(nonce);
        self.run(
            "tpm2_quote",
            &["-c", "ak.ctx", "-l", selection, "-q", &nonce, "-m", "quote", "-s", "signature", "-g", "sha256"],
        );
        self.run("tpm2_flushcontext", &["-t"]);
        (Blob(self.read("quote")), Blob(self.read("signature")))
    }

    /// What an honest machine answers.
    fn answer(&self, challenge: &TpmChallenge, event_log: Option<Vec<u8>>) -> TpmProof {
        let (quote, signature) = self.quote(&challenge.nonce.0, QUOTED);
        self.run("tpm2_pcrread", &[QUOTED, "-o", "pcrs"]);
        TpmProof {
            nonce: challenge.nonce.clone(),
            secret: Blob(self.open(challenge)),
            quote,
            signature,
            pcrs: self.read("pcrs").chunks(32).map(|value| Blob(value.to_vec())).collect(),
            event_log: event_log.map(Blob),
        }
    }
}

#[test]
fn a_tpm_proves_itself_with_an_ecc_or_an_rsa_endorsement_key() {
    for kind in ["ecc", "rsa"] {
        let tpm = Tpm::start(kind);
        tpm.measure(EVENTS);
        let keys = Keys::parse(&tpm.keys()).unwrap();
        tpm.run("tpm2_createek", &["-G", kind, "-c", "same.ctx", "-u", "ek.der", "-f", "der"]);
        assert_eq!(keys.ek_digest(), format!("sha256:{}", hex(&sha256(&tpm.read("ek.der")))));
        assert_eq!(keys.ak_digest(), format!("sha256:{}", hex(&tpm.read("ak.name")[2..])));
        tpm.run("tpm2_flushcontext", &["-t"]);

        let challenger = Challenger::new(&[7; 32]);
        let challenge = challenger.challenge(&keys, MACHINE, NOW).unwrap();
        let mut proof = tpm.answer(&challenge, Some(event_log(EVENTS)));
        let measurements = challenger.check(&keys, MACHINE, &proof, NOW + 300_000).unwrap();
        assert_eq!(measurements.pcrs.len(), 12);
        assert_eq!(measurements.pcrs[&1], [0; 32]);
        let events: Vec<_> = measurements.events.unwrap().iter().map(|event| (event.pcr, event.kind)).collect();
        assert_eq!(events, [(0, 8), (7, SEPARATOR), (9, IPL), (11, IPL), (0, SEPARATOR)]);

        proof.event_log = None;
        assert_eq!(challenger.check(&keys, MACHINE, &proof, NOW).unwrap().events, None);
    }
}

#[test]
fn each_lie_is_found_and_named() {
    let (tpm, other) = (Tpm::start("ecc"), Tpm::start("ecc"));
    tpm.measure(EVENTS);
    let keys = Keys::parse(&tpm.keys()).unwrap();
    let challenger = Challenger::new(&[7; 32]);
    let challenge = challenger.challenge(&keys, MACHINE, NOW).unwrap();
    let good = tpm.answer(&challenge, Some(event_log(EVENTS)));
    let log_error = |reason: &str| ProofError::EventLog { reason: reason.to_owned() };
    let not_replayed = |register| log_error(&format!("replaying it does not give the value of register {register}"));

    let check = |challenger: &Challenger, keys: &Keys, machine, proof: &TpmProof, now| {
        challenger.check(keys, machine, proof, now).map(drop)
    };
    assert_eq!(check(&challenger, &keys, MACHINE, &good, NOW), Ok(()));
    assert_eq!(check(&challenger, &keys, MACHINE, &good, NOW + 300_001), Err(ProofError::Late));
    assert_eq!(check(&challenger, &keys, "sha256:another", &good, NOW), Err(ProofError::Nonce));
    assert_eq!(check(&Challenger::new(&[8; 32]), &keys, MACHINE, &good, NOW), Err(ProofError::Nonce));
    for mixed in [TpmKeys { ek: other.keys().ek, ..tpm.keys() }, TpmKeys { ak: other.keys().ak, ..tpm.keys() }] {
        assert_eq!(check(&challenger, &Keys::parse(&mixed).unwrap(), MACHINE, &good, NOW), Err(ProofError::Nonce));
    }

    let (replayed, replayed_signature) = tpm.quote(&[7; 32], QUOTED);
    let (fewer, fewer_signature) = tpm.quote(&challenge.nonce.0, "sha256:0,1,2,3,4,5,6,7,9,11,12");
    let (both, both_signature) = tpm.quote(&challenge.nonce.0, &format!("{QUOTED}+sha1:0"));
    let (foreign, foreign_signature) = other.quote(&challenge.nonce.0, QUOTED);
    // A signature of the key itself over what is no quote: a restricted key signs its own certification.
    tpm.run(
        "tpm2_certify",
        &["-c", "ak.ctx", "-C", "ak.ctx", "-g", "sha256", "-o", "certified", "-s", "by-itself", "-f", "tss"],
    );
    tpm.run("tpm2_flushcontext", &["-t"]);
    let (certified, certified_signature) = (Blob(tpm.read("certified")), Blob(tpm.read("by-itself")));

    type Lie<'a> = Box<dyn Fn(&mut TpmProof) + 'a>;
    let quoted = |quote: &Blob, signature: &Blob| {
        let (quote, signature) = (quote.clone(), signature.clone());
        Box::new(move |proof: &mut TpmProof| (proof.quote, proof.signature) = (quote.clone(), signature.clone()))
            as Lie<'_>
    };
    let logged = |events: &[(u32, u32, &[u8])]| {
        let log = event_log(events);
        Box::new(move |proof: &mut TpmProof| proof.event_log = Some(Blob(log.clone()))) as Lie<'_>
    };
    let table: Vec<(Lie<'_>, ProofError)> = vec![
        (Box::new(|proof| proof.nonce.0[0] ^= 1), ProofError::Nonce),
        (Box::new(|proof| proof.nonce.0[31] ^= 1), ProofError::Nonce),
        (Box::new(|proof| proof.nonce.0.truncate(31)), ProofError::Nonce),
        (Box::new(|proof| proof.nonce.0.truncate(7)), ProofError::Nonce),
        (Box::new(|proof| proof.secret.0[31] ^= 1), ProofError::Secret),
        (Box::new(|proof| proof.secret.0.clear()), ProofError::Secret),
        (Box::new(|proof| proof.quote.0[20] ^= 1), ProofError::Quote),
        (Box::new(|proof| proof.signature.0[20] ^= 1), ProofError::Quote),
        (Box::new(|proof| proof.signature.0.push(0)), ProofError::Quote),
        (Box::new(|proof| proof.signature.0.clear()), ProofError::Quote),
        (quoted(&foreign, &foreign_signature), ProofError::Quote),
        (quoted(&certified, &certified_signature), ProofError::Quote),
        (quoted(&replayed, &replayed_signature), ProofError::Replayed),
        (quoted(&fewer, &fewer_signature), ProofError::Selection),
        (quoted(&both, &both_signature), ProofError::Selection),
        (Box::new(|proof| proof.pcrs[3].0[0] ^= 1), ProofError::Altered),
        (Box::new(|proof| proof.pcrs.swap(0, 1)), ProofError::Altered),
        (Box::new(|proof| drop(proof.pcrs.pop())), ProofError::Altered),
        (Box::new(|proof| proof.pcrs[3].0.clear()), ProofError::Altered),
        (logged(&EVENTS[..5]), not_replayed(0)),
        (logged(&EVENTS[1..]), not_replayed(0)),
        (logged(&[EVENTS, &[(1, 8, b"x")]].concat()), not_replayed(1)),
        (logged(&[EVENTS, &[(13, 8, b"x")]].concat()), not_replayed(13)),
        (
            Box::new(|proof| proof.event_log = Some(Blob(event_log(EVENTS)[..90].to_vec()))),
            log_error("its last event is truncated"),
        ),
    ];
    for (index, (lie, expected)) in table.into_iter().enumerate() {
        let mut proof = good.clone();
        lie(&mut proof);
        let asks_again = matches!(expected, ProofError::Nonce | ProofError::Late);
        let found = challenger.check(&keys, MACHINE, &proof, NOW).unwrap_err();
        assert_eq!((found.ask_again(), found), (asks_again, expected), "lie {index}");
    }
}

/// An authority of swtpm's own, with a root and an intermediate certificate.
struct Authority(TempDir);

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let settings = format!(
            "statedir = {path}\nsigningkey = {path}/signkey.pem\nissuercert = {path}/issuercert.pem\n\
             certserial = {path}/serial\n"
        );
        fs::write(folder.path().join("ca.conf"), settings).unwrap();
        fs::write(
            folder.path().join("options"),
            "--platform-manufacturer x\n--platform-version 1\n--platform-model y\n",
        )
        .unwrap();
        let settings = format!(
            "create_certs_tool = {}\ncreate_certs_tool_config = {path}/ca.conf\n\
             create_certs_tool_options = {path}/options\nactive_pcr_banks = sha256\n",
            "/usr/bin/swtpm_localca"
        );
        fs::write(folder.path().join("setup.conf"), settings).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn certificates(&self, names: &[&str]) -> Roots {
        let texts: Vec<String> = names.iter().map(|name| fs::read_to_string(self.path(name)).unwrap()).collect();
        Roots::from_pem(&texts.concat()).unwrap()
    }

    fn roots(&self) -> Roots {
        self.certificates(&[INTERMEDIATE, ROOT])
    }

    /// A TPM as swtpm_setup delivers it, and its keys with the certificate of its RSA endorsement key.
    fn deliver(&self) -> (Tpm, TpmKeys) {
        let mut swtpm = Swtpm::off();
        let mut setup = Command::new("swtpm_setup");
        setup.args(["--tpm2", "--create-ek-cert", "--tpm-state"]).arg(swtpm.path("state"));
        run(setup.arg("--config").arg(self.path("setup.conf")));
        swtpm.power_cycle();
        let tpm = Tpm(swtpm).with_keys("rsa");
        tpm.run("tpm2_nvread", &["0x1c00002", "-C", "o", "-o", "ek.cer"]);
        let keys = TpmKeys { ek_certificate: Some(Blob(tpm.read("ek.cer"))), ..tpm.keys() };
        (tpm, keys)
    }

    /// The certificate of an ECC P-256 endorsement key. swtpm_setup makes none, its authority does.
    fn certify(&self, keys: &TpmKeys) -> Blob {
        // TPMT_PUBLIC ends with both coordinates, each with its size before it.
        let (rest, y) = keys.ek.0.split_at(keys.ek.0.len() - 32);
        let point = format!("x={},y={},id=secp256r1", hex(&rest[rest.len() - 34..rest.len() - 2]), hex(y));
        let mut authority = Command::new("swtpm_localca");
        authority.args(["--type", "ek", "--ek", &point, "--tpm2", "--tpm-spec-family", "2.0", "--tpm-spec-level", "0"]);
        authority.args(["--tpm-spec-revision", "164", "--tpm-manufacturer", "id:00001014", "--tpm-model", "swtpm"]);
        authority.args(["--tpm-version", "id:20191023", "--dir"]).arg(self.0.path());
        authority.arg("--configfile").arg(self.path("ca.conf")).arg("--optsfile").arg(self.path("options"));
        run(&mut authority);
        Blob(fs::read(self.path("ek.cert")).unwrap())
    }
}

const INTERMEDIATE: &str = "issuercert.pem";
const ROOT: &str = "swtpm-localca-rootca-cert.pem";

#[test]
fn a_certificate_leads_to_a_trusted_root_or_proves_nothing() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 60;
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (rsa_tpm, rsa) = ours.deliver();
    let (_their_tpm, their_rsa) = theirs.deliver();
    let ecc_tpm = Tpm::start("ecc");
    let ecc = TpmKeys { ek_certificate: Some(ours.certify(&ecc_tpm.keys())), ..ecc_tpm.keys() };
    let bad = |reason: &str| Endorsement::Bad { reason: reason.to_owned() };
    let unknown = |issuer: &str| Endorsement::Unknown { issuer: issuer.to_owned() };
    let judge = |keys: &TpmKeys, roots: &Roots, now| Keys::parse(keys).unwrap().endorsement(roots, now);

    for keys in [&rsa, &ecc] {
        assert_eq!(judge(keys, &ours.roots(), now), Endorsement::Chain);
        let mut padded = keys.clone();
        padded.ek_certificate.as_mut().unwrap().0.extend([0xff; 100]);
        assert_eq!(judge(&padded, &ours.roots(), now), Endorsement::Chain);
        assert_eq!(judge(&TpmKeys { ek_certificate: None, ..keys.clone() }, &ours.roots(), now), Endorsement::None);
        assert_eq!(judge(keys, &ours.certificates(&[ROOT]), now), unknown("CN=swtpm-localca"));
        assert_eq!(judge(keys, &ours.certificates(&[INTERMEDIATE]), now), unknown("CN=swtpm-localca-rootca"));
        // Another authority of the same name: swtpm gives this name to all authorities.
        assert_eq!(judge(keys, &theirs.roots(), now), bad("the signature of its issuer is wrong: CN=swtpm-localca"));
        assert_eq!(judge(keys, &ours.roots(), 1_000_000_000), bad("it has expired, or is not valid yet"));
        assert_eq!(judge(keys, &ours.roots(), u64::MAX), bad("it cannot be read"));
        let another = TpmKeys { ek_certificate: their_rsa.ek_certificate.clone(), ..keys.clone() };
        assert_eq!(judge(&another, &theirs.roots(), now), bad("it is for another key"));
        // Bytes of the signed part, whose length is in its third and fourth byte; of the algorithm (RSA with SHA-256),
        // except for its tags, which the reader does not check; and of the end of the signature.
        let certificate = keys.ek_certificate.as_ref().unwrap().0.clone();
        let signed = 8 + usize::from(u16::from_be_bytes([certificate[6], certificate[7]]));
        for at in (0..signed).chain(signed + 3..signed + 15).chain(certificate.len() - 64..certificate.len()) {
            let mut changed = keys.clone();
            changed.ek_certificate.as_mut().unwrap().0[at] ^= 1;
            let endorsement = judge(&changed, &ours.roots(), now);
            let is_refused = matches!(endorsement, Endorsement::Bad { .. } | Endorsement::Unknown { .. });
            assert!(is_refused, "{at}: {endorsement:?}");
        }
    }

    // What an operator computes from the certificate file.
    let file = rsa_tpm.0.path("ek.cer");
    let digest = "openssl x509 -inform der -in \"$0\" -pubkey -noout | openssl pkey -pubin -outform der | sha256sum";
    let digest = String::from_utf8(run(Command::new("sh").args(["-c", digest]).arg(file)).stdout).unwrap();
    assert_eq!(Keys::parse(&rsa).unwrap().ek_digest(), format!("sha256:{}", digest.split(' ').next().unwrap()));
}
