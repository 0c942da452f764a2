//! What can be known before the disk is erased stops a run before that: the old system stays as it was.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::process::Command;

use slipway_installer::End;
use slipway_protocol::{
    Action, EraseDisk, NodeState, NumberOrName, Step, StepState, StreamImage, UnpackArchive, WriteFile,
};
use slipway_tests::{DISK, Lab};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Starts a server without any image. Returns its URL.
async fn empty_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.read(&mut [0; 4096]).await;
            let _ =
                connection.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        }
    });
    url
}

/// Makes a disk with a system that would boot: a boot sector and data.
fn old_system() -> Vec<u8> {
    let mut disk = vec![7; DISK as usize];
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    disk
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_system_survives_what_was_known_before() {
    let lab = Lab::start().await;
    lab.register(true).await;
    let (there, digest) = lab.add_image(&[7; 4096]).await;
    let nothing = empty_server().await;
    let missing = format!("{nothing}/x");
    let disk = || lab.disk_hints();
    let stream = |image: StreamImage| Action::StreamImage(StreamImage { disk: disk(), ..image });
    let good = StreamImage { url: there.clone(), digest: Some(digest.clone()), ..StreamImage::default() };
    let of = |url: &str| StreamImage { url: url.to_owned(), ..good.clone() };
    let cases: Vec<(&str, Action)> = vec![
        (
            "the image needs 16777217 bytes; use a larger disk, or another image",
            stream(StreamImage { raw_size: Some(DISK + 1), ..good.clone() }),
        ),
        ("the image cannot be fetched: http://127.0.0.1:", stream(of(&missing))),
        ("the image cannot be fetched: /nowhere/image: ", stream(of("/nowhere/image"))),
        (
            "404 Not Found; /nowhere/image: ",
            stream(StreamImage { mirrors: vec!["/nowhere/image".to_owned()], ..of(&missing) }),
        ),
        (
            "the block map cannot be fetched: /nowhere/map: ",
            stream(StreamImage { bmap: Some("/nowhere/map".to_owned()), ..good.clone() }),
        ),
        (
            "the list of sums cannot be fetched: /nowhere/SUMS: ",
            stream(StreamImage { sums: Some("/nowhere/SUMS".to_owned()), digest: None, ..good.clone() }),
        ),
        (
            "the archive cannot be fetched: /nowhere/a.tar: ",
            Action::UnpackArchive(UnpackArchive {
                url: "/nowhere/a.tar".to_owned(),
                disk: disk(),
                directory: "/x".to_owned(),
                ..UnpackArchive::default()
            }),
        ),
        (
            "the file cannot be fetched: /nowhere/file: ",
            Action::WriteFile(WriteFile {
                url: Some("/nowhere/file".to_owned()),
                disk: disk(),
                path: "/x".to_owned(),
                ..WriteFile::default()
            }),
        ),
    ];
    for (expect, action) in cases {
        check(&lab, expect, action).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_a_partition_is_one_of_the_image_before() {
    let lab = Lab::start().await;
    lab.register(true).await;
    let Some(image) = made(&lab, "gpt", "sgdisk --new=1:2048:18431 $0 >$0.out") else { return };
    std::fs::write(lab.disk(), old_system()).unwrap();
    let (path, content) = ("/a".to_owned(), Some("b".to_owned()));
    let write = WriteFile {
        disk: lab.disk_hints(),
        path,
        content,
        partition: Some(NumberOrName::Number(7)),
        ..WriteFile::default()
    };
    let steps = [("image", Action::StreamImage(image)), ("write", Action::WriteFile(write))];
    let steps = steps.map(|(name, action)| Step { name: name.to_owned(), action, retries: 0, timeout: None });
    lab.replace_run(steps.into()).await;
    assert_eq!(lab.install().await.unwrap(), End::Failed);
    let failure = lab.status().await.run.unwrap().steps[0].failure.clone().unwrap();
    assert_eq!(failure.reason, "checking step 2 (write) before the first step; the disks are as they were");
    assert!(failure.causes[0].contains("the image has no partition 7; give one of 1"), "{failure:?}");
    assert!(std::fs::read(lab.disk()).unwrap() == old_system(), "the disk was touched");
}

/// Checks that the run fails before its first step, for this reason, and leaves the disk as it was.
async fn check(lab: &Lab, expect: &str, action: Action) {
    std::fs::write(lab.disk(), old_system()).unwrap();
    let erase = Action::EraseDisk(EraseDisk { disk: lab.disk_hints(), ..EraseDisk::default() });
    let steps = [("erase", erase), ("next", action)];
    let steps = steps.map(|(name, action)| Step { name: name.to_owned(), action, retries: 0, timeout: None });
    lab.replace_run(steps.into()).await;
    assert_eq!(lab.install().await.unwrap(), End::Failed, "{expect}");
    let node = lab.status().await;
    let steps = node.run.unwrap().steps;
    assert_eq!(
        (node.state, steps[0].state, steps[1].state),
        (NodeState::Failed, StepState::Failed, StepState::Skipped)
    );
    let failure = steps[0].failure.as_ref().unwrap();
    assert_eq!(failure.reason, "checking step 2 (next) before the first step; the disks are as they were");
    assert!(failure.causes[0].contains(expect), "{expect}: {failure:?}");
    assert!(std::fs::read(lab.disk()).unwrap() == old_system(), "{expect}: the disk was touched");
}

/// Makes a file with a script. The server knows nothing of the file. `None` if a program that the script needs is
/// missing.
fn made(lab: &Lab, name: &str, script: &str) -> Option<StreamImage> {
    let file = lab.folder.path().join(name);
    std::fs::File::create(&file).unwrap().set_len(14 << 20).unwrap();
    let done = Command::new("sh").args(["-ec", script]).arg(&file).output().unwrap();
    if done.status.code() == Some(127) {
        eprintln!("not checked: {script:?} cannot be run here");
        return None;
    }
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    Some(StreamImage { url: file.to_str().unwrap().to_owned(), disk: lab.disk_hints(), ..StreamImage::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_beginning_of_an_image_is_judged_before_the_disk_is_erased() {
    let lab = Lab::start().await;
    lab.register(true).await;
    let gpt = "sgdisk --new=1:2048:18431 $0 >$0.out";
    let damaged = format!("{gpt}; printf '\\377\\377\\377\\377' | dd of=$0 bs=1 seek=528 conv=notrunc 2>$0.out");
    let (wrong, arch, own) = match cfg!(target_arch = "aarch64") {
        true => ("8304", "x86-64", "arm64"),
        false => ("8305", "arm64", "x86-64"),
    };
    let is_damaged = "the header of its GPT is damaged";
    let is_foreign = format!("the image is for {arch} (by the type of partition 1), but the machine is {own}");
    for (name, script, expect) in [
        ("raw", damaged.clone(), is_damaged),
        ("gzip", format!("{damaged}; gzip $0; mv $0.gz $0"), is_damaged),
        ("xz", format!("{damaged}; xz -T2 --block-size=1MiB $0; mv $0.xz $0"), is_damaged),
        ("bzip2", format!("{damaged}; bzip2 $0; mv $0.bz2 $0"), is_damaged),
        ("zstd", format!("{damaged}; split -b 1M $0 $0.; zstd -q $0.a?; cat $0.*.zst >$0"), is_damaged),
        ("qcow2", format!("{damaged}; qemu-img convert -O qcow2 $0 $0.q; mv $0.q $0"), is_damaged),
        ("arch", format!("{gpt}; sgdisk --typecode=1:{wrong} $0 >$0.out"), is_foreign.as_str()),
        (
            "large",
            "truncate -s 30M $0; sgdisk --new=1:2048:0 $0 >$0.out; truncate -s 4M $0".to_owned(),
            "is made for a disk of ",
        ),
        ("bare", "truncate -s 17M $0".to_owned(), "the image needs 17 MiB"),
        ("text", "echo some notes >$0".to_owned(), "it is a text file"),
        ("tar", "echo x >$0.x; tar -czf $0 $0.x 2>$0.out".to_owned(), "it is a tar archive"),
        ("cut", "printf '\\375' >$0; printf '7zXZ\\0\\0' >>$0".to_owned(), "decoding the xz image"),
    ] {
        let Some(image) = made(&lab, name, &script) else { continue };
        check(&lab, expect, Action::StreamImage(image)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_image_is_checked_with_is_read_before_the_disk_is_erased() {
    let lab = Lab::start().await;
    lab.register(true).await;
    let Some(image) = made(&lab, "good", "sgdisk --new=1:2048:18431 $0 >$0.out") else { return };
    let file = |name: &str, text: &str| {
        let file = lab.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        Some(file.to_str().unwrap().to_owned())
    };
    let map = "<bmap version=\"1.2\"><ImageSize>SIZE</ImageSize><BlockSize>4096</BlockSize>\
               <BlocksCount>BLOCKS</BlocksCount>\
               <MappedBlocksCount>1</MappedBlocksCount><BlockMap><Range>0</Range></BlockMap></bmap>";
    let large = map.replace("SIZE", "20971520").replace("BLOCKS", "5120");
    for (expect, image) in [
        ("good", StreamImage { sums: file("SUMS", &format!("{}  other\n", "0".repeat(64))), ..image.clone() }),
        ("reading the block map", StreamImage { bmap: file("map", "<bmap>"), ..image.clone() }),
        ("the image needs 20 MiB", StreamImage { bmap: file("large", &large), ..image.clone() }),
        ("has a raw_size of 512 bytes", StreamImage { bmap: file("large", &large), raw_size: Some(512), ..image }),
    ] {
        check(&lab, expect, Action::StreamImage(image)).await;
    }
}
