//! A machine that ends with the process that started it.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::accel::Accel;
use crate::arguments;
use crate::config::{Boot, MachineConfig};
use crate::console::Console;
use crate::qmp::{POLL, Qmp};

/// A running machine, stopped on drop. Its console log stays in its folder.
pub struct Machine {
    qemu: Child,
    qmp: Qmp,
    console: Console,
    /// Folder of the Unix sockets. It is a separate one, because their paths must be short (sun_path in unix(7)).
    _sockets: TempDir,
}

impl Machine {
    /// Starts a machine. Its folder keeps the firmware's variables and `console.log`, to which restarts append.
    pub fn start(config: &MachineConfig, accel: Accel, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let sockets = tempfile::Builder::new().prefix("slipway-").tempdir().context("creating a folder for sockets")?;
        let variables = folder.join("vars.fd");
        if let Boot::Uefi { firmware, .. } = &config.boot {
            firmware.variables(&variables)?;
        }
        let console = Console::new(&folder.join("console.log"));
        let errors = folder.join("qemu.log");
        let log = File::create(&errors).with_context(|| format!("creating {}", errors.display()))?;
        let arguments = arguments::of(config, accel.arguments(config.arch), &variables, console.log(), sockets.path());
        let mut qemu = arguments::command(config.arch);
        qemu.args(arguments);
        if config.detached {
            qemu.process_group(0);
        }
        let qemu = qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut qemu = qemu.with_context(|| arguments::missing(config.arch))?;
        let qmp = match Qmp::connect(&sockets.path().join("qmp")) {
            Ok(qmp) => qmp,
            Err(error) => {
                // QEMU's own error about its arguments is clearer than a missing socket.
                qemu.kill().and_then(|()| qemu.wait()).context("stopping QEMU")?;
                let said = fs::read_to_string(&errors).unwrap_or_default();
                return Err(error.context(format!("starting QEMU: {}", said.trim())));
            }
        };
        Ok(Self { qemu, qmp, console, _sockets: sockets })
    }

    /// Returns the whole console output so far, over all restarts, without terminal control sequences.
    pub fn console(&self) -> Result<String> {
        self.console.text()
    }

    /// Path of the console's log file.
    pub fn console_log(&self) -> &Path {
        self.console.log()
    }

    /// Waits until the text appears on the console, searching from the last match of an earlier call.
    pub fn wait_for_console(&mut self, wanted: &str, limit: Duration) -> Result<()> {
        self.wait_until(wanted, limit, |console| Ok(console.find(wanted)?.then_some(())))
    }

    /// Waits until a complete line with the text appears on the console, searching from the last match of an earlier
    /// call. Returns the line.
    pub fn wait_for_line(&mut self, wanted: &str, limit: Duration) -> Result<String> {
        self.wait_until(wanted, limit, |console| console.find_line(wanted))
    }

    fn wait_until<T>(
        &mut self,
        wanted: &str,
        limit: Duration,
        mut find: impl FnMut(&mut Console) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            let ended = self.qemu.try_wait().context("waiting for QEMU")?;
            if let Some(found) = find(&mut self.console)? {
                return Ok(found);
            }
            let why = match ended {
                Some(status) => format!("the machine ended ({status})"),
                None if Instant::now() > deadline => format!("it did not appear within {} s", limit.as_secs()),
                None => {
                    std::thread::sleep(POLL);
                    continue;
                }
            };
            let (log, last) = (self.console.log().display(), self.console.end(15)?);
            bail!("waiting for {wanted:?} on the console: {why}; the end of {log}:\n{last}");
        }
    }

    /// Whether the machine still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.qemu.try_wait().context("waiting for QEMU")?.is_none())
    }

    /// Waits until the machine has powered off, or has reset if it was started with `-no-reboot`.
    pub fn wait_for_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.qemu.try_wait().context("waiting for QEMU")? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                let (log, last) = (self.console.log().display(), self.console.end(15)?);
                bail!(
                    "waiting for the machine to end: it is still running after {} s; the end of {log}:\n{last}",
                    limit.as_secs()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a QMP command.
    pub fn qmp(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.execute(command, arguments)
    }

    /// Presses the reset button.
    pub fn reset(&mut self) -> Result<()> {
        self.qmp("system_reset", json!({})).map(drop)
    }

    /// Limits the disk with this index to `bytes` bytes per second. 0 removes the limit.
    pub fn limit_disk(&mut self, disk: usize, bytes: u64) -> Result<()> {
        let device = format!("disk{disk}");
        let limits =
            json!({ "device": device, "bps": bytes, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0 });
        self.qmp("block_set_io_throttle", limits).map(drop)
    }

    /// Unplugs a device that has its own slot (`pcie-root-port`), and waits until the guest has released it.
    pub fn unplug(&mut self, id: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        self.qmp("device_del", json!({ "id": id }))?;
        loop {
            let plugged = self.qmp("qom-list", json!({ "path": "/machine/peripheral" }))?;
            if !plugged.as_array().is_some_and(|devices| devices.iter().any(|device| device["name"] == id)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "unplugging {id}: the guest does not release it; the console is in {}",
                    self.console.log().display()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a BREAK on the serial line, which the kernel treats as the SysRq key.
    pub fn send_break(&mut self) -> Result<()> {
        self.qmp("chardev-send-break", json!({ "id": "console" })).map(drop)
    }

    /// Types text on the serial line.
    pub fn type_text(&mut self, text: &str) -> Result<()> {
        use std::io::Write as _;
        self.serial_line()?.write_all(text.as_bytes()).context("typing on the serial line")
    }

    /// Presses keys of the keyboard together. Their names are those of QEMU's QKeyCode.
    pub fn press(&mut self, keys: &[&str]) -> Result<()> {
        let keys: Vec<Value> = keys.iter().map(|key| json!({ "type": "qcode", "data": key })).collect();
        self.qmp("send-key", json!({ "keys": keys })).map(drop)
    }

    /// Connects to the other end of the serial line. There is one connection at a time.
    pub fn serial_line(&self) -> Result<UnixStream> {
        UnixStream::connect(self._sockets.path().join("console")).context("connecting to the serial line")
    }

    /// Takes a picture of the display, as PNG or in the format of a portable pixel map (ppm(5)), which the name of the
    /// file says.
    pub fn take_picture(&mut self, file: &Path) -> Result<()> {
        let format = file.extension().unwrap_or_default().to_string_lossy();
        self.qmp("screendump", json!({ "filename": file, "format": format })).map(drop)
    }

    /// Returns the rows of the display's text mode, 80 characters each. Rows that scrolled away may be there too, and
    /// letters beyond ASCII are dots.
    pub fn text_mode(&mut self) -> Result<Vec<String>> {
        // The memory of text mode, with a character and its colours by turns, is there for BIOS and kernel.
        const PLACE: (u64, u64) = (0xb8000, 0x8000);
        let file = tempfile::NamedTempFile::new().context("creating a file")?;
        self.qmp("pmemsave", json!({ "val": PLACE.0, "size": PLACE.1, "filename": file.path() }))?;
        let memory = fs::read(file.path()).context("reading the memory of the display")?;
        let visible = |cell: &[u8]| char::from(cell.first().copied().filter(u8::is_ascii_graphic).unwrap_or(b'.'));
        let row = |row: &[u8]| row.chunks(2).map(|cell| if cell[0] == b' ' { ' ' } else { visible(cell) }).collect();
        Ok(memory.chunks(160).map(row).collect())
    }

    /// Keeps the machine running after this process ends, and returns QEMU's process id.
    pub fn keep(self) -> u32 {
        let pid = self.pid();
        // Skips the destructor, which would kill QEMU and remove its sockets.
        std::mem::forget(self);
        pid
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both calls fail only if QEMU has already ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            eprintln!("the machine's console is in {}", self.console.log().display());
        }
    }
}
