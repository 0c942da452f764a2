//! QEMU's machine protocol: one JSON object per line over a Unix socket (docs/interop/qmp-spec in QEMU's sources).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Polling interval.
pub const POLL: Duration = Duration::from_millis(50);
/// Time limit for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection to a running QEMU.
pub struct Qmp {
    from: BufReader<UnixStream>,
    to: UnixStream,
}

impl Qmp {
    /// Connects as soon as QEMU has made the socket, and completes capability negotiation.
    pub fn connect(socket: &Path) -> Result<Self> {
        let deadline = Instant::now() + ANSWER;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(error) => return Err(error).with_context(|| format!("connecting to {}", socket.display())),
            }
        };
        stream.set_read_timeout(Some(ANSWER)).context("setting a time limit for QEMU")?;
        let to = stream.try_clone().context("connecting to QEMU")?;
        let mut qmp = Self { from: BufReader::new(stream), to };
        qmp.message()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Sends a command and returns the answer.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.to, "{request}").with_context(|| format!("sending {command} to QEMU"))?;
        loop {
            let mut answer = self.message()?;
            if let Some(error) = answer.get("error") {
                bail!("sending {command} to QEMU: {error}");
            }
            // An event has neither a result nor an error.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        let length = self.from.read_line(&mut line).context("reading from QEMU")?;
        ensure!(length != 0, "reading from QEMU: it closed the connection");
        serde_json::from_str(&line).with_context(|| format!("reading {line:?} from QEMU"))
    }
}
