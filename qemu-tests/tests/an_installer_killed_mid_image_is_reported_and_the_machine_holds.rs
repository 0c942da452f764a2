//! The kernel's OOM killer kills the installer while it writes an image.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use anyhow::{Context, Result};
use qemu_tests::{Bench, LIMIT, has_empty_head, noise, progress, step, stream, timed};
use slipway_protocol::{Action, EraseDisk, NodeState, Reboot, RunState, StepState};

#[test]
fn an_installer_killed_mid_image_is_reported_and_the_machine_holds() -> Result<()> {
    timed("an installer killed mid-image is reported and the machine holds", || {
        let bench = Bench::new()?;
        let url = half_an_image(&noise(32 << 20))?;
        bench.register()?;
        let digest = format!("sha256:{}", "0".repeat(64)).parse()?;
        bench.start_run(&[stream("write", &url, digest), step("leave", Action::Reboot(Reboot {}))])?;
        let mut machine = bench.power_on(&bench.machine())?;
        bench.wait_for(&machine, "in the middle of the image", |node| {
            progress(node, 0).is_some_and(|bytes| bytes > 8 << 20)
        })?;

        // SysRq and "f" make the kernel kill the process that uses the most memory.
        machine.send_break()?;
        machine.type_text("f")?;

        let status = bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;
        let run = status.run.context("a run")?;
        let failure = run.steps[0].failure.as_ref().context("a failure")?;
        assert_eq!(failure.reason, "the installer ended in the middle of step 1 write");
        assert_eq!(failure.causes, ["killed by signal 9 (SIGKILL)"]);
        assert!(failure.log_tail.iter().any(|line| line.contains("Out of memory: Killed process")), "{failure:#?}");
        assert_eq!(run.steps[1].state, StepState::Skipped);
        assert!(has_empty_head(&bench.disk())?);

        machine.wait_for_console("the machine stays up and waits for another run", LIMIT)?;
        bench.start_run(&[step("erase", Action::EraseDisk(EraseDisk::default()))])?;
        let next = bench.wait_for(&machine, "done with another run", |node| {
            node.run.as_ref().is_some_and(|next| next.id != run.id && next.state == RunState::Succeeded)
        })?;
        assert_eq!(next.state, NodeState::Installed);
        assert_eq!(machine.console()?.matches("Linux version").count(), 1, "it was switched off and on");
        Ok(())
    })
}

/// Serves an image that always stops half-way, so that its client never finishes. Returns the URL.
fn half_an_image(image: &[u8]) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://10.0.2.2:{}/image", listener.local_addr()?.port());
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len());
    let answer = [head.as_bytes(), &image[..image.len() / 2]].concat();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            // A client that hangs up tries again.
            let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(&answer));
            open.push(stream);
        }
    });
    Ok(url)
}
