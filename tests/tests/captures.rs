//! A disk that a node captures becomes an image on the server, whatever the connection between them does.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slipway_installer::End;
use slipway_installer::config::Config;
use slipway_protocol::{Action, CaptureDisk, CapturedImage, RunState, Step, StreamImage};
use slipway_server::store::images::{self, Image};
use slipway_tests::{DISK, Lab};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

fn step(name: &str, action: Action) -> Step {
    Step { name: name.to_owned(), action, retries: 0, timeout: Some(60) }
}

fn capture(lab: &Lab) -> Step {
    step("capture", Action::CaptureDisk(CaptureDisk { disk: lab.disk_hints(), name: "web1.zst".to_owned() }))
}

/// Fills the disk with incompressible data.
fn fill_disk(lab: &Lab) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(DISK as usize / 8).flatten().collect();
    std::fs::write(lab.disk(), &bytes).unwrap();
    bytes
}

async fn all_images(lab: &Lab) -> Vec<Image> {
    images::all(&mut lab.store().await.read().await.unwrap()).await.unwrap()
}

async fn outcome(lab: &Lab) -> CapturedImage {
    let run = lab.status().await.run.unwrap();
    assert_eq!(run.state, RunState::Succeeded, "{run:#?}");
    run.steps[0].outcome.clone().unwrap().image.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_disk_is_an_image_that_can_be_installed() {
    let lab = Lab::start().await;
    let raw = fill_disk(&lab);
    lab.register(true).await;
    lab.start_run(vec![capture(&lab)]).await;
    assert_eq!(lab.install().await.unwrap(), End::Done);

    let image = outcome(&lab).await;
    assert_eq!((image.name.as_str(), image.raw_size), ("web1.zst", DISK));
    let known = all_images(&lab).await;
    assert_eq!(known.len(), 1);
    assert_eq!((&known[0].digest, known[0].size), (&image.digest, image.size));
    assert_eq!((&known[0].file_name, &known[0].raw_digest), (&image.name, &Some(image.raw_digest.clone())));

    std::fs::write(lab.disk(), vec![0xAA; DISK as usize]).unwrap();
    let write = StreamImage {
        url: format!("{}/images/{}", lab.url(), image.digest),
        digest: Some(image.digest),
        raw_digest: Some(image.raw_digest),
        disk: lab.disk_hints(),
        ..StreamImage::default()
    };
    lab.start_run(vec![step("write", Action::StreamImage(write))]).await;
    assert_eq!(lab.install().await.unwrap(), End::Done);
    assert!(std::fs::read(lab.disk()).unwrap() == raw);
}

/// Forwards connections to the server. Cuts the connection each time `after` more bytes went to the server, summed over
/// all connections. Returns the URL, and how often a connection was cut.
async fn cutting_line(lab: &Lab, after: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = lab.url().trim_start_matches("https://").to_owned();
    let cut = Arc::new(AtomicUsize::new(0));
    let (count, sent) = (Arc::clone(&cut), Arc::new(AtomicUsize::new(0)));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.unwrap();
            let (count, sent) = (Arc::clone(&count), Arc::clone(&sent));
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let up = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(len @ 1..) = from_client.read(&mut buffer).await {
                        if sent.fetch_add(len, Ordering::Relaxed) + len >= after {
                            sent.store(0, Ordering::Relaxed);
                            count.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        if to_server.write_all(&buffer[..len]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = up => {}
                    _ = copy(&mut from_server, &mut to_client) => {}
                }
            });
        }
    });
    (url, cut)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_cut_again_and_again_gets_a_disk_through() {
    let lab = Lab::start().await;
    fill_disk(&lab);
    lab.register(true).await;
    lab.start_run(vec![capture(&lab)]).await;
    // The line is cut after more than one piece, and after much less than the disk.
    let (url, cut) = cutting_line(&lab, 6 << 20).await;
    let config = Config { server: url.parse().unwrap(), ..lab.config() };
    assert_eq!(slipway_installer::run(config, lab.options(None)).await.unwrap(), End::Done);

    let image = outcome(&lab).await;
    assert_eq!(all_images(&lab).await[0].digest, image.digest);
    assert!(cut.load(Ordering::Relaxed) >= 2, "the line was cut");
    let notes = lab.status().await.run.unwrap().steps.remove(0).notes;
    let stopped_at = |note: &String| {
        note.split_once("was interrupted at byte ")?.1.split_once(" and continues")?.0.parse::<usize>().ok()
    };
    let stopped_at: Vec<usize> = notes.iter().filter_map(stopped_at).collect();
    assert!(stopped_at.iter().all(|at| at % (4 << 20) == 0) && stopped_at.iter().any(|at| *at > 0), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_the_same_name_is_not_replaced_and_the_disk_is_not_read() {
    let lab = Lab::start().await;
    lab.register(true).await;
    lab.start_run(vec![capture(&lab)]).await;
    assert_eq!(lab.install().await.unwrap(), End::Done);
    let before = all_images(&lab).await;

    fill_disk(&lab);
    lab.start_run(vec![capture(&lab)]).await;
    assert_eq!(lab.install().await.unwrap(), End::Failed);
    let step = lab.status().await.run.unwrap().steps.remove(0);
    let failure = step.failure.unwrap();
    assert_eq!(failure.reason, "storing the image web1.zst");
    assert!(failure.causes.iter().any(|cause| cause.contains("capture the disk under another name")), "{failure:?}");
    assert_eq!(step.progress, None, "nothing was read");
    assert_eq!(all_images(&lab).await, before);
}
