//! What steps need in the file systems of an image is judged before the disk is erased.

use std::fs;

use slipway_server::store::findings;
use slipway_server::{operate, store};

use crate::foreseen::{install, made};
use crate::program::{run, succeed};
use crate::support::TestServer;
use crate::work::new_run;

/// Makes two partitions, and the folder `$root`. Then `$ext` makes an ext4 file system of that folder in partition 1,
/// and `$esp` a FAT file system in partition 2.
const TABLE: &str = "sgdisk --new=1:2048:34815 --typecode=1:8304 --new=2:34816:51199 --typecode=2:ef00 $0 >$0.out
    root=$0.root; mkdir -p $root/etc/cloud/cloud.cfg.d $root/var/lib/cloud $root/boot $root/usr/bin
    echo ID=x >$root/etc/os-release; echo 'users: [default]' >$root/etc/cloud/cloud.cfg
    ext='mke2fs -q -F -E offset=1048576 -d '$root' '$0' 16M'
    esp='mformat -i '$0'@@17M -T 16384 ::'\n";
const GRUB: &str = "mkdir $root/boot/grub; echo 'linux /vmlinuz root=/dev/vda1' >$root/boot/grub/grub.cfg\n";
/// Entries of the Boot Loader Specification on the EFI system partition.
const ENTRIES: &str = "mmd -i $0@@17M ::loader ::loader/entries
    printf 'title x\\nlinux /vmlinuz\\noptions root=/dev/vda1\\n' >$0.conf
    mcopy -i $0@@17M $0.conf ::loader/entries/x.conf\n";
const NO_LOADER: &str = "looking for a boot loader's configuration in the image ";

/// The image, and what `os add` says of an operating system with this option; none if it takes it.
fn added(server: &TestServer, name: &str, script: &str, option: &str) -> Option<(String, Option<String>)> {
    let image = made(server, name, 32, &format!("{TABLE}{script}"))?;
    let data = server.data_path();
    let digest = succeed(&data, &["image", "add", image.to_str().unwrap()]).trim().to_owned();
    let output = run(&data, &["os", "add", name, "--image", &digest, option]);
    let problem = (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap());
    Some((digest, problem))
}

/// What `run start` says of a run with these steps after one that writes the image.
async fn refused(server: &TestServer, digest: &str, steps: &[&str]) -> Option<String> {
    let image = format!("stream-image: {{url: https://server.test:8443/images/{digest}}}");
    let steps = ["erase-disk: {}", &image].into_iter().chain(steps.iter().copied());
    let steps: Vec<String> =
        (1..).zip(steps).map(|(number, step)| format!("- {{name: s{number}, action: {{{step}}}}}\n")).collect();
    let run = new_run(&format!("steps:\n{}", steps.concat()));
    let refused = operate::start_run(&server.store().await, &server.ca(), "web1", run).await.err();
    if refused.is_none() {
        succeed(&server.data_path(), &["run", "cancel", "--yes", "web1"]);
    }
    refused.map(|refused| refused.to_string())
}

const ARGUMENTS: &str = "kernel-args: {append: [quiet]}";
const SEED: &str = "seed-cloud-init: {}";

// Several threads: while the test waits for a command, PostgreSQL must be told that a transaction was dropped.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_a_boot_loader_is_not_given_kernel_arguments() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let xfs = "mkfs.xfs -V >/dev/null || exit 127; truncate -s 320M $0.xfs; mkfs.xfs -q $0.xfs
        dd if=$0.xfs of=$0 bs=1M seek=1 count=16 conv=notrunc status=none";
    let convert = "qemu-img convert -O qcow2 $0 $0.qcow2; mv $0.qcow2 $0";
    let compress = "gzip $0; mv $0.gz $0";
    let mbr = "sgdisk --zap-all $0 >$0.out; printf 'label: dos\nstart=2048, type=83\n' | sfdisk -q $0";
    let mkconfig = "touch $root/usr/bin/grub-mkconfig; mkdir -p $root/boot/grub/i386-pc\n";
    let image = "mmd -i $0@@17M ::EFI ::EFI/Linux; printf 'MZ' >$0.efi; mcopy -i $0@@17M $0.efi ::EFI/Linux/x.efi\n";
    for (name, script, is_refused) in [
        ("none", "$ext; $esp".to_owned(), true),
        ("blank-esp", "$ext".to_owned(), true),
        ("qcow2", format!("$ext; $esp; {convert}"), true),
        ("compressed", format!("$ext; $esp; {compress}"), true),
        ("grub-compressed", format!("{GRUB} $ext; $esp; {compress}"), false),
        ("no-image", format!("$ext; $esp; {image}"), true),
        ("grub", format!("{GRUB} $ext; $esp"), false),
        ("grub-qcow2", format!("{GRUB} $ext; $esp; {convert}"), false),
        ("linked", format!("{GRUB} mv $root/boot $root/b; ln -s /b/../b $root/boot; $ext; $esp"), false),
        ("entries", format!("$ext; $esp; {ENTRIES}"), false),
        ("grub-mkconfig", format!("{mkconfig} $ext; $esp"), false),
        ("xfs", format!("{xfs}; $esp"), false),
        ("mbr", format!("{mbr}; mke2fs -q -F -E offset=1048576 -d $root $0 30M"), true),
        ("blank-mbr", mbr.to_owned(), false),
        ("luks", "$esp; printf 'LUKS\\272\\276' | dd of=$0 bs=1M seek=1 conv=notrunc status=none".to_owned(), false),
        (
            "damaged",
            "$ext; $esp; dd if=/dev/urandom of=$0 bs=1k seek=1025 count=8 conv=notrunc status=none".to_owned(),
            false,
        ),
    ] {
        let Some((digest, problem)) = added(&server, name, &script, "--kernel-arg=quiet") else { return };
        let problems = [problem, refused(&server, &digest, &[ARGUMENTS]).await];
        for problem in &problems {
            assert_eq!(problem.is_some(), is_refused, "{name}: {problem:?}");
            let problem = problem.clone().unwrap_or_else(|| NO_LOADER.to_owned());
            assert!(problem.contains(NO_LOADER), "{name}: {problem}");
        }
        if let [_, Some(problem)] = problems {
            assert!(problem.starts_with(&format!("step 3 (s3) would fail: {NO_LOADER}{name} ({digest})")), "{problem}");
            // What a step makes is not known, nor which disk another step chooses.
            for (steps, is_refused) in [
                (vec!["write-file: {path: /boot/grub/grub.cfg, content: a}", ARGUMENTS], false),
                (vec!["run-in-target: {command: [a]}", ARGUMENTS], false),
                (vec!["kernel-args: {append: [quiet], disk: {serial: S}}"], false),
                (vec!["efi-boot-order: {}", ARGUMENTS], true),
            ] {
                let problem = refused(&server, &digest, &steps).await;
                assert_eq!(problem.is_some(), is_refused, "{steps:?}: {problem:?}");
            }
        }
    }
}

// Several threads: while the test waits for a command, PostgreSQL must be told that a transaction was dropped.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_would_not_take_a_seed_is_not_seeded() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let file = server.folder.path().join("user-data");
    fs::write(&file, "#cloud-config\n").unwrap();
    let user_data = format!("--user-data={}", file.display());
    let kernel = |argument: &str| format!("{GRUB} echo 'linux /v root=x {argument}' >>$root/boot/grub/grub.cfg; $ext");
    let fstab =
        |line: &str| format!("echo '/dev/vdb1 {line} ext4 defaults 0 0' >$root/etc/fstab; {}", kernel("ds=Ec2"));
    let wins = "printf 'merge_how: replace\\nallow_userdata: false\\n' >$root/etc/cloud/cloud.cfg.d/zz.cfg; $ext";
    for (name, script, expect) in [
        ("plain", kernel("quiet"), ""),
        (
            "disabled",
            kernel("cloud-init=disabled"),
            "/boot/grub/grub.cfg (line 2) gives the kernel cloud-init=disabled",
        ),
        ("ec2", kernel("ds=Ec2"), "makes cloud-init use the data source Ec2 instead of a seed"),
        (
            "esp",
            format!("$ext; $esp; {}", ENTRIES.replace("root=", "cloud-init=disabled root=")),
            "/loader/entries/x.conf of partition 2 (line 3) gives",
        ),
        (
            "broken",
            "echo 'users: [a' >$root/etc/cloud/cloud.cfg; $ext".to_owned(),
            "/etc/cloud/cloud.cfg (line 1) cannot be read",
        ),
        ("aws", "echo 'datasource_list: [ Ec2 ]' >$root/etc/cloud/cloud.cfg.d/zz.cfg; $ext".to_owned(), ""),
        ("wins", wins.to_owned(), "makes cloud-init ignore user-data (allow_userdata)"),
        ("own-var", fstab("/var"), ""),
        ("own-home", fstab("/home"), "makes cloud-init use the data source Ec2"),
        ("no-root", format!("rm $root/etc/os-release; {}", kernel("ds=Ec2")), ""),
        ("sealed", kernel("ds=Ec2 roothash=0a"), ""),
    ] {
        let Some((digest, problem)) = added(&server, name, &script, &user_data) else { return };
        for problem in [problem, refused(&server, &digest, &[SEED]).await] {
            assert_eq!(problem.is_some(), !expect.is_empty(), "{name}: {problem:?}");
            let problem = problem.unwrap_or_default();
            assert!(problem.contains(expect), "{name}: {problem}");
        }
        let ignition = "seed-cloud-init: {user_data: '{\"ignition\": {\"version\": \"3.4.0\"}}'}";
        for (steps, is_refused) in [
            (["kernel-args: {delete: [ds]}", SEED], false),
            (["kernel-args: {append: [quiet]}", SEED], true),
            (["kernel-args: {append: [quiet]}", ignition], false),
        ] {
            let problem = refused(&server, &digest, &steps).await;
            assert!(problem.is_some() == is_refused || name != "ec2", "{steps:?}: {problem:?}");
        }
    }
}

#[tokio::test]
async fn a_machine_is_not_given_a_run_that_its_image_makes_fail() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let Some(image) = made(&server, "x", 32, &format!("{TABLE} $ext")) else { return };
    let digest = install(&server, &image).parse().unwrap();
    let store = server.store().await;
    // As an earlier version knew it.
    let mut transaction = store.write().await.unwrap();
    let mut finding = findings::get(&mut transaction, &digest).await.unwrap().unwrap();
    let inside = finding.inside.take().unwrap();
    findings::save(&mut transaction, &digest, &finding).await.unwrap();
    store::commit(transaction).await.unwrap();
    assert_eq!(inside.has_boot_loader, Some(false));
    let found = refused(&server, &digest.to_string(), &[ARGUMENTS]).await.expect("it was looked at again");
    assert!(found.contains(NO_LOADER), "{found}");
    let seen = findings::get(&mut store.read().await.unwrap(), &digest).await.unwrap().unwrap();
    assert_eq!(seen.inside, Some(inside));

    // Started before anybody looked.
    let mut transaction = store.write().await.unwrap();
    let unknown = findings::Finding { inside: Some(findings::Inside::default()), ..finding.clone() };
    findings::save(&mut transaction, &digest, &unknown).await.unwrap();
    store::commit(transaction).await.unwrap();
    let steps = format!(
        "steps:\n- {{name: w, action: {{stream-image: {{url: https://server.test:8443/images/{digest}}}}}}}\n\
         - {{name: k, action: {{{ARGUMENTS}}}}}\n"
    );
    operate::start_run(&store, &server.ca(), "web1", new_run(&steps)).await.unwrap();
    let mut transaction = store.write().await.unwrap();
    findings::save(&mut transaction, &digest, &finding).await.unwrap();
    store::commit(transaction).await.unwrap();
    assert_eq!(node.workflow(&server).await, None);
    let failure = operate::show_node(&store, "web1").await.unwrap().run.unwrap().steps[0].failure.clone().unwrap();
    assert_eq!(failure.reason, "checking step 2 (k) before the first step; the disks are as they were");
    assert!(failure.causes[0].contains(NO_LOADER), "{failure:?}");
}
