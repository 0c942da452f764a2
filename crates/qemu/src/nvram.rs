//! The variables of UEFI firmware in a file, as OVMF and AAVMF keep them (EDK II, MdeModulePkg/Include/Guid/
//! VariableFormat.h: a firmware volume with one store of authenticated variables). Only while the machine is off.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// EFI_GLOBAL_VARIABLE as it is stored (UEFI specification 2.10, 3.3).
const GLOBAL: [u8; 16] =
    [0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c];
/// gEfiAuthenticatedVariableGuid, which begins the store.
const STORE: [u8; 16] =
    [0x78, 0x2c, 0xf3, 0xaa, 0x7b, 0x94, 0x9a, 0x43, 0xa1, 0x80, 0x2e, 0x14, 0x4e, 0xc3, 0x77, 0x92];
/// Length of VARIABLE_STORE_HEADER and of AUTHENTICATED_VARIABLE_HEADER.
const STORE_HEADER: usize = 28;
const HEADER: usize = 60;
const START: [u8; 2] = [0xaa, 0x55];
/// State of a variable that counts: VAR_ADDED. A bit is cleared to remove it: VAR_DELETED.
const ADDED: u8 = 0x3f;
const DELETED: u8 = 0xfd;
/// The least significant bit is set until the variable is about to be replaced: VAR_IN_DELETED_TRANSITION.
const IN_TRANSITION: u8 = 0xfe;
/// Attributes of boot variables: non-volatile, for boot services and at run time.
const ATTRIBUTES: u32 = 7;
/// Number of our boot entry, which no firmware gives by itself.
const ENTRY: u16 = 0x51a7;

/// Has the firmware boot the EFI program at a URL at its next start only, or as usual. The boot order stays as it is.
pub fn boot_next(path: &Path, url: Option<&str>) -> Result<()> {
    let mut bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let changed = set_next(&mut bytes, url);
    changed.with_context(|| format!("setting what the firmware boots next in {}", path.display()))?;
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, bytes).with_context(|| format!("writing {}", fresh.display()))?;
    fs::rename(&fresh, path).with_context(|| format!("replacing {}", path.display()))
}

fn set_next(bytes: &mut [u8], url: Option<&str>) -> Result<()> {
    let (entry, next) = (format!("Boot{ENTRY:04X}"), "BootNext".to_owned());
    let mut store = Store::find(bytes)?;
    store.remove(&next)?;
    store.remove(&entry)?;
    if let Some(url) = url {
        store.add(&entry, &load_option(url)?)?;
        store.add(&next, &ENTRY.to_le_bytes())?;
    }
    Ok(())
}

/// EFI_LOAD_OPTION with the short form of a URI (UEFI specification 2.10, 3.1.2 and 3.1.3; device path 10.3.4.22).
fn load_option(url: &str) -> Result<Vec<u8>> {
    let node = u16::try_from(url.len() + 4).context("the URL is too long")?;
    let device = [&[3, 24][..], &node.to_le_bytes(), url.as_bytes(), &[0x7f, 0xff, 4, 0]].concat();
    let length = u16::try_from(device.len()).context("the URL is too long")?;
    // LOAD_OPTION_ACTIVE.
    Ok([&1_u32.to_le_bytes()[..], &length.to_le_bytes(), &utf16("slipway"), &device].concat())
}

/// UCS-2 with its end.
fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// The store of variables. Offsets are those in it.
struct Store<'a>(&'a mut [u8]);

/// A variable.
struct Variable {
    at: usize,
    end: usize,
    counts: bool,
    vendor: Vec<u8>,
    name: Vec<u8>,
}

impl<'a> Store<'a> {
    /// Finds the store behind the header of the firmware volume (PI specification 1.8, volume 3, 3.2.1).
    fn find(bytes: &'a mut [u8]) -> Result<Self> {
        let is_volume = bytes.get(40..44) == Some(b"_FVH".as_slice());
        let start = bytes.get(48..50).map(|length| usize::from(u16::from_le_bytes([length[0], length[1]])));
        let start = start.filter(|_| is_volume).unwrap_or(usize::MAX);
        let header = start.checked_add(STORE_HEADER).and_then(|end| bytes.get(start..end)).unwrap_or_default();
        ensure!(
            header.starts_with(&STORE),
            "it has no store of authenticated variables; is it the file of OVMF or AAVMF for variables?"
        );
        let size = number(header, 16).and_then(|size| start.checked_add(size)).unwrap_or(usize::MAX);
        let store = bytes.get_mut(start..size).context("its store of variables is cut off")?;
        Ok(Self(store))
    }

    /// Returns the variable at an offset. `None` at the end.
    fn at(&self, at: usize) -> Result<Option<Variable>> {
        let Some(header) = self.0.get(at..at + HEADER).filter(|header| header.starts_with(&START)) else {
            return Ok(None);
        };
        let [name, data] = [36, 40].map(|field| number(header, field).unwrap_or(usize::MAX));
        let start = at + HEADER;
        let end = start.checked_add(name).and_then(|name| name.checked_add(data));
        let end = end.filter(|end| *end <= self.0.len()).context("a variable is longer than the store")?;
        Ok(Some(Variable {
            at,
            end: end.next_multiple_of(4),
            counts: header[2] | !IN_TRANSITION == ADDED,
            vendor: header[44..60].to_vec(),
            name: self.0[start..start + name].to_vec(),
        }))
    }

    /// Removes a variable of the specification's namespace, if it is there.
    fn remove(&mut self, name: &str) -> Result<()> {
        let (mut at, name) = (STORE_HEADER, utf16(name));
        while let Some(variable) = self.at(at)? {
            if variable.counts && variable.vendor == GLOBAL && variable.name == name {
                self.0[variable.at + 2] &= DELETED;
            }
            at = variable.end;
        }
        Ok(())
    }

    /// Adds a variable of the specification's namespace behind the others.
    fn add(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let mut at = STORE_HEADER;
        while let Some(variable) = self.at(at)? {
            at = variable.end;
        }
        let name = utf16(name);
        let [name_size, data_size] = [name.len(), data.len()].map(|length| u32::try_from(length).unwrap_or(u32::MAX));
        let mut variable = [&START[..], &[ADDED, 0], &ATTRIBUTES.to_le_bytes()].concat();
        // Without a count, a time and a key: nobody signed it.
        variable.resize(36, 0);
        let sizes = [&name_size.to_le_bytes()[..], &data_size.to_le_bytes()].concat();
        variable = [&variable[..], &sizes, &GLOBAL, &name, data].concat();
        let place = self.0.get_mut(at..at + variable.len()).filter(|place| place.iter().all(|byte| *byte == 0xff));
        let full = "there is no room for another variable: start the machine once from its disk, and its firmware \
                    makes room";
        place.context(full)?.copy_from_slice(&variable);
        Ok(())
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..at + 4)?;
    usize::try_from(u32::from_le_bytes([field[0], field[1], field[2], field[3]])).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables as OVMF has them at first, without any.
    fn empty() -> Vec<u8> {
        let mut bytes = vec![0xff; 0x1000];
        bytes[40..44].copy_from_slice(b"_FVH");
        bytes[48..50].copy_from_slice(&0x48_u16.to_le_bytes());
        bytes[0x48..0x58].copy_from_slice(&STORE);
        bytes[0x58..0x5c].copy_from_slice(&0x400_u32.to_le_bytes());
        bytes
    }

    fn names(bytes: &mut [u8]) -> Result<Vec<(String, bool)>> {
        let store = Store::find(bytes)?;
        let (mut at, mut names) = (STORE_HEADER, Vec::new());
        while let Some(variable) = store.at(at)? {
            let letters = variable.name.chunks(2).map(|letter| char::from(letter[0])).filter(|letter| *letter != '\0');
            names.push((letters.collect(), variable.counts));
            at = variable.end;
        }
        Ok(names)
    }

    #[test]
    fn the_last_choice_counts_and_can_be_taken_back() -> Result<()> {
        let mut bytes = empty();
        set_next(&mut bytes, Some("http://10.0.2.2:8080/boot/x86_64/slipway.efi"))?;
        set_next(&mut bytes, Some("http://10.0.2.2:8081/boot/x86_64/slipway.efi"))?;
        let is = |name: &str, counts| (name.to_owned(), counts);
        let old = [is("Boot51A7", false), is("BootNext", false)];
        assert_eq!(names(&mut bytes)?, [&old[..], &[is("Boot51A7", true), is("BootNext", true)]].concat());
        set_next(&mut bytes, None)?;
        assert!(names(&mut bytes)?.iter().all(|(_, counts)| !counts));
        Ok(())
    }

    #[test]
    fn a_file_without_room_or_without_variables_is_refused() {
        let mut bytes = empty();
        let full = (0..9).find_map(|_| set_next(&mut bytes, Some(&format!("http://{}", "a".repeat(100)))).err());
        assert!(full.is_some_and(|error| error.to_string().contains("no room")));
        for bytes in [Vec::new(), vec![0xff; 0x1000], empty()[..0x100].to_vec()] {
            assert!(set_next(&mut bytes.clone(), None).is_err(), "{} bytes", bytes.len());
        }
    }
}
