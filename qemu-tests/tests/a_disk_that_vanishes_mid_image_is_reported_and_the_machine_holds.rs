//! The disk is pulled out while it is written.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use qemu_tests::{Bench, DISK_SERIAL, LIMIT, has_empty_head, noise, progress, step, stream, timed};
use slipway_protocol::{Action, NodeState, Reboot, StepState};
use xtask::lab::qemu::MachineConfig;

#[test]
fn a_disk_that_vanishes_mid_image_is_reported_and_the_machine_holds() -> Result<()> {
    timed("a disk that vanishes mid-image is reported and the machine holds", || {
        let bench = Bench::new()?;
        let gone = Arc::new(AtomicBool::new(false));
        let url = image_in_two_halves(noise(32 << 20), gone.clone())?;
        bench.register()?;
        let digest = format!("sha256:{}", "0".repeat(64)).parse()?;
        bench.start_run(&[stream("write", &url, digest), step("leave", Action::Reboot(Reboot {}))])?;

        let file = bench.disk();
        let port = ["-device", "pcie-root-port,id=root-port,chassis=1"];
        let drive = ["-drive", &format!("if=none,id=pulled,format=raw,file={}", file.display())];
        let device = ["-device", &format!("virtio-blk-pci,id=disk,bus=root-port,drive=pulled,serial={DISK_SERIAL}")];
        let extra = [port, drive, device].concat().into_iter().map(str::to_owned).collect();
        let mut machine = bench.power_on(&MachineConfig { disks: Vec::new(), extra, ..bench.machine() })?;
        bench.wait_for(&machine, "in the middle of the image", |node| {
            progress(node, 0).is_some_and(|bytes| bytes > 8 << 20)
        })?;
        machine.unplug("disk", LIMIT)?;
        gone.store(true, Ordering::Relaxed);

        let status = bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;
        let run = status.run.context("a run")?;
        let failure = run.steps[0].failure.as_ref().context("a failure")?;
        assert!(failure.reason.starts_with("using /dev/vda: the disk vanished: "), "{failure:#?}");
        let [done, said] = failure.causes.as_slice() else { anyhow::bail!("not two causes: {failure:#?}") };
        assert!(done.starts_with("writing /dev/vda at byte "), "{failure:#?}");
        // Writes in progress fail with an I/O error. Later writes fail because the kernel reports that the disk has
        // size zero.
        let may_say = ["I/O error (os error 5)", "No space left on device (os error 28)"];
        assert!(may_say.contains(&said.as_str()), "{failure:#?}");
        assert_eq!(run.steps[1].state, StepState::Skipped);
        machine.wait_for_console("the machine stays up and waits for another run", LIMIT)?;
        assert!(has_empty_head(&file)?);
        Ok(())
    })
}

/// Serves an image whose second half is sent once `word` is set. Returns the URL.
fn image_in_two_halves(image: Vec<u8>, word: Arc<AtomicBool>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://10.0.2.2:{}/image", listener.local_addr()?.port());
    let serve = move |mut stream: TcpStream| -> std::io::Result<()> {
        let _ = stream.read(&mut [0; 4096])?;
        let (first, second) = image.split_at(image.len() / 2);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len())?;
        stream.write_all(first)?;
        while !word.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
        stream.write_all(second)
    };
    // A client that hangs up tries again.
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(serve(stream))));
    Ok(url)
}
