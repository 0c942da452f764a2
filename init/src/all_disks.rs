//! Decides when the list of disks is complete. Before that no disk is chosen: a missing disk could be the intended one,
//! or make the choice ambiguous.

use std::path::Path;
use std::time::{Duration, Instant};

use slipway_actions::{Expected, expected_disks, list_disks};
use slipway_installer::discover;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::pid1::{DRIVERS_LOADED, UEVENTS_HANDLED};

/// Polling interval.
const POLL: Duration = Duration::from_millis(50);
/// Time limit for devices that are expected. A disk takes up to 30 s to spin up.
const DEVICE_LIMIT: Duration = Duration::from_secs(45);
/// Time limit for the complete list, whatever is expected.
const LIMIT: Duration = Duration::from_secs(60);

/// Sets `settled` when the list of disks is complete. `rare` receives the number of rare drivers that were fetched, and
/// no run begins before that number is known.
pub async fn wait(settled: watch::Sender<bool>, mut rare: watch::Receiver<Option<usize>>) {
    settle().await;
    name_unserved();
    let loaded = rare.wait_for(Option::is_some).await.map_or(None, |loaded| *loaded);
    if loaded.is_some_and(|loaded| loaded > 0) {
        settle().await;
        name_unserved();
    }
    settled.send_replace(true);
}

/// Returns when drivers are loaded, no more devices are expected, and the list has not changed for as long as the
/// machine's buses need.
async fn settle() {
    let began = Instant::now();
    let (mut known, mut since) = ((Vec::new(), Vec::new()), began);
    let mut told = Vec::new();
    // The thread that loaded the drivers also waited until these controllers had scanned their buses.
    let mut first: Option<Vec<String>> = None;
    loop {
        let expected = expected().await;
        let is_loaded = drivers_are_loaded();
        if is_loaded && first.is_none() {
            first = Some(expected.controllers.clone());
        }
        let settle = expected.settle_after(first.as_deref().unwrap_or(&expected.controllers));
        let Expected { devices, controllers, .. } = expected;
        let is_waiting = !devices.is_empty() && began.elapsed() < DEVICE_LIMIT;
        let now = (paths(), controllers);
        if now != known || is_waiting || !is_loaded {
            (known, since) = (now, Instant::now());
        }
        if since.elapsed() >= settle || began.elapsed() >= LIMIT {
            for device in devices {
                warn!("{device} did not appear in {} s; continuing without it", began.elapsed().as_secs());
            }
            return;
        }
        for device in devices.into_iter().filter(|_| Path::new(DRIVERS_LOADED).exists()) {
            if !told.contains(&device) {
                info!("waiting for {device}");
                told.push(device);
            }
        }
        sleep(POLL).await;
    }
}

/// Lists the buses and devices that may still bring disks. Runs in a separate thread, because a device may not answer.
async fn expected() -> Expected {
    let roots = discover::Roots::default();
    // The closure does not panic, so there is a result.
    tokio::task::spawn_blocking(move || expected_disks(&roots.sys, &roots.dev)).await.unwrap_or_default()
}

fn paths() -> Vec<String> {
    list_disks(&discover::Roots::default().sys).into_iter().map(|disk| disk.path).collect()
}

/// Whether PID 1 has loaded drivers for all devices that the kernel has announced.
fn drivers_are_loaded() -> bool {
    let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let last = number(&discover::Roots::default().sys.join("kernel/uevent_seqnum"));
    Path::new(DRIVERS_LOADED).exists() && number(Path::new(UEVENTS_HANDLED)) >= last
}

/// Logs network cards and storage controllers that do not work. If the only network card is among them, the console is
/// the only place where this can be seen.
fn name_unserved() {
    for device in discover::unserved(&discover::Roots::default()) {
        warn!("{device}");
    }
}
