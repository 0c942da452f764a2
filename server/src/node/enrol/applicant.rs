//! A machine that asks to enrol, by what it sent.

use std::net::IpAddr;

use slipway_protocol::{ClaimedTpm, EnrolRequest, ErrorCode, Identity};

use super::tpm::{MachineTpm, Verifier};
use crate::base::error::Error;
use crate::base::time::Millis;
use crate::keys::ca::NodeRequest;
use crate::store::claimants::Report;

/// Maximum number of MAC addresses of one machine.
const MAX_MACS: usize = 64;
/// Maximum length of a text in a request, in characters.
pub(super) const MAX_CHARS: usize = 256;

/// A machine that asks to enrol.
pub(super) struct Applicant<'a> {
    pub request: &'a EnrolRequest,
    pub csr: NodeRequest,
    /// Fingerprint of the machine's key.
    pub key: String,
    /// Usable identifiers of the machine. There is at least one.
    pub identity: Identity,
    pub tpm: MachineTpm,
    pub address: IpAddr,
}

impl<'a> Applicant<'a> {
    /// Checks the request, the signature of its CSR and the proof of its TPM.
    pub fn new(request: &'a EnrolRequest, tpms: &Verifier, address: IpAddr, now: Millis) -> Result<Self, Error> {
        check_size(request)?;
        let csr = NodeRequest::from_pem(&request.csr)?;
        let key = csr.fingerprint();
        let tpm = tpms.verify(request.tpm.as_ref(), &key, now);
        let identity = request.identity.usable();
        if identity.values().next().is_none() {
            let message = "the machine has no usable UUID, serial number or MAC address to identify it";
            return Err(Error::refused(ErrorCode::IdentityMissing, message));
        }
        Ok(Self { request, csr, key, identity, tpm, address })
    }

    /// Returns what the machine reports about itself, with what is known about its TPM.
    pub fn report(&self, tpm: Option<ClaimedTpm>) -> Report {
        Report {
            inventory: self.request.inventory.clone(),
            timing: self.request.timing,
            agent_version: self.request.agent_version.clone(),
            boot_id: self.request.boot_id.clone(),
            tpm,
        }
    }
}

/// Refuses requests larger than any machine sends. Anyone may ask to enrol, and every identifier costs a query.
fn check_size(request: &EnrolRequest) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    let identity = &request.identity;
    if identity.macs.len() > MAX_MACS {
        return invalid(format!(
            "the identity has {} MAC addresses, but may have at most {MAX_MACS}",
            identity.macs.len()
        ));
    }
    let others = [&request.agent_version, &request.boot_id];
    let mut texts = identity.uuid.iter().chain(&identity.serial).chain(&identity.macs).chain(others);
    if texts.any(|text| text.chars().count() > MAX_CHARS) {
        return invalid(format!(
            "an identifier, the agent's version or the id of the boot is longer than {MAX_CHARS} characters"
        ));
    }
    if request.tpm.as_ref().is_some_and(|tpm| !tpm.is_within_bounds()) {
        return invalid("a field of the TPM report is too long".to_owned());
    }
    Ok(())
}
