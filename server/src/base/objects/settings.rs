//! The address of a bucket, and the key to it.

use std::fmt::{self, Debug, Formatter};
use std::net::IpAddr;
use std::path::PathBuf;

use axum::http::Uri;
use object_store::path::Path;
use slipway_protocol::ErrorCode;

use crate::base::error::Error;

/// Region in requests to a server that does not care, such as MinIO and Ceph.
const ANY_REGION: &str = "us-east-1";

/// An access key of S3.
#[derive(Clone)]
pub struct Keys {
    /// The access key id, which is not secret.
    pub id: String,
    /// The secret access key.
    pub secret: String,
    /// The session token, if the key is a temporary one.
    pub session: Option<String>,
}

impl Keys {
    /// Reads a file like ~/.aws/credentials: the lines `aws_access_key_id = ...` and `aws_secret_access_key = ...`, and
    /// `aws_session_token = ...` if the key is a temporary one. There may be one section, `[default]`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        // No line is repeated, because it may have the secret.
        let wrong = |number: usize, what: &str| {
            refused(format!(
                "line {number} of the file with the access key {what}: it needs the lines `aws_access_key_id = ID` and \
                 `aws_secret_access_key = SECRET`, and may have `aws_session_token = TOKEN`"
            ))
        };
        let (mut id, mut secret, mut session) = (None, None, None);
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with(['#', ';']) || line == "[default]" {
                continue;
            }
            if line.starts_with('[') {
                return Err(wrong(number, "begins a section other than [default]"));
            }
            let (name, value) = line.split_once('=').ok_or_else(|| wrong(number, "has no `=`"))?;
            let place = match name.trim() {
                "aws_access_key_id" => &mut id,
                "aws_secret_access_key" => &mut secret,
                "aws_session_token" => &mut session,
                _ => return Err(wrong(number, "has an unknown name")),
            };
            if place.replace(value.trim().to_owned()).is_some() || value.trim().is_empty() {
                return Err(wrong(number, "has no value, or is there twice"));
            }
        }
        match (id, secret) {
            (Some(id), Some(secret)) => Ok(Self { id, secret, session }),
            _ => Err(wrong(text.lines().count(), "is the last one, and the key is not complete")),
        }
    }
}

impl Debug for Keys {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.id)
    }
}

/// What the URL of a bucket may leave out.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// URL of the server.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: Option<String>,
}

/// The address of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub bucket: String,
    /// Prefix of all names, without a slash at its ends.
    pub prefix: Path,
    /// URL of the server, without a slash at its end. `None` for Amazon's own.
    pub endpoint: Option<String>,
    pub region: String,
    /// File with the certificates of the authorities that the server is verified with, in PEM.
    pub ca: Option<PathBuf>,
}

impl Address {
    /// Reads `s3://BUCKET[/PREFIX][?endpoint=https://HOST&region=REGION&ca=FILE]`.
    pub fn parse(text: &str, defaults: Defaults) -> Result<Self, Error> {
        let form = "it is not of the form s3://BUCKET or s3://BUCKET/PREFIX?endpoint=https://HOST";
        let rest = text.strip_prefix("s3://").ok_or_else(|| refused(form))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains(['@', '#']) {
            // The text is not repeated, because it may have a secret.
            return Err(refused("it has a user or a fragment; the access key is never in it"));
        }
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_name) {
            return Err(refused(format!(
                "{bucket:?} is not the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens"
            )));
        }
        // A path may begin with a slash for object_store, which leaves it out.
        let parsed = Path::parse(prefix.trim_end_matches('/')).ok().filter(|_| !prefix.starts_with('/'));
        let prefix = parsed
            .ok_or_else(|| refused(format!("its prefix {prefix:?} has an empty part, or one that is . or ..")))?;
        let (mut endpoint, mut region, mut ca) = (defaults.endpoint, defaults.region, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()).into_owned() {
            match &*name {
                "endpoint" => endpoint = Some(value),
                "region" => region = Some(value),
                "ca" => ca = Some(PathBuf::from(value)),
                // It is not repeated, because it may be a secret.
                _ => return Err(refused("it has a parameter other than endpoint, region and ca")),
            }
        }
        let endpoint = endpoint.map(|endpoint| check_endpoint(&endpoint)).transpose()?;
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            (None, Some(_)) => ANY_REGION.to_owned(),
            (None, None) => {
                return Err(refused(
                    "neither it nor the environment says where the bucket is: add ?region=REGION for Amazon S3, or \
                     ?endpoint=https://HOST for another server",
                ));
            }
        };
        Ok(Self { bucket: bucket.to_owned(), prefix, endpoint, region, ca })
    }

    /// The address for messages.
    pub fn name(&self) -> String {
        let slash = if self.prefix.as_ref().is_empty() { "" } else { "/" };
        let place = match &self.endpoint {
            Some(endpoint) => format!(" at {endpoint}"),
            None => format!(" in {}", self.region),
        };
        format!("s3://{}{slash}{}{place}", self.bucket, self.prefix)
    }
}

/// Refuses a server that others on the network could pose as.
fn check_endpoint(text: &str) -> Result<String, Error> {
    let text = text.trim_end_matches('/');
    let wrong = || refused(format!("its endpoint {text:?} is not of the form https://HOST or https://HOST:PORT"));
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let host = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.scheme_str() {
        _ if uri.path() != "/" || uri.query().is_some() => Err(wrong()),
        Some("https") => Ok(text.to_owned()),
        Some("http") if is_here => Ok(text.to_owned()),
        Some("http") => Err(refused(format!(
            "its endpoint {text:?} has no TLS, so captured disks would cross the network in plain text: use https://; \
             if the certificate of the server is from your own authority, add &ca=FILE"
        ))),
        _ => Err(wrong()),
    }
}

fn refused(why: impl fmt::Display) -> Error {
    Error::refused(ErrorCode::InvalidRequest, format!("the bucket cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_bucket_names_a_server_that_proves_itself() {
        let name = |text: &str| Address::parse(text, Defaults::default()).map(|address| address.name()).ok();
        let is = |text: &str, expect: &str| assert_eq!(name(text).as_deref(), Some(expect), "{text}");
        is("s3://images?region=eu-central-1", "s3://images in eu-central-1");
        is("s3://images/site/a/?endpoint=https://s3.example", "s3://images/site/a at https://s3.example");
        is("s3://images?endpoint=https://s3.example:9000/&ca=/x.pem", "s3://images at https://s3.example:9000");
        is("s3://images?endpoint=http://127.0.0.1:9000", "s3://images at http://127.0.0.1:9000");
        for bad in [
            "s3://images",
            "https://s3.example/images",
            "s3://Images?region=x",
            "s3://a?region=x",
            "s3://images//a?region=x",
            "s3://images/../a?region=x",
            "s3://id:secret@images?region=x",
            "s3://images?region=x&secret=y",
            "s3://images?endpoint=http://s3.example",
            "s3://images?endpoint=https://s3.example/path",
            "s3://images?endpoint=https://u:p@s3.example",
            "s3://images?endpoint=s3.example",
        ] {
            assert_eq!(name(bad), None, "{bad}");
        }
        let defaults = Defaults { endpoint: Some("https://other.example".to_owned()), region: Some("r".to_owned()) };
        let found = Address::parse("s3://images?endpoint=https://s3.example", defaults).expect("it is right");
        assert_eq!((found.endpoint.as_deref(), &*found.region), (Some("https://s3.example"), "r"));
    }

    #[test]
    fn a_key_is_read_from_its_file_and_never_shown() {
        let text = "# of the site\n[default]\naws_access_key_id = AKID\naws_secret_access_key = s3cret/+=\n";
        let keys = Keys::parse(text).expect("it is right");
        assert_eq!((&*keys.id, &*keys.secret, keys.session.as_deref()), ("AKID", "s3cret/+=", None));
        assert!(!format!("{keys:?}").contains("s3cret"));
        for bad in [
            "",
            "aws_access_key_id = AKID",
            "AKID:s3cret",
            "aws_access_key_id = AKID\naws_secret_access_key =",
            "[other]\naws_access_key_id = AKID\naws_secret_access_key = s3cret",
            "aws_access_key_id = AKID\naws_secret_access_key = s3cret\naws_secret_access_key = s3cret",
        ] {
            let refusal = Keys::parse(bad).expect_err(bad).to_string();
            assert!(refusal.contains("aws_secret_access_key") && !refusal.contains("s3cret"), "{refusal}");
        }
    }
}
