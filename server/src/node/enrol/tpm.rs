//! The TPM of a machine that asks to enrol: what it claims, and what it proves.

use std::path::Path;

use slipway_attestation::{ChallengeError, Challenger, Endorsement, Keys, Roots};
use slipway_media::MachineSettings;
use slipway_media::judge::{self, Known};
use slipway_protocol::{
    ClaimedTpm, EkCertificate, ErrorCode, NodeTpm, Secret, Tpm, TpmChallenge, TpmKeys, TpmOrigin, TpmProof,
};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::node::admission::ShownTpm;
use crate::store::attestations::{self, Attestation};
use crate::store::nodes::Node;
use crate::store::{Connection, boot_builds, settings, to_word};

/// Asks machines to prove their TPMs.
pub struct Judge {
    /// Makes challenges and checks the answers.
    pub challenger: Challenger,
    /// The manufacturers that the site trusts.
    pub manufacturers: Roots,
}

/// The TPM of a machine.
pub(super) enum Claimed {
    /// It has none that it can use.
    Nothing {
        /// What is wrong with the one that it has.
        problem: Option<String>,
    },
    /// It has one.
    Tpm(Box<ClaimedKeys>),
}

/// The keys of a TPM, and how far the machine proved to have it.
pub(super) struct ClaimedKeys {
    keys: Keys,
    sent: TpmKeys,
    ek: String,
    ak: String,
    certificate: EkCertificate,
    /// What is wrong with the certificate, or with the proof.
    problem: Option<String>,
    state: State,
}

enum State {
    /// It was not asked yet, or its answer came too late.
    Unasked,
    Proved(Box<Proved>),
    Refused,
}

struct Proved {
    proof: TpmProof,
    /// What the TPM confirmed of its log: registers and digests.
    events: Vec<(u8, [u8; 32])>,
    /// Whether the events are those of boot files of the site, or it does not ask for that.
    boot_is_known: bool,
}

impl Judge {
    /// A judge with a new secret. Without a file, no manufacturer is trusted.
    pub fn new(ek_ca: Option<&Path>) -> Result<Self, Error> {
        let challenger = Challenger::new().map_err(|source| Error::Challenge { source: Box::new(source) })?;
        let manufacturers = ek_ca.map(read_manufacturers).transpose()?.unwrap_or_default();
        Ok(Self { challenger, manufacturers })
    }

    /// What a machine with this key says of its TPM. The proof is checked here.
    pub(super) fn look_at(&self, tpm: Option<&Tpm>, machine_key: &str, now: Millis) -> Claimed {
        let (sent, proof) = match tpm {
            None | Some(Tpm::Absent) => return Claimed::Nothing { problem: None },
            Some(Tpm::Broken { reason }) => return Claimed::Nothing { problem: Some(reason.clone()) },
            Some(Tpm::Present { keys, proof }) => (keys, proof),
        };
        let keys = match Keys::parse(sent) {
            Ok(keys) => keys,
            Err(error) => return Claimed::Nothing { problem: Some(error.to_string()) },
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
        let state = match proof.as_ref().map(|proof| (proof, self.challenger.check(&keys, machine_key, proof, now))) {
            None => State::Unasked,
            Some((proof, Ok(measured))) => {
                let events = measured.events.unwrap_or_default();
                let events = events.iter().map(|event| (event.pcr, event.sha256)).collect();
                State::Proved(Box::new(Proved { proof: proof.clone(), events, boot_is_known: true }))
            }
            Some((_, Err(error))) if error.ask_again() => State::Unasked,
            Some((_, Err(error))) => {
                problem = Some(error.to_string());
                State::Refused
            }
        };
        let (ek, ak) = (keys.ek_digest(), keys.ak_digest());
        Claimed::Tpm(Box::new(ClaimedKeys { keys, sent: sent.clone(), ek, ak, certificate, problem, state }))
    }
}

fn read_manufacturers(file: &Path) -> Result<Roots, Error> {
    let doing = "reading the certificates of TPM manufacturers in";
    let failed = |source| Error::File { doing, path: file.to_owned(), source };
    let text = std::fs::read_to_string(file).map_err(failed)?;
    Roots::from_pem(&text).map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))
}

impl Claimed {
    /// What counts for the decision. A machine that was not asked yet is taken to have what it claims: it is asked if it
    /// would then be let in.
    pub(super) fn shown(&self) -> ShownTpm<'_> {
        let Self::Tpm(claimed) = self else { return ShownTpm::None };
        let ClaimedKeys { ek, ak, certificate, .. } = &**claimed;
        let proved = |has_event_log, boot_is_known| ShownTpm::Proved {
            ek,
            ak,
            certificate: *certificate,
            has_event_log,
            boot_is_known,
        };
        match &claimed.state {
            State::Unasked => proved(true, true),
            State::Proved(proved_it) => proved(proved_it.proof.event_log.is_some(), proved_it.boot_is_known),
            State::Refused => ShownTpm::Refused,
        }
    }

    /// Whether it proved what it started.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self, Self::Tpm(claimed) if matches!(claimed.state, State::Proved(_)))
    }

    /// Compares what it started with the boot files of the site, if the site asks for that. A medium may have settings for
    /// the machine: the token that it shows, or none. A network among them is not known here.
    pub(super) async fn compare_boot(&mut self, connection: &mut Connection, token: Option<&str>) -> Result<(), Error> {
        let Self::Tpm(claimed) = self else { return Ok(()) };
        let State::Proved(proved) = &mut claimed.state else { return Ok(()) };
        if settings::read(connection, settings::ATTESTED_BOOT).await?.is_some() {
            return Ok(());
        }
        let known = Known {
            builds: boot_builds::all(connection).await?.into_iter().flat_map(|build| build.measurements).collect(),
            programs: boot_builds::programs(connection).await?.into_iter().map(|program| program.digest).collect(),
        };
        let tokens = [None, token].map(|token| token.map(|token| Secret::from(token.to_owned())));
        let settings = tokens.into_iter().map(|token| MachineSettings { token, network: None });
        let settings: Vec<_> = settings.filter_map(|settings| settings.measured()).collect();
        let compared = match proved.proof.event_log {
            Some(_) => judge::judge(&proved.events, &known, &settings).map(drop).map_err(|error| error.to_string()),
            None => Err("it did not send its event log".to_owned()),
        };
        proved.boot_is_known = compared.is_ok();
        if let Err(reason) = compared {
            claimed.problem = Some(format!("of what it started: {reason}"));
        }
        Ok(())
    }

    /// Makes a machine that sends a proof again be asked again. The proof is good for some minutes, and whoever sent all of
    /// it again would get a JWT without having any key.
    ///
    /// Numbers of challenges begin with their time. One of the future is from before the clock was set.
    pub(super) async fn use_once(
        &mut self,
        connection: &mut Connection,
        node: &Node,
        now: Millis,
    ) -> Result<(), Error> {
        let Self::Tpm(claimed) = self else { return Ok(()) };
        let State::Proved(proved) = &claimed.state else { return Ok(()) };
        let last = attestations::of_node(connection, &node.id).await?;
        if last.is_some_and(|last| last.at <= now && proved.proof.nonce.0 <= last.proof.nonce.0) {
            claimed.state = State::Unasked;
        }
        Ok(())
    }

    /// The challenge for a machine that was not asked yet.
    pub(super) fn challenge(
        &self,
        judge: &Judge,
        machine_key: &str,
        now: Millis,
    ) -> Result<Option<TpmChallenge>, Error> {
        match self {
            Self::Tpm(claimed) if matches!(claimed.state, State::Unasked) => {
                let challenge = judge.challenger.challenge(&claimed.keys, machine_key, now);
                challenge.map(Some).map_err(|error| match error {
                    // Anybody can send such a key, so it is no fault of the server.
                    ChallengeError::Encrypt => Error::refused(ErrorCode::InvalidRequest, error.to_string()),
                    ChallengeError::Random => Error::Challenge { source: Box::new(error) },
                })
            }
            _ => Ok(None),
        }
    }

    /// Digest of the endorsement key.
    pub(super) fn ek(&self) -> Option<&str> {
        match self {
            Self::Nothing { .. } => None,
            Self::Tpm(claimed) => Some(&claimed.ek),
        }
    }

    /// Why a machine that has a TPM did not prove it.
    pub(super) fn fault(&self) -> Option<&str> {
        match self {
            Self::Nothing { problem } => problem.as_deref(),
            Self::Tpm(claimed) => claimed.problem.as_deref().filter(|_| matches!(claimed.state, State::Refused)),
        }
    }

    /// What `status` shows while the machine waits. It is not proved.
    pub(super) fn told(&self) -> Option<ClaimedTpm> {
        match self {
            Self::Nothing { problem } => {
                problem.as_ref().map(|problem| ClaimedTpm { problem: Some(problem.clone()), ..ClaimedTpm::default() })
            }
            Self::Tpm(claimed) => Some(ClaimedTpm {
                ek: Some(claimed.ek.clone()),
                certificate: Some(claimed.certificate),
                problem: claimed.problem.clone(),
            }),
        }
    }

    /// The TPM by which the node is known from now on, and what was proved, if it was.
    pub(super) async fn keep(&self, connection: &mut Connection, node: &mut Node, now: Millis) -> Result<(), Error> {
        let Self::Tpm(claimed) = self else { return Ok(()) };
        let State::Proved(proved) = &claimed.state else { return Ok(()) };
        let verified = claimed.certificate == EkCertificate::Verified;
        let origin = if verified { TpmOrigin::Certificate } else { TpmOrigin::Release };
        let known = node.tpm.take().unwrap_or_else(|| {
            tracing::info!(
                node = node.label(),
                ek = claimed.ek,
                origin = to_word(&origin),
                "the node is known by its TPM from now on"
            );
            NodeTpm::unproved(vec![claimed.ek.clone()], origin)
        });
        node.tpm = Some(NodeTpm {
            ak: Some(claimed.ak.clone()),
            certificate: Some(claimed.certificate),
            has_event_log: proved.proof.event_log.is_some(),
            proved_at: Some(now),
            ..known
        });
        let attestation = Attestation { at: now, keys: claimed.sent.clone(), proof: proved.proof.clone() };
        attestations::save(connection, &node.id, &attestation).await
    }
}
