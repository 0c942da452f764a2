//! The device of a TPM: each command is one write, each answer one read (drivers/char/tpm/tpm-dev-common.c).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::wire::Reader;
use crate::error::TpmError;

/// Tags of commands and answers (part 2, 6.9).
pub(super) const NO_SESSIONS: u16 = 0x8001;
pub(super) const WITH_SESSIONS: u16 = 0x8002;
/// Bytes of the header: tag, size, and command or response code.
const HEADER: usize = 10;
/// Maximum length of an answer in bytes (drivers/char/tpm/tpm.h, `TPM_BUFSIZE`).
const LONGEST: usize = 4096;

/// Response codes of a busy TPM: yielded, testing itself, or retry (part 2, 6.6.3).
const BUSY: &[u32] = &[0x908, 0x90A, 0x922];
/// How many times a command is sent at most, as in tpm2-tss (src/tss2-esys/esys_int.h).
const SUBMISSIONS: u32 = 5;

/// Command codes (part 2, 6.5.2).
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    CreatePrimary = 0x131,
    Create = 0x153,
    Load = 0x157,
    Unseal = 0x15E,
    FlushContext = 0x165,
    StartAuthSession = 0x176,
    PcrRead = 0x17E,
    PolicyPcr = 0x17F,
    PolicyGetDigest = 0x189,
}

impl Command {
    fn name(self) -> &'static str {
        match self {
            Command::CreatePrimary => "TPM2_CreatePrimary",
            Command::Create => "TPM2_Create",
            Command::Load => "TPM2_Load",
            Command::Unseal => "TPM2_Unseal",
            Command::FlushContext => "TPM2_FlushContext",
            Command::StartAuthSession => "TPM2_StartAuthSession",
            Command::PcrRead => "TPM2_PCR_Read",
            Command::PolicyPcr => "TPM2_PolicyPCR",
            Command::PolicyGetDigest => "TPM2_PolicyGetDigest",
        }
    }
}

/// The result of parsing the bytes read so far.
#[derive(Debug, PartialEq, Eq)]
enum Answer<'a> {
    /// The answer is incomplete.
    Part,
    /// The bytes are no answer.
    Malformed,
    /// The command was refused with this code.
    Refused(u32),
    /// The command succeeded. These bytes follow the header of the answer.
    Whole(&'a [u8]),
}

/// Parses the header of an answer (part 1, 18.4.2).
fn parse(bytes: &[u8]) -> Answer<'_> {
    let mut header = Reader(bytes);
    let (Some(_), Some(size), Some(code)) = (header.u16(), header.u32(), header.u32()) else { return Answer::Part };
    let size = size as usize;
    if !(HEADER..=LONGEST).contains(&size) || bytes.len() > size {
        return Answer::Malformed;
    }
    match code {
        _ if bytes.len() < size => Answer::Part,
        0 => Answer::Whole(header.0),
        code => Answer::Refused(code),
    }
}

/// An open TPM.
pub(super) struct Device {
    file: File,
    path: String,
}

impl Device {
    pub(super) fn open(path: &Path) -> Result<Self, TpmError> {
        let name = path.display().to_string();
        match File::options().read(true).write(true).open(path) {
            Ok(file) => Ok(Self { file, path: name }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(TpmError::Missing { path: name }),
            Err(source) => Err(TpmError::Device { operation: "opening", path: name, source }),
        }
    }

    /// Sends a command with its handles, authorizations and parameters, and reads its answer.
    pub(super) fn call<T>(
        &mut self,
        command: Command,
        tag: u16,
        parameters: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> Result<T, TpmError> {
        let answer = self.exchange(command, tag, parameters)?;
        read(&mut Reader(&answer)).ok_or(TpmError::Malformed { command: command.name() })
    }

    /// Sends a command, and sends it again if the TPM is busy. Returns what follows the header of a successful answer.
    fn exchange(&mut self, command: Command, tag: u16, parameters: &[u8]) -> Result<Vec<u8>, TpmError> {
        let mut submissions = 1;
        loop {
            match self.submit(command, tag, parameters) {
                Err(TpmError::Refused { code, .. }) if BUSY.contains(&code) && submissions < SUBMISSIONS => {
                    submissions += 1
                }
                answer => return answer,
            }
        }
    }

    fn submit(&mut self, command: Command, tag: u16, parameters: &[u8]) -> Result<Vec<u8>, TpmError> {
        let len = (HEADER + parameters.len()) as u32;
        let sent = [&tag.to_be_bytes(), &len.to_be_bytes()[..], &(command as u32).to_be_bytes(), parameters].concat();
        let failed = |operation, source| TpmError::Device { operation, path: self.path.clone(), source };
        (&self.file).write_all(&sent).map_err(|source| failed("writing to", source))?;
        let mut answer = vec![0; LONGEST];
        let mut have = 0;
        loop {
            let n = (&self.file).read(&mut answer[have..]).map_err(|source| failed("reading from", source))?;
            have += n;
            return match parse(&answer[..have]) {
                Answer::Part if n > 0 => continue,
                Answer::Part | Answer::Malformed => Err(TpmError::Malformed { command: command.name() }),
                Answer::Refused(code) => Err(TpmError::Refused { command: command.name(), code }),
                Answer::Whole(body) => Ok(body.to_vec()),
            };
        }
    }

    /// Removes an object or a session from the TPM.
    pub(super) fn flush(&mut self, handle: u32) -> Result<(), TpmError> {
        self.call(Command::FlushContext, NO_SESSIONS, &handle.to_be_bytes(), |_| Some(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_it_says_and_no_longer_than_one_can_be() {
        let check = |bytes: &[u8], expect| assert_eq!(parse(bytes), expect, "{bytes:?}");
        let answer = [0x80, 1, 0, 0, 0, 12, 0, 0, 0, 0, 7, 8];
        check(&answer, Answer::Whole(&[7, 8]));
        for len in 0..answer.len() {
            check(&answer[..len], Answer::Part);
        }
        check(&[&answer[..], &[9]].concat(), Answer::Malformed);
        check(&[0x80, 1, 0, 0, 0, 10, 0, 0, 9, 0x22], Answer::Refused(0x922));
        for size in [0_u32, 9, 4097, u32::MAX] {
            check(&[&[0x80, 1], &size.to_be_bytes()[..], &[0; 4]].concat(), Answer::Malformed);
        }
    }
}
