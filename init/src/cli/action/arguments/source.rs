//! Arguments that go with the URL of a source.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct SourceArguments {
    /// File with USERNAME:PASSWORD for the registry
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth: Option<PathBuf>,
    /// Another URL of the same bytes, tried if the URL fails; may be given several times, in the order to try
    #[arg(long, value_name = "URL", value_parser = place)]
    pub(crate) mirror: Vec<String>,
    /// List of sums with the digest of the stream next to the file name of the URL; http:// only with a signature
    #[arg(long, value_name = "URL", group = "delivered", value_parser = place)]
    pub(crate) sums: Option<String>,
    /// Detached signature of the list of sums if there is one, else of the stream
    #[arg(long, value_name = "URL", requires = "public_key", value_parser = place)]
    pub(crate) signature: Option<String>,
    /// Minisign or Ed25519 public key for the signature, or a file with it
    #[arg(long, value_name = "KEY|FILE", requires = "signature")]
    pub(crate) public_key: Option<String>,
}

/// A place as a URL or an absolute path. Text with a scheme stays as it is. A relative path starts at the current
/// directory.
pub(crate) fn place(text: &str) -> Result<String, String> {
    if text.contains("://") || text.starts_with('/') {
        return Ok(text.to_owned());
    }
    let path = std::path::absolute(text).map_err(|error| format!("finding the current directory: {error}"))?;
    path.into_os_string().into_string().map_err(|path| format!("{} is no UTF-8", path.display()))
}
