//! Mode `secure` on NVMe: sanitize, or Format NVM with a secure erase. References are to the NVM Express Base
//! Specification 2.0.

use std::fs::File;
use std::time::Duration;

use rustix::io::Errno;

use super::worker::Worker;
use crate::error::Error;
use crate::sys::nvme::{self, Admin};

/// Opcodes (figure 138) and data structures (figure 273, CNS).
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const FORMAT_NVM: u8 = 0x80;
const SANITIZE: u8 = 0x84;
const CNS_NAMESPACE: u32 = 0x00;
const CNS_CONTROLLER: u32 = 0x01;
const CNS_ACTIVE_NAMESPACES: u32 = 0x02;
const CNS_ALLOCATED_NAMESPACES: u32 = 0x10;
const EVERY_NAMESPACE: u32 = u32::MAX;
const IDENTIFY_LEN: usize = 4096;
/// Sanitize Status log page (5.16.1.22), and the bytes of it that are read.
const SANITIZE_LOG: u32 = 0x81;
const SANITIZE_LOG_LEN: usize = 32;
/// Time limit of a Format NVM, in milliseconds. The specification has no estimate for it, and interrupting the command
/// resets the disk in the middle of it.
const FORMAT_TIMEOUT: u32 = 6 * 60 * 60 * 1000;
/// Usual duration of a Format NVM, for the progress display.
const FORMAT_ESTIMATE: Duration = Duration::from_secs(60);

/// How an NVMe disk can erase itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Sanitize with this action (figure 290, SANACT).
    Sanitize(u32),
    /// Format NVM with this secure erase setting (figure 187, SES).
    Format(u32),
}

const SANITIZE_BLOCK: u32 = 2;
const SANITIZE_CRYPTO: u32 = 4;
const FORMAT_DATA: u32 = 1;
const FORMAT_CRYPTO: u32 = 2;

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Sanitize(SANITIZE_CRYPTO) => "NVMe sanitize, crypto erase",
            Method::Sanitize(_) => "NVMe sanitize, block erase",
            Method::Format(FORMAT_CRYPTO) => "NVMe format, crypto erase",
            Method::Format(_) => "NVMe format, user data erase",
        }
    }
}

/// Erases the disk. Returns what was done, or why that is not possible.
pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Result<String, String>, Error> {
    match methods(worker.disk.file()) {
        Ok((methods, own, format)) => try_each(worker, &methods, own, format),
        Err(reason) => Ok(Err(reason)),
    }
}

/// Waits until an earlier sanitize ends, for example one from an attempt that ran out of time. Until then the disk can
/// neither be read nor written (5.22).
pub(super) fn wait_for_sanitize(worker: &mut Worker<'_>) -> Result<(), Error> {
    if matches!(sanitize_state(worker.disk.file()), Ok(Sanitize::Running(_))) {
        worker.note(format!("{} is sanitizing itself; waiting until it is done", worker.disk.path()));
        worker.begin(worker.disk.size());
        while let Ok(Sanitize::Running(share)) = sanitize_state(worker.disk.file()) {
            worker.reach(part(worker.disk.size(), share));
            worker.pause()?;
        }
    }
    Ok(())
}

/// Returns the methods that the disk supports, best first, the number of its namespace, and command dword 10 of a
/// format that keeps the layout.
fn methods(disk: &File) -> Result<(Vec<Method>, u32, u32), String> {
    let own = nvme::namespace(disk).map_err(|errno| format!("reading the number of its namespace: {errno}"))?;
    let controller = Controller::parse(&identify(disk, 0, CNS_CONTROLLER)?);
    let mut namespaces = namespaces(&identify(disk, 0, CNS_ACTIVE_NAMESPACES)?);
    if controller.manages_namespaces {
        namespaces.extend(self::namespaces(&identify(disk, 0, CNS_ALLOCATED_NAMESPACES)?));
    }
    namespaces.retain(|namespace| *namespace != own);
    namespaces.sort_unstable();
    namespaces.dedup();
    let methods = controller.methods(&namespaces)?;
    Ok((methods, own, format_word(&identify(disk, own, CNS_NAMESPACE)?)))
}

fn identify(disk: &File, namespace: u32, structure: u32) -> Result<[u8; IDENTIFY_LEN], String> {
    let mut data = [0; IDENTIFY_LEN];
    let command = Admin { opcode: IDENTIFY, namespace, words: [structure, 0], timeout: 0 };
    accepted(nvme::admin(disk, command, &mut data)).map_err(|why| format!("reading what it supports: {why}"))?;
    Ok(data)
}

/// Tries the methods in order until the disk accepts one.
fn try_each(worker: &mut Worker<'_>, methods: &[Method], own: u32, word: u32) -> Result<Result<String, String>, Error> {
    let mut refusals = Vec::new();
    for method in methods {
        worker.begin(worker.disk.size());
        let done = match method {
            Method::Sanitize(action) => sanitize(worker, *action)?,
            Method::Format(setting) => {
                let words = [word | setting << 9, 0];
                let command = Admin { opcode: FORMAT_NVM, namespace: own, words, timeout: FORMAT_TIMEOUT };
                worker.wait(FORMAT_ESTIMATE, move |disk| accepted(nvme::admin(disk, command, &mut [])))?
            }
        };
        match done {
            Ok(()) => return Ok(Ok(method.name().to_owned())),
            Err(why) => refusals.push(format!("{}: {why}", method.name())),
        }
    }
    let refusals = refusals.join("; ");
    match sanitize_state(worker.disk.file()) {
        Ok(Sanitize::Failed | Sanitize::Running(_)) => {
            let remedy = "the disk accepts no other command until a sanitize succeeds: try again, or replace it";
            Err(worker.stuck(format!("{refusals}; {remedy}")))
        }
        _ => Ok(Err(refusals)),
    }
}

fn sanitize(worker: &Worker<'_>, action: u32) -> Result<Result<(), String>, Error> {
    let disk = worker.disk.file();
    let command = Admin { opcode: SANITIZE, namespace: 0, words: [action, 0], timeout: 0 };
    if let Err(why) = accepted(nvme::admin(disk, command, &mut [])) {
        return Ok(Err(why));
    }
    loop {
        match sanitize_state(disk) {
            Ok(Sanitize::Done) => return Ok(Ok(())),
            Ok(Sanitize::Running(share)) => worker.reach(part(worker.disk.size(), share)),
            Ok(Sanitize::Failed) => return Ok(Err("it started but failed".to_owned())),
            Ok(Sanitize::Never) => return Ok(Err("it was accepted but never started".to_owned())),
            Err(why) => {
                let reason = format!("it is sanitizing itself, but does not report how far it is: {why}; try again");
                return Err(worker.stuck(reason));
            }
        }
        worker.pause()?;
    }
}

/// State of the most recent sanitize of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitize {
    Never,
    /// With the completed share, in 65536ths.
    Running(u16),
    Done,
    Failed,
}

fn sanitize_state(disk: &File) -> Result<Sanitize, String> {
    let mut log = [0; SANITIZE_LOG_LEN];
    // The number of dwords, minus one, is in the upper half.
    let words = [SANITIZE_LOG | (SANITIZE_LOG_LEN as u32 / 4 - 1) << 16, 0];
    let command = Admin { opcode: GET_LOG_PAGE, namespace: EVERY_NAMESPACE, words, timeout: 0 };
    accepted(nvme::admin(disk, command, &mut log))?;
    Ok(Sanitize::parse(&log))
}

impl Sanitize {
    /// Parses the log page (figure 240): progress in the first two bytes, state in the lower three bits of the third.
    fn parse(log: &[u8; SANITIZE_LOG_LEN]) -> Self {
        match log[2] & 0x7 {
            0 => Sanitize::Never,
            // 4: the disk deallocated blocks although the command forbade it. Slipway never forbids it.
            1 | 4 => Sanitize::Done,
            2 => Sanitize::Running(u16::from_le_bytes([log[0], log[1]])),
            _ => Sanitize::Failed,
        }
    }
}

fn part(size: u64, share: u16) -> u64 {
    (u128::from(size) * u128::from(share) / 65536) as u64
}

/// The relevant part of the Identify Controller data structure (figure 275).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Controller {
    sanitizes_crypto: bool,
    sanitizes_block: bool,
    formats: bool,
    formats_crypto: bool,
    /// A format, or its secure erase, always applies to all namespaces.
    formats_all: bool,
    manages_namespaces: bool,
}

impl Controller {
    fn parse(identify: &[u8; IDENTIFY_LEN]) -> Self {
        let (commands, sanitize, format) = (identify[256], identify[328], identify[524]);
        Self {
            sanitizes_crypto: sanitize & 1 != 0,
            sanitizes_block: sanitize & 2 != 0,
            formats: commands & 2 != 0,
            formats_crypto: format & 4 != 0,
            formats_all: format & 3 != 0,
            manages_namespaces: commands & 8 != 0,
        }
    }

    /// Returns the methods that spare the other namespaces, which are disks of their own, or why there is none.
    fn methods(&self, others: &[u32]) -> Result<Vec<Method>, String> {
        let format = self.formats && (others.is_empty() || !self.formats_all);
        let all = [
            (self.sanitizes_crypto && others.is_empty(), Method::Sanitize(SANITIZE_CRYPTO)),
            (self.sanitizes_block && others.is_empty(), Method::Sanitize(SANITIZE_BLOCK)),
            (format && self.formats_crypto, Method::Format(FORMAT_CRYPTO)),
            (format, Method::Format(FORMAT_DATA)),
        ];
        let methods: Vec<Method> = all.into_iter().filter(|(can, _)| *can).map(|(_, method)| method).collect();
        match (methods.is_empty(), self.sanitizes_crypto || self.sanitizes_block || self.formats) {
            (false, _) => Ok(methods),
            (true, true) => Err(format!(
                "its controller has other namespaces ({}), which would be erased with it",
                others.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
            )),
            (true, false) => Err("it supports neither sanitize nor format".to_owned()),
        }
    }
}

/// Parses a list of namespaces (figure 273): numbers in ascending order, the rest zero.
fn namespaces(list: &[u8; IDENTIFY_LEN]) -> Vec<u32> {
    let numbers = list.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number));
    numbers.take_while(|number| *number != 0).collect()
}

/// Returns command dword 10 of a Format NVM (figure 187) that keeps block size, metadata and protection, from the
/// Identify Namespace data structure (NVM Command Set Specification 1.0, figure 97: FLBAS and DPS).
fn format_word(namespace: &[u8; IDENTIFY_LEN]) -> u32 {
    let (layout, protection) = (u32::from(namespace[26]), u32::from(namespace[29]));
    let (format, extended, upper) = (layout & 0xF, layout >> 4 & 1, layout >> 5 & 3);
    format | extended << 4 | (protection & 7) << 5 | (protection >> 3 & 1) << 8 | upper << 12
}

/// Checks status code and type of a completion (3.3.3.2.1). The error names the cause if the operator can do something
/// about it.
fn accepted(status: Result<u32, Errno>) -> Result<(), String> {
    match status.map(|status| status & 0x7FF) {
        Ok(0) => Ok(()),
        Ok(0x20) => Err("the namespace is write-protected".to_owned()),
        Ok(0x286) => {
            Err("access denied: the disk is locked; unlock or revert it with its manufacturer's tool".to_owned())
        }
        Ok(status) => Err(format!("the disk answered with status {status:#x}")),
        Err(errno) => Err(errno.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Method::{Format, Sanitize as Sanitizing};

    #[test]
    fn what_a_controller_can_do_is_read_from_its_identity() {
        let check = |bytes: &[(usize, u8)], others: &[u32], expect: Result<&[Method], &str>| {
            let mut identify = [0; IDENTIFY_LEN];
            bytes.iter().for_each(|(at, byte)| identify[*at] = *byte);
            let found = Controller::parse(&identify).methods(others);
            assert_eq!(found, expect.map(<[Method]>::to_vec).map_err(str::to_owned), "{bytes:?} {others:?}");
        };
        let all = [(256, 0x02), (328, 0x07), (524, 0x04)];
        check(&all, &[], Ok(&[Sanitizing(4), Sanitizing(2), Format(2), Format(1)]));
        check(&all, &[2], Ok(&[Format(2), Format(1)]));
        check(&[(256, 0x0A)], &[], Ok(&[Format(1)]));
        check(&[(328, 0x02)], &[], Ok(&[Sanitizing(2)]));
        // Overwrite alone is not used: it takes days, and is no better than mode `zero`.
        check(&[(328, 0x04)], &[], Err("it supports neither sanitize nor format"));
        check(&[], &[], Err("it supports neither sanitize nor format"));
        let others = "its controller has other namespaces (2, 3), which would be erased with it";
        check(&[(328, 0x03)], &[2, 3], Err(others));
        for of_all in [1, 2] {
            check(&[(256, 0x02), (524, of_all)], &[2, 3], Err(others));
            check(&[(256, 0x02), (524, of_all)], &[], Ok(&[Format(1)]));
        }
    }

    #[test]
    fn a_list_of_namespaces_ends_at_zero_or_at_its_end() {
        let mut list = [0; IDENTIFY_LEN];
        list[..12].copy_from_slice(&[1, 0, 0, 0, 7, 1, 0, 0, 0, 0, 0, 0]);
        list[12] = 9;
        assert_eq!(namespaces(&list), [1, 0x107]);
        assert_eq!(namespaces(&[0xFF; IDENTIFY_LEN]).len(), 1024);
    }

    #[test]
    fn a_format_keeps_the_layout() {
        let check = |layout: u8, protection: u8, expect: u32| {
            let mut namespace = [0; IDENTIFY_LEN];
            (namespace[26], namespace[29]) = (layout, protection);
            assert_eq!(format_word(&namespace), expect, "{layout:#x} {protection:#x}");
        };
        check(0x00, 0x00, 0x0000);
        check(0x04, 0x00, 0x0004);
        check(0x13, 0x00, 0x0013);
        check(0x00, 0x0A, 0x0140);
        check(0x61, 0x00, 0x3001);
    }

    #[test]
    fn how_far_a_sanitize_is_comes_from_its_log_page() {
        let check = |bytes: [u8; 4], expect: Sanitize| {
            let mut log = [0; SANITIZE_LOG_LEN];
            log[..4].copy_from_slice(&bytes);
            assert_eq!(Sanitize::parse(&log), expect, "{bytes:?}");
        };
        check([0xFF, 0xFF, 0, 0], Sanitize::Never);
        check([0xFF, 0xFF, 0x01, 0x01], Sanitize::Done);
        check([0xFF, 0xFF, 0x0C, 0x01], Sanitize::Done);
        check([0x00, 0x80, 0x02, 0x00], Sanitize::Running(0x8000));
        check([0x00, 0x40, 0x0B, 0x00], Sanitize::Failed);
        assert_eq!(part(1 << 40, 0x8000), 1 << 39);
    }

    #[test]
    fn a_refusal_says_what_the_disk_answered() {
        assert_eq!(accepted(Ok(0x4000)), Ok(()));
        assert_eq!(accepted(Ok(0x4001)), Err("the disk answered with status 0x1".to_owned()));
        assert!(accepted(Ok(0x286)).is_err_and(|why| why.contains("locked")));
    }
}
