//! A source that can be read at offsets, from the beginning of the raw image to its end.

use std::io;
use std::ops::Range;

use super::decompress::Decompressor;
use super::header::{HEADER_LEN, Header, HeaderError};
use super::map::{Cluster, in_l2, l1_entry, l2_entry};
use super::{Block, Error, Out, first, first_mut};

/// Reads at an offset in the file until the buffer is full.
pub type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

/// Most bytes that are read together, from clusters that are adjacent in both the file and the raw image.
const MAX_RUN: u64 = 2 << 20;

/// A qcow2 image whose header and L1 table have been read and checked.
#[derive(Debug)]
pub struct Image {
    header: Header,
    /// Size of the file in bytes.
    len: u64,
    /// Offsets of the L2 tables, in the order of the raw image; 0 for none.
    l2: Vec<u64>,
    /// Header and tables, in the order of the file. No data may overlap them.
    tables: Vec<Range<u64>>,
}

/// Clusters that are adjacent in both the file and the raw image.
#[derive(Clone, Copy, Default)]
struct Run {
    host: u64,
    guest: u64,
    len: u64,
}

impl Image {
    /// Reads the header and the L1 table of a file of `len` bytes.
    pub fn open(len: u64, read_at: &mut ReadAt<'_>) -> Result<Self, Error> {
        let mut bytes = vec![0; HEADER_LEN.min(usize::try_from(len).unwrap_or(HEADER_LEN))];
        read(read_at, 0, &mut bytes)?;
        let header = Header::parse(&bytes)?;
        if header.l1.end > len {
            return Err(Error::Truncated { what: "the L1 table", end: len, needed: header.l1.end });
        }
        let mut bytes = vec![0; header.l1_entries * 8];
        read(read_at, header.l1.start, &mut bytes)?;
        let l2: Result<Vec<u64>, Error> =
            entries(&bytes).enumerate().map(|(index, entry)| l1_entry(&header, index, entry)).collect();
        let l2 = l2?;
        let mut tables = vec![0..header.cluster(), header.l1.clone(), header.refcounts.clone()];
        tables.extend(l2.iter().filter(|at| **at != 0).map(|at| *at..*at + header.cluster()));
        tables.sort_by_key(|table| table.start);
        let pairs = tables.iter().zip(tables.iter().skip(1));
        if let Some((_, overlap)) = pairs.into_iter().find(|(one, next)| next.start < one.end) {
            let reason = format!("two tables are at byte {}", overlap.start);
            return Err(HeaderError::Invalid { reason }.into());
        }
        Ok(Self { header, len, l2, tables })
    }

    /// Size of the raw image in bytes.
    pub fn size(&self) -> u64 {
        self.header.size
    }

    /// Yields the raw image in order, without gaps. Pieces of data are at most 2 MiB.
    pub fn read<E: From<Error>>(
        &self,
        read_at: &mut ReadAt<'_>,
        write: impl FnMut(u64, Block<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read_range(0..self.header.size, read_at, write)
    }

    /// Yields all clusters that have bytes of a range of the raw image, in order.
    fn read_range<E: From<Error>>(
        &self,
        range: Range<u64>,
        read_at: &mut ReadAt<'_>,
        write: impl FnMut(u64, Block<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let header = &self.header;
        let mut out = Out::new(write);
        let mut buffers = Buffers::new(header)?;
        let mut table = vec![0; header.cluster() as usize];
        for (l1_index, at) in self.l2.iter().enumerate() {
            let guest = l1_index as u64 * header.l2_span();
            if guest >= range.end || guest + header.l2_span() <= range.start {
                continue;
            }
            if *at == 0 {
                out.zero(guest, header.l2_span().min(header.size - guest))?;
                continue;
            }
            let table = first_mut(&mut table, header.l2_entries(l1_index) * 8);
            self.within_file("an L2 table", *at + table.len() as u64)?;
            read(read_at, *at, table)?;
            self.read_mapped(l1_index, table, &range, &mut buffers, read_at, &mut out)?;
        }
        out.flush()
    }

    /// Reads a range of the raw image into memory. Bytes after its end are zeros.
    pub fn bytes(&self, range: Range<u64>, read_at: &mut ReadAt<'_>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)];
        self.read_range(range.clone(), read_at, |at, block| {
            // A cluster may begin before the range, and end after it.
            let before = usize::try_from(range.start.saturating_sub(at)).unwrap_or(usize::MAX);
            let place = usize::try_from(at.saturating_sub(range.start)).unwrap_or(usize::MAX);
            if let (Block::Data(data), Some(place)) = (block, bytes.get_mut(place..)) {
                place.iter_mut().zip(data.iter().skip(before)).for_each(|(to, from)| *to = *from);
            }
            Ok::<(), Error>(())
        })?;
        Ok(bytes)
    }

    /// Yields the part of a range of the raw image that one L2 table maps.
    fn read_mapped<E: From<Error>>(
        &self,
        l1_index: usize,
        table: &[u8],
        range: &Range<u64>,
        buffers: &mut Buffers,
        read_at: &mut ReadAt<'_>,
        out: &mut Out<impl FnMut(u64, Block<'_>) -> Result<(), E>>,
    ) -> Result<(), E> {
        let header = &self.header;
        let mut run = Run::default();
        let guests = (l1_index as u64 * header.l2_span()..).step_by(header.cluster() as usize);
        for ((index, entry), guest) in entries(table).enumerate().zip(guests) {
            let len = header.len_at(guest);
            if guest >= range.end || guest + len <= range.start {
                continue;
            }
            match l2_entry(header, l1_index, index, entry)? {
                Cluster::Plain(host) => {
                    self.within_file("a cluster", host + len)?;
                    self.beside_tables(host, host + len).map_err(|reason| in_l2(l1_index, index, reason))?;
                    if run.len == 0 || run.host + run.len != host || run.len + len > MAX_RUN {
                        buffers.give(run, read_at, out)?;
                        run = Run { host, guest, len: 0 };
                    }
                    run.len += len;
                }
                Cluster::Zero => {
                    buffers.give(std::mem::take(&mut run), read_at, out)?;
                    out.zero(guest, len)?;
                }
                Cluster::Compressed(host, input_len) => {
                    buffers.give(std::mem::take(&mut run), read_at, out)?;
                    // The last sector may be cut off by the end of the file.
                    let end = self.len.min(host + input_len as u64);
                    self.within_file("a compressed cluster", host + 1)?;
                    self.beside_tables(host, end).map_err(|reason| in_l2(l1_index, index, reason))?;
                    buffers.give_compressed(host..end, guest, len, read_at, out)?;
                }
            }
        }
        buffers.give(run, read_at, out)
    }

    fn within_file(&self, what: &'static str, needed: u64) -> Result<(), Error> {
        if needed > self.len {
            return Err(Error::Truncated { what, end: self.len, needed });
        }
        Ok(())
    }

    fn beside_tables(&self, start: u64, end: u64) -> Result<(), &'static str> {
        let next = self.tables.partition_point(|table| table.end <= start);
        match self.tables.get(next).is_some_and(|table| table.start < end) {
            true => Err("points into a table"),
            false => Ok(()),
        }
    }
}

/// Buffers that are reused during a pass over the image.
struct Buffers {
    run: Vec<u8>,
    compressed: Vec<u8>,
    cluster: Vec<u8>,
    decompressor: Decompressor,
}

impl Buffers {
    fn new(header: &Header) -> Result<Self, Error> {
        let decompressor = Decompressor::new(header.compression).map_err(|source| Error::Read { offset: 0, source })?;
        Ok(Self {
            run: vec![0; MAX_RUN as usize],
            compressed: Vec::new(),
            cluster: vec![0; header.cluster() as usize],
            decompressor,
        })
    }

    fn give<E: From<Error>>(
        &mut self,
        run: Run,
        read_at: &mut ReadAt<'_>,
        out: &mut Out<impl FnMut(u64, Block<'_>) -> Result<(), E>>,
    ) -> Result<(), E> {
        let bytes = first_mut(&mut self.run, run.len as usize);
        if bytes.is_empty() {
            return Ok(());
        }
        read(read_at, run.host, bytes)?;
        out.data(run.guest, bytes)
    }

    fn give_compressed<E: From<Error>>(
        &mut self,
        host: Range<u64>,
        guest: u64,
        len: u64,
        read_at: &mut ReadAt<'_>,
        out: &mut Out<impl FnMut(u64, Block<'_>) -> Result<(), E>>,
    ) -> Result<(), E> {
        self.compressed.resize((host.end - host.start) as usize, 0);
        read(read_at, host.start, &mut self.compressed)?;
        let done = self.decompressor.run(&self.compressed, &mut self.cluster);
        done.map_err(|source| Error::Decompress { offset: host.start, guest, source })?;
        out.data(guest, first(&self.cluster, len as usize))
    }
}

/// The entries of a table.
pub(super) fn entries(table: &[u8]) -> impl Iterator<Item = u64> {
    table.as_chunks().0.iter().map(|entry| u64::from_be_bytes(*entry))
}

fn read(read_at: &mut ReadAt<'_>, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
    read_at(offset, bytes).map_err(|source| Error::Read { offset, source })
}
