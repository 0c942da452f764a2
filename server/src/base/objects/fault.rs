//! Explains errors of object stores to the operator.

use std::error::Error as StdError;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::base::error::ObjectsFault;

/// Codes of S3's error responses (its API reference, "Error responses"), and what to do.
const ADVICE: &[(&str, &str)] = &[
    ("InvalidAccessKeyId", "; check the access key id"),
    ("SignatureDoesNotMatch", "; check the secret access key"),
    ("AccessDenied", "; give the access key the rights to list the bucket, and to read, write and delete its objects"),
    ("RequestTimeTooSkewed", "; correct the clock of this host or of the object store"),
    ("NoSuchBucket", "; create the bucket, or correct its name"),
    ("PermanentRedirect", "; correct the region"),
    ("AuthorizationHeaderMalformed", "; correct the region"),
    ("QuotaExceeded", "; make room in the bucket"),
    ("XMinioStorageFull", "; make room on the object store"),
];

/// Explains why a request to an object store failed.
pub(super) fn explain(error: &StoreError) -> ObjectsFault {
    let text = error.to_string();
    // The other parts of an error response have the request, and what its signature was made of.
    if let Some(code) = element(&text, "Code") {
        let advice = ADVICE.iter().find(|(known, _)| *known == code).map_or("", |(_, advice)| advice);
        let said = element(&text, "Message").unwrap_or("no reason");
        let message = format!("the object store answered {code} ({said}){advice}");
        return if advice.is_empty() { ObjectsFault::transient(message) } else { ObjectsFault::new(message) };
    }
    match error {
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => ObjectsFault::new(
            "the object store refused the access key; check the key, its rights, and the clock of this host",
        ),
        StoreError::NotFound { .. } => ObjectsFault::new("the object store has no such object"),
        _ => {
            let (mut cause, mut kind) = (error as &(dyn StdError + 'static), None);
            while let Some(next) = cause.source() {
                kind = kind.or(next.downcast_ref::<HttpError>().map(HttpError::kind));
                cause = next;
            }
            let root = cause.to_string();
            let root = root.lines().next().unwrap_or_default();
            match kind {
                Some(HttpErrorKind::Connect) => ObjectsFault::transient(format!(
                    "the object store cannot be reached ({root}); check the endpoint, and that the object store runs"
                )),
                Some(HttpErrorKind::Timeout) => ObjectsFault::transient("the object store did not answer in time"),
                _ => ObjectsFault::transient(format!("the object store failed: {root}")),
            }
        }
    }
}

/// The text of the first element with this name in XML.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}
