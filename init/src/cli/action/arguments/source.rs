//! Arguments for sources with a URL.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use slipway_actions::HostOptions;
use slipway_protocol::shared::given::is_blank;
use slipway_protocol::{DetachedSignature, RegistryAuth, Secret};

use super::optional;
use crate::cli::read_file;

#[derive(Args)]
pub(super) struct SourceArguments {
    /// File with USERNAME:PASSWORD for the registry
    #[arg(long, value_name = "FILE")]
    registry_auth: Option<PathBuf>,
    /// Another URL of the same bytes, tried if earlier ones fail; may be given several times, in the order to try
    #[arg(long, value_name = "URL", value_parser = place)]
    pub(super) mirror: Vec<String>,
    /// List of checksums with a line for the URL's file name and its digest; http:// only with a signature
    #[arg(long, value_name = "URL", group = "delivered", value_parser = place)]
    pub(super) sums: Option<String>,
    /// Detached signature of the list of checksums if there is one, else of the stream
    #[arg(long, value_name = "URL", requires = "public_key", value_parser = place)]
    signature: Option<String>,
    /// Minisign or Ed25519 public key that made the signature, or a file with it
    #[arg(long, value_name = "KEY|FILE", requires = "signature")]
    public_key: Option<String>,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    ca: Option<PathBuf>,
}

impl SourceArguments {
    /// Reads the login from its file. As an argument it would be visible to other users.
    pub(super) fn registry_auth(&self) -> Result<Option<RegistryAuth>> {
        let Some(path) = &self.registry_auth else { return Ok(None) };
        let text = read_file(path)?;
        let login = text.trim_end_matches(['\r', '\n']).split_once(':');
        let login = login.filter(|(username, password)| !is_blank(username) && !is_blank(password));
        let (username, password) = login.with_context(|| format!("{} is not USERNAME:PASSWORD", path.display()))?;
        Ok(Some(RegistryAuth { username: username.to_owned(), password: Secret::from(password.to_owned()) }))
    }

    /// Returns the signature. Reads the key if it is given as a file.
    pub(super) fn signature(&self) -> Result<Option<DetachedSignature>> {
        let (Some(url), Some(key)) = (self.signature.clone(), &self.public_key) else { return Ok(None) };
        let path = PathBuf::from(key);
        let public_key = if path.exists() { read_file(&path)? } else { key.clone() };
        Ok(Some(DetachedSignature { url, public_key }))
    }

    /// Returns a host that trusts the given certificates.
    pub(super) fn host(&self) -> Result<HostOptions> {
        let trust = optional(&self.ca)?.into_iter().collect();
        Ok(HostOptions { trust, ..HostOptions::default() })
    }
}

/// Converts a place into a URL or an absolute path. Text with a scheme is unchanged, a relative path starts at the
/// current directory, and `-` is standard input.
pub(super) fn place(text: &str) -> Result<String, String> {
    if text == "-" {
        return Ok("/dev/stdin".to_owned());
    }
    if text.contains("://") || text.starts_with('/') {
        return Ok(text.to_owned());
    }
    let path = std::path::absolute(text).map_err(|error| format!("finding the current directory: {error}"))?;
    path.into_os_string().into_string().map_err(|path| format!("{} is not UTF-8", path.display()))
}
