//! Lets machines in as nodes, or holds them: gathers what is known about a machine, decides, and stores what was
//! decided.

mod applicant;
pub mod apply;
mod gather;
pub mod tpm;

use std::net::IpAddr;

use slipway_protocol::{EnrolRequest, Enrolment, SiteEventKind, TpmChallenge, Wait};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::keys::in_use::InUse;
use crate::keys::jwt::Subject;
use crate::node::admission::{Outcome, Policy, decide};
use crate::node::contacts::Contacts;
use crate::node::tasks;
use crate::store::history::{self, NewEvent};
use crate::store::nodes;
use crate::store::{self, Store};
use applicant::Applicant;
use gather::gather;

/// The answer to a machine that asked to enrol.
pub enum Answer {
    /// The machine is let in.
    Enrolled(Enrolment),
    /// An operator must act first.
    Wait(Wait),
    /// The machine is let in if it proves its TPM.
    Prove(TpmChallenge),
}

/// What admits machines.
pub struct Gate<'a> {
    /// The database.
    pub store: &'a Store,
    /// When nodes were heard from.
    pub contacts: &'a Contacts,
    /// Issues credentials to those that are let in.
    pub keys: &'a InUse,
    /// What every machine of the site must prove.
    pub policy: Policy,
    /// Asks machines to prove their TPMs.
    pub tpms: &'a tpm::Verifier,
}

/// Records that a node has new credentials.
pub async fn renewed(store: &Store, node: &str, now: Millis) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    let event = NewEvent::new("the node has new credentials for its key").of_id(node);
    history::record(&mut transaction, SiteEventKind::CredentialRenewed, event, now).await?;
    store::commit(transaction).await
}

/// Handles `POST /v1/enrol`.
pub async fn enrol(
    &Gate { store, contacts, keys, policy, tpms }: &Gate<'_>,
    request: &EnrolRequest,
    from: IpAddr,
    now: Millis,
) -> Result<Answer, Error> {
    let applicant = Applicant::new(request, tpms, from, now)?;
    let wait = |claim_code| Answer::Wait(Wait { claim_code });
    // Most requests are from machines that wait already and change nothing: they do not queue for the write lock.
    let facts = gather(&mut *store.read().await?, contacts, &applicant, now).await?;
    if let Outcome::StillWaits(code) = decide(&facts, policy, now) {
        return Ok(wait(code));
    }
    // Another machine may have been let in meanwhile. Until the transaction ends, none can be.
    let mut transaction = store.write().await?;
    let facts = gather(&mut transaction, contacts, &applicant, now).await?;
    let answer = match decide(&facts, policy, now) {
        Outcome::LetIn(how) => {
            let node = apply::let_in(&mut transaction, &applicant, &facts, how, now).await?;
            tasks::left_system(&mut transaction, &node).await?;
            let name = nodes::by_ids(&mut transaction, std::slice::from_ref(&node)).await?.pop().and_then(|it| it.name);
            let subject = Subject { node, key: applicant.key };
            Answer::Enrolled(Enrolment { name, ..keys.issue(&subject, &applicant.csr, now)? })
        }
        Outcome::Hold(reason) => {
            wait(apply::hold(&mut transaction, &keys.signer, &applicant, &facts, reason, now).await?)
        }
        Outcome::StillWaits(code) => return Ok(wait(code)),
        Outcome::Prove => return Ok(Answer::Prove(tpms.challenge(&applicant.tpm, &applicant.key, now)?)),
        Outcome::Refuse(code, message) => return Err(Error::refused(code, message)),
    };
    store::commit(transaction).await?;
    Ok(answer)
}
