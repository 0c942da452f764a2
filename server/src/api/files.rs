//! Files over HTTP, with ranges and entity tags.

use std::io::ErrorKind;
use std::path::Path;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use slipway_protocol::{Digest, ErrorCode};
use tokio::fs::File;

use crate::api::answer::ApiError;
use crate::api::file_body::{FileBody, OnLastByte};
use crate::api::range::{self, Wanted};
use crate::base::error::Error;
use crate::base::objects::Bucket;

/// Where the bytes to serve come from.
pub enum Content {
    /// An open file.
    File(File),
    /// The image with this digest in a bucket.
    Object(Bucket, Digest),
}

/// An open file or an object, and how to serve it.
pub struct Served {
    /// The file or object.
    pub content: Content,
    /// Size in bytes.
    pub size: u64,
    /// Strong entity tag, including quotes.
    pub etag: String,
    /// Value of the header Cache-Control.
    pub cache: &'static str,
    /// Media type for the header Content-Type.
    pub content_type: &'static str,
}

/// Opens a regular file and returns it with its metadata. `None` if it does not exist.
pub async fn open(path: &Path) -> Result<Option<(File, std::fs::Metadata)>, Error> {
    let failed = |source| Error::File { doing: "opening", path: path.to_owned(), source };
    let file = match File::open(path).await {
        Ok(file) => file,
        Err(error) if is_absence(error.kind()) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().await.map_err(failed)?;
    Ok(metadata.is_file().then_some((file, metadata)))
}

/// Whether a failed open means that the file does not exist. A name longer than the file system allows cannot exist.
fn is_absence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename)
}

/// Answers a GET or HEAD request.
pub async fn respond(served: Served, request: &HeaderMap) -> Result<Response, ApiError> {
    respond_and_tell(served, request, Box::new(|| ())).await
}

/// Answers a GET or HEAD request, and calls back when the last byte of the file is on its way. Clients that fetch a
/// file in parts fetch that byte last. A HEAD request does not fetch it.
pub async fn respond_and_tell(
    served: Served,
    request: &HeaderMap,
    on_last_byte: OnLastByte,
) -> Result<Response, ApiError> {
    let header = |name: HeaderName| request.get(name).and_then(|value| value.to_str().ok());
    let common = [(ETAG, served.etag.clone()), (CACHE_CONTROL, served.cache.to_owned())];
    if header(IF_NONE_MATCH).is_some_and(|tags| range::none_match_has(tags, &served.etag)) {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    let wanted = match header(RANGE) {
        Some(wanted) if range::if_range_holds(header(IF_RANGE), &served.etag) => range::parse(wanted, served.size),
        _ => Wanted::Whole,
    };
    let (status, bytes) = match wanted {
        Wanted::Whole => (StatusCode::OK, 0..served.size),
        Wanted::Part(bytes) => (StatusCode::PARTIAL_CONTENT, bytes),
        Wanted::Outside => return Ok(outside(served.size)),
    };
    let length = bytes.end - bytes.start;
    let body = match served.content {
        Content::File(file) => {
            let on_last_byte = (bytes.end == served.size).then_some(on_last_byte);
            Body::new(FileBody::new(file.into_std().await, bytes.clone(), on_last_byte))
        }
        // Somebody may have removed it meanwhile.
        Content::Object(bucket, digest) => match bucket.read(&digest, bytes.clone()).await? {
            Some(content) => Body::from_stream(content),
            None => return Err(Error::refused(ErrorCode::NotFound, "the file was removed").into()),
        },
    };
    let headers = [
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CONTENT_TYPE, served.content_type.to_owned()),
        (CONTENT_LENGTH, length.to_string()),
    ];
    let mut response = (status, common, headers, body).into_response();
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {}-{}/{}", bytes.start, bytes.end.saturating_sub(1), served.size);
        response.headers_mut().extend(range.parse().ok().map(|range| (CONTENT_RANGE, range)));
    }
    Ok(response)
}

fn outside(size: u64) -> Response {
    let message = format!("the range is outside the object's {size} bytes");
    let refused = ApiError::from(Error::refused(ErrorCode::RangeNotSatisfiable, message));
    ([(CONTENT_RANGE, format!("bytes */{size}"))], refused).into_response()
}
