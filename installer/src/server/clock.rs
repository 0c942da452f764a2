//! Sets the clock, because certificates are checked against it: to the build time at least, then to the time of the
//! verified server.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_settime};
use slipway_protocol::Failure;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::server::backoff::Backoff;
use crate::server::client::ClientError;
use crate::server::tls;
use crate::server::told::Told;

/// Difference to the server's time up to which the clock is not changed.
const CLOSE_ENOUGH: Duration = Duration::from_secs(2);

/// Time limit for the server's answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Name of the file in [`crate::Options::state`] with the latest accepted time of the server, for the next installer.
pub const SEEN: &str = "clock";

/// Returns when this program was built, in seconds since 1970: `SOURCE_DATE_EPOCH` of the build, else 2026-01-01.
pub fn build_time() -> i64 {
    option_env!("SOURCE_DATE_EPOCH").and_then(|text| text.parse().ok()).unwrap_or(1_767_225_600)
}

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Sets the clock once the server tells the time. This first contact shows whether the server can be trusted.
pub(crate) async fn set(config: &Config, seen: &Path) -> Result<(), ClientError> {
    let mut backoff = Backoff::default();
    let mut told = Told::default();
    loop {
        match set_from_server(config, seen).await {
            Ok(_) => return Ok(()),
            Err(failure) if failure.is_transient() => {
                let sentence = Failure::of(&failure).in_one_line();
                if told.is_due(&sentence, Instant::now()) {
                    error!("{sentence}");
                }
                sleep(backoff.next_wait()).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// What was done with the server's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The clock was set to the server's time, or setting it failed.
    Set,
    /// The clock was already right.
    Right,
    /// The time is earlier than the build or a time accepted earlier in this boot. The clock was not changed.
    Refused,
    /// The server sent no time.
    Missing,
}

/// Reads the time from the server's `Date` header and sets the clock. The clock is never set before the build time, nor
/// before a time accepted earlier in this boot, which the file `seen` keeps: certificates that have expired since then
/// stay expired.
pub async fn set_from_server(config: &Config, seen: &Path) -> Result<Verdict, ClientError> {
    let url = crate::server::client::join(&config.server, "v1/time");
    let what = "asking for the time";
    let http = crate::server::client::http(tls::client_for_clock(&config.ca)?, config, what, &url)?;
    let answer = http
        .get(url.clone())
        .timeout(PATIENCE)
        .send()
        .await
        .map_err(|source| ClientError::transport(what, &url, source))?;
    let date = answer.headers().get(reqwest::header::DATE).and_then(|value| value.to_str().ok());
    let Some(time) = date.and_then(|text| httpdate::parse_http_date(text).ok()) else {
        warn!("{url} sent no valid Date header; the clock was not changed");
        return Ok(Verdict::Missing);
    };
    let seconds = time.duration_since(UNIX_EPOCH).map(|d| d.as_secs()).unwrap_or_default();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let earliest = latest_seen(seen).max(build_time());
    if seconds < earliest {
        warn!(
            "the server's time is {} s before {}; the clock was not changed",
            earliest - seconds,
            if earliest == build_time() { "the build of this program" } else { "a time that it sent earlier" }
        );
        return Ok(Verdict::Refused);
    }
    // Kept even if the clock is already right, so that a later server time cannot go back behind this one.
    if let Err(error) = crate::files::write_whole(seen, seconds.to_string().as_bytes()) {
        warn!("keeping the server's time in {}: {error}", seen.display());
    }
    let ours = SystemTime::now();
    let off = time.duration_since(ours).or_else(|_| ours.duration_since(time)).unwrap_or_default();
    if off < CLOSE_ENOUGH {
        return Ok(Verdict::Right);
    }
    match clock_settime(ClockId::Realtime, Timespec { tv_sec: seconds, tv_nsec: 0 }) {
        Ok(()) => info!("the clock was {} s off; it is now set to the server's time", off.as_secs()),
        Err(error) => warn!("setting the clock, which is {} s off: {error}", off.as_secs()),
    }
    Ok(Verdict::Set)
}

/// Returns the latest time accepted in this boot, in seconds since 1970; 0 if there is none.
fn latest_seen(file: &Path) -> i64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
