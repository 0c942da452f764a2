//! Requests to a BMC.

use std::time::Duration;

use reqwest::header::{ETAG, IF_MATCH};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use slipway_protocol::shared::printable;
use slipway_protocol::{Redfish, Secret};

use super::trust::{self, Seen};
use crate::power::hook::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a BMC may take for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer. A system with all that it has is below 100 KiB.
const MAX_ANSWER: usize = 1 << 20;
/// Most texts of a list that are looked at.
const MOST_TEXTS: usize = 256;

/// A BMC, and whoever asks it.
pub struct Client {
    http: reqwest::Client,
    url: Url,
    username: String,
    password: Secret,
    seen: Seen,
}

impl Client {
    /// Prepares requests. Nothing is sent yet.
    pub fn new(settings: &Redfish, password: &Secret) -> Result<Self, Failure> {
        let (tls, seen) = trust::client(settings).map_err(Failure::lasting)?;
        let url =
            Url::parse(&settings.url).map_err(|error| Failure::lasting(format!("the URL of the BMC: {error}")))?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .redirect(Policy::none())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT);
        let http = http.build().map_err(|error| Failure::lasting(format!("preparing requests to the BMC: {error}")))?;
        Ok(Self { http, url, username: settings.username.clone(), password: password.clone(), seen })
    }

    /// Reads a resource.
    pub async fn get(&self, path: &str) -> Result<Answer, Failure> {
        let response = self.send(Method::GET, path, |request| request).await?;
        let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let status = response.status();
        if !status.is_success() {
            return Err(self.refused(&Method::GET, path, response).await);
        }
        let bytes = self.body(path, response).await?;
        let wrong = |error| Failure::lasting(format!("GET {} is not answered in JSON: {error}", printable::line(path)));
        let json: Value = serde_json::from_slice(&bytes).map_err(wrong)?;
        Ok(Answer { path: path.to_owned(), json, etag })
    }

    /// Calls an action.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(), Failure> {
        let response = self.send(Method::POST, path, |request| request.json(body)).await?;
        self.accepted(&Method::POST, path, response).await
    }

    /// Changes a resource. BMCs differ in whether a change needs the version that it changes.
    pub async fn patch(&self, path: &str, body: &Value) -> Result<(), Failure> {
        let response = self.send(Method::PATCH, path, |request| request.json(body)).await?;
        if !matches!(response.status(), StatusCode::PRECONDITION_FAILED | StatusCode::PRECONDITION_REQUIRED) {
            return self.accepted(&Method::PATCH, path, response).await;
        }
        drop(response);
        let known = self.get(path).await?;
        let of_body = known.text("/@odata.etag").map(str::to_owned);
        let etag = known.etag.or(of_body).unwrap_or_else(|| "*".to_owned());
        let response = self.send(Method::PATCH, path, |request| request.header(IF_MATCH, etag).json(body)).await?;
        self.accepted(&Method::PATCH, path, response).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        finish: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, Failure> {
        // A link is a path (DSP0266, "Universal Resource Identifiers"), so the password goes to the BMC alone.
        let is_path = path.starts_with('/') && !path.starts_with("//");
        let url = if is_path { self.url.join(path).ok() } else { None };
        let url = url.filter(|url| url.origin() == self.url.origin());
        let url = url.ok_or_else(|| {
            Failure::lasting(format!(
                "the BMC refers to {:?}, which is not a path on the BMC",
                printable::short_line(path, 80)
            ))
        })?;
        let request = self.http.request(method.clone(), url);
        let request = finish(request.basic_auth(&self.username, Some(self.password.reveal())));
        request.send().await.map_err(|error| self.failed(&method, path, &error.without_url()))
    }

    fn failed(&self, method: &Method, path: &str, error: &reqwest::Error) -> Failure {
        if let Some(advice) = self.seen.advice() {
            return Failure::lasting(advice);
        }
        let chain = crate::base::error::chain(error);
        Failure::new(format!("{method} {} of the BMC at {}: {chain}", printable::line(path), self.url))
    }

    async fn accepted(&self, method: &Method, path: &str, response: Response) -> Result<(), Failure> {
        if response.status().is_success() {
            return Ok(());
        }
        Err(self.refused(method, path, response).await)
    }

    async fn refused(&self, method: &Method, path: &str, response: Response) -> Failure {
        let status = response.status();
        let path = printable::line(path).into_owned();
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return Failure::lasting(format!(
                "the BMC does not let the user {} do this ({status} for {method} {path})",
                self.username
            ));
        }
        if status.is_redirection() {
            return Failure::lasting(format!("the BMC redirects {method} {path} elsewhere, which is not followed"));
        }
        let json = self.body(&path, response).await.ok().and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        let said = json.as_ref().and_then(said).map(|said| format!(": {said}")).unwrap_or_default();
        let reason = format!("the BMC answers {status} to {method} {path}{said}");
        let may_pass = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        if may_pass { Failure::new(reason) } else { Failure::lasting(reason) }
    }

    async fn body(&self, path: &str, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.failed(&Method::GET, path, &error.without_url()))?
        {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER {
                return Err(Failure::lasting(format!(
                    "the answer of the BMC to {} is larger than {}",
                    printable::line(path),
                    printable::size(MAX_ANSWER as u64)
                )));
            }
        }
        Ok(body)
    }
}

/// What a BMC says of an error (DSP0266, "Error responses").
fn said(json: &Value) -> Option<String> {
    let error = json.get("error")?;
    let extended = error.pointer("/@Message.ExtendedInfo/0/Message").and_then(Value::as_str);
    let said = extended.or_else(|| error.get("message").and_then(Value::as_str))?;
    Some(said.to_owned())
}

/// A resource of a BMC.
pub struct Answer {
    /// Where it is.
    pub path: String,
    json: Value,
    etag: Option<String>,
}

impl Answer {
    /// Returns the text at a JSON pointer (RFC 6901).
    pub fn text(&self, pointer: &str) -> Option<&str> {
        self.json.pointer(pointer)?.as_str()
    }

    /// Whether there is `true` at a JSON pointer.
    pub fn is_true(&self, pointer: &str) -> bool {
        self.json.pointer(pointer).and_then(Value::as_bool) == Some(true)
    }

    /// Returns the texts of the list at a JSON pointer.
    pub fn texts(&self, pointer: &str) -> Vec<String> {
        texts(self.json.pointer(pointer))
    }

    /// Returns the path at a JSON pointer.
    pub fn path_at(&self, pointer: &str) -> Option<String> {
        self.text(pointer).map(str::to_owned)
    }

    /// Returns the path that a resource at a JSON pointer refers to.
    pub fn link(&self, pointer: &str) -> Option<String> {
        self.path_at(&format!("{pointer}/@odata.id"))
    }

    /// Returns the paths that the list at a JSON pointer refers to.
    pub fn links(&self, pointer: &str) -> Vec<String> {
        let list = self.json.pointer(pointer).and_then(Value::as_array);
        let paths = list.into_iter().flatten().filter_map(|member| member.get("@odata.id")?.as_str());
        paths.take(MOST_TEXTS).map(str::to_owned).collect()
    }

    /// Returns the paths of the members of a collection.
    pub fn members(&self) -> Vec<String> {
        self.links("/Members")
    }

    /// Returns the values that a parameter of an action may have (DSP2046, ActionInfo).
    pub fn allowed_values(&self, parameter: &str) -> Vec<String> {
        let parameters = self.json.pointer("/Parameters").and_then(Value::as_array);
        let is_it = |known: &&Value| known.get("Name").and_then(Value::as_str) == Some(parameter);
        texts(parameters.into_iter().flatten().find(is_it).and_then(|known| known.get("AllowableValues")))
    }
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).take(MOST_TEXTS).map(str::to_owned).collect()
}
