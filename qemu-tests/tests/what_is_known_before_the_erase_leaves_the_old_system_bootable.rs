//! Runs that would fail once the disk was erased, on a machine with a system on its disk. The server refuses those of
//! which it knows that, and the machine the others. The system still boots after all of them.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, LIMIT, bootable_image, step, timed};
use sha2::{Digest as _, Sha256, Sha512};
use slipway_protocol::{
    Action, Digest, EraseDisk, NodeState, RunState, SeedCloudInit, Step, StreamImage, UnpackArchive,
};
use xtask::host::command::{command, run_quietly};
use xtask::lab::qemu::firmware;

/// The greeting of the boot loader on the disk.
const GREETING: &str = "iPXE initialising devices";
const MIB: usize = 1 << 20;

/// Makes an image of `mib` MiB with the table that sgdisk makes with these options, and cuts it off after `kept` MiB.
fn gpt(folder: &Path, mib: u64, kept: u64, options: &[&str]) -> Result<Vec<u8>> {
    let file = folder.join("made");
    fs::File::create(&file)?.set_len(mib << 20)?;
    run_quietly(command("sgdisk", options).arg(&file))?;
    fs::File::options().write(true).open(&file)?.set_len(kept << 20)?;
    let bytes = fs::read(&file)?;
    fs::remove_file(&file)?;
    Ok(bytes)
}

/// Returns images that no run of this machine can install: name, content and the expected reason.
fn images(folder: &Path) -> Result<Vec<(&'static str, Vec<u8>, &'static str)>> {
    let mut damaged = gpt(folder, 16, 16, &["--new=1:2048:0"])?;
    damaged[528] ^= 1;
    Ok(vec![
        ("damaged", damaged, "the header of its GPT is damaged"),
        (
            "arm64",
            gpt(folder, 16, 16, &["--new=1:2048:0", "--typecode=1:8305"])?,
            "the image is for arm64 (by the type of",
        ),
        ("cut", gpt(folder, 512, 4, &["--new=1:2048:0"])?, "the partition table of the image is made for a disk of"),
        ("large", vec![0; 80 * MIB], "but the image needs 80 MiB"),
    ])
}

fn sha256(bytes: &[u8]) -> Result<Digest> {
    Ok(format!("sha256:{:x}", Sha256::digest(bytes)).parse()?)
}

/// Serves files of which slipway's server knows nothing. Returns the base URL for the machine.
fn serve(files: HashMap<String, Vec<u8>>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://10.0.2.2:{}", listener.local_addr()?.port());
    let files = Arc::new(files);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let files = Arc::clone(&files);
            // The machine hangs up once it has seen enough.
            std::thread::spawn(move || {
                let head = BufReader::new(connection.try_clone()?);
                let head: Vec<String> =
                    head.lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
                let (status, body) = match files.get(path.trim_start_matches('/')) {
                    Some(body) => ("200 OK", body.as_slice()),
                    None => ("404 Not Found", &[][..]),
                };
                write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
                connection.write_all(body)
            });
        }
    });
    Ok(url)
}

fn erase_and(name: &str, action: Action) -> [Step; 2] {
    [step("erase", Action::EraseDisk(EraseDisk::default())), step(name, action)]
}

fn write(url: String, digest: Option<Digest>) -> Action {
    Action::StreamImage(StreamImage { url, digest, ..StreamImage::default() })
}

/// Returns what the server refuses when the run is started, with the expected reasons.
fn known_to_the_server(bench: &Bench) -> Result<Vec<(Action, String)>> {
    let mut cases = Vec::new();
    for (_, image, expect) in images(bench.folder())? {
        // The server did not check this image, as if an earlier version had accepted it.
        let (url, digest) = bench.add_other(&image)?;
        cases.push((write(url, Some(digest)), expect.to_owned()));
    }
    let (good, digest) = bench.add_image(&gpt(bench.folder(), 16, 16, &["--new=1:2048:0"])?)?;
    let other = sha256(b"another image")?;
    cases.push((write(good.clone(), Some(other)), format!("has the digest {digest}")));
    let raw_size = Some(MIB as u64);
    let of_size = StreamImage { url: good.clone(), raw_size, ..StreamImage::default() };
    cases.push((Action::StreamImage(of_size), "the raw image of ".to_owned()));
    let missing = sha256(b"nobody has it")?;
    let place = |digest: &Digest| format!("{}/images/{digest}", bench.lab.url());
    cases.push((write(place(&missing), None), format!("there is no image {missing} on this server")));
    let seed = |user_data: &str, network_config: Option<&str>| {
        let network_config = network_config.map(str::to_owned);
        let user_data = user_data.to_owned();
        Action::SeedCloudInit(SeedCloudInit { user_data, network_config, ..SeedCloudInit::default() })
    };
    cases.push((seed("#cloud-config\nusers: [\n", None), "user-data".to_owned()));
    cases.push((seed("", Some("version: 2\nethernets: {eth0: {\n")), "network".to_owned()));
    Ok(cases)
}

/// Returns what the machine refuses before its first step, with the expected reasons.
fn known_to_the_machine(bench: &Bench) -> Result<Vec<(Action, String)>> {
    let images = images(bench.folder())?;
    let url = serve(images.iter().map(|(name, image, _)| ((*name).to_owned(), image.clone())).collect())?;
    let mut cases = Vec::new();
    for (name, image, expect) in images {
        // A SHA-512, because the server has these images and knows them by SHA-256.
        let digest = format!("sha512:{:x}", Sha512::digest(&image)).parse()?;
        cases.push((write(format!("{url}/{name}"), Some(digest)), expect.to_owned()));
    }
    let missing = format!("{url}/missing");
    cases.push((write(missing.clone(), Some(sha256(b"")?)), "the image cannot be fetched: ".to_owned()));
    let archive = UnpackArchive {
        url: missing,
        digest: Some(sha256(b"")?),
        directory: "/x".to_owned(),
        ..UnpackArchive::default()
    };
    cases.push((Action::UnpackArchive(archive), "the archive cannot be fetched: ".to_owned()));
    Ok(cases)
}

#[test]
fn what_is_known_before_the_erase_leaves_the_old_system_bootable() -> Result<()> {
    timed("what is known before the erase leaves the old system bootable", || {
        let bench = Bench::new()?;
        let old = bootable_image(bench.folder(), Path::new(firmware::IPXE))?;
        fs::copy(&old, bench.disk())?;
        let before = fs::read(bench.disk())?;
        bench.register()?;
        let machine = bench.power_on(&bench.machine())?;
        // From then on the server knows the machine and its disk.
        bench.wait_for(&machine, "known", |node| node.inventory.is_some())?;

        for (action, expect) in known_to_the_server(&bench)? {
            let steps = erase_and("next", action);
            let refused = bench.start_run(&steps).err().with_context(|| format!("{expect}: the run was started"))?;
            ensure!(format!("{refused:#}").contains(&expect), "{expect}: {refused:#}");
        }
        let mut last = None;
        for (action, expect) in known_to_the_machine(&bench)? {
            bench.start_run(&erase_and("next", action))?;
            let status = bench.wait_for(&machine, &expect, |node| {
                node.run.as_ref().is_some_and(|run| run.state == RunState::Failed && Some(&run.id) != last.as_ref())
            })?;
            let run = status.run.context("a run")?;
            let failure = run.steps[0].failure.as_ref().context("a failure")?;
            let before_all = "checking step 2 (next) before the first step; the disks are as they were";
            ensure!(failure.reason == before_all, "{expect}: {failure:#?}");
            ensure!(failure.causes[0].contains(&expect), "{expect}: {failure:#?}");
            assert_eq!(status.state, NodeState::Failed);
            ensure!(fs::read(bench.disk())? == before, "{expect}: the disk is not as it was");
            last = Some(run.id);
        }
        drop(machine);

        bench.power_on(&bench.machine_with_firmware(&bench.disk()))?.wait_for_console(GREETING, LIMIT)?;
        Ok(())
    })
}
