//! The device of a TPM: one write sends a command, one read returns the answer (drivers/char/tpm/tpm-dev-common.c).

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::error::TpmError;
use crate::wire::Reader;

/// The tags of commands (part 2, 6.9).
const NO_SESSIONS: u16 = 0x8001;
const WITH_SESSIONS: u16 = 0x8002;
/// The bytes of a header: tag, size, and command or response code.
const HEADER: usize = 10;
/// Maximum length of commands and answers in bytes (drivers/char/tpm/tpm.h, `TPM_BUFSIZE`).
const LONGEST: usize = 4096;
/// A session stays open for another use (part 2, 8.4).
const CONTINUE: u8 = 1;

/// The response codes of a busy TPM: yielded, testing itself, retry (part 2, 6.6.3).
const BUSY: &[u32] = &[0x908, 0x90A, 0x922];
/// First and longest pause before a command is sent again. The pause doubles each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// ENXIO and ENODEV, for which `ErrorKind` has no name.
const NO_DEVICE: [i32; 2] = [6, 19];

/// A command's code (part 2, 6.5.2) and its name.
#[derive(Clone, Copy)]
pub(crate) struct Command(u32, &'static str);

impl Command {
    pub(crate) const CREATE_PRIMARY: Self = Self(0x131, "TPM2_CreatePrimary");
    pub(crate) const ACTIVATE_CREDENTIAL: Self = Self(0x147, "TPM2_ActivateCredential");
    pub(crate) const NV_READ: Self = Self(0x14E, "TPM2_NV_Read");
    pub(crate) const POLICY_SECRET: Self = Self(0x151, "TPM2_PolicySecret");
    pub(crate) const CREATE: Self = Self(0x153, "TPM2_Create");
    pub(crate) const LOAD: Self = Self(0x157, "TPM2_Load");
    pub(crate) const QUOTE: Self = Self(0x158, "TPM2_Quote");
    pub(crate) const UNSEAL: Self = Self(0x15E, "TPM2_Unseal");
    pub(crate) const FLUSH_CONTEXT: Self = Self(0x165, "TPM2_FlushContext");
    pub(crate) const NV_READ_PUBLIC: Self = Self(0x169, "TPM2_NV_ReadPublic");
    pub(crate) const START_AUTH_SESSION: Self = Self(0x176, "TPM2_StartAuthSession");
    pub(crate) const PCR_READ: Self = Self(0x17E, "TPM2_PCR_Read");
    pub(crate) const POLICY_PCR: Self = Self(0x17F, "TPM2_PolicyPCR");
    pub(crate) const POLICY_GET_DIGEST: Self = Self(0x189, "TPM2_PolicyGetDigest");
}

/// An open TPM.
pub(crate) struct Device {
    /// None after a failure, so that an answer is never mistaken for another command's.
    worker: Option<Worker>,
    deadline: Duration,
}

/// A thread that waits for the TPM. poll(2) cannot time out here: while the TPM works, poll, read and close wait for a
/// lock of its device, until the driver gives up after minutes (`tpm_common_poll`). An abandoned thread ends when the
/// device answers.
struct Worker {
    commands: Sender<Vec<u8>>,
    answers: Receiver<io::Result<Vec<u8>>>,
}

impl Device {
    pub(crate) fn open(path: &Path, deadline: Duration) -> Result<Self, TpmError> {
        let is_missing = |error: &io::Error| {
            error.kind() == ErrorKind::NotFound || error.raw_os_error().is_some_and(|code| NO_DEVICE.contains(&code))
        };
        let started = connect(path).and_then(Worker::start);
        let worker = started.map_err(|source| match path.display().to_string() {
            path if is_missing(&source) => TpmError::Missing { path },
            path => TpmError::Open { path, source },
        })?;
        Ok(Self { worker: Some(worker), deadline })
    }

    /// Sends a command with its handles and parameters, and parses the body of the answer with `read`. Each of
    /// `sessions` authorizes the handle at the same position.
    pub(crate) fn call<T>(
        &mut self,
        command: Command,
        handles: &[u32],
        sessions: &[u32],
        parameters: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> Result<T, TpmError> {
        let answer = self.send(command, &marshal(command, handles, sessions, parameters))?;
        read(&mut Reader(&answer)).ok_or(TpmError::Malformed { command: command.1 })
    }

    /// Runs `act` with a loaded object or session, then flushes it. If both fail, returns the error of `act`.
    pub(crate) fn using<T>(
        &mut self,
        handle: u32,
        act: impl FnOnce(&mut Self) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let done = act(self);
        let flushed = self.flush(handle);
        done.and_then(|done| flushed.map(|()| done))
    }

    /// Flushes an object or a session.
    pub(crate) fn flush(&mut self, handle: u32) -> Result<(), TpmError> {
        self.call(Command::FLUSH_CONTEXT, &[handle], &[], &[], |_| Some(()))
    }

    /// Sends a command, again if the TPM is busy, until the deadline. Returns the body of the answer.
    fn send(&mut self, command: Command, sent: &[u8]) -> Result<Vec<u8>, TpmError> {
        let (started, mut pause) = (Instant::now(), PAUSE.0);
        loop {
            let left = self.deadline.saturating_sub(started.elapsed());
            match self.submit(command, sent, left) {
                Err(error) if error.is(BUSY) && pause < left => {
                    thread::sleep(pause);
                    pause = PAUSE.1.min(pause * 2);
                }
                answer => return answer,
            }
        }
    }

    fn submit(&mut self, command: Command, sent: &[u8], left: Duration) -> Result<Vec<u8>, TpmError> {
        let Command(_, command) = command;
        if sent.len() > LONGEST {
            return Err(TpmError::TooLong { command });
        }
        // The worker is put back only after a well-formed answer.
        let worker = self.worker.take().ok_or(TpmError::Failed { command })?;
        worker.commands.send(sent.to_vec()).map_err(|_| TpmError::Failed { command })?;
        let answer = worker.answers.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => TpmError::Silent { command, deadline: self.deadline },
            RecvTimeoutError::Disconnected => TpmError::Failed { command },
        })?;
        let answer = answer.map_err(|source| TpmError::Transport { command, source })?;
        let (code, body) = parse(&answer).ok_or(TpmError::Malformed { command })?;
        self.worker = Some(worker);
        if code == 0 { Ok(body.to_vec()) } else { Err(TpmError::Refused { command, code }) }
    }
}

impl Worker {
    fn start(mut device: File) -> io::Result<Self> {
        let (commands, to_send) = channel::<Vec<u8>>();
        let (answered, answers) = channel();
        thread::Builder::new().name("tpm".to_owned()).spawn(move || {
            for command in to_send {
                if answered.send(exchange(&mut device, &command)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { commands, answers })
    }
}

/// Opens a device, or connects to the UNIX socket of a software TPM.
fn connect(path: &Path) -> io::Result<File> {
    if path.metadata()?.file_type().is_socket() {
        return UnixStream::connect(path).map(|socket| File::from(OwnedFd::from(socket)));
    }
    File::options().read(true).write(true).open(path)
}

/// Writes a command, and reads until the answer has the length in its header, or the device ends.
fn exchange(device: &mut File, command: &[u8]) -> io::Result<Vec<u8>> {
    device.write_all(command)?;
    let mut answer = vec![0; LONGEST];
    let mut have = 0;
    loop {
        let n = match device.read(answer.get_mut(have..).unwrap_or_default()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        have += n;
        let size = answer.get(..have).and_then(size).unwrap_or(HEADER);
        if n == 0 || have >= size.max(HEADER) {
            answer.truncate(have);
            return Ok(answer);
        }
    }
}

/// Encodes a command (part 1, 18.4).
fn marshal(command: Command, handles: &[u32], sessions: &[u32], parameters: &[u8]) -> Vec<u8> {
    let mut body: Vec<u8> = handles.iter().flat_map(|handle| handle.to_be_bytes()).collect();
    // The empty password, or a session without a key, needs no nonce and no HMAC (part 2, 10.13.2).
    let authorize = |session: &u32| [&session.to_be_bytes()[..], &[0, 0, CONTINUE, 0, 0]].concat();
    let authorizations: Vec<u8> = sessions.iter().flat_map(authorize).collect();
    if !sessions.is_empty() {
        body.extend((authorizations.len() as u32).to_be_bytes());
        body.extend(authorizations);
    }
    body.extend(parameters);
    let tag = if sessions.is_empty() { NO_SESSIONS } else { WITH_SESSIONS };
    let len = (HEADER + body.len()) as u32;
    [&tag.to_be_bytes()[..], &len.to_be_bytes(), &command.0.to_be_bytes(), &body].concat()
}

/// The length in the header of an answer.
fn size(answer: &[u8]) -> Option<usize> {
    let mut header = Reader(answer);
    header.u16()?;
    usize::try_from(header.u32()?).ok()
}

/// The response code and the body of an answer (part 1, 18.4). None if the length differs from that in the header.
fn parse(answer: &[u8]) -> Option<(u32, &[u8])> {
    let mut header = Reader(answer);
    header.bytes(6)?;
    let code = header.u32()?;
    (size(answer)? == answer.len()).then_some((code, header.0))
}
