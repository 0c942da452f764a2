//! Fetches pieces of the pack from the server, checks them, and decompresses them in memory.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Method, StatusCode, header};
use ring::digest::{SHA256, digest};
use slipway_protocol::node::rare_drivers::{INDEX, MAX_INDEX_BYTES, PACK, Piece, RareDrivers, RareDriversError};
use tokio::time::sleep;

use crate::config::Config;
use crate::server::backoff::Backoff;
use crate::server::client::{Ask, Client, ClientError};

/// Number of attempts for a file while the server is away or overloaded.
const TRIES: usize = 4;

/// Why a rare driver cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum RareError {
    /// The request to the server failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server's index differs from the one that the boot image was made with.
    #[error(
        "the server's {INDEX} does not match this boot image: its boot files are older or newer; make boot files again \
         and boot the machine from them"
    )]
    OtherIndex,
    /// The index is not for this kernel, or inconsistent.
    #[error("reading {INDEX} of the server")]
    Index(#[source] RareDriversError),
    /// The index is not JSON in the expected form.
    #[error("reading {INDEX} of the server")]
    Json(#[source] serde_json::Error),
    /// A piece does not match the index.
    #[error("{name} in the server's {PACK} does not match {INDEX}: {why}")]
    Piece { name: String, why: &'static str },
    /// A piece cannot be decompressed.
    #[error("decompressing {name}")]
    Unpack { name: String, source: io::Error },
    /// Loading the module takes too long.
    #[error("the module took over {} s to probe; continuing without it", patience.as_secs())]
    Hangs { patience: Duration },
    /// A local file could not be read or written, or the module in it could not be loaded.
    #[error("{doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
}

/// The pack on the server.
pub(super) struct Pack {
    client: Client,
}

impl Pack {
    pub(super) fn new(config: &Config) -> Result<Self, RareError> {
        Ok(Self { client: Client::new(config)? })
    }

    /// Fetches the index. It must have this SHA-256 and be for this kernel.
    pub(super) async fn index(&self, sha256: &str, release: &str) -> Result<RareDrivers, RareError> {
        let bytes = self.fetch(INDEX, None).await?;
        if !is(&bytes, sha256) {
            return Err(RareError::OtherIndex);
        }
        let index: RareDrivers = serde_json::from_slice(&bytes).map_err(RareError::Json)?;
        index.check(release).map_err(RareError::Index)?;
        Ok(index)
    }

    /// Fetches a file of the pack and decompresses it.
    pub(super) async fn file(&self, name: String, piece: &Piece) -> Result<Vec<u8>, RareError> {
        let packed = self.fetch(PACK, Some(piece)).await?;
        let differs = |why| RareError::Piece { name: name.clone(), why };
        if packed.len() as u64 != piece.size {
            return Err(differs("it is too short"));
        }
        if !is(&packed, &piece.sha256) {
            return Err(differs("its digest differs"));
        }
        let mut file = Vec::new();
        let decoder = zstd::stream::read::Decoder::new(&packed[..]);
        // Reads one byte more than expected, to notice a longer file.
        let read = decoder.and_then(|decoder| decoder.take(piece.unpacked + 1).read_to_end(&mut file));
        read.map_err(|source| RareError::Unpack { name: name.clone(), source })?;
        if file.len() as u64 != piece.unpacked {
            return Err(differs("its unpacked size differs"));
        }
        Ok(file)
    }

    async fn fetch(&self, name: &str, piece: Option<&Piece>) -> Result<Vec<u8>, ClientError> {
        let mut backoff = Backoff::default();
        for _ in 1..TRIES {
            match self.client.boot_file(name, piece).await {
                Err(error) if error.is_transient() => sleep(backoff.next_wait()).await,
                end => return end,
            }
        }
        self.client.boot_file(name, piece).await
    }
}

fn is(bytes: &[u8], sha256: &str) -> bool {
    base16ct::lower::encode_string(digest(&SHA256, bytes).as_ref()) == sha256
}

impl Client {
    /// Sends `GET /boot/ARCH/NAME`, and returns a boot file or a piece of it. Reads no more than the limit for an index
    /// or the size of the piece.
    async fn boot_file(&self, name: &str, piece: Option<&Piece>) -> Result<Vec<u8>, ClientError> {
        let (what, path) = ("fetching a driver", format!("boot/{}/{name}", std::env::consts::ARCH));
        let (limit, expected) = match piece {
            Some(piece) => (piece.size, StatusCode::PARTIAL_CONTENT),
            None => (MAX_INDEX_BYTES, StatusCode::OK),
        };
        let range = piece.map(|piece| format!("bytes={}-{}", piece.offset, piece.offset + piece.size - 1));
        let mut answer = self
            .send(&Ask::new(what, Method::GET, path).patient(), |request| match range {
                Some(range) => request.header(header::RANGE, range),
                None => request,
            })
            .await?;
        let (status, url) = (answer.status(), answer.url().clone());
        let wrong = |why: String| ClientError::Answer { what, url: url.to_string(), status, source: why.into() };
        if status != expected {
            return Err(wrong(format!("the status is not {expected}")));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|e| ClientError::transport(what, &url, e))? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > limit {
                return Err(wrong(format!("it is larger than {limit} bytes")));
            }
        }
        Ok(body)
    }
}
