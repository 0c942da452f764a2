//! Why a key in a token does not sign.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use cryptoki::error::Error as ModuleError;

/// A key in a token cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("using the key {key}")]
pub struct KeyFault {
    /// Its PKCS #11 URI.
    pub key: String,
    /// The cause.
    #[source]
    pub source: Fault,
}

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The library cannot be loaded.
    #[error("loading the module {path:?}; install the package that has it, and check module-path")]
    Load {
        /// The library.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// Root does not load what others can change.
    #[error(
        "loading the module {path:?} as root: somebody else can change it, or a folder above it; run this as the \
         owner of the data folder (`runuser -u slipway -- slipway-server ...`), or use a module that belongs to root"
    )]
    NotOfRoot {
        /// The library.
        path: PathBuf,
    },
    /// The module did not do something.
    #[error("{doing}: {answer}")]
    Call {
        /// What was being done.
        doing: &'static str,
        /// What the module answered.
        answer: String,
    },
    /// There is no such token.
    #[error(
        "looking for the token: the module knows no token of this name; {}",
        found_or(found, "it knows none at all: check whether the token is there, and whether this user may use it")
    )]
    NoToken {
        /// The tokens that there are.
        found: Vec<String>,
    },
    /// There are several such tokens.
    #[error("looking for the token: the URI fits several; add the serial number; {}", found_or(found, ""))]
    ManyTokens {
        /// The tokens that fit.
        found: Vec<String>,
    },
    /// The token wants a PIN, and there is none.
    #[error(
        "the token needs a PIN; write it to a file that others cannot read, and add pin-source=file:/PATH to the URI"
    )]
    NoPin,
    /// The file of the PIN cannot be read.
    #[error("reading the PIN in {path:?}")]
    PinFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file of the PIN cannot be used.
    #[error("reading the PIN in {path:?}: {wrong}")]
    PinText {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        wrong: &'static str,
    },
    /// The PIN is wrong.
    #[error(
        "logging in: the PIN in {path:?} is wrong; it was tried once. Tokens lock after a few wrong ones, so correct the file \
         before you try again"
    )]
    WrongPin {
        /// The file.
        path: PathBuf,
    },
    /// The PIN cannot be used any more.
    #[error(
        "logging in: the token is locked after wrong PINs; unlock it with its own program, by its PUK or security officer"
    )]
    Locked,
    /// A wrong PIN would lock the token.
    #[error(
        "logging in: one more wrong PIN would lock the token, so none was tried; log in with the token's own program, for \
         example `pkcs11-tool --login --test`, then try again"
    )]
    LastTry,
    /// There is no such key.
    #[error("looking for the key: the token has no such private key; {}", found_or(found, "it has none at all"))]
    NoKey {
        /// The private keys that there are.
        found: Vec<String>,
    },
    /// There are several such keys.
    #[error("looking for the key: the URI fits several; add its object or id; {}", found_or(found, ""))]
    ManyKeys {
        /// The keys that fit.
        found: Vec<String>,
    },
    /// The key is of another kind.
    #[error("the key is not RSA, and firmware verifies nothing else")]
    NotRsa,
    /// The token cannot sign so.
    #[error("the token offers neither CKM_RSA_PKCS nor CKM_SHA256_RSA_PKCS to sign with this key")]
    NoMechanism,
}

/// What was found, or what to say if there is nothing.
fn found_or(found: &[String], nothing: &str) -> String {
    match found {
        [] => nothing.to_owned(),
        found => format!("there are: {}", found.join(", ")),
    }
}

impl Fault {
    /// What a module answered. The names of its answers are those of the standard, without `CKR`.
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
