//! A bucket of S3-compatible storage.

use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Method;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, Error as StoreError, GetOptions, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
};
use sha2::{Digest as _, Sha256};
use slipway_protocol::{Algorithm, Digest, ErrorCode};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Stamp;
use super::fault::explain;
use super::settings::{Address, Defaults, Keys};
use crate::base::error::{Error, ObjectsFault};

/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the object store may send nothing, or take to receive a part.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an object store may take to answer that it is there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Further attempts of a request, and how long they may take together. Callers try again themselves.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Size of a part of an upload, in bytes. S3 accepts at least 5 MiB.
const PART_BYTES: u64 = 8 << 20;
/// Maximum number of parts of an upload (S3's user guide, "multipart upload limits").
const MAX_PARTS: u64 = 10_000;

/// What the objects of one kind are called: in their names, and in errors.
#[derive(Debug)]
struct Kind {
    folder: &'static str,
    one: &'static str,
    looking: &'static str,
    reading: &'static str,
    storing: &'static str,
    removing: &'static str,
}

const IMAGES: Kind = Kind {
    folder: "images",
    one: "an image",
    looking: "looking for an image in",
    reading: "reading an image from",
    storing: "storing an image in",
    removing: "removing an image from",
};
const BOOT_FILES: Kind = Kind {
    folder: "boot",
    one: "a boot file",
    looking: "looking for a boot file in",
    reading: "reading a boot file from",
    storing: "storing a boot file in",
    removing: "removing a boot file from",
};

/// The content of an object, as it arrives.
pub type Content = BoxStream<'static, io::Result<Bytes>>;

/// A bucket, and the key to it. Its objects are images, or boot files after [`Bucket::boot_files`].
#[derive(Clone)]
pub struct Bucket {
    s3: Arc<AmazonS3>,
    kind: &'static Kind,
    prefix: Path,
    name: String,
    has_tls: bool,
}

impl Debug for Bucket {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.name)
    }
}

impl Bucket {
    /// Takes a bucket by its URL, `s3://BUCKET[/PREFIX][?endpoint=https://HOST&region=REGION&ca=FILE]`. Sends nothing.
    pub fn open(url: &str, defaults: Defaults, keys: Keys) -> Result<Self, Error> {
        let address = Address::parse(url, defaults)?;
        // The HTTP client takes the provider of the process. Another one may be set already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = ClientOptions::new()
            .with_http1_only()
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(STALL_TIMEOUT)
            // Other endpoints than those of this host were refused.
            .with_allow_http(address.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://")));
        if let Some(file) = &address.ca {
            let failed = |source| Error::File { doing: "reading the certificates in", path: file.clone(), source };
            let pem = std::fs::read(file).map_err(failed)?;
            let certificates = Certificate::from_pem_bundle(&pem).ok().filter(|found| !found.is_empty());
            let none = || {
                let message = format!("{file:?}, which the URL of the bucket names as `ca`, has no certificate in PEM");
                Error::refused(ErrorCode::InvalidRequest, message)
            };
            client = client.with_no_system_certificates(true);
            for certificate in certificates.ok_or_else(none)? {
                client = client.with_root_certificate(certificate);
            }
        }
        let backoff = BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&address.bucket)
            .with_region(&address.region)
            .with_access_key_id(keys.id)
            .with_secret_access_key(keys.secret)
            .with_client_options(client)
            // Not all storages can remove several at once.
            .with_disable_bulk_delete(true)
            .with_retry(RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT });
        if let Some(endpoint) = &address.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(session) = keys.session {
            builder = builder.with_token(session);
        }
        let (name, has_tls) =
            (address.name(), !address.endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")));
        let failed = |error: StoreError| failure("using", &name, &error);
        let s3 = builder.build().map_err(failed)?;
        Ok(Self { s3: Arc::new(s3), kind: &IMAGES, prefix: address.prefix, name, has_tls })
    }

    /// The same bucket, with boot files as its objects: `boot/sha256/HEX`.
    pub fn boot_files(&self) -> Self {
        Self { kind: &BOOT_FILES, ..self.clone() }
    }

    /// Bucket, prefix and server, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the object store is reached by TLS. Otherwise only this host can reach it.
    pub fn has_tls(&self) -> bool {
        self.has_tls
    }

    /// A fault that is gone at the next attempt.
    pub(super) fn error(&self, doing: &'static str, why: &str) -> Error {
        Error::Objects { doing, bucket: self.name.clone(), source: ObjectsFault::transient(why) }
    }

    fn failed(&self, doing: &'static str) -> impl Fn(StoreError) -> Error {
        move |error| failure(doing, &self.name, &error)
    }

    /// Path of the object with this digest.
    fn object(&self, digest: &Digest) -> Path {
        self.folder(digest.algorithm()).join(digest.hex())
    }

    fn folder(&self, algorithm: Algorithm) -> Path {
        self.prefix.clone().join(self.kind.folder).join(algorithm.name())
    }

    /// Asks for the first objects of the bucket, which fails if the bucket or the key to it is wrong.
    pub async fn check(&self) -> Result<(), Error> {
        let mut found = self.s3.list(Some(&self.folder(Algorithm::Sha256)));
        found.next().await.transpose().map(drop).map_err(self.failed("listing"))
    }

    /// Asks for an object that never exists, so that the answer is short. Fails if the bucket does not answer in time,
    /// or refuses.
    pub async fn probe(&self) -> Result<(), Error> {
        let nothing = self.folder(Algorithm::Sha256).join("probe");
        match tokio::time::timeout(PROBE_TIMEOUT, self.s3.head(&nothing)).await {
            Ok(Ok(_) | Err(StoreError::NotFound { .. })) => Ok(()),
            Ok(Err(error)) => Err(self.failed("asking")(error)),
            Err(_) => Err(self.error("asking", "the object store did not answer in time")),
        }
    }

    /// Returns size and modification time of an object. `None` if there is none.
    pub async fn stamp(&self, digest: &Digest) -> Result<Option<Stamp>, Error> {
        match self.s3.head(&self.object(digest)).await {
            Ok(found) => Ok(Some(stamp_of(&found))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(self.kind.looking)(error)),
        }
    }

    /// Returns size and modification time of all objects by SHA-256.
    pub async fn list(&self) -> Result<HashMap<Digest, Stamp>, Error> {
        let found = self.s3.list(Some(&self.folder(Algorithm::Sha256))).map_err(self.failed("listing"));
        let named = |found: ObjectMeta| {
            let digest = Digest::new(Algorithm::Sha256, found.location.filename()?).ok()?;
            Some((digest, stamp_of(&found)))
        };
        found.try_filter_map(|found| std::future::ready(Ok(named(found)))).try_collect().await
    }

    /// Opens a range of an object. `None` if there is no such object.
    pub async fn read(&self, digest: &Digest, bytes: Range<u64>) -> Result<Option<Content>, Error> {
        if bytes.is_empty() {
            return Ok(Some(futures_util::stream::empty().boxed()));
        }
        let options = GetOptions { range: Some(bytes.into()), ..GetOptions::default() };
        match self.s3.get_opts(&self.object(digest), options).await {
            Ok(found) => {
                let (bucket, doing) = (self.name.clone(), self.kind.reading);
                let failed = move |error| {
                    let error = failure(doing, &bucket, &error);
                    tracing::warn!(error = crate::base::error::chain(&error), "an object was not read to its end");
                    io::Error::other(error)
                };
                Ok(Some(found.into_stream().map_err(failed).boxed()))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(self.kind.reading)(error)),
        }
    }

    /// Reads an object of at most `most` bytes. Fails if there is none, or if its digest is another one.
    pub async fn get(&self, digest: &Digest, most: u64) -> Result<Vec<u8>, Error> {
        let size = self.stamp(digest).await?.ok_or_else(|| self.missing(digest))?.size;
        if size > most {
            return Err(self.damaged(digest, &format!("it has {size} bytes, of which {most} are expected at most")));
        }
        let (mut content, mut found) = (Vec::new(), Sum::default());
        let mut pieces = self.read(digest, 0..size).await?.ok_or_else(|| self.missing(digest))?;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| self.lost())?;
            found.add(&piece);
            content.extend_from_slice(&piece);
        }
        self.compare(found, digest, size)?;
        Ok(content)
    }

    /// Copies an object of `size` bytes into a new file, which is on its disk when this returns. Fails if there is no
    /// such object, or if its digest is another one.
    pub async fn fetch(&self, digest: &Digest, size: u64, to: &std::path::Path) -> Result<(), Error> {
        let failed = |source| Error::File { doing: "writing", path: to.to_owned(), source };
        let mut file = tokio::fs::File::create(to).await.map_err(failed)?;
        let mut pieces = self.read(digest, 0..size).await?.ok_or_else(|| self.missing(digest))?;
        let mut found = Sum::default();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| self.lost())?;
            found.add(&piece);
            file.write_all(&piece).await.map_err(failed)?;
        }
        self.compare(found, digest, size)?;
        file.flush().await.map_err(failed)?;
        file.sync_all().await.map_err(failed)
    }

    /// Fails unless what was read of an object has this digest and size.
    fn compare(&self, found: Sum, digest: &Digest, size: u64) -> Result<(), Error> {
        let hex = base16ct::lower::encode_string(&found.hash.finalize());
        if found.size == size && hex == digest.hex() {
            return Ok(());
        }
        Err(self.damaged(digest, &format!("{} bytes of it have the digest sha256:{hex}", found.size)))
    }

    fn lost(&self) -> Error {
        self.error(self.kind.reading, "the connection was lost")
    }

    fn missing(&self, digest: &Digest) -> Error {
        self.fault(format!("there is no object {}", self.object(digest)))
    }

    fn damaged(&self, digest: &Digest, why: &str) -> Error {
        self.fault(format!("the object {} is not what its name says: {why}", self.object(digest)))
    }

    /// A fault that somebody must correct.
    fn fault(&self, why: String) -> Error {
        Error::Objects { doing: self.kind.reading, bucket: self.name.clone(), source: ObjectsFault::new(why) }
    }

    /// Stores a file as the object with this digest. Nothing is visible before all of it is there, and if the file has
    /// another digest, nothing ever is. `sent` is called with the number of bytes that are stored.
    pub async fn put(&self, file: File, digest: &Digest, sent: &mut (dyn FnMut(u64) + Send)) -> Result<(), Error> {
        let reading = |source| Error::File { doing: "reading", path: PathBuf::from(self.kind.one), source };
        let size = file.metadata().map_err(reading)?.len();
        let mut reader = Reader { file, size, offset: 0, hash: Sha256::new(), part: part_bytes(size) };
        if size <= reader.part {
            let (whole, reader) = reader.next().await.map_err(reading)?;
            reader.check(digest)?;
            self.s3.put(&self.object(digest), whole.into()).await.map_err(self.failed(self.kind.storing))?;
            sent(size);
            return Ok(());
        }
        let mut upload = Upload::begin(self, digest).await?;
        let stored = async {
            while reader.offset < size {
                let part;
                (part, reader) = reader.next().await.map_err(reading)?;
                upload.push(part).await?;
                sent(reader.offset.saturating_sub(reader.part));
            }
            reader.check(digest)
        };
        let stored = stored.await;
        upload.end(stored).await?;
        sent(size);
        Ok(())
    }

    /// Stores a part of an image that a run captures.
    pub async fn put_part(&self, run: &str, name: &str, part: Bytes) -> Result<(), Error> {
        let stored = self.s3.put(&self.part(run, name), part.into()).await;
        stored.map(drop).map_err(self.failed("storing a part of an image in"))
    }

    /// Stores the image of `size` bytes that consists of these parts. Refuses if it has another digest.
    pub async fn assemble(
        &self,
        run: &str,
        parts: Vec<String>,
        size: u64,
        digest: &Digest,
        stopping: &watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let part_bytes = usize::try_from(part_bytes(size)).unwrap_or(usize::MAX);
        let (mut hash, mut pending) = (Sha256::new(), Vec::new());
        let mut upload = Upload::begin(self, digest).await?;
        let stored = async {
            for name in parts {
                if *stopping.borrow() {
                    return Err(Error::refused(ErrorCode::Unavailable, "the server is stopping; try again"));
                }
                let part = async { self.s3.get(&self.part(run, &name)).await?.bytes().await };
                let part = part.await.map_err(self.failed("reading a part of an image from"))?;
                pending.extend_from_slice(&part);
                hash = hashed(hash, part).await;
                if pending.len() >= part_bytes {
                    let rest = pending.split_off(part_bytes);
                    upload.push(Bytes::from(std::mem::replace(&mut pending, rest))).await?;
                }
            }
            if !pending.is_empty() {
                upload.push(Bytes::from(pending)).await?;
            }
            let found = base16ct::lower::encode_string(&hash.finalize());
            if found == digest.hex() {
                return Ok(());
            }
            let message = format!("the stored image has the digest sha256:{found}, but must have {digest}");
            Err(Error::refused(ErrorCode::InvalidRequest, message))
        };
        let stored = stored.await;
        upload.end(stored).await
    }

    /// Removes a part of an image that a run captures, if it exists.
    pub async fn remove_part(&self, run: &str, name: &str) -> Result<(), Error> {
        self.delete(&self.part(run, name), "removing a part of an image from").await
    }

    /// Returns the ids of the runs that have parts of images.
    pub async fn runs_with_parts(&self) -> Result<Vec<String>, Error> {
        let found = self.s3.list_with_delimiter(Some(&self.captures())).await;
        let found = found.map_err(self.failed("looking for parts of images in"))?;
        Ok(found.common_prefixes.iter().filter_map(|prefix| Some(prefix.filename()?.to_owned())).collect())
    }

    /// Removes all parts of the images that a run captures.
    pub async fn remove_parts_of(&self, run: &str) -> Result<(), Error> {
        let found = self.s3.list(Some(&self.captures().join(run))).try_collect::<Vec<ObjectMeta>>().await;
        for part in found.map_err(self.failed("looking for parts of images in"))? {
            self.delete(&part.location, "removing a part of an image from").await?;
        }
        Ok(())
    }

    /// Waits for a part that is on its way.
    async fn stored(&self, part: Option<JoinHandle<Result<(), StoreError>>>) -> Result<(), Error> {
        let Some(part) = part else { return Ok(()) };
        let stored = part.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()));
        stored.map_err(self.failed(self.kind.storing))
    }

    fn captures(&self) -> Path {
        self.prefix.clone().join("captures")
    }

    fn part(&self, run: &str, name: &str) -> Path {
        self.captures().join(run).join(name)
    }

    async fn delete(&self, place: &Path, doing: &'static str) -> Result<(), Error> {
        match self.s3.delete(place).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(doing)(error)),
        }
    }

    /// Removes an object, if it exists.
    pub async fn remove(&self, digest: &Digest) -> Result<(), Error> {
        self.delete(&self.object(digest), self.kind.removing).await
    }

    /// Returns a URL at which anybody can get an object for as long as this.
    pub async fn signed_url(&self, digest: &Digest, lifetime: Duration) -> Result<String, Error> {
        let signed = self.s3.signed_url(Method::GET, &self.object(digest), lifetime).await;
        signed.map(String::from).map_err(self.failed("signing a URL for"))
    }
}

fn failure(doing: &'static str, bucket: &str, error: &StoreError) -> Error {
    Error::Objects { doing, bucket: bucket.to_owned(), source: explain(error) }
}

/// The time is in whole seconds, because some answers of an object store say no more.
fn stamp_of(found: &ObjectMeta) -> Stamp {
    Stamp { size: found.size, changed: found.last_modified.timestamp().saturating_mul(1_000_000_000) }
}

/// An upload in parts, of which two are on their way at once.
struct Upload<'a> {
    bucket: &'a Bucket,
    upload: Box<dyn MultipartUpload>,
    before: Option<JoinHandle<Result<(), StoreError>>>,
}

impl<'a> Upload<'a> {
    async fn begin(bucket: &'a Bucket, digest: &Digest) -> Result<Self, Error> {
        let upload = bucket.s3.put_multipart(&bucket.object(digest)).await;
        Ok(Self { bucket, upload: upload.map_err(bucket.failed(bucket.kind.storing))?, before: None })
    }

    /// Sends a part. Returns when the part before it is stored.
    async fn push(&mut self, part: Bytes) -> Result<(), Error> {
        let before = self.before.replace(tokio::spawn(self.upload.put_part(PutPayload::from(part))));
        self.bucket.stored(before).await
    }

    /// Makes the object visible, unless something failed. Then the object store forgets the parts. If it does not, its
    /// own rule for unfinished uploads does.
    async fn end(mut self, done: Result<(), Error>) -> Result<(), Error> {
        let last = self.bucket.stored(self.before.take()).await;
        let done = match done.and(last) {
            Ok(()) => self.upload.complete().await.map(drop).map_err(self.bucket.failed(self.bucket.kind.storing)),
            failed => failed,
        };
        if done.is_err()
            && let Err(error) = self.upload.abort().await
        {
            tracing::debug!(error = %explain(&error), "could not abort an upload");
        }
        done
    }
}

/// Size and digest of what was read.
#[derive(Default)]
struct Sum {
    hash: Sha256,
    size: u64,
}

impl Sum {
    fn add(&mut self, piece: &[u8]) {
        self.hash.update(piece);
        self.size += piece.len() as u64;
    }
}

/// Adds bytes to a digest.
async fn hashed(mut hash: Sha256, bytes: Bytes) -> Sha256 {
    let adding = spawn_blocking(move || {
        hash.update(&bytes);
        hash
    });
    adding.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

/// Size of the parts of an upload of `size` bytes.
fn part_bytes(size: u64) -> u64 {
    size.div_ceil(MAX_PARTS).max(PART_BYTES)
}

/// Reads a file in parts, and computes its digest.
struct Reader {
    file: File,
    size: u64,
    offset: u64,
    hash: Sha256,
    /// Size of a part in bytes.
    part: u64,
}

impl Reader {
    /// Reads the next part.
    async fn next(mut self) -> io::Result<(Bytes, Self)> {
        let read = spawn_blocking(move || {
            let length = self.part.min(self.size - self.offset);
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
            self.file.read_exact_at(&mut bytes, self.offset)?;
            self.hash.update(&bytes);
            self.offset += length;
            Ok((Bytes::from(bytes), self))
        });
        read.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
    }

    /// Fails unless the file has this digest.
    fn check(self, digest: &Digest) -> Result<(), Error> {
        let found = base16ct::lower::encode_string(&self.hash.finalize());
        if found == digest.hex() {
            return Ok(());
        }
        let message = format!("the file changed while it was stored: it has the digest sha256:{found}, not {digest}");
        Err(Error::refused(ErrorCode::Conflict, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_never_has_too_many_parts() {
        for size in [1, PART_BYTES, 80 << 30, 5 << 40] {
            assert!(size.div_ceil(part_bytes(size)) <= MAX_PARTS && part_bytes(size) >= PART_BYTES, "{size}");
        }
    }
}
