//! Rate limits for nodes, runs, tokens and strangers' addresses. Each server process counts by itself, starting at
//! zero: a count in the database would need the write lock for each refused request.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::base::limits::Pace;

const WINDOW: Duration = Duration::from_secs(60);
/// When this many callers are known, those without requests in the last minute are forgotten.
const CROWD: usize = 1024;

/// A limit on requests of one kind: a maximum for each caller per minute. The number of callers is bounded, because the
/// server knows them all.
#[derive(Debug)]
pub struct Rate {
    what: &'static str,
    most: usize,
    clock: fn() -> Instant,
    taken: Mutex<HashMap<String, VecDeque<Instant>>>,
}

impl Rate {
    /// Allows each caller `most` requests in a minute of this clock. `what` describes the requests in errors.
    pub fn new(what: &'static str, most: usize, clock: fn() -> Instant) -> Self {
        Self { what, most, clock, taken: Mutex::default() }
    }

    /// Counts a caller's request, or refuses it.
    pub fn take(&self, caller: &str) -> Result<(), Error> {
        self.take_at(caller, (self.clock)())
    }

    fn take_at(&self, caller: &str, now: Instant) -> Result<(), Error> {
        let is_past = |at: &Instant| now.saturating_duration_since(*at) >= WINDOW;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.len() >= CROWD {
            taken.retain(|_, times| times.back().is_some_and(|at| !is_past(at)));
        }
        let times = taken.entry(caller.to_owned()).or_default();
        while times.front().is_some_and(is_past) {
            times.pop_front();
        }
        match times.front() {
            Some(first) if times.len() >= self.most => {
                let wait = WINDOW.saturating_sub(now.saturating_duration_since(*first));
                // Rounded up, so that a caller that waits for this time is not refused again.
                Err(Error::TooOften { what: self.what, most: self.most, retry_after: wait.as_secs() + 1 })
            }
            _ => {
                times.push_back(now);
                Ok(())
            }
        }
    }
}

/// Maximum number of addresses that are counted separately, to limit the memory used.
const ADDRESSES: usize = 4096;

/// The unit that addresses are counted by: an IPv4 address, or an IPv6 /64 network, which a single machine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin(IpAddr);

impl Origin {
    /// The unit that this address belongs to.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = if self.0.is_ipv6() { "/64" } else { "" };
        write!(f, "{}{network}", self.0)
    }
}

/// A rate limit for each address, as token buckets: a bucket holds a burst of requests and is refilled at the rate.
#[derive(Debug)]
pub struct Buckets {
    what: &'static str,
    pace: Pace,
    clock: fn() -> Instant,
    buckets: Mutex<HashMap<Origin, Bucket>>,
}

/// How many requests were taken and not refilled yet, and when that number was computed.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    taken: f64,
    at: Instant,
}

impl Buckets {
    /// Starts with full buckets. `what` describes the requests in errors.
    pub fn new(what: &'static str, pace: Pace, clock: fn() -> Instant) -> Self {
        Self { what, pace, clock, buckets: Mutex::default() }
    }

    /// Counts a request from this address, or refuses it.
    pub fn take(&self, from: IpAddr) -> Result<(), Error> {
        self.take_at(Origin::of(from), (self.clock)())
    }

    fn take_at(&self, from: Origin, now: Instant) -> Result<(), Error> {
        let (rate, burst) = (f64::from(self.pace.per_second), f64::from(self.pace.burst));
        let left = |bucket: &Bucket| {
            let back = now.saturating_duration_since(bucket.at).as_secs_f64() * rate;
            (bucket.taken - back).max(0.0)
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= ADDRESSES && !buckets.contains_key(&from) {
            buckets.retain(|_, bucket| left(bucket) > 0.0);
            // Forgets the address that took least, because it gains least from a full bucket.
            while buckets.len() >= ADDRESSES {
                let least = buckets.iter().min_by(|a, b| left(a.1).total_cmp(&left(b.1))).map(|(from, _)| *from);
                least.map(|from| buckets.remove(&from));
            }
        }
        let bucket = buckets.entry(from).or_insert(Bucket { taken: 0.0, at: now });
        let taken = left(bucket);
        if taken + 1.0 > burst {
            let wait = ((taken + 1.0 - burst) / rate).ceil().max(1.0);
            return Err(Error::TooFast { what: self.what, most: self.pace.per_second, retry_after: wait as u64 });
        }
        *bucket = Bucket { taken: taken + 1.0, at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_so_many_in_any_minute() {
        let (rate, start) = (Rate::new("reports", 2, Instant::now), Instant::now());
        let take = |node: &str, second: u64| match rate.take_at(node, start + Duration::from_secs(second)) {
            Ok(()) => None,
            Err(Error::TooOften { retry_after, .. }) => Some(retry_after),
            Err(other) => panic!("{other}"),
        };
        let table = [
            ("a", 0, None),
            ("a", 40, None),
            ("a", 59, Some(2)),
            ("b", 59, None),
            ("a", 60, None),
            ("a", 61, Some(40)),
            ("a", 100, None),
            ("a", 500, None),
        ];
        for (node, second, expect) in table {
            assert_eq!(take(node, second), expect, "{node} at {second}");
        }
    }

    #[test]
    fn quiet_nodes_are_forgotten() {
        let (rate, start) = (Rate::new("reports", 2, Instant::now), Instant::now());
        let crowd = |second: u64| {
            for node in 0..CROWD {
                rate.take_at(&format!("{second}-{node}"), start + Duration::from_secs(second)).expect("the first");
            }
            rate.taken.lock().expect("not poisoned").len()
        };
        assert_eq!(crowd(0), CROWD);
        assert_eq!(crowd(60), CROWD);
    }

    #[test]
    fn an_address_has_a_burst_and_then_a_pace() {
        let pace = Pace { per_second: 2, burst: 3 };
        let (buckets, start) = (Buckets::new("requests", pace, Instant::now), Instant::now());
        let take = |address: &str, ms: u64| {
            let from = Origin::of(address.parse().expect("an address"));
            match buckets.take_at(from, start + Duration::from_millis(ms)) {
                Ok(()) => None,
                Err(Error::TooFast { retry_after, .. }) => Some(retry_after),
                Err(other) => panic!("{other}"),
            }
        };
        let table = [
            ("192.0.2.1", 0, None),
            ("192.0.2.1", 0, None),
            ("::ffff:192.0.2.1", 0, None),
            ("192.0.2.1", 0, Some(1)),
            ("192.0.2.2", 0, None),
            ("192.0.2.1", 500, None),
            ("192.0.2.1", 500, Some(1)),
            ("2001:db8::1", 500, None),
            ("2001:db8::2", 500, None),
            ("2001:db8::3:4:5:6", 500, None),
            ("2001:db8::ffff:0:0:7", 500, Some(1)),
            ("2001:db8:0:1::1", 500, None),
        ];
        for (row, (address, ms, expect)) in table.into_iter().enumerate() {
            assert_eq!(take(address, ms), expect, "row {row}: {address} at {ms}");
        }
    }

    #[test]
    fn many_addresses_need_no_more_memory() {
        let pace = Pace { per_second: 1, burst: 2 };
        let (buckets, start) = (Buckets::new("requests", pace, Instant::now), Instant::now());
        let noisy = Origin::of([192, 0, 2, 1].into());
        for _ in 0..2 {
            buckets.take_at(noisy, start).expect("the burst");
        }
        for address in 0..2 * ADDRESSES as u32 {
            buckets.take_at(Origin::of(IpAddr::V4(address.into())), start).expect("the first");
        }
        assert_eq!(buckets.buckets.lock().expect("not poisoned").len(), ADDRESSES);
        buckets.take_at(noisy, start).expect_err("whoever took most is remembered");
    }
}
