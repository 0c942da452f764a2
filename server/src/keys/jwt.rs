//! The nodes' JSON Web Tokens (RFC 7519), signed with HMAC SHA-256 (RFC 7515, "HS256").
//!
//! The same key signs claim codes and the metadata service's tokens, which are shorter and valid as long as their run
//! is the node's newest.
//!
//! Only the server issues and checks tokens, so there is one algorithm and one header, compared byte for byte. Tokens
//! with another algorithm are refused.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::random;
use crate::base::time::Millis;
use hmac::{Hmac, Mac};

/// Header of a JWT, in base64url: `{"alg":"HS256","typ":"JWT"}`.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";
const AUDIENCE: &str = "slipway-node";
/// Prefix of a run's id when it is signed. A JWT begins differently, so one kind of token cannot pass for the other.
const METADATA: &str = "metadata ";
/// Prefix of the purpose of another secret.
const DERIVED: &str = "secret for ";
/// Prefix of a key when it is signed for its claim code.
const CLAIM: &str = "claim ";

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    aud: String,
    /// Seconds since 1970.
    iat: u64,
    exp: u64,
    cnf: Confirmation,
}

/// The key that the token is bound to (RFC 7800, section 3.4).
#[derive(Serialize, Deserialize)]
struct Confirmation {
    /// Fingerprint of the key.
    kid: String,
}

/// A node's id and the fingerprint of its machine's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Id of the node.
    pub node: String,
    /// Fingerprint of the key.
    pub key: String,
}

/// Issues and checks tokens.
#[derive(Clone)]
pub struct Signer {
    mac: Hmac<Sha256>,
}

impl Signer {
    /// Makes a signer with this secret, which should have at least 256 bits.
    pub fn new(secret: &str) -> Self {
        // HMAC takes keys of any length (RFC 2104, section 2).
        Self { mac: Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length") }
    }

    /// Opens the signer of a data folder. Creates the signer's secret if it is missing.
    pub fn open(data: &DataDir) -> Result<Self, Error> {
        Ok(Self::new(&data.read_or_create("jwt.key", || Ok(random::token()))?))
    }

    /// Returns a secret for another use, which is the same on all servers of the site. `purpose` separates the uses.
    pub fn derived(&self, purpose: &str) -> [u8; 32] {
        self.mac.clone().chain_update(DERIVED).chain_update(purpose).finalize().into_bytes().into()
    }

    /// Issues a token for a node with this key, valid for `lifetime` seconds.
    pub fn issue(&self, subject: &Subject, now: Millis, lifetime: u64) -> String {
        let (iat, exp) = (now / 1000, now / 1000 + lifetime);
        let cnf = Confirmation { kid: subject.key.clone() };
        let claims = Claims { sub: subject.node.clone(), aud: AUDIENCE.to_owned(), iat, exp, cnf };
        let claims = serde_json::to_vec(&claims).expect("text and numbers are always JSON");
        let signed = format!("{HEADER}.{}", BASE64.encode(claims));
        let signature = self.mac.clone().chain_update(&signed).finalize().into_bytes();
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// The node and key that a token was issued for. `None` if this server did not issue it or it has expired.
    pub fn verify(&self, token: &str, now: Millis) -> Option<Subject> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let signature = BASE64.decode(signature).ok()?;
        self.mac.clone().chain_update(signed).verify_slice(&signature).ok()?;
        let claims: Claims = serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()?;
        let valid = header == HEADER && claims.aud == AUDIENCE && now / 1000 < claims.exp;
        valid.then_some(Subject { node: claims.sub, key: claims.cnf.kid })
    }

    /// Returns the claim code of a key. The code depends on the secret too, so that nobody can search for a key with a
    /// given code. Another `attempt` gives another code, in case another key already has the first.
    pub fn claim_code(&self, key: &str, attempt: u8) -> String {
        let signature = self.mac.clone().chain_update(CLAIM).chain_update([attempt]).chain_update(key).finalize();
        random::claim_code(signature.into_bytes())
    }

    /// The token for a run's metadata, which can be part of a URL's path.
    pub fn metadata_token(&self, run: &str) -> String {
        let signature = self.mac.clone().chain_update(METADATA).chain_update(run).finalize().into_bytes();
        format!("{run}.{}", BASE64.encode(signature))
    }

    /// The run whose metadata a token gives access to. `None` if this server did not issue it.
    pub fn metadata_run<'a>(&self, token: &'a str) -> Option<&'a str> {
        let (run, signature) = token.split_once('.')?;
        let signature = BASE64.decode(signature).ok()?;
        let mac = self.mac.clone().chain_update(METADATA).chain_update(run);
        mac.verify_slice(&signature).is_ok().then_some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n1() -> Subject {
        Subject { node: "n1".to_owned(), key: "k1".to_owned() }
    }

    #[test]
    fn a_token_holds_until_it_expires_and_only_as_issued() {
        let signer = Signer::new("secret");
        let subject = n1();
        let token = signer.issue(&subject, 5_000, 10);
        assert_eq!(signer.verify(&token, 14_999), Some(subject));
        assert_eq!(signer.verify(&token, 15_000), None, "expired");
        assert_eq!(Signer::new("other").verify(&token, 5_000), None, "another key");
        assert_eq!(signer.verify(&token[..token.len() - 1], 5_000), None, "cut");
        for bad in ["", ".", "..", "a.b.c"] {
            assert_eq!(signer.verify(bad, 5_000), None, "{bad:?}");
        }
    }

    #[test]
    fn a_metadata_token_is_of_one_run() {
        let signer = Signer::new("secret");
        let token = signer.metadata_token("r1");
        assert_eq!(signer.metadata_run(&token), Some("r1"));
        assert_eq!(Signer::new("other").metadata_run(&token), None, "another key");
        let jwt = signer.issue(&n1(), 0, 1000);
        for bad in ["", "r1", "r1.", &token.replace("r1", "r2"), &token[..token.len() - 1], &jwt] {
            assert_eq!(signer.metadata_run(bad), None, "{bad:?}");
        }
        assert_eq!(signer.verify(&token, 0), None);
    }

    #[test]
    fn a_claim_code_is_of_one_key_and_one_installation() {
        let signer = Signer::new("secret");
        let code = signer.claim_code("k1", 0);
        assert_eq!(signer.claim_code("k1", 0), code);
        let others = [signer.claim_code("k2", 0), signer.claim_code("k1", 1), Signer::new("other").claim_code("k1", 0)];
        assert!(!others.contains(&code), "{code} {others:?}");
    }

    #[test]
    fn a_token_with_another_algorithm_is_refused() {
        let signer = Signer::new("secret");
        let token = signer.issue(&n1(), 5_000, 10);
        let claims = token.split('.').nth(1).expect("three parts");
        let none = format!("{}.{claims}.", BASE64.encode(r#"{"alg":"none","typ":"JWT"}"#));
        assert_eq!(signer.verify(&none, 5_000), None);
    }
}
