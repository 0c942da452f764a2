//! How often what was done, and what was not done and why.

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
    /// A request that another server is to answer.
    ForAnotherServer,
    /// There is no boot file for this kind of firmware.
    NoBootFile,
    /// The answer is larger than the firmware takes.
    TooLong,
    /// A machine that nobody registered.
    Unknown,
    /// A machine that starts from its disk.
    NothingToInstall,
    /// The answer could not be sent.
    NotSent,
    /// Not a TFTP request to read a file.
    MalformedTftp,
    /// A repetition of a request that is being answered.
    Repeated,
    /// Too many transfers at a time.
    TooMany,
    /// A file that does not exist, or is not to be served.
    NoSuchFile,
    /// The client ended the transfer, as firmware does that asked for the file's size only.
    Cancelled,
    /// The client fell silent.
    Silent,
    /// The file could not be read.
    NotRead,
}

impl Dropped {
    /// In a few words.
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

/// What a proxy and its TFTP server did since they started. Displayed as one line.
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
    /// DHCP answers that were sent.
    pub fn answered(&self) -> u64 {
        self.read().answered
    }

    /// Files that were fetched by TFTP from beginning to end, and the sum of their sizes in bytes.
    pub fn fetched(&self) -> (u64, u64) {
        let counts = self.read();
        (counts.fetched, counts.bytes)
    }

    /// How often something was dropped for this reason.
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
