//! Boot files of the prebuilt parts and one configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use slipway_media::{BuildError, Config, ConfigError, Inputs, Kind, Manifest};
use slipway_parts::{ABOUT, Arch, Parts};
use slipway_secure_boot::SigningKey;

use super::{MediaError, folder};

/// What to build, and of what.
#[derive(Clone, Debug)]
pub struct Request {
    /// What machines are told.
    pub config: Config,
    /// The folder of prebuilt parts.
    pub parts: PathBuf,
    /// Name of the kernel.
    pub kernel: String,
    /// Architectures; all for which there are parts if it is empty.
    pub archs: BTreeSet<Arch>,
    /// Kinds of files.
    pub kinds: BTreeSet<Kind>,
}

/// Makes the files below `out`, signed for Secure Boot if there is a key, and names them. The same request gives the same files.
pub fn make(request: &Request, signer: Option<&SigningKey>, out: &Path) -> Result<Manifest, MediaError> {
    check_kernel(&request.kernel).map_err(BuildError::from)?;
    let kinds: Vec<Kind> = request.kinds.iter().copied().collect();
    request.config.check(&kinds).map_err(BuildError::from)?;
    let parts = parts(request)?;
    let inputs = Inputs { config: &request.config, parts: &parts, kinds: &kinds, signer };
    folder::add(out, &slipway_media::id(&inputs), request.config.token.is_some(), |write| {
        slipway_media::build(&inputs, write)
    })
}

/// The name becomes part of a path.
fn check_kernel(name: &str) -> Result<(), ConfigError> {
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let wrong = "must be a name such as generic or cloud: lower-case letters, digits and hyphens".to_owned();
    Err(ConfigError { key: "kernel", value: name.chars().take(60).collect(), wrong })
}

/// The parts that the request is about, one for each architecture.
fn parts(request: &Request) -> Result<Vec<Parts>, MediaError> {
    let folder = |arch: Arch| request.parts.join(format!("{}-{}", arch.name(), request.kernel));
    let archs: Vec<Arch> = match request.archs.is_empty() {
        true => Arch::ALL.into_iter().filter(|arch| folder(*arch).join(ABOUT).exists()).collect(),
        false => request.archs.iter().copied().collect(),
    };
    let missing = archs.iter().find(|arch| !folder(**arch).join(ABOUT).exists());
    if missing.is_some() || archs.is_empty() {
        let arch = missing.map_or("any architecture", |arch| arch.name());
        let wanted = format!("{arch} with kernel {}", request.kernel);
        return Err(MediaError::NoParts { wanted, folder: request.parts.clone() });
    }
    archs.into_iter().map(|arch| Ok(Parts::open(&folder(arch))?)).collect()
}
