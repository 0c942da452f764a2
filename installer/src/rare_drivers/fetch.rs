//! Pieces of the pack, from the server to checked bytes in memory.

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

/// How often a file is asked for while the server is away or overloaded.
const TRIES: usize = 4;

/// Why a driver is not there.
#[derive(Debug, thiserror::Error)]
pub enum RareError {
    /// The server did not give it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server has another index than the boot image was made with.
    #[error(
        "the server's {INDEX} is not that of this boot image: its boot files are older or newer; make boot files and start the \
         machine with them again"
    )]
    OtherIndex,
    /// The index does not fit.
    #[error("reading {INDEX} of the server")]
    Index(#[source] RareDriversError),
    /// The index is no JSON of this form.
    #[error("reading {INDEX} of the server")]
    Json(#[source] serde_json::Error),
    /// A piece is not what the index says.
    #[error("{name} of the server's {PACK} is not what {INDEX} says: {why}")]
    Piece {
        /// The module or firmware file.
        name: String,
        /// What differs.
        why: &'static str,
    },
    /// A piece cannot be decompressed.
    #[error("decompressing {name}")]
    Unpack {
        /// The module or firmware file.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel does not come back from loading it.
    #[error("it looks for its devices for longer than {} s; the machine goes on without it", patience.as_secs())]
    Hangs {
        /// How long it was waited for.
        patience: Duration,
    },
    /// A file of the machine cannot be read or written, or a module in it cannot be loaded.
    #[error("{doing} {}", path.display())]
    File {
        /// What was done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The pack on the server.
pub(super) struct Pack {
    client: Client,
}

impl Pack {
    pub(super) fn new(config: &Config) -> Result<Self, RareError> {
        Ok(Self { client: Client::new(config)? })
    }

    /// The index with this SHA-256, for this kernel.
    pub(super) async fn index(&self, sha256: &str, release: &str) -> Result<RareDrivers, RareError> {
        let bytes = self.fetch(INDEX, None).await?;
        if !is(&bytes, sha256) {
            return Err(RareError::OtherIndex);
        }
        let index: RareDrivers = serde_json::from_slice(&bytes).map_err(RareError::Json)?;
        index.check(release).map_err(RareError::Index)?;
        Ok(index)
    }

    /// A file of the pack, decompressed.
    pub(super) async fn file(&self, name: String, piece: &Piece) -> Result<Vec<u8>, RareError> {
        let packed = self.fetch(PACK, Some(piece)).await?;
        let differs = |why| RareError::Piece { name: name.clone(), why };
        if packed.len() as u64 != piece.size {
            return Err(differs("it is shorter"));
        }
        if !is(&packed, &piece.sha256) {
            return Err(differs("its digest is another"));
        }
        let mut file = Vec::new();
        let decoder = zstd::stream::read::Decoder::new(&packed[..]);
        // One byte more, to notice what is longer.
        let read = decoder.and_then(|decoder| decoder.take(piece.unpacked + 1).read_to_end(&mut file));
        read.map_err(|source| RareError::Unpack { name: name.clone(), source })?;
        if file.len() as u64 != piece.unpacked {
            return Err(differs("it has another size when unpacked"));
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
    /// `GET /boot/ARCH/NAME`: a boot file, or a piece of it. No more is read than an index or the piece may have.
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
            return Err(wrong("it is not the part of the file that was asked for".to_owned()));
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
