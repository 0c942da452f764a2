//! The network that an operator gives a node: how it is read and checked.

use slipway_protocol::shared::network;
use slipway_protocol::{ErrorCode, Network};

use super::yaml;
use crate::base::error::Error;

/// Checks the network. Returns `None` if it is empty.
pub(super) fn valid_network(network: Network) -> Result<Option<Network>, Error> {
    if network == Network::default() {
        return Ok(None);
    }
    let problems = network::problems(&network);
    if problems.is_empty() {
        return Ok(Some(network));
    }
    Err(Error::refused(ErrorCode::InvalidRequest, format!("the network is not valid: {}", problems.join("; "))))
}

/// Reads the network of a node from an operator's YAML file. Errors name line and column.
pub fn parse_network(text: &str) -> Result<Network, Error> {
    yaml::read(text)
        .map_err(|reason| Error::refused(ErrorCode::InvalidRequest, format!("the network is not valid: {reason}")))
}
