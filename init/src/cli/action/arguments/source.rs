//! What is given beside the URL of what is fetched.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct SourceArguments {
    /// File with USERNAME:PASSWORD for the registry
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth: Option<PathBuf>,
    /// Another place of the same bytes, for when the URL fails; may be given several times, in the order to try them
    #[arg(long, value_name = "URL")]
    pub(crate) mirror: Vec<String>,
    /// List of sums with the digest of the stream beside the file name of the URL; http:// only with a signature
    #[arg(long, value_name = "URL", group = "delivered")]
    pub(crate) sums: Option<String>,
    /// Detached signature of the list of sums if there is one, else of the stream
    #[arg(long, value_name = "URL", requires = "public_key")]
    pub(crate) signature: Option<String>,
    /// Key of minisign or Ed25519 to verify the signature with, or a file with it
    #[arg(long, value_name = "KEY|FILE", requires = "signature")]
    pub(crate) public_key: Option<String>,
}
