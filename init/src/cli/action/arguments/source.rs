//! What is given beside the URL of what is fetched.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct SourceArguments {
    /// File with USERNAME:PASSWORD for the registry
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth: Option<PathBuf>,
    /// Another place of the same bytes, for when the URL fails; may be given several times, in the order to try them
    #[arg(long, value_name = "URL", value_parser = place)]
    pub(crate) mirror: Vec<String>,
    /// List of sums with the digest of the stream beside the file name of the URL; http:// only with a signature
    #[arg(long, value_name = "URL", group = "delivered", value_parser = place)]
    pub(crate) sums: Option<String>,
    /// Detached signature of the list of sums if there is one, else of the stream
    #[arg(long, value_name = "URL", requires = "public_key", value_parser = place)]
    pub(crate) signature: Option<String>,
    /// Key of minisign or Ed25519 to verify the signature with, or a file with it
    #[arg(long, value_name = "KEY|FILE", requires = "signature")]
    pub(crate) public_key: Option<String>,
}

/// Where something is: what has a scheme as it is, and anything else as a path, from the current directory if it is relative.
pub(crate) fn place(text: &str) -> Result<String, String> {
    if text.contains("://") || text.starts_with('/') {
        return Ok(text.to_owned());
    }
    let path = std::path::absolute(text).map_err(|error| format!("finding the current directory: {error}"))?;
    path.into_os_string().into_string().map_err(|path| format!("{} is no UTF-8", path.display()))
}
