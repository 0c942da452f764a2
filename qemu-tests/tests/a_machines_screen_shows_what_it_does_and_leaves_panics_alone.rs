//! A machine with a display and a serial line: waiting for an operator, installing, failed, done, back again, without
//! its server, and a panic of its kernel.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use qemu_tests::{Bench, LIMIT, UUID, noise, step, stream, timed};
use slipway_protocol::{Action, NodeState, Reboot};
use xtask::lab::qemu::{Boot, Machine, MachineConfig};

/// Folder that keeps the pictures, for people to look at.
const PICTURES: &str = "SLIPWAY_PICTURES";
/// In the last line of the head, which is drawn after the others.
const LAST: &str = "log, all of it with Alt+F2";

#[test]
fn a_machines_screen_shows_what_it_does_and_leaves_panics_alone() -> Result<()> {
    timed("a machine's screen shows what it does and leaves panics alone", || {
        let mut bench = Bench::new()?;
        let pictures = std::env::var_os(PICTURES).map_or_else(|| bench.folder().join("pictures"), PathBuf::from);
        std::fs::create_dir_all(&pictures)?;
        let image = disk_image();
        let (url, go_on) = slow_image(image.clone())?;
        bench.lab.operator(&["node", "add", "--name", "m1", "--uuid", UUID])?;
        let digest = format!("sha256:{}", "0".repeat(64)).parse()?;
        bench.start_run(&[stream("write", &url, digest), step("leave", Action::Reboot(Reboot {}))])?;
        let mut machine = bench.power_on(&with_display(bench.machine()))?;

        let line = machine.wait_for_line("waits for an operator: claim code ", LIMIT)?;
        let code = line.rsplit(' ').next().context("a claim code")?;
        let release = format!("node release {code}");
        let wanted = ["serial number BENCH0001", "Claim code:", "10.0.2.15/24 on eth0", &release, LAST];
        wait_for_rows(&mut machine, &wanted)?;
        machine.take_picture(&pictures.join("claim.png"))?;
        machine.take_picture(&pictures.join("claim.ppm"))?;
        let page = format!("{}/waiting?code={code}", bench.lab.url());
        assert_eq!(read_code(&pictures.join("claim.ppm"))?, page);

        bench.lab.operator(&["node", "release", code])?;
        wait_for_rows(&mut machine, &[" m1 ", "Step 1/2 write", "% ", LAST])?;
        machine.take_picture(&pictures.join("step.png"))?;
        go_on.store(true, Ordering::Relaxed);
        bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;
        wait_for_rows(&mut machine, &["Step 1/2 write failed.", "checking the digest", "start another run", LAST])?;
        machine.take_picture(&pictures.join("failed.png"))?;

        // The serial line was logged up to here. Now somebody opens a terminal on it, and types something.
        ensure!(!machine.console()?.contains("start another run"), "the log of the serial line has the screen");
        let drawn = open_terminal(machine.serial_line()?)?;
        std::fs::write(pictures.join("serial.txt"), &drawn)?;
        ensure!(drawn.contains("\x1b[1;1H") && drawn.contains("Step 1/2 write failed."), "{drawn:?}");

        // The server goes away during the next run, which is done without it. The machine says so and stays until it
        // has reported the end.
        let (url, go_on) = slow_image(image.clone())?;
        let (_, digest) = bench.add_image(&image)?;
        bench.start_run(&[stream("again", &url, digest), step("leave", Action::Reboot(Reboot {}))])?;
        wait_for_rows(&mut machine, &["Step 1/2 again", "% ", LAST])?;
        bench.lab.stop_server()?;
        go_on.store(true, Ordering::Relaxed);
        wait_for_rows(&mut machine, &["Done. The installed system starts next.", "The server cannot be used;", LAST])?;
        machine.take_picture(&pictures.join("leaving.png"))?;
        bench.lab.start_server()?;

        // The disk that it wrote has a partition, and the machine starts slipway all the same.
        wait_for_rows(&mut machine, &["Claim code:", "Came back? Remove the boot medium", LAST])?;
        machine.take_picture(&pictures.join("came-back.png"))?;
        machine.take_picture(&pictures.join("came-back.ppm"))?;
        let page = read_code(&pictures.join("came-back.ppm"))?;
        machine.press(&["alt", "f2"])?;
        wait_for_head(&mut machine, &pictures, false)?;
        machine.take_picture(&pictures.join("log.png"))?;
        machine.press(&["alt", "f1"])?;
        wait_for_head(&mut machine, &pictures, true)?;
        bench.lab.operator(&["node", "release", page.rsplit('=').next().context("a claim code")?])?;
        wait_for_rows(&mut machine, &[" m1 ", "Waits for work.", "Came back?", LAST])?;
        bench.lab.stop_server()?;
        let trouble = ["The server cannot be used; trying again:", "Connection refused", LAST];
        wait_for_rows(&mut machine, &trouble)?;
        machine.take_picture(&pictures.join("trouble.png"))?;

        // SysRq and "c" make the kernel panic.
        machine.send_break()?;
        machine.type_text("c")?;
        let end = "---[ end Kernel panic - not syncing: sysrq triggered crash ]---";
        machine.wait_for_console(end, LIMIT)?;
        let rows = wait_for_rows(&mut machine, &[end])?;
        ensure!(rows.iter().any(|row| row.contains("Waits for work.")), "the panic is below the head: {rows:#?}");
        machine.take_picture(&pictures.join("panic.png"))
    })
}

/// An image with a table of partitions (MBR) that has one.
fn disk_image() -> Vec<u8> {
    let mut image = noise(16 << 20);
    image[446..510].fill(0);
    image[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0x40, 0, 0]);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image
}

/// Adds a display in text mode, which is the first console.
fn with_display(machine: MachineConfig) -> MachineConfig {
    let boot = match machine.boot {
        Boot::Kernel { vmlinuz, initramfs, cmdline } => {
            Boot::Kernel { vmlinuz, initramfs, cmdline: format!("console=tty0 {cmdline}") }
        }
        other => other,
    };
    MachineConfig { boot, extra: ["-vga", "std"].map(str::to_owned).to_vec(), ..machine }
}

/// Waits until each text is in a row of the display.
fn wait_for_rows(machine: &mut Machine, wanted: &[&str]) -> Result<Vec<String>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let rows = machine.text_mode()?;
        if wanted.iter().all(|wanted| rows.iter().any(|row| row.contains(wanted))) {
            return Ok(rows);
        }
        ensure!(Instant::now() < deadline, "waiting for {wanted:?} on the display: it has {rows:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the display has the blue bar of the head, or has not.
fn wait_for_head(machine: &mut Machine, pictures: &Path, wanted: bool) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let picture = pictures.join("head.ppm");
    loop {
        machine.take_picture(&picture)?;
        let (width, _, pixels) = pixels(&picture)?;
        // In the middle of the first row.
        let [red, _, blue] = pixels[4 * width + width / 2];
        if (blue > red) == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "waiting until the head is on the display: {wanted}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads a portable pixel map (ppm(5)): width, height, and each pixel's red, green and blue.
fn pixels(picture: &Path) -> Result<(usize, usize, Vec<[u8; 3]>)> {
    let bytes = std::fs::read(picture)?;
    // "P6", width, height and the largest value, each followed by one blank, then three bytes for each pixel.
    let mut words = bytes.splitn(4, |byte| byte.is_ascii_whitespace());
    let (_, width, height) = (words.next(), words.next(), words.next());
    let number = |word: Option<&[u8]>| -> Result<usize> { Ok(std::str::from_utf8(word.context("a size")?)?.parse()?) };
    let (width, height) = (number(width)?, number(height)?);
    let (pixels, _) = bytes[bytes.len() - width * height * 3..].as_chunks();
    Ok((width, height, pixels.to_vec()))
}

/// Reads the QR code in a picture.
fn read_code(picture: &Path) -> Result<String> {
    let (width, height, pixels) = pixels(picture)?;
    let grey = |x: usize, y: usize| pixels[y * width + x][1];
    let mut prepared = rqrr::PreparedImage::prepare_from_greyscale(width, height, grey);
    let grids = prepared.detect_grids();
    let (_, text) = grids.first().context("a QR code in the picture")?.decode()?;
    Ok(text)
}

/// Answers on a serial line as a terminal of 80 by 24 characters in UTF-8. Returns what was drawn, once it has a whole
/// head.
fn open_terminal(mut line: UnixStream) -> Result<String> {
    line.set_read_timeout(Some(LIMIT))?;
    line.write_all(b"\r")?;
    let (mut drawn, mut answered) = (Vec::new(), 0);
    loop {
        let mut buffer = [0; 4096];
        let length = line.read(&mut buffer).context("reading from the serial line")?;
        ensure!(length > 0, "reading from the serial line: it was closed");
        drawn.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8_lossy(&drawn).into_owned();
        let questions = text.matches("\x1b[6n").count();
        for question in answered..questions {
            // Where the cursor is, how large the terminal is, and how wide a character of three bytes is.
            line.write_all([b"\x1b[9;1R".as_slice(), b"\x1b[24;80R", b"\x1b[1;2R"][question % 3])?;
        }
        answered = questions;
        if text.contains(" log ") {
            return Ok(text);
        }
    }
}

/// Serves an image of which one half arrives at once, and the other when it may. Returns the URL.
fn slow_image(image: Vec<u8>) -> Result<(String, Arc<AtomicBool>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://10.0.2.2:{}/image", listener.local_addr()?.port());
    let (go_on, image) = (Arc::new(AtomicBool::new(false)), Arc::new(image));
    let waited = Arc::clone(&go_on);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let (image, waited) = (Arc::clone(&image), Arc::clone(&waited));
            std::thread::spawn(move || {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len());
                let (first, second) = image.split_at(image.len() / 2);
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(first));
                while !waited.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                }
                let _ = client.write_all(second);
            });
        }
    });
    Ok((url, go_on))
}
