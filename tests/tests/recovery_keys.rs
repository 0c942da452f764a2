//! The recovery key of an encrypted root is on the server before the disk is changed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
    pub mod encryptable;
    pub mod swtpm;
}

use std::fs::File;
use std::sync::Arc;

use common::MIB;
use common::disk_image::{ESP, Part, ROOT, can_mount, make, read_file};
use common::encryptable::SYSTEM;
use common::swtpm::Tpm;
use slipway_actions::{Host, HostOptions};
use slipway_installer::{End, Options};
use slipway_protocol::{Action, EncryptRoot, Step};
use slipway_server::node::recovery_keys;
use slipway_tests::Lab;

const ROOT_AT: usize = 10;
/// Boot entry on the file system with the kernel, which the installed system mounts at /boot.
const ENTRY: (&str, &str) =
    ("loader/entries/a.conf", "linux /vmlinuz-6.1\ninitrd /initrd.img-6.1\noptions root=PARTLABEL=system ro\n");
const FSTAB: (&str, &str) = ("etc/fstab", "PARTLABEL=esp /boot ext4 defaults 0 2\n");

#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_the_key_before_the_disk_is_changed() {
    if !can_mount() {
        return;
    }
    let mut lab = Lab::start().await;
    let Some(tpm) = Tpm::start(&lab.folder.path().join("tpm")) else { return };
    let system = [SYSTEM, &[FSTAB]].concat();
    let parts = [
        Part { mib: 1..9, type_guid: ESP, name: "esp", files: &[ENTRY, ("initrd.img-6.1", "")] },
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: &system },
    ];
    make(&lab.disk(), 40, &parts);
    File::options().write(true).open(lab.disk()).unwrap().set_len((80 * MIB) as u64).unwrap();
    lab.register(true).await;
    let encrypt = Action::EncryptRoot(EncryptRoot { disk: lab.disk_hints(), ..EncryptRoot::default() });
    lab.start_run(vec![Step { name: "encrypt".to_owned(), action: encrypt, retries: 0, timeout: Some(60) }]).await;

    let options = || {
        let device = tpm.device.clone();
        let machine = move |cancel: &_| -> Box<dyn slipway_actions::Machine + Send> {
            let (cancel, tpm) = (Clone::clone(cancel), Some(device.clone()));
            Box::new(Host::new(HostOptions { cancel, tpm, ..HostOptions::default() }))
        };
        Options { machine: Arc::new(machine), ..lab.options(None) }
    };
    let end = slipway_installer::run(lab.config(), options()).await.unwrap();
    assert_eq!(end, End::Failed, "nothing can be run in this system");
    let store = lab.store().await;
    let node = lab.status().await;
    let keys = recovery_keys::show_keys(&store, &node.id, "m1", &[]).await.unwrap();
    assert_eq!((keys.len(), keys[0].key.key.reveal().len()), (1, 71));
    // The key appears nowhere else.
    let told = format!(
        "{node:#?}{}",
        slipway_server::operate::node_log(&store, "m1", Default::default(), None).await.unwrap()
    );
    assert!(!told.contains(keys[0].key.key.reveal()), "{told}");
    let crypttab = read_file(&lab.disk(), ROOT_AT, "/etc/crypttab").unwrap().0;
    assert!(crypttab.contains(&keys[0].key.volume), "{crypttab}");
    lab.stop_server().await;
}
