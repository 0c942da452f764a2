//! The TPMs that nodes are known by.

use std::collections::BTreeMap;

use serde::Serialize;
use slipway_protocol::node::attestation::QUOTED_PCRS;
use slipway_protocol::{Algorithm, Digest, ErrorCode, NodeTpm, TpmKeys, TpmOrigin, TpmProof};

use super::known_node;
use crate::base::error::Error;
use crate::store::attestations::{self, Attestation};
use crate::store::nodes::{self, Node};
use crate::store::{Connection, Store};

/// What the machine of a node proved with its TPM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct NodeAttestation {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// The values of the registers of the SHA-256 bank, in hexadecimal.
    pub pcrs: BTreeMap<u8, String>,
    /// The keys of the TPM.
    pub keys: TpmKeys,
    /// The quote of these values, and the event log that explains them.
    pub proof: TpmProof,
}

/// Returns the TPM of the node with these endorsement keys. `None` if there are no keys.
pub(super) async fn registered_tpm(
    connection: &mut Connection,
    node: &Node,
    ek: &[String],
) -> Result<Option<NodeTpm>, Error> {
    const MOST: usize = 8;
    if ek.len() > MOST {
        let message = format!("a TPM has at most {MOST} endorsement keys");
        return Err(Error::refused(ErrorCode::InvalidRequest, message));
    }
    let valid = |text: &String| match text.parse::<Digest>() {
        Ok(digest) if digest.algorithm() == Algorithm::Sha256 => Ok(digest.to_string()),
        _ => {
            let message = "an endorsement key is given as sha256: and 64 hexadecimal digits: the SHA-256 of its public \
                           key in DER, as `openssl pkey -pubin -outform der` writes it";
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        }
    };
    let mut ek = ek.iter().map(valid).collect::<Result<Vec<_>, _>>()?;
    ek.sort();
    ek.dedup();
    for key in &ek {
        if let Some(other) = nodes::other_with_ek(connection, &node.id, key).await? {
            let message = format!(
                "node {0} is known by a TPM with this endorsement key; a TPM is in one machine, so forget it there \
                 first (`node set {0} --no-ek`)",
                other.label()
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
    }
    Ok((!ek.is_empty()).then(|| NodeTpm::unproved(ek, TpmOrigin::Registered)))
}

/// Returns what the machine of a node last proved with its TPM. Refuses if it has not proved any.
pub async fn node_attestation(store: &Store, reference: &str) -> Result<NodeAttestation, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    let attestation = attestations::of_node(&mut connection, &node.id).await?.ok_or_else(|| {
        let message = format!("the machine of node {} has not proved a TPM yet", node.label());
        Error::refused(ErrorCode::NotFound, message)
    })?;
    let Attestation { at, keys, proof } = attestation;
    let values = proof.pcrs.iter().map(|value| base16ct::lower::encode_string(&value.0));
    Ok(NodeAttestation { at, pcrs: QUOTED_PCRS.iter().copied().zip(values).collect(), keys, proof })
}
