//! Lists are built and parsed. virt-firmware judges.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use base16ct::lower::encode_string as hex;
use common::{Folder, KEY, OTHER_KEY, virt_firmware};
use slipway_secure_boot::lists::{Content, Entry, build, parse};
use slipway_secure_boot::{Uuid, Variable, microsoft};

const OWNER: Uuid = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);

fn entries() -> Vec<Entry> {
    let own = [&*KEY, &*OTHER_KEY].map(|key| Entry::certificate(OWNER, key.certificate()));
    let digests = [[1; 32], [2; 32]].map(|digest| Entry::sha256(OWNER, digest));
    [own.to_vec(), digests.to_vec(), microsoft::entries(Variable::Db).unwrap()].concat()
}

#[test]
fn what_is_built_is_parsed() {
    assert!(build(&[]).is_empty() && parse(&[]).unwrap().is_empty());
    let lists = build(&entries());
    assert_eq!(parse(&lists).unwrap(), entries());
    // Two digests share a list: a header of 28 bytes, and 48 for each.
    let digests = build(&entries()[2..4]);
    assert_eq!(digests.len(), 28 + 2 * 48);
    assert!(lists.windows(digests.len()).any(|window| window == digests));
}

#[test]
fn virt_firmware_reads_and_writes_the_same() {
    let Some((sigdb, dump)) = virt_firmware("virt-fw-sigdb").zip(virt_firmware("python")) else { return };
    let pem = KEY.certificate().to_pem();
    let folder = Folder::new(&[("ours", &build(&entries())), ("crt", pem.as_bytes())]);
    let text = folder.run(&[&sigdb, "-i", "ours", "-p"]);
    for part in ["CN=slipway test db", "CN=another", "CN=Microsoft UEFI CA 2023", &hex(&[2; 32])] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // virt-firmware writes what it has read.
    let script = "import sys; from virt.firmware.efi import siglist; \
                  sys.stdout.write(bytes(siglist.EfiSigDB(open('ours', 'rb').read())).hex())";
    assert_eq!(folder.run(&[&dump, "-c", script]), hex(&build(&entries())));
    folder.run(&[
        &sigdb,
        "--add-cert",
        &OWNER.to_string(),
        "crt",
        "--add-hash",
        &OWNER.to_string(),
        &hex(&[7; 32]),
        "-o",
        "theirs",
    ]);
    let mut theirs = parse(&folder.read("theirs")).unwrap();
    theirs.sort_by_key(|entry| matches!(entry.content, Content::Sha256(_)));
    assert_eq!(theirs, [Entry::certificate(OWNER, KEY.certificate()), Entry::sha256(OWNER, [7; 32])]);
}

#[test]
fn other_kinds_and_unreadable_certificates_are_kept_as_they_are() {
    let mut lists = build(&entries()[..1]);
    lists[28 + 16] ^= 1;
    let unreadable = &parse(&lists).unwrap()[0];
    assert!(
        matches!(&unreadable.content, Content::Other { bytes, .. } if bytes.len() == KEY.certificate().der().len())
    );
    assert_eq!(build(std::slice::from_ref(unreadable)), lists);
    // The type of SHA-1, and a header of the type before the entries.
    let kind = "826ca512-cf10-4ac9-b187-be01496631bd".parse::<Uuid>().unwrap();
    let list = [&kind.to_bytes_le()[..], &[68, 0, 0, 0, 4, 0, 0, 0, 36, 0, 0, 0, 9, 9, 9, 9], &[3; 36]].concat();
    let content = Content::Other { kind, bytes: vec![3; 20] };
    assert_eq!(parse(&list).unwrap(), [Entry { owner: Uuid::from_bytes_le([3; 16]), content }]);
}
