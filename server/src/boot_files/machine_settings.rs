//! The settings of one machine on a medium.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use slipway_media::machine_settings;
use slipway_protocol::MachineSettings;

use super::MediaError;

/// Bytes at the start of a medium that include the settings of a machine.
const BEFORE_SETTINGS: u64 = 8 << 20;

/// Writes the settings of one machine to their place on a medium. Changes nothing else on it.
pub fn write(path: &Path, settings: &MachineSettings) -> Result<(), MediaError> {
    let bytes = machine_settings::to_bytes(settings)?;
    let failed = |doing| move |source| MediaError::File { doing, path: path.to_owned(), source };
    let file = File::options().read(true).write(true).open(path).map_err(failed("opening"))?;
    let mut head = Vec::new();
    (&file).take(BEFORE_SETTINGS).read_to_end(&mut head).map_err(failed("reading"))?;
    let place = machine_settings::find(&head).ok_or_else(|| MediaError::NoPlace { path: path.to_owned() })?;
    file.write_all_at(&bytes, place as u64).and_then(|()| file.sync_all()).map_err(failed("writing"))
}
