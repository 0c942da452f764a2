//! One transfer. Blocks are sent in windows; each window is acknowledged before the next one, and repeated if no
//! acknowledgement comes.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::packet::{self, Options, Packet, Refusal};
use crate::counters::Dropped;

/// Number of times that a packet is sent before the client is given up.
const TRIES: u32 = 6;
/// Maximum duration of a transfer: enough for 20 MB in blocks of 512 bytes over a link with 80 ms latency.
const LONGEST: Duration = Duration::from_secs(3600);
/// Largest packet in bytes that a client sends during a transfer: an acknowledgement, or an error with a text.
const LARGEST_PACKET: usize = 512;

/// Why a transfer ended early.
pub(super) enum Stopped {
    /// The client ended the transfer.
    Cancelled,
    /// The client stopped responding.
    Silent,
    /// The file changed or cannot be read.
    NotRead,
}

impl From<Stopped> for Dropped {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Cancelled => Self::Cancelled,
            Stopped::Silent => Self::Silent,
            Stopped::NotRead => Self::NotRead,
        }
    }
}

/// Sends a file over a socket that is connected to the client. Returns the file's size in bytes. Sets `has_begun` on
/// the client's first acknowledgement.
pub(super) fn send(socket: &UdpSocket, file: &File, options: &Options, has_begun: &AtomicBool) -> Result<u64, Stopped> {
    let size = file.metadata().map_err(|_| Stopped::NotRead)?.len();
    let timeout = Duration::from_secs(options.timeout().into());
    socket.set_read_timeout(Some(timeout)).map_err(|_| Stopped::NotRead)?;
    let mut transfer = Transfer { socket, file, size, options, timeout, packet: Vec::new(), has_begun };
    transfer.run().map(|()| size)
}

struct Transfer<'a> {
    socket: &'a UdpSocket,
    file: &'a File,
    size: u64,
    options: &'a Options,
    timeout: Duration,
    /// Buffer for the packet being sent.
    packet: Vec<u8>,
    has_begun: &'a AtomicBool,
}

impl Transfer<'_> {
    fn run(&mut self) -> Result<(), Stopped> {
        let end = Instant::now() + LONGEST;
        if let Some(acknowledgement) = self.options.acknowledgement(self.size) {
            self.exchange(0, |transfer| transfer.put(&acknowledgement), |block| (block == 0).then_some(0))?;
        }
        // The client recognises the last block because it is shorter than the others. It is empty if the size is a
        // multiple of the block size.
        let blocks = self.size / u64::from(self.options.block_size()) + 1;
        let mut done = 0;
        while done < blocks {
            if Instant::now() > end {
                return Err(Stopped::Silent);
            }
            let until = blocks.min(done + u64::from(self.options.window()));
            let send = |transfer: &mut Self| (done + 1..=until).try_for_each(|block| transfer.put_block(block));
            // A window is smaller than the range of block numbers, so a number is unambiguous. A repeated
            // acknowledgement of the previous window is ignored: answering it would send every later packet twice (RFC
            // 1123, 4.2.3.1).
            let progress = |number: u16| {
                let ahead = u64::from(number.wrapping_sub(low_bits(done)));
                (1..=until - done).contains(&ahead).then_some(ahead)
            };
            done += self.exchange(until - done, send, progress)?;
        }
        Ok(())
    }

    /// Sends, then waits for an acknowledgement that `judge` accepts. Repeats both after a time-out, or once if the
    /// client reports that the first block of the window is missing.
    fn exchange(
        &mut self,
        window: u64,
        send: impl Fn(&mut Self) -> Result<(), Stopped>,
        judge: impl Fn(u16) -> Option<u64>,
    ) -> Result<u64, Stopped> {
        let mut may_hurry = window > 1;
        for _ in 0..TRIES {
            send(self)?;
            let deadline = Instant::now() + self.timeout;
            loop {
                let mut buffer = [0; LARGEST_PACKET];
                match self.socket.recv(&mut buffer) {
                    Ok(received) => match packet::parse(buffer.get(..received).unwrap_or_default()) {
                        Some(Packet::Acknowledge(number)) => {
                            if let Some(progress) = judge(number) {
                                self.has_begun.store(true, Ordering::Relaxed);
                                return Ok(progress);
                            }
                            if std::mem::take(&mut may_hurry) {
                                break;
                            }
                        }
                        Some(Packet::Error) => return Err(Stopped::Cancelled),
                        Some(Packet::Read(_)) | None => {}
                    },
                    Err(error) if is_timeout(&error) => break,
                    // The client has closed its port.
                    Err(_) => return Err(Stopped::Cancelled),
                }
                if Instant::now() > deadline {
                    break;
                }
            }
        }
        Err(Stopped::Silent)
    }

    fn put_block(&mut self, block: u64) -> Result<(), Stopped> {
        let block_size = u64::from(self.options.block_size());
        let start = (block - 1) * block_size;
        let length = block_size.min(self.size - start);
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        packet.extend(packet::data_header(low_bits(block)));
        let header = packet.len();
        // At most one block.
        packet.resize(header + usize::try_from(length).map_err(|_| Stopped::NotRead)?, 0);
        let read = packet.get_mut(header..).map(|content| self.file.read_exact_at(content, start));
        if !matches!(read, Some(Ok(()))) {
            self.put(&packet::error(Refusal::NotRead))?;
            return Err(Stopped::NotRead);
        }
        let sent = self.put(&packet);
        self.packet = packet;
        sent
    }

    /// Sends a packet. If the kernel has no buffer space, the packet counts as lost.
    fn put(&self, packet: &[u8]) -> Result<(), Stopped> {
        match self.socket.send(packet) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Stopped::Cancelled),
            _ => Ok(()),
        }
    }
}

/// The block number in packets: the low 16 bits.
fn low_bits(block: u64) -> u16 {
    let [low, high, ..] = block.to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
