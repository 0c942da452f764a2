//! A source that is read once, from its beginning to its end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};

use super::decompress::Decompressor;
use super::header::{HEADER_LEN, Header};
use super::image::entries;
use super::map::{Cluster, l1_entry, l2_entry};
use super::{Block, Error, Out, first, first_mut};

/// Most pending clusters: known, but not reached yet. A pass remembers those of the L2 tables that it has read so far.
const MAX_PENDING: usize = 1 << 18;
/// Size of a sector in bytes. The last sector of a compressed cluster is kept, because the next compressed cluster may
/// begin in it.
const SECTOR: usize = 512;

/// A qcow2 image whose header has been read.
#[derive(Debug)]
pub struct FileOrder<R> {
    header: Header,
    source: Source<R>,
    /// Known parts of the file that are not reached yet, the next one first.
    pending: BinaryHeap<Reverse<Pending>>,
    /// Number of clusters in `pending`.
    clusters: usize,
}

/// A part of the file, by the byte at which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    host: u64,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    L1,
    Refcounts,
    /// The L2 table for this entry of the L1 table.
    L2(u32),
    /// The cluster that begins at this byte of the raw image.
    Plain(u64),
    /// The compressed cluster with this number in the raw image, in at most `len` bytes.
    Compressed {
        cluster: u64,
        len: u32,
    },
}

impl<R: Read> FileOrder<R> {
    /// Reads the header. The input has to be at the first byte of the file.
    pub fn open(input: R) -> Result<Self, Error> {
        let mut source = Source { input, at: 0, cluster: 1, tail: Vec::new(), tail_start: 0 };
        let mut bytes = Vec::new();
        source.read_up_to(HEADER_LEN, &mut bytes)?;
        let header = Header::parse(&bytes)?;
        source.cluster = header.cluster();
        // A table or cluster in the first cluster overlaps the header, even after its last field.
        source.skip_to("the header", header.cluster())?;
        let l1 = Pending { host: header.l1.start, what: What::L1 };
        let refcounts = Pending { host: header.refcounts.start, what: What::Refcounts };
        let pending = BinaryHeap::from([Reverse(l1), Reverse(refcounts)]);
        Ok(Self { header, source, pending, clusters: 0 })
    }

    /// Size of the raw image in bytes.
    pub fn size(&self) -> u64 {
        self.header.size
    }

    /// Yields the raw image in the order of the file, and reads the file to its end. Pieces of data are at most one
    /// cluster.
    pub fn run<E: From<Error>>(mut self, write: impl FnMut(u64, Block<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut out = Out::new(write);
        let decompressor = Decompressor::new(self.header.compression);
        let mut decompressor = decompressor.map_err(|source| Error::Read { offset: 0, source })?;
        let (mut input, mut cluster) = (Vec::new(), vec![0; self.header.cluster() as usize]);
        while let Some(Reverse(Pending { host, what })) = self.pending.pop() {
            match what {
                What::Refcounts => {
                    self.source.skip_to("the refcount table", host)?;
                    self.source.skip_to("the refcount table", self.header.refcounts.end)?;
                }
                What::L1 => {
                    let mut table = vec![0; self.header.l1_entries * 8];
                    self.source.read_at("the L1 table", host, &mut table)?;
                    self.meet_l1(&table, &mut out)?;
                }
                What::L2(l1_index) => {
                    self.source.read_at("an L2 table", host, &mut cluster)?;
                    self.meet_l2(l1_index as usize, &cluster, &mut out)?;
                }
                What::Plain(guest) => {
                    self.clusters -= 1;
                    let cluster = first_mut(&mut cluster, self.header.len_at(guest) as usize);
                    self.source.read_at("a cluster", host, cluster)?;
                    out.data(guest, cluster)?;
                }
                What::Compressed { cluster: index, len } => {
                    self.clusters -= 1;
                    let guest = index * self.header.cluster();
                    self.source.read_sectors(host, len as usize, &mut input)?;
                    let done = decompressor.run(&input, &mut cluster);
                    done.map_err(|source| Error::Decompress { offset: host, guest, source })?;
                    out.data(guest, first(&cluster, self.header.len_at(guest) as usize))?;
                }
            }
        }
        out.flush()?;
        self.source.skip_rest().map_err(E::from)
    }

    fn meet_l1<E: From<Error>>(
        &mut self,
        table: &[u8],
        out: &mut Out<impl FnMut(u64, Block<'_>) -> Result<(), E>>,
    ) -> Result<(), E> {
        let span = self.header.l2_span();
        for ((index, entry), l1_index) in entries(table).enumerate().zip(0..) {
            let guest = index as u64 * span;
            match l1_entry(&self.header, index, entry)? {
                0 => out.zero(guest, span.min(self.header.size - guest))?,
                host => self.pending.push(Reverse(Pending { host, what: What::L2(l1_index) })),
            }
        }
        Ok(())
    }

    fn meet_l2<E: From<Error>>(
        &mut self,
        l1_index: usize,
        table: &[u8],
        out: &mut Out<impl FnMut(u64, Block<'_>) -> Result<(), E>>,
    ) -> Result<(), E> {
        let used = first(table, self.header.l2_entries(l1_index) * 8);
        let first = l1_index as u64 * (self.header.l2_span() >> self.header.cluster_bits);
        for ((index, entry), cluster) in entries(used).enumerate().zip(first..) {
            let guest = cluster * self.header.cluster();
            let (host, what) = match l2_entry(&self.header, l1_index, index, entry)? {
                Cluster::Zero => {
                    out.zero(guest, self.header.len_at(guest))?;
                    continue;
                }
                Cluster::Plain(host) => (host, What::Plain(guest)),
                Cluster::Compressed(host, len) => (host, What::Compressed { cluster, len: len as u32 }),
            };
            if self.clusters == MAX_PENDING {
                return Err(Error::TooManyPending { limit: MAX_PENDING }.into());
            }
            self.clusters += 1;
            self.pending.push(Reverse(Pending { host, what }));
        }
        Ok(())
    }
}

/// The part of the file that has been read.
#[derive(Debug)]
struct Source<R> {
    input: R,
    at: u64,
    /// Bytes of a cluster.
    cluster: u64,
    /// The last sector of the last compressed cluster, and the rest of the cluster of the file around that sector.
    /// Writers put more compressed clusters there, even if the L2 table for them comes later in the file.
    tail: Vec<u8>,
    tail_start: u64,
}

impl<R: Read> Source<R> {
    fn skip_to(&mut self, what: &'static str, offset: u64) -> Result<(), Error> {
        if offset < self.at {
            return Err(Error::NotInOrder { offset, at: self.at });
        }
        if self.tail_end() == self.at {
            let rest = self.at.next_multiple_of(self.cluster) - self.at;
            let mut tail = std::mem::take(&mut self.tail);
            self.read_up_to(rest.min(offset - self.at) as usize, &mut tail)?;
            self.tail = tail;
        }
        let skipped = io::copy(&mut (&mut self.input).take(offset - self.at), &mut io::sink());
        self.at += skipped.map_err(|source| Error::Read { offset: self.at, source })?;
        match self.at == offset {
            true => Ok(()),
            false => Err(Error::Truncated { what, end: self.at, needed: offset }),
        }
    }

    fn tail_end(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    fn read_at(&mut self, what: &'static str, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.skip_to(what, offset)?;
        let needed = offset + bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.input.read(rest) {
                Ok(0) => return Err(Error::Truncated { what, end: self.at, needed }),
                Ok(n) => {
                    self.at += n as u64;
                    rest = rest.split_at_mut(n.min(rest.len())).1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { offset: self.at, source }),
            }
        }
        Ok(())
    }

    /// Reads the sectors of a compressed cluster. The first ones may already have been read with the previous cluster.
    /// The last one may be cut off by the end of the file.
    fn read_sectors(&mut self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.clear();
        if offset >= self.at {
            self.skip_to("a compressed cluster", offset)?;
        } else {
            let start = offset.checked_sub(self.tail_start).filter(|_| offset < self.tail_end());
            let start = start.ok_or(Error::NotInOrder { offset, at: self.at })?;
            bytes.extend(self.tail.iter().skip(start as usize).take(len));
            if bytes.len() == len {
                return Ok(());
            }
            self.skip_to("a compressed cluster", self.tail_end())?;
        }
        self.read_up_to(len - bytes.len(), bytes)?;
        self.tail.clear();
        self.tail.extend(bytes.iter().skip(bytes.len().saturating_sub(SECTOR)));
        self.tail_start = self.at - self.tail.len() as u64;
        Ok(())
    }

    fn read_up_to(&mut self, len: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let read = (&mut self.input).take(len as u64).read_to_end(bytes);
        self.at += read.map_err(|source| Error::Read { offset: self.at, source })? as u64;
        Ok(())
    }

    fn skip_rest(&mut self) -> Result<(), Error> {
        let rest = io::copy(&mut self.input, &mut io::sink());
        self.at += rest.map_err(|source| Error::Read { offset: self.at, source })?;
        Ok(())
    }
}
