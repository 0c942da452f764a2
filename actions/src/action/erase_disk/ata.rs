//! Mode `secure` on ATA: the security feature set (ATA/ATAPI Command Set 3, ACS-3), through the SCSI command ATA
//! PASS-THROUGH (16) (SCSI/ATA Translation, SAT-4, 12.2.2).

use std::fs::File;
use std::time::Duration;

use super::worker::Worker;
use crate::error::Error;
use crate::sys::scsi::{self, Data};

/// Commands (ACS-3, 7).
const IDENTIFY_DEVICE: u8 = 0xEC;
const SECURITY_SET_PASSWORD: u8 = 0xF1;
const SECURITY_ERASE_PREPARE: u8 = 0xF3;
const SECURITY_ERASE_UNIT: u8 = 0xF4;
const SECURITY_DISABLE_PASSWORD: u8 = 0xF6;
const BLOCK: usize = 512;
/// The password that a disk is given, because it needs one before it erases itself. The erase removes the password. If
/// the erase does not get that far, the password unlocks the disk.
const PASSWORD: &str = "slipway";
/// Time limit in milliseconds of a command that does not erase.
const SHORT: u32 = 60_000;
/// Time allowed beyond the disk's own estimate of an erase, and time limit if it gives none.
const SLACK: Duration = Duration::from_secs(30 * 60);
const UNKNOWN: Duration = Duration::from_secs(12 * 60 * 60);

/// Erases the disk. Returns what was done, or why that is not possible.
pub(super) fn erase(worker: &mut Worker<'_>) -> Result<Result<String, String>, Error> {
    let disk = worker.disk.file();
    let security = match identify(disk).and_then(|security| security.obstacle().map_or(Ok(security), Err)) {
        Ok(security) => security,
        Err(reason) => return Ok(Err(reason)),
    };
    let (enhanced, estimate) = (security.enhanced, security.estimate());
    let set = command(disk, SECURITY_SET_PASSWORD, Data::Out(&password_block(false)), SHORT);
    if set.is_err() {
        // A password that the disk had before is not ours to remove.
        let password = if security.enabled { Ok(()) } else { remove_password(disk) };
        return ended("setting the password that an erase needs", set, password).map_err(|reason| worker.stuck(reason));
    }
    worker.begin(worker.disk.size());
    let minutes = estimate.map_or("an unknown time".to_owned(), |time| format!("{} minutes", time.as_secs() / 60));
    worker.note(format!("{} is erasing itself, which takes {minutes} according to the disk", worker.disk.path()));
    let limit = estimate.map_or(UNKNOWN, |time| time * 2 + SLACK);
    let erased = worker.wait(estimate.unwrap_or(UNKNOWN), move |disk| {
        // No other command may come between these two.
        command(disk, SECURITY_ERASE_PREPARE, Data::None, SHORT)?;
        let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        command(disk, SECURITY_ERASE_UNIT, Data::Out(&password_block(enhanced)), limit)
    })?;
    let name = if enhanced { "ATA enhanced secure erase" } else { "ATA secure erase" };
    ended(name, erased, remove_password(disk)).map_err(|reason| worker.stuck(reason))
}

/// Combines how a command ended and whether the password is gone. Returns that the erase was done, or why it was not,
/// so that another mode may be tried. Fails if the password may remain, because a system installed on a disk with a
/// password would be inaccessible after the next power cycle.
fn ended(name: &str, done: Result<(), String>, password: Result<(), String>) -> Result<Result<String, String>, String> {
    match (done, password) {
        (Ok(()), Ok(())) => Ok(Ok(name.to_owned())),
        (Err(why), Ok(())) => Ok(Err(format!("{name}: {why}"))),
        (Ok(()), Err(why)) => Err(format!("{name} is done, but {}", left_locked(&why))),
        (Err(failed), Err(why)) => Err(format!("{name}: {failed}; {}", left_locked(&why))),
    }
}

fn left_locked(why: &str) -> String {
    format!(
        "its password could not be removed ({why}): the disk will be locked after a power cycle; unlock it with hdparm \
         --user-master u --security-disable {PASSWORD}"
    )
}

/// Removes the password if the disk still has it. An erase removes the password; a failed erase may leave it.
fn remove_password(disk: &File) -> Result<(), String> {
    if !identify(disk)?.enabled {
        return Ok(());
    }
    command(disk, SECURITY_DISABLE_PASSWORD, Data::Out(&password_block(false)), SHORT)
}

fn identify(disk: &File) -> Result<Security, String> {
    let mut identity = [0; BLOCK];
    command(disk, IDENTIFY_DEVICE, Data::In(&mut identity), SHORT)
        .map_err(|why| format!("it does not answer like an ATA disk: {why}"))?;
    Security::parse(&identity)
}

fn command(disk: &File, command: u8, data: Data<'_>, timeout: u32) -> Result<(), String> {
    let bytes = pass_through(command, &data);
    let ended = scsi::command(disk, &bytes, data, timeout).map_err(|errno| errno.to_string())?;
    if (ended.status, ended.transport) == (0, 0) {
        return Ok(());
    }
    Err(format!(
        "ATA command {command:#04x} ended with SCSI status {:#04x}, sense key {:#x}, host and driver status {:#x}",
        ended.status,
        sense_key(&ended.sense),
        ended.transport
    ))
}

/// Makes an ATA PASS-THROUGH (16) command. The sector count holds the transfer length, one block, as these commands
/// expect.
fn pass_through(command: u8, data: &Data<'_>) -> [u8; 16] {
    const NON_DATA: u8 = 3;
    const PIO_IN: u8 = 4;
    const PIO_OUT: u8 = 5;
    // T_LENGTH: the length is in the sector count; BYT_BLOK: in blocks; T_DIR: from the disk.
    const IN_SECTORS: u8 = 0x02 | 0x04;
    const FROM_DISK: u8 = 0x08;
    let (protocol, transfer, count) = match data {
        Data::None => (NON_DATA, 0, 0),
        Data::In(_) => (PIO_IN, IN_SECTORS | FROM_DISK, 1),
        Data::Out(_) => (PIO_OUT, IN_SECTORS, 1),
    };
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[2], bytes[6], bytes[14]) = (0x85, protocol << 1, transfer, count, command);
    bytes
}

/// Reads the sense key: the second byte in descriptor format, the third in fixed format (SPC-4, 4.5).
fn sense_key(sense: &[u8; 32]) -> u8 {
    let key = if matches!(sense[0] & 0x7F, 0x72 | 0x73) { sense[1] } else { sense[2] };
    key & 0xF
}

/// Makes the data block of a command with the user password (ACS-3, 7.37 to 7.41): the first word says, for an erase,
/// whether it is enhanced; the next 32 bytes are the password.
fn password_block(enhanced: bool) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[0] = if enhanced { 2 } else { 0 };
    block[2..].iter_mut().zip(PASSWORD.bytes()).for_each(|(to, from)| *to = from);
    block
}

/// The security feature set of a disk, from its IDENTIFY DEVICE data (ACS-3, 7.12.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Security {
    supported: bool,
    enabled: bool,
    locked: bool,
    frozen: bool,
    /// Too many wrong passwords were tried.
    expired: bool,
    enhanced: bool,
    /// Words 89 and 90: duration of an erase, and of an enhanced one.
    times: [u16; 2],
}

impl Security {
    fn parse(identity: &[u8; BLOCK]) -> Result<Self, String> {
        let words = identity.as_chunks().0;
        let word = |number: usize| words.get(number).copied().map(u16::from_le_bytes).unwrap_or_default();
        // If the integrity word has its signature, 0xA5, the sum of all bytes must be zero.
        let sum = identity.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        if word(255) & 0xFF == 0xA5 && sum != 0 {
            return Err("its identification is damaged: the checksum is wrong".to_owned());
        }
        if word(0) & 0x8000 != 0 {
            return Err("it is an ATAPI device, not a disk".to_owned());
        }
        let state = word(128);
        let flag = |bit: u16| state & 1 << bit != 0;
        Ok(Self {
            supported: flag(0),
            enabled: flag(1),
            locked: flag(2),
            frozen: flag(3),
            expired: flag(4),
            enhanced: flag(5),
            times: [word(89), word(90)],
        })
    }

    /// Returns why the disk cannot erase itself, and what to do about it.
    fn obstacle(&self) -> Option<String> {
        let reason = match self {
            Self { supported: false, .. } => "it has no ATA security feature set, so it has no secure erase".to_owned(),
            Self { locked: true, .. } => format!(
                "it is locked with a password: unlock it with hdparm --user-master u --security-unlock PASSWORD (after \
                 an unfinished erase, it is {PASSWORD:?}), or revert it with the PSID on its label"
            ),
            Self { frozen: true, .. } => {
                "it is frozen, as most firmware does at power-on: suspend and wake the machine, disconnect the disk's \
                 power for a moment while the machine runs, or turn off the freeze lock in the firmware's setup"
                    .to_owned()
            }
            Self { expired: true, .. } => "it has seen too many wrong passwords: power-cycle it".to_owned(),
            _ => return None,
        };
        Some(reason)
    }

    /// Returns the duration of the erase that will be used; `None` if the disk does not say. The word counts units of
    /// two minutes in 8 bits, or in 15 bits if its highest bit is set. The largest number means that or more.
    fn estimate(&self) -> Option<Duration> {
        let [usual, enhanced] = self.times;
        let time = if self.enhanced { enhanced } else { usual };
        let units = if time & 0x8000 != 0 { time & 0x7FFF } else { time & 0xFF };
        (units != 0).then(|| Duration::from_secs(u64::from(units) * 120))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IDENTIFY DEVICE data with these words.
    fn identity(words: &[(usize, u16)]) -> [u8; BLOCK] {
        let mut identity = [0; BLOCK];
        for (number, word) in words {
            identity[2 * number..2 * number + 2].copy_from_slice(&word.to_le_bytes());
        }
        identity
    }

    #[test]
    fn what_stands_against_an_erase_is_told_apart() {
        let check = |state: u16, expect: Option<&str>| {
            let security = Security::parse(&identity(&[(128, state)])).expect("a disk");
            let obstacle = security.obstacle();
            assert_eq!(obstacle.is_some(), expect.is_some(), "{state:#x}: {obstacle:?}");
            assert!(obstacle.unwrap_or_default().contains(expect.unwrap_or_default()), "{state:#x}");
        };
        // Values of real disks: 0x21 after power-on, 0x29 once frozen by the firmware, 0x27 with a password.
        check(0x0021, None);
        check(0x0001, None);
        check(0x0023, None);
        check(0x0000, Some("no ATA security feature set"));
        check(0x0029, Some("frozen"));
        check(0x0027, Some("locked with a password"));
        check(0x002F, Some("locked with a password"));
        check(0x0031, Some("power-cycle it"));
    }

    #[test]
    fn a_disk_that_keeps_the_password_is_not_erased_in_another_way() {
        let result = |is_done: bool, why: &str| if is_done { Ok(()) } else { Err(why.to_owned()) };
        let check = |is_done: bool, is_unlocked: bool, expect: Result<Result<&str, &str>, &str>| {
            let found = ended("ATA secure erase", result(is_done, "aborted"), result(is_unlocked, "no answer"));
            match (found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect.map(str::to_owned).map_err(str::to_owned)),
                (Err(found), Err(expect)) => assert!(found.starts_with(expect) && found.contains("hdparm"), "{found}"),
                (found, expect) => panic!("{found:?}, expected {expect:?}"),
            }
        };
        check(true, true, Ok(Ok("ATA secure erase")));
        check(false, true, Ok(Err("ATA secure erase: aborted")));
        check(true, false, Err("ATA secure erase is done, but its password could not be removed (no answer)"));
        check(false, false, Err("ATA secure erase: aborted; its password could not be removed (no answer)"));
    }

    #[test]
    fn the_time_of_an_erase_has_two_forms() {
        let check = |enhanced: u16, normal: u16, longer: u16, minutes: Option<u64>| {
            let state = 0x0001 | enhanced << 5;
            let security = Security::parse(&identity(&[(128, state), (89, normal), (90, longer)])).expect("a disk");
            assert_eq!(security.estimate().map(|time| time.as_secs() / 60), minutes, "{normal:#x} {longer:#x}");
        };
        check(0, 0, 5, None);
        check(0, 1, 5, Some(2));
        check(1, 1, 5, Some(10));
        check(0, 255, 0, Some(510));
        check(0, 0x8200, 0, Some(1024));
        check(0, 0xFFFF, 0, Some(65534));
        check(0, 0x8000, 0, None);
    }

    #[test]
    fn damaged_or_foreign_identities_are_refused() {
        assert!(Security::parse(&identity(&[(0, 0x8580)])).is_err_and(|why| why.contains("ATAPI")));
        let mut sealed = identity(&[(128, 0x0021), (255, 0x00A5)]);
        assert!(Security::parse(&sealed).is_err_and(|why| why.contains("checksum")));
        let sum = sealed.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        sealed[511] = sum.wrapping_neg();
        assert!(Security::parse(&sealed).is_ok_and(|security| security.supported && security.enhanced));
    }

    #[test]
    fn commands_are_wrapped_as_the_translation_wants_them() {
        let check = |command: u8, data: Data<'_>, expect: [u8; 16]| {
            assert_eq!(pass_through(command, &data), expect);
        };
        // As hdparm sends them, but without CK_COND (SAT): the status reports the outcome.
        check(0xEC, Data::In(&mut []), [0x85, 0x08, 0x0E, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xEC, 0]);
        check(0xF4, Data::Out(&[]), [0x85, 0x0A, 0x06, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xF4, 0]);
        check(0xF3, Data::None, [0x85, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF3, 0]);
        assert_eq!(password_block(true)[..10], *b"\x02\0slipway\0");
        assert_eq!(password_block(false)[..2], [0, 0]);
        assert_eq!(sense_key(&[[0x72, 0x05, 0x20, 0x00].as_slice(), &[0; 28]].concat().try_into().expect("32")), 5);
        assert_eq!(sense_key(&[[0x70, 0x00, 0x0B, 0x00].as_slice(), &[0; 28]].concat().try_into().expect("32")), 0xB);
    }
}
