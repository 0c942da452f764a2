//! Sets addresses from the medium's settings.

use std::sync::Arc;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::info;

use super::plan::Setup;
use super::{Network, PAUSE, Way};

impl Network {
    /// Keeps the addresses set as long as there is a cable. Returns only on an error.
    pub(super) async fn keep_given(self: &Arc<Self>, way: &Way, setup: &Setup) -> Result<()> {
        self.apply(way.index, &setup.given).await?;
        info!("{}: {} from the settings", way.interface, setup.given.address());
        // This task is aborted when this function ends.
        let mut reaching = JoinSet::new();
        let (network, at, lease) = (Arc::clone(self), way.clone(), setup.given.clone());
        reaching.spawn(async move { network.reach_server(&at, &lease).await });
        loop {
            self.connected(&way.interface).await?;
            sleep(PAUSE).await;
        }
    }
}
