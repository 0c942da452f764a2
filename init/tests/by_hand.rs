//! Commands typed by hand: `slipway probe`, and what `slipway action` prints and refuses.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

const DISK: u64 = 8 << 20;

/// Makes a folder with an empty disk.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("disk")).unwrap().set_len(DISK).unwrap();
    folder
}

/// Runs a command line in a folder. Returns whether it succeeded, and its standard output and standard error.
fn slipway(folder: &Path, line: &str) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(line.split_whitespace()).current_dir(folder).stdin(Stdio::null()).env_remove("SLIPWAY_LOG");
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn probe_says_what_there_is_where_it_finds_no_file_system() {
    let folder = folder();
    fs::write(folder.path().join("image.raw.zst"), [0x28, 0xB5, 0x2F, 0xFD, 0, 0]).unwrap();
    fs::write(folder.path().join("image.qcow2"), b"QFI\xFB\0\0\0\x03").unwrap();
    fs::write(folder.path().join("README"), "# Notes\n").unwrap();
    for (file, expect) in [
        ("disk", "disk: no partition table, and no file system that slipway knows\n"),
        ("image.raw.zst", "image.raw.zst: it is zstd data; slipway does not look inside\n"),
        ("image.qcow2", "image.qcow2: it is qcow2 data; slipway does not look inside\n"),
        ("README", "README: it is a text file\n"),
    ] {
        for option in ["", "--json"] {
            let (is_ok, out, err) = slipway(folder.path(), &format!("probe {file} {option}"));
            assert_eq!((is_ok, out.lines().count(), err.as_str()), (true, 1, expect), "{out}");
        }
    }
}

#[test]
fn probe_says_where_a_table_is_damaged() {
    let folder = folder();
    let path = folder.path().join("image");
    fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("sgdisk").args(["--new=1:2048:4095"]).arg(&path).output().unwrap();
    assert!(made.status.success());
    let sound = fs::read(&path).unwrap();
    for (at, byte, lines, expect) in [
        (0, 0, 1, ""),
        (528, 0xFF, 1, "these partitions: the header of its GPT is damaged: its checksum is wrong\n"),
        (450, 0, 1, "these partitions: its GPT has no protective record in the first block, so neither"),
        (454, 2, 1, "these partitions: the protective record of its GPT begins at block 2"),
    ] {
        let mut image = sound.clone();
        image[at] = byte;
        fs::write(&path, image).unwrap();
        for option in ["", "--json"] {
            let (is_ok, out, err) = slipway(folder.path(), &format!("probe image {option}"));
            assert_eq!((is_ok, out.lines().count()), (true, lines), "{out}");
            let start = "image: the partition table is damaged, so Linux and firmware may not find ";
            let is_told = err.strip_prefix(start).is_some_and(|rest| rest.starts_with(expect));
            assert!(if expect.is_empty() { err.is_empty() } else { is_told }, "{err}");
        }
    }
}

#[test]
fn a_relative_path_is_looked_for_in_the_current_directory() {
    let folder = folder();
    fs::write(folder.path().join("image.raw"), vec![0xAA; 1 << 20]).unwrap();
    let (is_ok, _, err) = slipway(folder.path(), "action stream-image --url image.raw --disk disk --yes");
    assert!(is_ok, "{err}");
    let disk = fs::read(folder.path().join("disk")).unwrap();
    assert!(disk.iter().take(1 << 20).all(|byte| *byte == 0xAA), "the image is on the disk");
    let (is_ok, _, err) = slipway(folder.path(), "action stream-image --url image.rew --disk disk --yes");
    let path = folder.path().canonicalize().unwrap().join("image.rew").display().to_string();
    assert!(!is_ok && err.contains(&path) && err.contains("No such file"), "{err}");
}

#[test]
fn a_text_file_is_not_written_to_a_disk() {
    let folder = folder();
    fs::write(folder.path().join("README"), "# Notes\n".repeat(1000)).unwrap();
    fs::write(folder.path().join("disk"), vec![0x55; 1 << 20]).unwrap();
    let (is_ok, _, err) = slipway(folder.path(), "action stream-image --url README --disk disk --yes");
    assert!(!is_ok && err.contains("a text file"), "{err}");
    assert!(fs::read(folder.path().join("disk")).unwrap() == vec![0x55; 1 << 20], "the disk is as it was");
}

#[test]
fn a_disk_is_captured_to_a_new_file_only() {
    let folder = folder();
    fs::write(folder.path().join("old.zst"), "old").unwrap();
    let (is_ok, _, err) = slipway(folder.path(), "action capture-disk --disk disk --out old.zst");
    assert!(!is_ok && err.contains("a file with that name exists; give another name, or remove it"), "{err}");
    fs::write(folder.path().join("new.zst.part"), "").unwrap();
    let (is_ok, _, err) = slipway(folder.path(), "action capture-disk --disk disk --out new.zst");
    assert!(!is_ok && err.contains("a capture is writing it, or was interrupted and left it"), "{err}");
    assert_eq!(fs::read_to_string(folder.path().join("old.zst")).unwrap(), "old");
}

#[test]
fn an_erasure_that_does_not_begin_has_no_progress() {
    let folder = folder();
    let (is_ok, _, err) = slipway(folder.path(), "action erase-disk --disk disk --mode secure --yes");
    assert!(!is_ok && !err.contains("0 B"), "{err}");
}

#[test]
fn inputs_that_cannot_be_right_are_refused_before_the_disk_is_touched() {
    let folder = folder();
    let before = vec![0x55; 1 << 20];
    fs::write(folder.path().join("disk"), &before).unwrap();
    for (line, expect) in [
        (
            "erase-disk --disk disk --mode zero --fallback discard --yes",
            "falls back from zero to discard, which never happens",
        ),
        ("make-filesystem --disk disk --partition 0 --kind ext4 --yes", "works on partition 0"),
    ] {
        let (is_ok, _, err) = slipway(folder.path(), &format!("action {line}"));
        assert!(!is_ok && err.contains(expect), "{line}: {err}");
        assert!(fs::read(folder.path().join("disk")).unwrap() == before, "{line}: the disk is as it was");
    }
}

#[test]
fn options_and_files_have_values() {
    let folder = folder();
    let before = vec![0x55; 1 << 20];
    fs::write(folder.path().join("disk"), &before).unwrap();
    fs::write(folder.path().join("empty"), " \n").unwrap();
    let run = |line: &str, blank: &str| {
        let words = line.split_whitespace().map(|word| if word == "BLANK" { blank } else { word });
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        let output = command.args(words).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(fs::read(folder.path().join("disk")).unwrap() == before, "{line}: the disk is as it was");
        (output.status.success(), said)
    };
    for (line, option) in [
        ("action erase-disk --disk BLANK --yes", "--disk"),
        ("action make-filesystem --disk disk --kind ext4 --label BLANK --yes", "--label"),
        ("action make-filesystem --disk disk --kind ext4 --partition BLANK --yes", "--partition"),
        ("action seed-cloud-init --disk disk --instance-id BLANK", "--instance-id"),
        ("action seed-cloud-init --disk disk --instance-id i --ssh-key BLANK", "--ssh-key"),
        ("action kexec --disk disk --kernel /v --cmdline BLANK", "--cmdline"),
        ("action efi-boot-order --disk disk --loader BLANK", "--loader"),
        ("action write-file --disk disk --path BLANK --content a", "--path"),
        ("action kernel-args --disk disk --append BLANK", "--append"),
        ("install --url BLANK --ca empty", "--url"),
    ] {
        for blank in ["", " ", "\u{a0}"] {
            let (is_ok, said) = run(line, blank);
            assert!(!is_ok && said.contains(&format!("{option} has no value: leave the option out")), "{line}: {said}");
        }
    }
    for line in [
        "action seed-cloud-init --disk disk --instance-id i --user-data empty",
        "action seed-cloud-init --disk disk --instance-id i --network-config empty",
        "action run-in-target --disk disk --script empty",
        "action stream-image --disk disk --url https://localhost/x --ca empty --yes",
        "install --url https://localhost --ca empty",
    ] {
        let (is_ok, said) = run(line, "");
        assert!(!is_ok && said.contains("reading empty: it is empty"), "{line}: {said}");
    }
    let (is_ok, said) = run("action partition --disk disk --new esp:1MiB: --yes", "");
    assert!(!is_ok && said.contains("the label is empty"), "{said}");
    // The content of a file may be blank.
    let (_, said) = run("action write-file --disk disk --path /x --content BLANK", "");
    assert!(!said.contains("has no value"), "{said}");
}

#[test]
fn options_of_a_download_are_refused_without_one() {
    let folder = folder();
    fs::write(folder.path().join("ca.pem"), "").unwrap();
    let line = "action write-file --disk disk --path /x --content a --ca ca.pem";
    let (is_ok, _, err) = slipway(folder.path(), line);
    assert!(!is_ok && err.contains("--content <CONTENT>' cannot be used with '--ca <CA>'"), "{err}");
}

#[test]
fn a_file_that_is_not_text_is_named() {
    let folder = folder();
    fs::write(folder.path().join("ca.der"), [0x30, 0x82, 0xFF]).unwrap();
    let line = "action write-file --disk disk --path /x --url https://localhost/x --ca ca.der";
    let (is_ok, _, err) = slipway(folder.path(), line);
    assert!(!is_ok && err.contains("reading ca.der: it is not UTF-8 text"), "{err}");
}

#[test]
fn only_what_overwrites_a_disk_can_be_told_not_to_ask() {
    let folder = folder();
    let asking = ["erase-disk", "stream-image", "partition", "make-filesystem"];
    let (_, help, _) = slipway(folder.path(), "action --help");
    let actions =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).map_while(|line| line.split_whitespace().next());
    let actions: Vec<&str> = actions.filter(|action| *action != "help").collect();
    assert!(actions.len() > asking.len(), "{help}");
    for action in actions {
        let (_, help, _) = slipway(folder.path(), &format!("action {action} --help"));
        assert_eq!(help.contains("--yes"), asking.contains(&action), "{action}: {help}");
    }
}

/// Starts a command line in a folder, and sends it a signal once `is_ready`. Returns its exit status and standard
/// error.
fn stopped(folder: &Path, line: &str, signal: &str, is_ready: &dyn Fn() -> bool) -> (Option<i32>, String) {
    // These signals may be ignored by whoever started the tests, for example with nohup.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_slipway")]);
    command.args(line.split_whitespace()).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    while !is_ready() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_signal_stops_an_image_in_order_and_tells_what_is_left() {
    let folder = folder();
    let disk = || fs::read(folder.path().join("disk")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/image", listener.local_addr().unwrap());
    // Sends the first half of an image, and then nothing.
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            _ = stream.read(&mut [0; 4096]);
            _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n");
            _ = stream.write_all(&vec![0xAA; 4 << 20]);
            streams.push(stream);
        }
    });
    for (signal, status) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        fs::write(folder.path().join("disk"), vec![0x55; DISK as usize]).unwrap();
        let has_begun = || disk().get(2 << 20) == Some(&0xAA);
        let digest = "0".repeat(64);
        let line = format!("action stream-image --url {url} --sha256 {digest} --disk disk --yes");
        let (found, err) = stopped(folder.path(), &line, signal, &has_begun);
        assert_eq!(found, Some(status), "{err}");
        let last = err.lines().last().unwrap_or_default();
        let expect = format!("slipway: running stream-image: stopped by SIG{}; ", signal.trim_start_matches('-'));
        assert!(last.starts_with(&expect) && last.ends_with("write the image again"), "{err}");
        assert!(err.contains("has no partition table now and will not boot"), "{err}");
        assert!(disk().iter().take(1 << 20).all(|byte| *byte == 0), "the head is cleared");
    }
}

#[test]
fn a_capture_that_is_stopped_leaves_no_file() {
    let folder = folder();
    File::options().write(true).open(folder.path().join("disk")).unwrap().set_len(64 << 30).unwrap();
    let part = folder.path().join("image.zst.part");
    let line = "action capture-disk --disk disk --out image.zst";
    for _ in 0..2 {
        let (found, err) = stopped(folder.path(), line, "-INT", &|| part.exists());
        assert_eq!(found, Some(130), "{err}");
        assert!(err.trim_end().ends_with("the disk was only read, and there is no image"), "{err}");
        assert!(!part.exists() && !folder.path().join("image.zst").exists());
    }
}

/// Runs a shell command line in a folder, with the path of the program as `$slipway`. Returns exit status and standard
/// error.
fn shell(folder: &Path, line: &str) -> (Option<i32>, String) {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("slipway", env!("CARGO_BIN_EXE_slipway")).env_remove("SLIPWAY_LOG");
    let output = command.current_dir(folder).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_result_that_cannot_be_printed_is_no_success() {
    let folder = folder();
    fs::write(folder.path().join("image.raw"), vec![0xAA; 1 << 20]).unwrap();
    for (url, json) in [("image.raw", ""), ("image.raw", "--json"), ("none.raw", "--json")] {
        let line = format!("\"$slipway\" action stream-image --url {url} --disk disk --yes {json} > /dev/full");
        let (status, err) = shell(folder.path(), &line);
        assert_eq!(status, Some(1), "{line}");
        assert!(err.contains("writing to standard output: No space left on device"), "{line}: {err}");
    }
}

#[test]
fn an_image_comes_from_standard_input_and_is_judged_as_a_file() {
    let folder = folder();
    let disk = || fs::read(folder.path().join("disk")).unwrap();
    let image = vec![0xAA; 3 << 20];
    fs::write(folder.path().join("image"), &image).unwrap();
    fs::write(folder.path().join("README"), "# Notes\n".repeat(1000)).unwrap();
    fs::write(folder.path().join("SUMS"), format!("{}  -\n", "0".repeat(64))).unwrap();
    let write = "$slipway action stream-image --disk disk --yes --url -";
    for line in [format!("cat image | {write}"), format!("{write} < image")] {
        fs::write(folder.path().join("disk"), vec![0x55; DISK as usize]).unwrap();
        let (status, err) = shell(folder.path(), &line);
        assert_eq!(status, Some(0), "{line}: {err}");
        assert!(err.contains("without a digest"), "{line}: {err}");
        assert!(disk().starts_with(&image), "{line}");
    }
    let zeros = "0".repeat(64);
    for (line, expect) in [
        (format!("cat README | {write}"), "a text file"),
        (format!("{write} < README"), "a text file"),
        (format!(": | {write}"), "empty"),
        (format!("cat image | {write} --digest sha256:{zeros}"), "checking the digest of the stream"),
        (format!("cat image | {write} --sums SUMS"), "checking the digest of the stream"),
        (format!("cat image | {write} --mirror - --raw-digest sha256:{zeros}"), "can only be read once"),
        (format!("cat image | {}", write.replace("--yes", "")), "give --yes"),
    ] {
        let (status, err) = shell(folder.path(), &line);
        assert!(status == Some(1) && err.contains(expect), "{line}: {err}");
    }
}

#[test]
fn an_action_ends_when_its_time_is_up() {
    let folder = folder();
    // The writer of the pipe writes nothing, and does not end.
    let line = "mkfifo p; sleep 20 > p & $slipway action stream-image --url - --disk disk --yes --timeout 1 < p; \
                status=$?; kill $!; exit $status";
    let (status, err) = shell(folder.path(), line);
    assert_eq!(status, Some(124), "{err}");
    assert!(err.contains("running stream-image: stopped because its time limit was reached (--timeout); "), "{err}");
    for (limit, expect) in [("0", "leave the option out"), ("soon", "is not a number of seconds")] {
        let (is_ok, _, err) = slipway(folder.path(), &format!("action erase-disk --disk disk --yes --timeout {limit}"));
        assert!(!is_ok && err.contains(expect), "{err}");
    }
    let (is_ok, _, err) = slipway(folder.path(), "action erase-disk --disk disk --yes --timeout 10m");
    assert!(is_ok, "{err}");
}

#[test]
fn one_thing_has_one_name_and_older_names_still_work() {
    let folder = folder();
    fs::write(folder.path().join("image"), vec![0xAA; 1 << 20]).unwrap();
    let digest = "9d2a3ae2d1a8a4d0f7b1bbf3c9d6a1c5d2e3f4051627384950617283940a1b2c";
    for option in [format!("--digest sha256:{digest}"), format!("--sha256 {digest}")] {
        let line = format!("action stream-image --url image --disk disk --yes {option}");
        let (is_ok, _, err) = slipway(folder.path(), &line);
        assert!(!is_ok && err.contains("checking the digest of the stream"), "{line}: {err}");
    }
    for source in ["--url", "--from"] {
        let line = format!("action write-file --disk disk --path /x {source} image --digest sha256:{digest}");
        let (is_ok, _, err) = slipway(folder.path(), &line);
        assert!(!is_ok && !err.contains("unexpected argument"), "{line}: {err}");
    }
    for network in ["--network-config", "--network"] {
        let (is_ok, _, err) = slipway(folder.path(), &format!("user-data check {network} none"));
        assert!(!is_ok && err.contains("opening none"), "{err}");
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let folder = folder();
    let half = vec![0xAA; DISK as usize / 2];
    let line = "trap '' HUP; exec \"$slipway\" action stream-image --url - --disk disk --yes";
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("slipway", env!("CARGO_BIN_EXE_slipway")).current_dir(folder.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&half).unwrap();
    let has_begun = || fs::read(folder.path().join("disk")).unwrap().get(2 << 20) == Some(&0xAA);
    while !has_begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    // This wait is long enough for a signal to stop the action.
    std::thread::sleep(Duration::from_millis(500));
    _ = input.write_all(&half);
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(folder.path().join("disk")).unwrap() == [half.clone(), half].concat());
}
