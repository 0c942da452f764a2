//! What firmware measures into register 7. The value is that of the software TPM of a machine with OVMF, which had
//! these certificates and a dbx with the digest of nothing (virt-firmware's), and started a program that the key of db
//! had signed.
#![allow(clippy::unwrap_used, reason = "tests")]

use slipway_secure_boot::lists::Entry;
use slipway_secure_boot::{Certificate, Uuid, Variable, register_7};

const OWNER: Uuid = Uuid::from_u128(0x11111111_2222_3333_4444_555555555555);
const DBX_OWNER: Uuid = Uuid::from_u128(0xa0baa8a3_041d_48a8_bc87_c36d121b5e3d);
const VALUE: &str = "ea2758145bff32dba2de5f4bd3f26c02d6d14fc639a81a13c9ae583f57c7f35a";

#[test]
fn a_prediction_is_the_value_of_a_machine_with_these_keys() {
    let entry = |der: &[u8]| Entry::certificate(OWNER, &Certificate::from_der(der).unwrap());
    let pk = [entry(include_bytes!("measured/pk.der"))];
    let kek = [entry(include_bytes!("measured/kek.der"))];
    let db = [entry(include_bytes!("measured/db.der"))];
    let nothing = ring::digest::digest(&ring::digest::SHA256, b"");
    let dbx = [Entry::sha256(DBX_OWNER, nothing.as_ref().try_into().unwrap())];
    let value = |dbx: &[Entry], vouched: &Entry| {
        let lists = [(Variable::Pk, &pk[..]), (Variable::Kek, &kek), (Variable::Db, &db), (Variable::Dbx, dbx)];
        base16ct::lower::encode_string(&register_7(lists, vouched))
    };
    let [own] = &db;
    assert_eq!(value(&dbx, own), VALUE);
    assert_ne!(value(&[], own), VALUE, "a machine that keeps a dbx has another value");
    assert_ne!(value(&dbx, &kek[0]), VALUE, "another entry vouched");
}
