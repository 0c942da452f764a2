//! Errors of keys in tokens.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use cryptoki::error::Error as ModuleError;

/// A key in a token cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("using the key {key}")]
pub struct KeyFault {
    /// PKCS #11 URI of the key.
    pub key: String,
    /// What failed.
    pub source: Fault,
}

/// Why a key in a token cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Fault {
    /// The module cannot be loaded.
    #[error("loading the module {path:?}; install the package that has it, and check module-path")]
    Load {
        path: PathBuf,
        /// Error of the loader or the file system.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// Root does not load a library that others can change.
    #[error(
        "loading the module {path:?} as root: other users can change it or a folder above it; run this as the \
         owner of the data folder (`runuser -u slipway -- slipway-server ...`), or use a module that belongs to root"
    )]
    NotOfRoot { path: PathBuf },
    /// A call of the module failed.
    #[error("{doing}: {answer}")]
    Call {
        /// The operation, such as "looking for tokens".
        doing: &'static str,
        /// The module's answer, such as "C_Sign answered DeviceError".
        answer: String,
    },
    /// No token matches the URI.
    #[error(
        "looking for the token: the module has no token with this name; {}",
        found_or(found, "it has no token at all: check that the token is connected and that this user may use it")
    )]
    NoToken { found: Vec<String> },
    /// Several tokens match the URI.
    #[error("looking for the token: the URI matches several tokens; add the serial number; {}", found_or(found, ""))]
    ManyTokens { found: Vec<String> },
    /// The token requires a PIN, but the URI names no file with one.
    #[error(
        "the token needs a PIN; write it to a file that others cannot read, and add pin-source=file:/PATH to the URI"
    )]
    NoPin,
    /// The PIN's file cannot be read.
    #[error("reading the PIN in {path:?}")]
    PinFile { path: PathBuf, source: io::Error },
    /// The content of the PIN's file is not a PIN.
    #[error("reading the PIN in {path:?}: {wrong}")]
    PinText { path: PathBuf, wrong: &'static str },
    /// The token refused the PIN.
    #[error(
        "logging in: the PIN in {path:?} is wrong; it was tried once. Tokens lock after a few wrong PINs, so correct \
         the file before you try again"
    )]
    WrongPin { path: PathBuf },
    /// The token is locked.
    #[error(
        "logging in: the token is locked after wrong PINs; unlock it with its own program, with the PUK or as security \
         officer"
    )]
    Locked,
    /// A wrong PIN now would lock the token.
    #[error(
        "logging in: one more wrong PIN would lock the token, so none was tried; log in with the token's own program, \
         for example `pkcs11-tool --login --test`, then try again"
    )]
    LastTry,
    /// No private key matches the URI.
    #[error("looking for the key: the token has no such private key; {}", found_or(found, "it has none"))]
    NoKey {
        /// The private keys in the token.
        found: Vec<String>,
    },
    /// Several private keys match the URI.
    #[error("looking for the key: the URI matches several keys; add object or id; {}", found_or(found, ""))]
    ManyKeys { found: Vec<String> },
    /// The key is not RSA.
    #[error("the key is not RSA, but firmware supports only RSA")]
    NotRsa,
    /// The token does not support the signature algorithm.
    #[error("the token offers neither CKM_RSA_PKCS nor CKM_SHA256_RSA_PKCS to sign with this key")]
    NoMechanism,
}

/// Lists what was found, or returns `nothing` if nothing was found.
fn found_or(found: &[String], nothing: &str) -> String {
    match found {
        [] => nothing.to_owned(),
        found => format!("there are: {}", found.join(", ")),
    }
}

impl Fault {
    /// Returns a function that turns a module's error into a fault. Return values are named as in the standard, without
    /// `CKR`.
    pub fn call(doing: &'static str) -> impl Fn(ModuleError) -> Self {
        move |error| {
            let answer = match error {
                ModuleError::Pkcs11(code, function) => format!("C_{function:?} answered {code:?}"),
                other => other.to_string(),
            };
            Self::Call { doing, answer }
        }
    }
}
