//! `slipway action encrypt-root` on a disk image with a software TPM. cryptsetup and systemd open the result.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
    pub mod swtpm;
}

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aes::Aes256;
use aes::cipher::array::Array;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use common::MIB;
use common::disk_image::{ESP, ROOT, can_mount, run};
use common::swtpm::Tpm;
use tempfile::TempDir;

/// Sizes and offsets in MiB: start of the root partition, end of its file system, size of the disk, start of the
/// volume's data.
const ROOT_AT: usize = 10;
const ROOT_END: usize = 34;
const DISK: usize = 64;
const DATA_AT: usize = 16;
/// Stand-ins for dracut and lsinitrd: programs that make an initramfs and list its content.
const DRACUT: &str =
    "#!/bin/sh\necho \"dracut $*\" >> /told\n[ -e /etc/crypttab ] && echo systemd-cryptsetup > \"$5\"\n";
const LSINITRD: &str =
    "#!/bin/sh\nread -r first < \"$1\"\necho \"$first libtss2-esys.so.0 libtss2-tcti-device.so.0\"\n";
/// Stand-in for kernel-install, which logs which copies of a kernel and its initramfs are made.
const KERNEL_INSTALL: &str = "#!/bin/sh\necho \"kernel-install $*\" >> /told\n";

struct Bench {
    dir: TempDir,
    tpm: Tpm,
}

impl Bench {
    /// Makes a disk with a small system, twice as large as its image was. `block` is the file system's block size in
    /// bytes.
    fn new(block: usize) -> Option<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let tpm = Tpm::start(&dir.path().join("tpm"))?;
        let bench = Self { dir, tpm };
        let disk = bench.path("disk");
        let file = File::create(&disk).unwrap();
        file.set_len(((ROOT_END + 1) * MIB) as u64).unwrap();
        let mut sgdisk = Command::new("sgdisk");
        sgdisk.args(["--new=1:2048:18431", &format!("--new=2:{}:{}", ROOT_AT * 2048, ROOT_END * 2048 - 1)]);
        run(sgdisk.args([&format!("--typecode=1:{ESP}"), &format!("--typecode=2:{ROOT}")]).arg(&disk));
        let text = |version: &str| {
            format!("linux /id/{version}/linux\ninitrd /id/{version}/initrd\noptions root=LABEL=system ro\n")
        };
        let (usual, for_rescue) = (text("6.1.0-1-cloud"), text("0-rescue"));
        let entries = [("loader/entries/a.conf", usual.as_str()), ("loader/entries/b.conf", &for_rescue)];
        bench.make_file_system("esp", &entries, 1, 8, 1024);
        bench.make_file_system("system", &[], ROOT_AT, ROOT_END - ROOT_AT, block);
        file.set_len((DISK * MIB) as u64).unwrap();
        Some(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes an ext4 file system on the disk, at `at`. Without `files`, it contains the system.
    fn make_file_system(&self, name: &str, files: &[(&str, &str)], at: usize, size: usize, block: usize) {
        let tree = self.path(name);
        match files {
            [] => make_system(&tree),
            files => files.iter().for_each(|(path, content)| write(&tree, path, content, 0o644)),
        }
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-b", &block.to_string(), "-E", &format!("offset={}", at * MIB), "-d"]);
        run(mkfs.arg(&tree).arg(self.path("disk")).arg(format!("{}", size * MIB / block)));
    }

    fn encrypt(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.args(["action", "--json", "encrypt-root", "--disk"]).arg(self.path("disk"));
        command.arg("--recovery-key").arg(self.path("recovery-key")).arg("--tpm").arg(&self.tpm.device);
        command.args(arguments).output().unwrap()
    }

    /// Copies a partition into its own file.
    fn cut_out(&self, number: usize) -> PathBuf {
        let info = run(Command::new("sgdisk").arg(format!("--info={number}")).arg(self.path("disk")));
        let sector = |key: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse::<usize>().unwrap()
        };
        let (first, last) = (sector("First sector: "), sector("Last sector: "));
        let mut bytes = vec![0; (last + 1 - first) * 512];
        File::open(self.path("disk")).unwrap().read_exact_at(&mut bytes, first as u64 * 512).unwrap();
        let path = self.path(&format!("part{number}"));
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Returns the output of systemd-cryptsetup when it tries to open the volume with the TPM. Without a device mapper
    /// on this host, it gets only as far as the key.
    fn unlock(volume: &Path, tpm: &Tpm) -> Option<String> {
        let device = format!("tpm2-device={}", tpm.device.display());
        let mut command = Command::new("/lib/systemd/systemd-cryptsetup");
        command.args(["attach", "slipway-test"]).arg(volume).args(["none", &format!("{device},headless=1")]);
        command.env("SYSTEMD_LOG_LEVEL", "debug").env("SYSTEMD_CRYPTSETUP_USE_TOKEN_MODULE", "0");
        let output = command.output().ok()?;
        if output.status.success() {
            run(Command::new("/lib/systemd/systemd-cryptsetup").args(["detach", "slipway-test"]));
        }
        Some(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn write(tree: &Path, path: &str, content: &str, mode: u32) {
    let path = tree.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Makes a tree with the host's shell, and with stand-ins for a system with dracut.
fn make_system(tree: &Path) {
    for dir in ["proc", "sys", "dev", "run"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    let listed = run(Command::new("ldd").arg("/bin/sh"));
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.map(|word| PathBuf::from(word.trim_end_matches(':'))).chain([PathBuf::from("/bin/sh")]) {
        let to = tree.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&file, to).unwrap();
    }
    write(tree, "usr/bin/dracut", DRACUT, 0o755);
    write(tree, "usr/bin/lsinitrd", LSINITRD, 0o755);
    write(tree, "usr/bin/kernel-install", KERNEL_INSTALL, 0o755);
    write(tree, "etc/kernel/postinst.d/zz-systemd-boot", "", 0o755);
    for (path, content) in [
        ("etc/os-release", "NAME=Debian\n"),
        ("etc/fstab", "LABEL=system / ext4 errors=remount-ro 0 1\n"),
        ("etc/kernel/cmdline", "root=LABEL=system ro\n"),
        ("usr/bin/tpm2", ""),
        ("usr/lib/systemd/systemd-cryptsetup", ""),
        ("usr/sbin/cryptsetup", ""),
        ("lib/modules/6.1.0-1-cloud/modules.dep", ""),
        ("boot/initrd.img-6.1.0-1-cloud", "old\n"),
        ("boot/vmlinuz-6.1.0-1-cloud", ""),
        ("srv/data", "what was there before\n"),
    ] {
        write(tree, path, content, 0o644);
    }
}

/// Decrypts the data of a volume with the key that cryptsetup dumps (XTS: IEEE 1619-2007, 5.4).
fn decrypt(volume: &Path, key: &[u8], sector: usize, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    File::open(volume).unwrap().read_exact_at(&mut data, (DATA_AT * MIB) as u64).unwrap();
    let half = |range: std::ops::Range<usize>| Aes256::new_from_slice(&key[range]).unwrap();
    let (cipher, numbers) = (half(0..32), half(32..64));
    for (index, bytes) in data.chunks_mut(sector).enumerate() {
        let mut tweak = Array([0; 16]);
        tweak[..8].copy_from_slice(&((index * sector / 512) as u64).to_le_bytes());
        numbers.encrypt_block(&mut tweak);
        let mut tweak = u128::from_le_bytes(tweak.0);
        for block in bytes.as_chunks_mut::<16>().0 {
            let mut sum = Array((u128::from_le_bytes(*block) ^ tweak).to_le_bytes());
            cipher.decrypt_block(&mut sum);
            *block = (u128::from_le_bytes(sum.0) ^ tweak).to_le_bytes();
            tweak = tweak << 1 ^ if tweak >> 127 == 1 { 0x87 } else { 0 };
        }
    }
    data
}

fn last(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_else(|| panic!("{output:?}"))).unwrap()
}

#[test]
fn an_encrypted_root_is_opened_by_the_tpm_and_by_the_recovery_key_and_is_what_it_was() {
    if !can_mount() {
        return;
    }
    for (block, sector) in [(1024, 512), (4096, 4096)] {
        let Some(bench) = Bench::new(block) else { return };
        bench.tpm.extend(7);
        let output = bench.encrypt(&[]);
        assert!(output.status.success(), "{output:?}");
        let last = last(&output);
        let for_rescue = "the boot entry /loader/entries/b.conf has a rescue initramfs that is not rebuilt: it can \
                          open the root only with the recovery key, if at all";
        assert_eq!(last["succeeded"]["warnings"], serde_json::json!([for_rescue]), "{last}");
        let summary = last["succeeded"]["summary"].as_str().unwrap();
        assert!(summary.starts_with("encrypted 24 MiB of ext4 in partition 2"), "{summary}");
        let told = [&output.stdout[..], &output.stderr].concat();
        let recovery_key = fs::read_to_string(bench.path("recovery-key")).unwrap();
        assert!(!String::from_utf8_lossy(&told).contains(&recovery_key));
        assert_eq!(fs::metadata(bench.path("recovery-key")).unwrap().permissions().mode() & 0o777, 0o600);

        let verified = run(Command::new("sgdisk").arg("--verify").arg(bench.path("disk")));
        assert!(verified.contains("No problems found"), "{verified}");
        let mut backup = [0; 8];
        File::open(bench.path("disk")).unwrap().read_exact_at(&mut backup, (DISK * MIB - 512) as u64).unwrap();
        assert_eq!(&backup, b"EFI PART", "the backup is at the end of the disk");
        let volume = bench.cut_out(2);
        assert_eq!(fs::metadata(&volume).unwrap().len() as usize, (DISK - 1 - ROOT_AT) * MIB, "it has grown");
        check_content(&bench, &volume, sector);
        check_boot(&bench, &volume);
        check_tpm(&bench, &volume);
    }
}

/// Checks that the recovery key opens the volume, and that the volume has the content of the partition.
fn check_content(bench: &Bench, volume: &Path, sector: usize) {
    let key = bench.path("key");
    let mut dump = Command::new("cryptsetup");
    dump.args(["luksDump", "--batch-mode", "--dump-volume-key", "--volume-key-file"]).arg(&key);
    run(dump.arg("--key-file").arg(bench.path("recovery-key")).arg(volume));
    let plain = decrypt(volume, &fs::read(key).unwrap(), sector, (ROOT_END - ROOT_AT) * MIB);
    fs::write(bench.path("plain"), plain).unwrap();
    run(Command::new("e2fsck").arg("-fn").arg(bench.path("plain")));
    let cat = |path: &str| run(Command::new("debugfs").args(["-R", &format!("cat {path}")]).arg(bench.path("plain")));
    assert_eq!(cat("/srv/data"), "what was there before\n");
    let uuid = run(Command::new("cryptsetup").arg("luksUUID").arg(volume));
    let uuid = uuid.trim();
    assert_eq!(cat("/etc/crypttab"), format!("root UUID={uuid} none tpm2-device=auto,x-initrd.attach\n"));
    assert_eq!(cat("/etc/fstab"), "/dev/mapper/root / ext4 errors=remount-ro,x-systemd.growfs 0 1\n");
    let image = "/boot/initrd.img-6.1.0-1-cloud";
    let dracut = format!("dracut --force --no-hostonly --add crypt tpm2-tss {image} 6.1.0-1-cloud\n");
    let copies = format!("kernel-install add 6.1.0-1-cloud /boot/vmlinuz-6.1.0-1-cloud {image}\n");
    assert_eq!(cat("/told"), dracut + &copies);
    assert_eq!(cat(image), "systemd-cryptsetup\n");
}

fn check_boot(bench: &Bench, volume: &Path) {
    let uuid = run(Command::new("cryptsetup").arg("luksUUID").arg(volume));
    let uuid = uuid.trim();
    let esp = bench.cut_out(1);
    let options = format!(
        "options root=LABEL=system ro rd.luks.name={uuid}=root rd.luks.options={uuid}=tpm2-device=auto \
         root=/dev/mapper/root"
    );
    for name in ["a.conf", "b.conf"] {
        let entry = run(Command::new("debugfs").args(["-R", &format!("cat /loader/entries/{name}")]).arg(&esp));
        assert!(entry.lines().any(|line| line == options), "{entry}");
    }
}

/// Checks that systemd gets the key from this TPM in its current state, but not from another TPM in the same state, and
/// not after a PCR changed.
fn check_tpm(bench: &Bench, volume: &Path) {
    let dump = run(Command::new("cryptsetup").arg("luksDump").arg(volume));
    assert!(dump.contains("systemd-tpm2") && dump.contains("systemd-recovery"), "{dump}");
    let Some(said) = Bench::unlock(volume, &bench.tpm) else { return };
    assert!(said.contains("Completed TPM2 key unsealing"), "{said}");
    for wrong in ["Failed to activate with specified passphrase", "Failed to unseal"] {
        assert!(!said.contains(wrong), "{said}");
    }
    let check_closed = |tpm: &Tpm, why: &str| {
        let said = Bench::unlock(volume, tpm).unwrap();
        assert!(said.contains(why) && !said.contains("Completed TPM2 key unsealing"), "{said}");
    };
    let other = Tpm::start(&bench.path("other-tpm")).unwrap();
    other.extend(7);
    check_closed(&other, "Failed to load HMAC key in TPM");
    bench.tpm.extend(7);
    check_closed(&bench.tpm, "Current policy digest does not match stored policy digest");
}

#[test]
fn an_initramfs_without_what_opens_the_root_leaves_it_as_it_was() {
    if !can_mount() {
        return;
    }
    let Some(bench) = Bench::new(4096) else { return };
    // The initramfs of this dracut lacks what opens the root.
    let root = format!("{}?offset={}", bench.path("disk").display(), ROOT_AT * MIB);
    fs::write(bench.path("dracut"), "#!/bin/sh\necho nothing > \"$5\"\n").unwrap();
    let requests = format!(
        "rm /usr/bin/dracut\nwrite {} /usr/bin/dracut\nset_inode_field /usr/bin/dracut mode 0100755\n",
        bench.path("dracut").display()
    );
    fs::write(bench.path("requests"), requests).unwrap();
    run(Command::new("debugfs").args(["-w", "-f"]).arg(bench.path("requests")).arg(&root));
    let output = bench.encrypt(&["--pcrs", "7,1"]);
    let reason = last(&output)["failed"]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("has no systemd-cryptsetup: install libtss2-esys"), "{reason}");
    let volume = bench.cut_out(2);
    run(Command::new("e2fsck").arg("-fn").arg(volume));
}
