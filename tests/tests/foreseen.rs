//! What can be known before the disk is erased is known before: the old system is as it was after each of these runs.

use slipway_installer::End;
use slipway_protocol::{Action, EraseDisk, NodeState, Step, StepState, StreamImage, UnpackArchive, WriteFile};
use slipway_tests::{DISK, Lab};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server of images that has none. Returns its URL.
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

/// A system that would boot: a boot sector and data.
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
        std::fs::write(lab.disk(), old_system()).unwrap();
        let erase = Action::EraseDisk(EraseDisk { disk: disk(), ..EraseDisk::default() });
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
}
