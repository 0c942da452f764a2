//! The TPM of a machine that asks to enrol: what it claims, and what it proves.

use std::path::Path;

use slipway_protocol::{ClaimedTpm, EkCertificate, ErrorCode, Tpm, TpmChallenge};
use slipway_tpm::judge::{Challenger, Endorsement, Keys, Roots};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::keys::jwt::Signer;
use crate::node::admission::{ShownTpm, TpmAnswer};

/// Asks machines to prove their TPMs, and verifies the proofs.
pub struct Verifier {
    /// Makes challenges and checks the answers.
    pub challenger: Challenger,
    /// The manufacturers that the site trusts.
    pub manufacturers: Roots,
}

/// What the server found out about the TPM of a machine.
#[derive(Default)]
pub(super) struct MachineTpm {
    /// The public keys of the TPM, and what matters for the decision. `None` if the machine cannot use a TPM.
    usable: Option<(Keys, ShownTpm)>,
    /// Events of the log that the TPM confirmed: register, and SHA-256 digest.
    pub(super) events: Vec<(u8, [u8; 32])>,
    /// What is wrong with the TPM, with its certificate, or with its answer.
    problem: Option<String>,
}

impl Verifier {
    /// Creates a verifier. Each server of the site can check the answers to the challenges of the others.
    pub fn new(manufacturers: Roots, signer: &Signer) -> Self {
        Self { challenger: Challenger::new(&signer.derived("challenges to TPMs")), manufacturers }
    }

    /// Verifies what a machine with this key reports about its TPM.
    pub(super) fn verify(&self, tpm: Option<&Tpm>, machine_key: &str, now: Millis) -> MachineTpm {
        let unusable = |problem| MachineTpm { problem, ..MachineTpm::default() };
        let (sent, proof) = match tpm {
            None | Some(Tpm::Absent) => return unusable(None),
            Some(Tpm::Broken { reason }) => return unusable(Some(reason.clone())),
            Some(Tpm::Present { keys, proof }) => (keys, proof),
        };
        let keys = match Keys::parse(sent) {
            Ok(keys) => keys,
            Err(error) => return unusable(Some(error.to_string())),
        };
        let (certificate, mut problem) = match keys.endorsement(&self.manufacturers, now / 1000) {
            Endorsement::None => (EkCertificate::None, None),
            Endorsement::Unknown { issuer } => {
                let message =
                    format!("the certificate of the endorsement key is from {issuer}, which the site does not trust");
                (EkCertificate::UnknownIssuer, Some(message))
            }
            Endorsement::Bad { reason } => {
                (EkCertificate::Bad, Some(format!("the certificate of the endorsement key is bad: {reason}")))
            }
            Endorsement::Chain => (EkCertificate::Verified, None),
        };
        let mut events = Vec::new();
        let answer = match proof.as_ref().map(|proof| (proof, self.challenger.check(&keys, machine_key, proof, now))) {
            None => TpmAnswer::None,
            Some((proof, Ok(measured))) => {
                events = measured.events.iter().flatten().map(|event| (event.pcr, event.sha256)).collect();
                let (nonce, has_event_log) = (proof.nonce.0.clone(), proof.event_log.is_some());
                TpmAnswer::Right { nonce, has_event_log, boot_problem: None }
            }
            Some((_, Err(error))) if error.ask_again() => TpmAnswer::None,
            Some((_, Err(error))) => {
                problem = Some(error.to_string());
                TpmAnswer::Wrong
            }
        };
        let shown = ShownTpm { ek: keys.ek_digest(), ak: keys.ak_digest(), certificate, answer };
        MachineTpm { usable: Some((keys, shown)), events, problem }
    }

    /// Makes a challenge for a machine with this key to prove its TPM. The server stores nothing about the challenge.
    pub(super) fn challenge(&self, tpm: &MachineTpm, machine_key: &str, now: Millis) -> Result<TpmChallenge, Error> {
        let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
        let (keys, _) = tpm.usable.as_ref().ok_or_else(|| invalid("the machine has no TPM to prove".to_owned()))?;
        // Anybody can send a key that nothing can be encrypted to, so it is not the server's fault.
        self.challenger.challenge(keys, machine_key, now).map_err(|error| invalid(error.to_string()))
    }
}

/// Reads the certificates of the manufacturers that a site trusts. Without a file, it trusts none.
pub fn read_manufacturers(file: Option<&Path>) -> Result<Roots, Error> {
    let Some(file) = file else { return Ok(Roots::default()) };
    let doing = "reading the certificates of TPM manufacturers in";
    let failed = |source| Error::File { doing, path: file.to_owned(), source };
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Roots::from_pem(&text).map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))
}

impl MachineTpm {
    /// Returns what matters for the decision, except for what the machine started. `None` if no TPM can be used.
    pub(super) fn shown(&self) -> Option<&ShownTpm> {
        self.usable.as_ref().map(|(_, shown)| shown)
    }

    /// Returns why a machine that has a TPM did not prove it.
    pub(super) fn fault(&self) -> Option<&str> {
        let is_at_fault = self.shown().is_none_or(|shown| shown.answer == TpmAnswer::Wrong);
        self.problem.as_deref().filter(|_| is_at_fault)
    }

    /// Returns what `status` presents about the TPM while the machine waits. None of it is proved.
    pub(super) fn claimed(&self, boot_problem: Option<&str>) -> Option<ClaimedTpm> {
        let problem = boot_problem.map(str::to_owned).or_else(|| self.problem.clone());
        match self.shown() {
            None if problem.is_none() => None,
            None => Some(ClaimedTpm { problem, ..ClaimedTpm::default() }),
            Some(shown) => {
                Some(ClaimedTpm { ek: Some(shown.ek.clone()), certificate: Some(shown.certificate), problem })
            }
        }
    }
}
