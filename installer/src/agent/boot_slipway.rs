//! Restarts a running system into slipway: fetches the server's boot files, loads them by kexec, and shuts the system
//! down. Until the last step, the system is not touched.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use slipway_parts::cpio::Archive;
use slipway_protocol::{BootReporterConfig, MachineSettings};

use super::client;
use super::files::Files;
use super::requests::FileError;
use crate::boot_report::{ReportError, Surroundings, collect};
use crate::config;
use crate::server::client::ClientError;

/// Largest boot file, in bytes.
const MAX_FILE: u64 = 512 << 20;

/// Why a system could not be restarted into slipway. It goes on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BootSlipwayError {
    /// The agent has no credentials.
    #[error("restarting into slipway: this system has no agent with credentials")]
    NoAgent,
    /// The server cannot be reached, or has no boot files.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration on the machine cannot be used.
    #[error(transparent)]
    Config(#[from] ReportError),
    /// A boot file could not be fetched.
    #[error("fetching the boot file {path}")]
    Fetch { path: String, source: FileError },
    /// A file could not be written.
    #[error("storing a boot file in {path}")]
    Store { path: String, source: io::Error },
    /// The kernel does not take another one.
    #[error(
        "loading slipway's kernel: {source}; a kernel under lockdown takes none that is not signed, and one without \
         kexec takes none at all: switch the machine's power instead"
    )]
    Load { source: io::Error },
    /// The system does not shut down.
    #[error("shutting the system down: {reason}")]
    ShutDown { reason: String },
}

/// Fetches slipway's boot files, loads them, and has the service manager shut the system down into them.
pub async fn boot_slipway(
    config: &BootReporterConfig,
    surroundings: &Surroundings,
    load: impl FnOnce(&File, &File, &CStr) -> io::Result<()>,
    unload: impl FnOnce() -> io::Result<()>,
) -> Result<(), BootSlipwayError> {
    let token = Files::of(surroundings).token(config).ok_or(BootSlipwayError::NoAgent)?;
    let client = client(config, &token)?;
    let boot = client.agent_boot(std::env::consts::ARCH).await?;
    let mut files = Vec::new();
    for (name, path) in [("vmlinuz", &boot.kernel), ("initramfs", &boot.initramfs)] {
        println!("fetching {path}");
        let place = surroundings.state.join(name);
        let store = |source| BootSlipwayError::Store { path: place.display().to_string(), source };
        let mut file = unnamed(&place).map_err(store)?;
        let fetched = client.fetch_boot_file(path, &mut file, MAX_FILE).await;
        fetched.map_err(|source| BootSlipwayError::Fetch { path: path.clone(), source })?;
        if name == "initramfs" {
            let size = file.metadata().map_err(store)?.len();
            file.write_all(&settings(&config.machine, size)).map_err(store)?;
        }
        files.push(file);
    }
    let [kernel, initramfs] = &files[..] else { return Err(BootSlipwayError::NoAgent) };
    let cmdline = CString::new(boot.cmdline).map_err(|error| BootSlipwayError::Load { source: error.into() })?;
    load(kernel, initramfs, &cmdline).map_err(|source| BootSlipwayError::Load { source })?;
    println!("shutting the system down, to start slipway");
    let shut_down = collect::succeeds(surroundings, "systemctl", &["--no-wall", "kexec"]).await;
    shut_down.map_err(|reason| {
        // Another reboot would start slipway instead of the system.
        let left = unload().err().map(|error| format!("; slipway's kernel stays loaded: {error}")).unwrap_or_default();
        BootSlipwayError::ShutDown { reason: reason + &left }
    })
}

/// Makes a file that has no name, so that it is gone with this process.
fn unnamed(place: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(place)?;
    fs::remove_file(place)?;
    Ok(file)
}

/// Returns an archive, to be put behind an initramfs of this size, with the settings that this machine has for itself.
/// Empty without any.
fn settings(settings: &MachineSettings, size: u64) -> Vec<u8> {
    let values = settings.stored().unwrap_or_default();
    if values.is_empty() {
        return Vec::new();
    }
    let mut archive = Archive::default();
    // JSON is YAML.
    archive.add_file(config::OF_MACHINE, 0o600, serde_json::Value::from(values).to_string().into_bytes());
    // The kernel looks for an archive at multiples of four bytes alone (init/initramfs.c).
    let mut bytes = vec![0; (size.wrapping_neg() % 4) as usize];
    bytes.extend(archive.to_bytes(0));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_keeps_its_own_settings_and_no_token() {
        let given = MachineSettings {
            token: Some("secret".to_owned().into()),
            proxy: Some("http://proxy.example:3128".to_owned()),
            hostname: Some("rack1".to_owned()),
            ..MachineSettings::default()
        };
        let bytes = settings(&given, 6);
        assert_eq!(&bytes[..8], b"\0\x00070701");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(r#"{"hostname":"rack1","proxy":"http://proxy.example:3128"}"#), "{text}");
        assert!(text.contains("global_credentials/slipway.cred") && !text.contains("secret"), "{text}");
        assert_eq!(settings(&MachineSettings::default(), 6), b"");
    }
}
