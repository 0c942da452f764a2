//! The header of a LUKS2 volume ("LUKS2 On-Disk Format Specification", 1.1.3).

use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::digest::{SHA256, digest};
use ring::pbkdf2;
use serde_json::{Map, Value, json};

use super::xts::{KEY, Xts};
use crate::error::{EncryptError, Error};
use crate::random;

/// Bytes from the start of the partition to its data, the default of cryptsetup.
pub(super) const DATA_OFFSET: u64 = 16 << 20;
/// Bytes of each of the two headers, with binary part and JSON (2.1).
const HEADER: usize = 16 << 10;
const BINARY: usize = 4096;
const JSON: usize = HEADER - BINARY;
const MAGIC: [&[u8; 6]; 2] = [b"LUKS\xBA\xBE", b"SKUL\xBA\xBE"];
const VERSION: u16 = 2;
/// Offsets of the fields of the binary part, and of its checksum (2.1).
const AT_VERSION: usize = 6;
const AT_SIZE: usize = 8;
const AT_SEQUENCE: usize = 16;
const AT_ALGORITHM: usize = 72;
const AT_SALT: usize = 104;
const AT_UUID: usize = 168;
const AT_OFFSET: usize = 256;
const AT_CHECKSUM: usize = 448;
/// The key in a key slot is expanded to this many times its length, so that every part of it is needed to restore the
/// key (LUKS1 On-Disk Format Specification, 2.4).
const STRIPES: usize = 4000;
const HASH: usize = 32;
/// Key material is encrypted in sectors of this many bytes; its area is a multiple of 4096 bytes.
const SECTOR: usize = 512;
const AREA: usize = (STRIPES * KEY).next_multiple_of(4096);
const SALT: usize = 32;
/// Number of iterations of PBKDF2: the minimum that cryptsetup accepts. It is enough for passphrases of 256 random
/// bits, and systemd-cryptenroll uses it too.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(1000).expect("not zero");
const ENCRYPTION: &str = "aes-xts-plain64";

/// Encryption parameters of the volume.
pub(super) struct Volume {
    pub(super) uuid: [u8; 16],
    pub(super) key: [u8; KEY],
    /// Sector size in bytes: 512 or 4096.
    pub(super) sector: usize,
}

/// A key slot: its passphrase, and the token that says how to get the passphrase (2.5). The token has no list of key
/// slots yet.
pub(super) struct Slot {
    pub(super) passphrase: String,
    pub(super) token: Value,
}

/// Makes both headers and all key slots, in fewer than [`DATA_OFFSET`] bytes. The rest must be zeros.
pub(super) fn header(volume: &Volume, slots: Vec<Slot>) -> Result<Vec<u8>, Error> {
    let mut areas = Vec::new();
    let (mut keyslots, mut tokens) = (Map::new(), Map::new());
    for (index, mut slot) in slots.into_iter().enumerate() {
        let offset = 2 * HEADER + index * AREA;
        let salt = random::bytes::<SALT>()?;
        areas.extend(area(&volume.key, slot.passphrase.as_bytes(), &salt)?);
        keyslots.insert(index.to_string(), keyslot(offset, &salt));
        slot.token["keyslots"] = json!([index.to_string()]);
        tokens.insert(index.to_string(), slot.token);
    }
    let json = json!({
        "digests": {"0": key_digest(volume, keyslots.keys())?},
        "keyslots": keyslots,
        "tokens": tokens,
        "segments": {"0": {
            "type": "crypt",
            "offset": DATA_OFFSET.to_string(),
            "size": "dynamic",
            "iv_tweak": "0",
            "encryption": ENCRYPTION,
            "sector_size": volume.sector,
        }},
        "config": {
            "json_size": JSON.to_string(),
            "keyslots_size": (DATA_OFFSET - 2 * HEADER as u64).to_string(),
        },
    });
    let mut bytes = one_of_two(0, &volume.uuid, &json)?;
    bytes.extend(one_of_two(1, &volume.uuid, &json)?);
    bytes.extend(areas);
    Ok(bytes)
}

/// Makes the first header, or the second if `which` is 1.
fn one_of_two(which: usize, uuid: &[u8; 16], json: &Value) -> Result<Vec<u8>, Error> {
    let text = json.to_string();
    let mut bytes = vec![0; HEADER];
    // The JSON text must end with a zero byte.
    let room =
        bytes[BINARY..HEADER - 1].get_mut(..text.len()).ok_or(EncryptError::LuksHeader { needed: text.len() })?;
    room.copy_from_slice(text.as_bytes());
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, MAGIC[which]);
    put(AT_VERSION, &VERSION.to_be_bytes());
    put(AT_SIZE, &(HEADER as u64).to_be_bytes());
    put(AT_SEQUENCE, &1_u64.to_be_bytes());
    put(AT_ALGORITHM, b"sha256");
    put(AT_SALT, &random::bytes::<64>()?);
    put(AT_UUID, random::uuid_text(uuid).as_bytes());
    put(AT_OFFSET, &((which * HEADER) as u64).to_be_bytes());
    let checksum = digest(&SHA256, &bytes);
    bytes[AT_CHECKSUM..AT_CHECKSUM + HASH].copy_from_slice(checksum.as_ref());
    Ok(bytes)
}

fn keyslot(offset: usize, salt: &[u8]) -> Value {
    json!({
        "type": "luks2",
        "key_size": KEY,
        "af": {"type": "luks1", "stripes": STRIPES, "hash": "sha256"},
        "area": {
            "type": "raw",
            "offset": offset.to_string(),
            "size": AREA.to_string(),
            "encryption": ENCRYPTION,
            "key_size": KEY,
        },
        "kdf": {"type": "pbkdf2", "hash": "sha512", "iterations": ITERATIONS, "salt": BASE64.encode(salt)},
    })
}

/// Makes the digest by which the right volume key is recognised (2.4).
fn key_digest<'a>(volume: &Volume, keyslots: impl Iterator<Item = &'a String>) -> Result<Value, Error> {
    let salt = random::bytes::<SALT>()?;
    let mut digest = [0; HASH];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, &salt, &volume.key, &mut digest);
    Ok(json!({
        "type": "pbkdf2",
        "keyslots": keyslots.collect::<Vec<_>>(),
        "segments": ["0"],
        "hash": "sha256",
        "iterations": ITERATIONS,
        "salt": BASE64.encode(salt),
        "digest": BASE64.encode(digest),
    }))
}

/// Makes the area of a key slot: the key, split and encrypted by a key that is derived from the passphrase.
fn area(key: &[u8; KEY], passphrase: &[u8], salt: &[u8]) -> Result<Vec<u8>, Error> {
    let mut derived = [0; KEY];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, ITERATIONS, salt, passphrase, &mut derived);
    let mut area = split(key)?;
    Xts::new(&derived).encrypt(&mut area, 0, SECTOR);
    area.resize(AREA, 0);
    Ok(area)
}

/// Splits a key into stripes, all of which are needed to restore it (LUKS1 On-Disk Format Specification, 2.4,
/// `AFsplit`).
fn split(key: &[u8; KEY]) -> Result<Vec<u8>, Error> {
    let mut stripes = Vec::with_capacity(STRIPES * KEY);
    let mut mixed = [0; KEY];
    for _ in 1..STRIPES {
        let stripe = random::bytes::<KEY>()?;
        stripes.extend(stripe);
        mixed = diffuse(&sum(&mixed, &stripe));
    }
    stripes.extend(sum(&mixed, key));
    Ok(stripes)
}

fn sum(one: &[u8; KEY], other: &[u8; KEY]) -> [u8; KEY] {
    std::array::from_fn(|index| one[index] ^ other[index])
}

/// Replaces each hash-sized piece by its hash (2.4, `H1`).
fn diffuse(bytes: &[u8; KEY]) -> [u8; KEY] {
    let mut diffused = [0; KEY];
    for (index, (piece, diffused)) in (0_u32..).zip(bytes.chunks(HASH).zip(diffused.chunks_mut(HASH))) {
        let hash = digest(&SHA256, &[&index.to_be_bytes(), piece].concat());
        diffused.copy_from_slice(hash.as_ref());
    }
    diffused
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::Command;

    /// The output of a program that must succeed, or `None` if the program is not installed.
    fn run(program: &str, arguments: &[&str]) -> Option<String> {
        let output = match Command::new(program).args(arguments).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            other => other.unwrap(),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output.stderr));
        Some(text(&output.stdout))
    }

    fn slot(passphrase: &str, kind: &str) -> Slot {
        Slot { passphrase: passphrase.to_owned(), token: json!({"type": kind}) }
    }

    #[test]
    fn cryptsetup_finds_the_key_by_every_slot_and_nothing_to_repair() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (device, key_file) = (path("device"), path("key"));
        let volume = Volume { uuid: [0x11; 16], key: std::array::from_fn(|index| index as u8), sector: 4096 };
        let bytes = header(&volume, vec![slot("one", "a-token"), slot("two", "systemd-recovery")]).unwrap();
        assert!(bytes.len() as u64 <= DATA_OFFSET);
        let file = File::create(&device).unwrap();
        file.set_len(DATA_OFFSET + (1 << 20)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        if run("cryptsetup", &["--version"]).is_none() {
            return;
        }
        for (name, passphrase) in [("one", "one"), ("two", "two")] {
            fs::write(path(name), passphrase).unwrap();
            let _ = fs::remove_file(&key_file);
            let dump = ["luksDump", "--batch-mode", "--dump-volume-key", "--volume-key-file", &key_file];
            run("cryptsetup", &[&dump[..], &["--key-file", &path(name), &device]].concat());
            assert_eq!(fs::read(&key_file).unwrap(), volume.key, "{name}");
        }
        check_dump(&device);
        let before = fs::read(&device).unwrap();
        run("cryptsetup", &["repair", "--batch-mode", &device]);
        assert!(fs::read(&device).unwrap() == before, "nothing was to be repaired");
        // Damage in one header is repaired from the other.
        file.write_all_at(&[0; 4096], 4096).unwrap();
        run("cryptsetup", &["repair", "--batch-mode", &device]);
        check_dump(&device);
    }

    fn check_dump(device: &str) {
        let dump = run("cryptsetup", &["luksDump", device]).unwrap();
        let has = |line: &str| dump.lines().any(|found| found.split_whitespace().eq(line.split_whitespace()));
        for line in [
            "UUID: 11111111-1111-1111-1111-111111111111",
            "offset: 16777216 [bytes]",
            "length: (whole device)",
            "cipher: aes-xts-plain64",
            "sector: 4096 [bytes]",
            "0: luks2",
            "1: luks2",
            "0: a-token",
            "1: systemd-recovery",
        ] {
            assert!(has(line), "{line}: {dump}");
        }
        assert!(Path::new(device).exists());
    }
}
