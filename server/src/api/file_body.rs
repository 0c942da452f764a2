//! A part of a file as an answer's body. All downloads share a memory budget: the more downloads, the less each reads
//! ahead of its client. Therefore even a crowd of clients that do not read costs little memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::base::limits::{DOWNLOAD_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, READS_AT_ONCE};

/// Number of downloads in progress in this process.
static DOWNLOADS: AtomicUsize = AtomicUsize::new(0);
static READS: Semaphore = Semaphore::const_new(READS_AT_ONCE);

/// Function that is called when the last byte is on its way.
pub type OnLastByte = Box<dyn FnOnce() + Send>;

/// The bytes of a file that are still to be sent.
pub struct FileBody {
    on_last_byte: Option<OnLastByte>,
    file: Arc<File>,
    left: Range<u64>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileBody {
    /// Makes a body of this range of bytes in the file.
    pub fn new(file: File, bytes: Range<u64>, on_last_byte: Option<OnLastByte>) -> Self {
        DOWNLOADS.fetch_add(1, Ordering::Relaxed);
        Self { on_last_byte, file: Arc::new(file), left: bytes, reading: None }
    }
}

impl Drop for FileBody {
    fn drop(&mut self) {
        DOWNLOADS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = &mut *self;
        if body.left.is_empty() {
            return Poll::Ready(None);
        }
        let reading = body.reading.get_or_insert_with(|| {
            let (file, start) = (Arc::clone(&body.file), body.left.start);
            let length = body.left.end - start;
            let length = chunk(DOWNLOADS.load(Ordering::Relaxed)).min(usize::try_from(length).unwrap_or(usize::MAX));
            tokio::spawn(async move {
                // The semaphore is never closed.
                let _turn = READS.acquire().await;
                let read = spawn_blocking(move || {
                    let mut bytes = vec![0; length];
                    file.read_exact_at(&mut bytes, start).map(|()| Bytes::from(bytes))
                });
                read.await.map_err(io::Error::other).flatten()
            })
        });
        let read = ready!(Pin::new(reading).poll(context));
        body.reading = None;
        let bytes = read.map_err(io::Error::other).flatten()?;
        body.left.start += bytes.len() as u64;
        if let Some(done) = body.on_last_byte.take_if(|_| body.left.is_empty()) {
            done();
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.end.saturating_sub(self.left.start))
    }
}

/// Number of bytes that each of `downloads` downloads reads at once.
fn chunk(downloads: usize) -> usize {
    (DOWNLOAD_BYTES / downloads.max(1)).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_downloads_take_no_more_memory() {
        for downloads in 0..2000 {
            let bytes = downloads * chunk(downloads);
            assert!(bytes <= DOWNLOAD_BYTES || chunk(downloads) == MIN_CHUNK_BYTES, "{downloads}");
        }
        assert_eq!((chunk(1), chunk(200)), (MAX_CHUNK_BYTES, 41_943));
    }
}
