//! The metadata services of clouds: HTTP at a link-local address.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use rustls::{ClientConfig, RootCertStore};
use slipway_protocol::{Failure, MetadataSource};

use super::answers::{Answer, Parse, Unusable, of_meta_data, of_user_data};
use super::{META_DATA, USER_DATA};

/// Address of the services in every cloud that has them (RFC 3927 reserves its network for one link).
pub const ADDRESS: &str = "http://169.254.169.254/";
/// Path of the owner's user-data in EC2 ("Retrieve instance metadata").
const EC2_USER_DATA: &str = "latest/user-data";
/// Path of the token that EC2 asks for in requests, version 2 of its service ("Use IMDSv2").
const EC2_TOKEN: &str = "latest/api/token";
/// Header with the lifetime of a new token in seconds, and header with the token.
const EC2_LIFETIME: &str = "X-aws-ec2-metadata-token-ttl-seconds";
const EC2_TOKEN_HEADER: &str = "X-aws-ec2-metadata-token";
/// Time limits for connecting, and for a whole request with its answer. The service is on the machine's own host.
const CONNECT: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(5);
/// Largest answer in bytes. EC2 has at most 16 KiB of user-data, OpenStack 64 KiB.
const LARGEST: usize = 64 << 10;

/// A client of the services, through one interface.
#[derive(Debug)]
pub struct Service {
    http: reqwest::Client,
    base: Url,
}

/// Why no service says where the server is.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ServiceError {
    /// The client could not be set up.
    #[error("setting up a connection to the metadata service")]
    Setup { source: reqwest::Error },
    /// No service has a usable answer.
    #[error("asking {base} for the server: {reasons}")]
    Nobody {
        base: String,
        /// One sentence for each form of the service.
        reasons: String,
    },
}

/// Why one form of the service has no usable answer.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("requesting /{path}")]
    Transport { path: &'static str, source: reqwest::Error },
    #[error("requesting /{path}: the answer has the status {status}")]
    Status { path: &'static str, status: StatusCode },
    #[error("requesting /{path}: the answer has more than {} KiB", LARGEST >> 10)]
    TooLarge { path: &'static str },
    #[error("requesting /{path}: the answer is no text in UTF-8")]
    NoText { path: &'static str },
    #[error("reading /{path}")]
    Unusable { path: &'static str, source: Unusable },
    #[error("it names no server: set {how}")]
    NoServer { how: &'static str },
}

impl Failed {
    /// Whether nobody listens at the address.
    fn is_nobody(&self) -> bool {
        matches!(self, Self::Transport { source, .. } if source.is_connect())
    }
}

impl Service {
    /// Makes a client. All connections go out through `interface`, whatever routes there are; None is for tests. `base`
    /// is [`ADDRESS`] but in tests.
    pub fn new(base: Url, interface: Option<&str>) -> Result<Self, ServiceError> {
        // There is no TLS. Without this, reqwest would look for the CAs of an operating system.
        let tls = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // The address means something on this link alone.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(WHOLE);
        if let Some(interface) = interface {
            builder = builder.interface(interface);
        }
        let http = builder.build().map_err(|source| ServiceError::Setup { source })?;
        Ok(Self { http, base })
    }

    /// Asks the forms of the service that are allowed, one after the other, and returns the first answer that names a
    /// server. If nobody listens, that takes 2 s at most.
    pub async fn ask(&self, allowed: &BTreeSet<MetadataSource>) -> Result<Answer, ServiceError> {
        let mut reasons = Vec::new();
        for by in allowed {
            let asked = match by {
                MetadataSource::ConfigDrive => continue,
                MetadataSource::Openstack => self.openstack().await,
                MetadataSource::Ec2 => self.ec2().await,
            };
            match asked {
                Ok(answer) => return Ok(answer),
                // All forms have the same address.
                Err(failed) if failed.is_nobody() => {
                    reasons = vec![Failure::of(&failed).in_one_line()];
                    break;
                }
                Err(failed) => reasons.push(format!("{}: {}", by.title(), Failure::of(&failed).in_one_line())),
            }
        }
        Err(ServiceError::Nobody { base: self.base.to_string(), reasons: reasons.join("; ") })
    }

    async fn openstack(&self) -> Result<Answer, Failed> {
        for (path, parse) in [(META_DATA, of_meta_data as Parse), (USER_DATA, of_user_data)] {
            let answer = self.get(path, None).await?;
            if let Some(answer) = read(MetadataSource::Openstack, path, answer.as_deref(), parse)? {
                return Ok(answer);
            }
        }
        let how = "slipway.server in the machine's metadata, or server below slipway in its user-data";
        Err(Failed::NoServer { how })
    }

    async fn ec2(&self) -> Result<Answer, Failed> {
        let token = self.ec2_token().await?;
        let answer = self.get(EC2_USER_DATA, token).await?;
        let answer = read(MetadataSource::Ec2, EC2_USER_DATA, answer.as_deref(), of_user_data)?;
        answer.ok_or(Failed::NoServer { how: "server below slipway in the machine's user-data" })
    }

    /// Returns a token for requests; none if the service has no tokens, as in version 1 and in clouds that copied it. A
    /// token keeps other people's programs on a machine from making it ask. It does not show who answers, so going on
    /// without one costs nothing. A service that refuses a token for another reason is not asked further.
    async fn ec2_token(&self) -> Result<Option<HeaderValue>, Failed> {
        let path = EC2_TOKEN;
        let answer = self.send(path, self.request(Method::PUT, path).header(EC2_LIFETIME, "60")).await?;
        let has_none = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
        if has_none.contains(&answer.status()) {
            return Ok(None);
        }
        let mut token = HeaderValue::from_str(text(path, answer).await?.trim()).map_err(|_| Failed::NoText { path })?;
        token.set_sensitive(true);
        Ok(Some(token))
    }

    /// Returns the text at a path; none if there is nothing.
    async fn get(&self, path: &'static str, token: Option<HeaderValue>) -> Result<Option<String>, Failed> {
        let mut request = self.request(Method::GET, path);
        if let Some(token) = token {
            request = request.header(EC2_TOKEN_HEADER, token);
        }
        let answer = self.send(path, request).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        text(path, answer).await.map(Some)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(path);
        self.http.request(method, url)
    }

    async fn send(&self, path: &'static str, request: RequestBuilder) -> Result<Response, Failed> {
        // The URL is in our message.
        request.send().await.map_err(|source| Failed::Transport { path, source: source.without_url() })
    }
}

fn read(by: MetadataSource, path: &'static str, text: Option<&str>, parse: Parse) -> Result<Option<Answer>, Failed> {
    let answer = text.map(|text| parse(by, text)).transpose();
    answer.map(Option::flatten).map_err(|source| Failed::Unusable { path, source })
}

/// Reads the body of a successful answer.
async fn text(path: &'static str, mut answer: Response) -> Result<String, Failed> {
    if answer.status() != StatusCode::OK {
        return Err(Failed::Status { path, status: answer.status() });
    }
    let mut bytes = Vec::new();
    let failed = |source: reqwest::Error| Failed::Transport { path, source: source.without_url() };
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        if bytes.len() + chunk.len() > LARGEST {
            return Err(Failed::TooLarge { path });
        }
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).map_err(|_| Failed::NoText { path })
}
