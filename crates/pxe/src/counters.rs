//! Counters of a proxy and its TFTP server: answers, fetched files, and dropped packets by reason.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;

/// Why a packet was not answered, or a transfer not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// Not a DHCP request over Ethernet.
    MalformedDhcp,
    /// A request for an address only.
    NotBooting,
    /// A message of a type that a proxy does not answer on this port.
    OtherMessage,
    /// A request addressed to another server.
    ForAnotherServer,
    /// There is no boot file for this kind of firmware.
    NoBootFile,
    /// The answer is larger than the maximum size that the firmware announced.
    TooLong,
    /// The proxy answers registered machines only, and this one is not registered.
    Unknown,
    /// The machine has nothing to install and boots from its disk.
    NothingToInstall,
    /// The answer could not be sent.
    NotSent,
    /// Not a TFTP request to read a file.
    MalformedTftp,
    /// A repeated request while the first one is still being answered.
    Repeated,
    /// Too many transfers at once.
    TooMany,
    /// A file that does not exist or is not served.
    NoSuchFile,
    /// The client ended the transfer. Firmware does so when it asked only for the file's size.
    Cancelled,
    /// The client stopped responding.
    Silent,
    /// The file could not be read.
    NotRead,
}

impl Dropped {
    /// Returns a short text for the log line, such as "unknown machine".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MalformedDhcp => "malformed DHCP",
            Self::NotBooting => "not from boot firmware",
            Self::OtherMessage => "other DHCP messages",
            Self::ForAnotherServer => "for another server",
            Self::NoBootFile => "no boot file for the firmware",
            Self::TooLong => "answer too long",
            Self::Unknown => "unknown machine",
            Self::NothingToInstall => "nothing to install",
            Self::NotSent => "could not be sent",
            Self::MalformedTftp => "malformed TFTP",
            Self::Repeated => "repeated TFTP request",
            Self::TooMany => "too many transfers",
            Self::NoSuchFile => "no such file",
            Self::Cancelled => "transfer ended by the client",
            Self::Silent => "client fell silent",
            Self::NotRead => "file could not be read",
        }
    }
}

/// What a proxy and its TFTP server did since they started. `Display` prints one line.
#[derive(Debug, Default)]
pub struct Counters {
    counts: Mutex<Counts>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    answered: u64,
    fetched: u64,
    bytes: u64,
    dropped: BTreeMap<Dropped, u64>,
}

impl Counters {
    /// Number of DHCP answers sent.
    pub fn answered(&self) -> u64 {
        self.read().answered
    }

    /// Number of files fetched completely by TFTP, and the sum of their sizes in bytes.
    pub fn fetched(&self) -> (u64, u64) {
        let counts = self.read();
        (counts.fetched, counts.bytes)
    }

    /// Number of packets or transfers dropped for this reason.
    pub fn dropped(&self, why: Dropped) -> u64 {
        self.read().dropped.get(&why).copied().unwrap_or(0)
    }

    pub(crate) fn count_answer(&self) {
        self.change(|counts| counts.answered += 1);
    }

    pub(crate) fn count_fetch(&self, bytes: u64) {
        self.change(|counts| {
            counts.fetched += 1;
            counts.bytes = counts.bytes.saturating_add(bytes);
        });
    }

    pub(crate) fn count_drop(&self, why: Dropped) {
        self.change(|counts| *counts.dropped.entry(why).or_default() += 1);
    }

    fn read(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { answered, fetched, bytes, dropped } = self.read();
        write!(f, "{answered} DHCP answers, {fetched} files with {bytes} bytes by TFTP")?;
        for (index, (why, count)) in dropped.iter().enumerate() {
            write!(f, "{} {count} {}", if index == 0 { "; dropped:" } else { "," }, why.as_str())?;
        }
        Ok(())
    }
}
