//! The settings of one machine on a medium: a file of fixed length at a fixed place, so that the media of different
//! machines differ only in these bytes. systemd's stub adds the file to the initramfs (systemd-stub(7), "global
//! credentials").

use slipway_protocol::{MachineSettings, SettingError};

use crate::config::to_yaml;

/// The path of the file in the EFI system partition.
pub(crate) const PATH: &str = "loader/credentials/slipway.cred";
/// The size of the file in bytes.
pub const LEN: usize = 16 << 10;
/// First line of the file. No other file on a medium begins with it.
const MARKER: &[u8] = b"# slipway: settings of one machine\n";

/// Returns the content of the file.
pub fn to_bytes(settings: &MachineSettings) -> Result<Vec<u8>, SettingError> {
    settings.check()?;
    let mut bytes = [MARKER, to_yaml(settings).as_bytes()].concat();
    if bytes.len() > LEN {
        let wrong = format!("makes settings of {} bytes, but a medium reserves {LEN}", bytes.len());
        return Err(SettingError::new("network", "(long)", wrong));
    }
    bytes.resize(LEN, b'\n');
    Ok(bytes)
}

/// Returns the offset of the file in the first bytes of a medium. Only tables precede the file, so 8 MiB are enough.
pub fn find(head: &[u8]) -> Option<usize> {
    let found = head.windows(MARKER.len()).position(|window| window == MARKER)?;
    (head.len() >= found + LEN).then_some(found)
}
