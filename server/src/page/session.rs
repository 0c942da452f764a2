//! Who is signed in, and forms that only they can have sent.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use slipway_protocol::ErrorCode;

use crate::api::App;
use crate::api::auth::{OperatorName, Peer};
use crate::api::body::Unread;
use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::operate;
use crate::page::answer::{Failed, Html, bare, see_other};
use crate::store::Store;

/// Name of the cookie. The prefix makes browsers accept it from this very host and over TLS alone (RFC 6265bis, 4.1.3).
const NAME: &str = "__Host-slipway";
/// What browsers say of the page that a request comes from (W3C Fetch Metadata).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Maximum size of a form in bytes: an operating system has user-data.
const FORM: usize = 512 << 10;
/// Maximum size in bytes of the form that strangers may send.
const LOGIN: usize = 4 << 10;

/// An operator who is signed in.
pub struct Visitor {
    /// The server.
    pub app: Arc<App>,
    /// The database, used on behalf of the operator.
    pub store: Store,
    /// Name of the operator.
    pub operator: String,
    secret: String,
}

impl Deref for Visitor {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

impl Visitor {
    /// What each form of this session has, and no other site knows.
    fn proof(&self) -> String {
        token_hash(&format!("form {}", self.secret))
    }

    /// The hidden field that each form needs.
    pub fn proof_field(&self) -> Markup {
        html! { input type="hidden" name="proof" value=(self.proof()); }
    }

    /// Refuses a form that is not of this session.
    pub fn check_proof(&self, fields: &Fields) -> Result<(), Failed> {
        let is_own = fields.text("proof") == self.proof();
        let problem = || forged("the form is not of this session: it was opened before you signed in, or it is forged");
        is_own.then_some(()).ok_or_else(problem)
    }

    /// Returns whether the session goes on.
    pub async fn is_still_here(&self) -> bool {
        match operate::signed_in(&self.app.store, &self.secret).await {
            Ok(name) => name.is_some_and(|name| name == self.operator),
            // Nobody knows while the database fails, and nothing can be read from it either.
            Err(_) => true,
        }
    }
}

impl FromRequestParts<Arc<App>> for Visitor {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failed> {
        let secret = secret(&parts.headers);
        let has_cookie = secret.is_some();
        let operator = match &secret {
            Some(secret) => operate::signed_in(&app.store, secret).await?,
            None => None,
        };
        let (Some(secret), Some(operator)) = (secret, operator) else {
            if let Some(peer) = parts.extensions.get::<Peer>().filter(|_| has_cookie) {
                // A guess costs a query of the database, so guesses are limited.
                app.pace(peer).await?;
            }
            if parts.method != Method::GET {
                let message = "nobody is signed in, or the session has ended; sign in and do it again";
                return Err(Error::refused(ErrorCode::Unauthenticated, message).into());
            }
            if parts.headers.get(FETCH_SITE).is_some_and(|site| site == "cross-site") {
                return Err(Failed::AskAgain);
            }
            return Err(Failed::SignIn(parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned()));
        };
        if let Some(name) = parts.extensions.get::<OperatorName>() {
            name.set(&operator);
        }
        Ok(Self { store: app.store.on_behalf_of(&operator), app: Arc::clone(app), operator, secret })
    }
}

/// The secret in the cookie.
fn secret(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == NAME).map(|(_, value)| value.to_owned())
}

/// The fields of a form, in order.
#[derive(Debug, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads the fields of a form, or of the query of a URL.
    pub fn read(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Adds a field.
    pub fn push(&mut self, name: String, text: String) {
        self.0.push((name, text));
    }

    /// The text of a field without blanks around it. Empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default().trim()
    }

    /// The text of a field. `None` if it is blank.
    pub fn given(&self, name: &str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Whether a box is ticked.
    pub fn ticked(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    /// All texts of a field.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A form that an operator sent from a page of this session.
pub struct Act {
    /// The operator.
    pub visitor: Visitor,
    /// The fields of the form.
    pub fields: Fields,
}

impl FromRequest<Arc<App>> for Act {
    type Rejection = Failed;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failed> {
        let (mut parts, body) = request.into_parts();
        check_origin(&parts.headers)?;
        let visitor = Visitor::from_request_parts(&mut parts, app).await?;
        let unread = Unread::of(&parts, body)?;
        let fields = Fields::read(&app.bodies.read(unread, FORM).await?);
        visitor.check_proof(&fields)?;
        Ok(Self { visitor, fields })
    }
}

fn forged(message: &str) -> Failed {
    Error::refused(ErrorCode::Forbidden, format!("{message}; open the page again and send it from there")).into()
}

/// Refuses a form that another site had the browser send.
pub fn check_origin(headers: &HeaderMap) -> Result<(), Failed> {
    let is_own = match (headers.get(FETCH_SITE), headers.get(ORIGIN)) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => {
            let host = headers.get(HOST).and_then(|host| host.to_str().ok());
            let origin = origin.to_str().ok().and_then(|origin| origin.strip_prefix("https://"));
            host.is_some() && host == origin
        }
        // Not a browser of this decade. The cookie and the proof decide.
        (None, None) => true,
    };
    is_own.then_some(()).ok_or_else(|| forged("the form comes from another site"))
}

/// Where to go after signing in.
#[derive(Deserialize)]
pub struct Next {
    next: Option<String>,
}

impl Next {
    /// A path of this server.
    fn path(&self) -> &str {
        // Browsers take a backslash for a slash, and leave control characters out.
        let is_odd = |c: char| c == '\\' || c.is_control();
        let is_path = |next: &&str| next.starts_with('/') && !next.starts_with("//") && !next.contains(is_odd);
        self.next.as_deref().filter(is_path).unwrap_or("/fleet")
    }
}

/// The form that asks for a token.
pub async fn form(Query(next): Query<Next>) -> Html {
    Html(login(&next, None))
}

fn login(next: &Next, problem: Option<&str>) -> Markup {
    let content = html! {
        h1 { "slipway" }
        form.login method="post" action="/login" {
            input type="hidden" name="next" value=(next.path());
            // Browsers store a password with a name.
            input type="text" name="operator" value="slipway" autocomplete="username" hidden;
            label for="token" { "Operator's token" }
            input #token type="password" name="token" autocomplete="current-password" required autofocus
                aria-describedby="how" spellcheck="false";
            @if let Some(problem) = problem { p.error role="alert" { (problem) } }
            button type="submit" { "Sign in" }
        }
        p #how .muted {
            "On the server, " code { "slipway-server operator-token" } " prints the first token, and "
            code { "slipway-server operator add NAME" } " makes one for you."
        }
    };
    bare("Sign in", content, false)
}

/// Signs an operator in.
pub async fn sign_in(State(app): State<Arc<App>>, peer: Peer, request: Request) -> Result<Response, Failed> {
    let (parts, body) = request.into_parts();
    check_origin(&parts.headers)?;
    let fields = Fields::read(&app.stranger_bodies.read(Unread::of(&parts, body)?, LOGIN).await?);
    let next = Next { next: fields.given("next") };
    let problem = match operate::sign_in(&app.store, fields.text("token")).await {
        Ok(Some(secret)) => {
            let cookie = format!("{NAME}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict");
            return Ok(see_other(next.path(), Some(&cookie)));
        }
        Ok(None) => {
            // A guess costs a query of the database, so guesses are limited.
            app.pace(&peer).await?;
            "No operator has this token: it is wrong, or was removed or replaced.".to_owned()
        }
        Err(Error::Refused { code: ErrorCode::Unauthenticated, message, .. }) => message,
        Err(error) => return Err(error.into()),
    };
    let status = axum::http::StatusCode::UNAUTHORIZED;
    Ok((status, Html(login(&next, Some(&problem)))).into_response())
}

/// Signs the operator out.
pub async fn sign_out(act: Act) -> Result<Response, Failed> {
    operate::sign_out(&act.visitor.store, &act.visitor.secret).await?;
    let cookie = format!("{NAME}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0");
    Ok(see_other("/login", Some(&cookie)))
}
