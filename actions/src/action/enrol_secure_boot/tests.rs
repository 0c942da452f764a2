//! The action on made-up firmware.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::*;
use crate::text;
use SecureBootVariable::{Db, Dbx, Kek, Pk};

const ALL: [SecureBootVariable; 4] = [Dbx, Db, Kek, Pk];

/// A list with one certificate.
fn list(owner: u8, certificate: &[u8]) -> Vec<u8> {
    let mut list = signature_list::X509.to_vec();
    for field in [28 + 16 + certificate.len(), 0, 16 + certificate.len()] {
        list.extend((field as u32).to_le_bytes());
    }
    [list, vec![owner; 16], certificate.to_vec()].concat()
}

/// The site's update of a variable.
fn update(variable: SecureBootVariable) -> SecureBootUpdate {
    let lists = list(1, variable.to_string().as_bytes());
    let signed = [&[0; 16][..], &8_u32.to_le_bytes(), b"sig.", &lists].concat();
    SecureBootUpdate::new(variable, variable == Dbx, &signed)
}

/// Firmware with these variables: it takes updates, unless one is to be refused or forgotten, and leaves Setup Mode
/// when it is given a PK.
struct Made {
    variables: RefCell<BTreeMap<String, Vec<u8>>>,
    refuses: Option<(SecureBootVariable, Errno)>,
    forgets: Option<SecureBootVariable>,
}

impl Made {
    fn new(setup_mode: u8, variables: &[(SecureBootVariable, Vec<u8>)]) -> Self {
        let named = |(variable, content): &(SecureBootVariable, Vec<u8>)| (variable.to_string(), content.clone());
        let mut variables: BTreeMap<_, _> = variables.iter().map(named).collect();
        variables.insert("SetupMode".to_owned(), vec![setup_mode]);
        variables.insert("SecureBoot".to_owned(), vec![0]);
        Self { variables: RefCell::new(variables), refuses: None, forgets: None }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let name = name.split('-').next().unwrap();
        let mut variables = self.variables.borrow_mut();
        let lists = signed_lists(&bytes[4..]).unwrap();
        match (&self.refuses, &self.forgets) {
            (Some((refused, errno)), _) if refused.to_string() == name => return Err((*errno).into()),
            (_, Some(forgotten)) if forgotten.to_string() == name => return Ok(()),
            _ => {}
        }
        let content = variables.entry(name.to_owned()).or_default();
        match bytes[..4] {
            [0x67, 0, 0, 0] => content.extend(lists),
            [0x27, 0, 0, 0] => *content = lists.to_vec(),
            _ => panic!("attributes"),
        }
        if name == "PK" {
            variables.insert("SetupMode".to_owned(), vec![0]);
        }
        Ok(())
    }

    /// Runs the action. Returns its notes and its result in one line.
    fn enrol(&self, updates: &[SecureBootUpdate]) -> (Vec<String>, Result<String, String>) {
        let mut notes = Vec::new();
        let read = |name: &str| Ok(self.variables.borrow().get(name.split('-').next().unwrap()).cloned());
        let firmware = Firmware { read: &read, write: &|name, bytes| self.write(name, bytes) };
        let result = enrol(updates, &firmware, &Cancel::new(), &mut |report| match report {
            Report::Note(note) => notes.push(note),
            Report::Progress(_) => panic!("no progress"),
        });
        (notes, result.map_err(|error| text::chain(&error)))
    }
}

#[test]
fn a_machine_in_setup_mode_takes_all_keys_in_order() {
    let firmware = Made::new(1, &[(Dbx, list(9, b"old")), (Db, list(9, b"factory"))]);
    let (notes, result) = firmware.enrol(&ALL.map(update));
    assert_eq!(notes, ["wrote dbx", "wrote db", "wrote KEK", "wrote PK"]);
    let expect = "wrote dbx, db, KEK and PK; from its next start on, the firmware starts only what these keys allow";
    assert_eq!(result.as_deref(), Ok(expect));
    assert_eq!(firmware.variables.borrow()["dbx"], [list(9, b"old"), list(1, b"dbx")].concat());
    assert_eq!(firmware.variables.borrow()["db"], list(1, b"db"));

    // Again, as after a power cut: nothing is written that the firmware would refuse.
    let (notes, result) = Made { refuses: Some((Db, Errno::ACCESS)), ..firmware }.enrol(&ALL.map(update));
    assert!(notes.is_empty(), "{notes:?}");
    assert!(result.unwrap().starts_with("nothing to write; there already: dbx, db, KEK and PK; from its next start"));
}

#[test]
fn a_machine_with_keys_of_its_own_is_told_from_one_with_ours() {
    let others = Made::new(0, &[(Pk, list(9, b"vendor"))]);
    let (notes, result) = others.enrol(&ALL.map(update));
    let error = result.unwrap_err();
    assert!(error.contains("keys of its own and is not in Setup Mode (Secure Boot is only switched off): clear"));
    assert!(notes.is_empty() && !others.variables.borrow().contains_key("db"), "{notes:?}");

    // The owner is another, because somebody enrolled the certificate in a menu.
    let ours = Made::new(0, &[(Pk, list(9, b"PK")), (Kek, list(1, b"KEK")), (Db, list(1, b"old"))]);
    let (_, result) = ours.enrol(&ALL.map(update));
    let expect = "wrote dbx and db; there already: KEK and PK; from its next start on, the firmware starts only what \
                  these keys allow";
    assert_eq!(result.as_deref(), Ok(expect));
    // Whose PK it is cannot be told, and the firmware judges the signature.
    let refusing = Made { refuses: Some((Db, Errno::ACCESS)), ..others };
    let (_, result) = refusing.enrol(&[update(Db)]);
    let error = result.unwrap_err();
    assert!(error.contains("continues with its current keys"), "{error}");
}

#[test]
fn a_failure_says_what_was_written_and_what_was_not() {
    let check = |firmware: Made, expect: &str| {
        let error = firmware.enrol(&ALL.map(update)).1.unwrap_err();
        assert!(error.starts_with(expect), "{error}");
    };
    let state = "the firmware is still in Setup Mode and starts anything";
    let refuses = |variable, errno| Made { refuses: Some((variable, errno)), ..Made::new(1, &[]) };
    check(
        refuses(Kek, Errno::ACCESS),
        &format!(
            "writing the EFI variable KEK: written before: dbx and db; not written: KEK and PK; {state}: Permission \
             denied (os error 13): the firmware does not accept signature or time"
        ),
    );
    let first =
        format!("writing the EFI variable dbx: written before: nothing; not written: dbx, db, KEK and PK; {state}: ");
    check(refuses(Dbx, Errno::NOSPC), &first);
    let forgets = Made { forgets: Some(Pk), ..Made::new(1, &[]) };
    check(forgets, "writing the EFI variable PK: written before: dbx, db and KEK; not written: PK; ");
}

#[test]
fn firmware_without_secure_boot_and_keys_without_an_owner_are_told() {
    let none = Made::new(1, &[]);
    none.variables.borrow_mut().remove("SetupMode");
    assert!(none.enrol(&ALL.map(update)).1.unwrap_err().contains("it does not know Secure Boot"));
    let (_, result) = Made::new(1, &[]).enrol(&[update(Db)]);
    assert_eq!(result.unwrap(), "wrote db; the firmware is still in Setup Mode, because it was given no platform key");
}
