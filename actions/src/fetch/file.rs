//! Local sources: files, and what can be read only once, such as a pipe at standard input.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::error::FetchError;
use crate::machine::{Cancel, Response};

/// The path of standard input.
pub(crate) const STDIN: &str = "/dev/stdin";
/// Interval in nanoseconds at which a waiting read checks whether it should stop.
const STOP_CHECK: i64 = 100_000_000;

/// The pipes and sockets that were opened, by device and inode. Opened again, they would begin in the middle.
#[derive(Debug, Default)]
pub(crate) struct OpenedOnce(Mutex<BTreeSet<(u64, u64)>>);

impl OpenedOnce {
    /// Records that a file is opened. Returns whether this is the first time.
    fn is_first(&self, id: (u64, u64)) -> bool {
        self.0.lock().is_ok_and(|mut opened| opened.insert(id))
    }
}

/// Opens a file at an offset. A pipe is opened once, at its start.
pub(super) fn open(path: &str, offset: u64, opened: &OpenedOnce, stop: &Cancel) -> Result<Response, FetchError> {
    let failed = |source| FetchError::OpenFile { source };
    let mut file = if path == STDIN { stdin() } else { at(path) }.map_err(failed)?;
    let known = file.metadata().map_err(failed)?;
    if !known.file_type().is_fifo() && !known.file_type().is_socket() {
        let total = file.seek(SeekFrom::End(0)).map_err(failed)?;
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        return Ok(response(Some(total), Box::new(file)));
    }
    if offset != 0 || !opened.is_first((known.dev(), known.ino())) {
        return Err(FetchError::ReadOnce);
    }
    Ok(response(None, Box::new(Pipe { file, stop: stop.clone() })))
}

fn response(total: Option<u64>, body: Box<dyn Read + Send>) -> Response {
    Response { total, etag: None, is_delimited: true, coding: None, content_digest: None, body }
}

/// Opens a path. Opening a pipe does not wait for a writer. Reading from it waits instead, and can be stopped.
fn at(path: &str) -> io::Result<File> {
    let flags = if fs::metadata(path)?.file_type().is_fifo() { OFlags::NONBLOCK } else { OFlags::empty() };
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Opens standard input. A file is opened again, so that each reader has its own position. A socket, such as that of a
/// remote shell, cannot be opened by its path.
fn stdin() -> io::Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(io::Error::other("it is a terminal; redirect a file to it, or pipe the output of a program to it"));
    }
    let given = File::from(stdin.as_fd().try_clone_to_owned()?);
    let kind = given.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() { Ok(given) } else { File::open(STDIN) }
}

/// A pipe or socket. It can be read only once, and a read may have to wait for the writer.
struct Pipe {
    file: File,
    stop: Cancel,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let pause = Timespec { tv_sec: 0, tv_nsec: STOP_CHECK };
        loop {
            if self.stop.is_set() {
                return Err(io::Error::other(FetchError::Stopped));
            }
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&pause)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => match self.file.read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                },
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_read_once_and_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let path = path.to_str().unwrap();
        let (opened, stop) = (OpenedOnce::default(), Cancel::new());
        assert!(matches!(open(path, 1, &opened, &stop), Err(FetchError::ReadOnce)));
        // Nobody has opened it to write yet.
        let mut first = open(path, 0, &opened, &stop).unwrap();
        assert_eq!(first.total, None);
        let stopped = Cancel::new();
        stopped.set();
        let nobody = open(path, 0, &OpenedOnce::default(), &stopped).unwrap().body.read(&mut [0; 3]);
        nobody.expect_err("nobody writes, and it was asked to stop");
        std::io::Write::write_all(&mut File::options().write(true).open(path).unwrap(), b"abc").unwrap();
        let mut bytes = [0; 3];
        first.body.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"abc");
        assert!(matches!(open(path, 0, &opened, &stop), Err(FetchError::ReadOnce)));
        let _writer = File::options().write(true).open(path).unwrap();
        stop.set();
        first.body.read(&mut bytes).expect_err("nobody writes, and it was asked to stop");
    }
}
