//! The keys that a running server uses. They are read again whenever they change.

use std::collections::BTreeSet;
use std::sync::Arc;

use slipway_protocol::Enrolment;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::time::Millis;
use crate::keys::ca::{Authority, NODE_LIFETIME, NodeRequest};
use crate::keys::certificate::Certificate;
use crate::keys::jwt::{Signer, Subject};

/// What a server signs with, and shows to its clients.
pub struct InUse {
    /// Signs the nodes' certificates.
    pub authority: Authority,
    /// Signs the nodes' JWTs.
    pub signer: Signer,
    /// The server's own certificates.
    pub certificate: Arc<Certificate>,
}

impl InUse {
    /// Opens the keys of a data folder for a server with these host names and addresses. Creates what is missing, and
    /// renews the server's certificates if they are due.
    pub fn open_or_make(data: &DataDir, names: &BTreeSet<String>) -> Result<Self, Error> {
        let authority = Authority::open_or_make(data, names)?;
        let signer = Signer::open(data)?;
        let certificate = Arc::new(Certificate::open(&authority, data, names)?);
        Ok(Self { authority, signer, certificate })
    }

    /// Returns the names of the certificates that the server needs, and when each expires, in seconds since 1970.
    pub fn expiries(&self) -> Vec<(&'static str, i64)> {
        let of_authority = [
            ("root", Some(self.authority.root())),
            ("intermediate", Some(self.authority.intermediate())),
            ("next_root", self.authority.next_root()),
        ];
        let of_authority = of_authority.into_iter().filter_map(|(name, certificate)| {
            certificate.map(|certificate| (name, certificate.not_after.unix_timestamp()))
        });
        of_authority.chain(self.certificate.expiries()).collect()
    }

    /// Issues a new certificate and JWT for a node. The certificate is for the key of the request.
    pub fn issue(&self, subject: &Subject, request: &NodeRequest, now: Millis) -> Result<Enrolment, Error> {
        Ok(Enrolment {
            node: subject.node.clone(),
            name: None,
            certificate: self.authority.sign_node(&subject.node, request)?,
            jwt: self.signer.issue(subject, now, NODE_LIFETIME),
            expires_in: NODE_LIFETIME,
        })
    }
}
