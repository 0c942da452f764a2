//! What boot files leave in registers, and whether a machine started them. systemd's own program judges the first, and the
//! log of a machine with OVMF, a software TPM and systemd's stub both.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

#[path = "common/image.rs"]
mod image;

use std::fs;
use std::process::Command;

use image::{Event, Image, digest, program, unhex};
use slipway_attestation::event_log::EventLog;
use slipway_media::judge::{Known, Mismatch, judge};
use slipway_media::{MachineSettings, MeasureError, Measurements, SectionDigest};
use slipway_parts::{Arch, hex};
use slipway_protocol::Secret;
use slipway_secure_boot::{KeySize, SigningKey, authenticode};
use time::{Duration, OffsetDateTime};

/// What a machine measured that started an image from a stick, and one that had Secure Boot switched on and the image
/// signed.
const LOG: &[u8] = include_bytes!("../../fuzz/corpus/event_log/unified-image-on-ovmf");
const SIGNED_LOG: &[u8] = include_bytes!("../../fuzz/corpus/event_log/secure-boot-on-ovmf");
/// The value of a register after these events.
fn replayed(events: &[Event], register: u8) -> String {
    let of = events.iter().filter(|(pcr, _)| *pcr == register);
    hex(&of.fold([0; 32], |value, (_, event)| digest(&[value, *event].concat())))
}

fn known(builds: &[Measurements]) -> Known {
    Known { builds: builds.to_vec(), programs: Vec::new() }
}

/// What the judgement says of these events.
fn fault(events: &[Event], known: &Known) -> Option<String> {
    judge(events, known, &[]).err().map(|mismatch| mismatch.to_string())
}

#[test]
fn systemd_measure_gives_the_same_value_of_register_11() {
    let image = Image { version: "252.39-1~deb12u2", ..Image::new() };
    let folder = tempfile::tempdir().unwrap();
    let mut measure = Command::new("/usr/lib/systemd/systemd-measure");
    // The phase before any that a system measures later.
    measure.args(["calculate", "--bank=sha256", "--phase=", "--json=short"]);
    let parts: [(&str, &[u8]); 4] = [
        ("linux", &image.linux),
        ("initrd", &image.initrd),
        ("osrel", b"ID=slipway\n"),
        ("cmdline", image.cmdline.as_bytes()),
    ];
    for (name, content) in parts {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        measure.arg(format!("--{name}={}", path.display()));
    }
    let Ok(said) = measure.output() else {
        eprintln!("not checked: there is no systemd-measure");
        return;
    };
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains(&format!("\"hash\":\"{}\"", image.predict().pcr11)), "{said}");
}

#[test]
fn a_prediction_is_what_a_machine_measures() {
    let (image, told) = (Image::new(), Image::new().predict());
    assert_eq!(told.program, hex(&authenticode::digest(&image.to_bytes()).unwrap()));
    assert_eq!(told.kernel, Some(hex(&authenticode::digest(&image.linux).unwrap())));
    let events = image.events();
    assert_eq!((replayed(&events, 4), replayed(&events, 11)), (told.pcr4.clone(), told.pcr11.clone()));
    assert_eq!(judge(&events, &known(std::slice::from_ref(&told)), &[]), Ok(&told));

    // A signature changes nothing that is measured.
    let now = OffsetDateTime::now_utc();
    let key = SigningKey::generate(KeySize::Rsa2048, "test", now, now + Duration::days(1)).unwrap();
    let signed = authenticode::sign(image.to_bytes(), &key).unwrap();
    assert_eq!(Measurements::predict(Arch::X86_64, &signed).unwrap(), told);

    // Newer stubs load the kernel by themselves, so firmware does not measure it.
    let newer = Image { version: "262.1-1", ..Image::new() };
    let told = newer.predict();
    let kernel = told.kernel.as_deref().map(unhex);
    let events: Vec<Event> =
        newer.events().into_iter().filter(|(pcr, event)| *pcr != 4 || Some(*event) != kernel).collect();
    assert_eq!(replayed(&events, 4), told.pcr4);
    assert_eq!(judge(&events, &known(std::slice::from_ref(&told)), &[]), Ok(&told));

    let noise = Image { linux: vec![1; 600], ..Image::new() };
    assert_eq!(noise.predict().kernel, None, "firmware cannot load it");
}

#[test]
fn nothing_is_predicted_of_a_stub_that_may_measure_other_sections() {
    for version in ["251", "253.1", "256.1", "", "x"] {
        let image = Image { version, ..Image::new() }.to_bytes();
        assert_eq!(Measurements::predict(Arch::X86_64, &image), Err(MeasureError::Stub), "{version}");
    }
    for bytes in [&b"MZ"[..], &program(3)[..1000]] {
        assert_eq!(Measurements::predict(Arch::X86_64, bytes), Err(MeasureError::Unreadable));
    }
}

#[test]
fn each_part_that_was_modified_is_named() {
    let ours = known(&[Image { initrd: vec![8; 99], ..Image::new() }.predict(), Image::new().predict()]);
    let mut stub = program(0)[..1024].to_vec();
    stub[0x3F0] ^= 1;
    let parts = |what| format!("{what} of its unified image is that of no boot files that are recorded");
    let new = Image::new;
    let table = [
        (Image { linux: program(9), ..new() }, parts("the kernel")),
        (Image { initrd: vec![9; 3000], ..new() }, parts("the initramfs")),
        (Image { cmdline: "quiet init=/bin/sh", ..new() }, parts("the command line")),
        (Image { uname: "6.2.0", ..new() }, parts("the release of the kernel")),
        (
            Image { linux: program(9), initrd: vec![9; 3000], ..new() },
            "the kernel and the initramfs of its unified image are those of no boot files that are recorded".to_owned(),
        ),
        (
            Image { stub: stub.clone(), ..new() },
            format!(
                "the stub of its unified image is that of no boot files that are recorded (Authenticode digest {})",
                Image { stub, ..new() }.predict().program
            ),
        ),
    ];
    for (image, expect) in table {
        assert_eq!(fault(&image.events(), &ours), Some(expect));
    }
    assert_eq!(fault(&new().events(), &ours), None);
    assert_eq!(judge(&new().events(), &Known::default(), &[]), Err(Mismatch::NoBuilds));
}

#[test]
fn a_known_image_does_not_count_if_something_else_was_measured() {
    let told = Image::new().predict();
    let mut ours = known(std::slice::from_ref(&told));
    let events = Image::new().events();
    let other = digest(b"other");
    let at = |at: usize, event: Event| {
        let mut events = events.clone();
        events.insert(at, event);
        events
    };
    let without = |register| events.iter().copied().filter(|(pcr, _)| *pcr != register).collect::<Vec<_>>();
    let end = events.len();
    let named = format!("(Authenticode digest {})", hex(&other));
    let outside = |register| {
        format!(
            "something from outside of the unified image was added, such as a command line or settings of another machine \
             (register {register}, digest {})",
            hex(&other)
        )
    };
    let loader = format!("it was started by a loader that the site did not name {named}");
    let kernel = unhex(&told.kernel.clone().unwrap());
    let sections = "register 11 does not have the sections of the unified image that it started";
    let table = [
        (at(2, (4, other)), loader.clone()),
        (at(end, (4, other)), format!("after the unified image it started another program {named}")),
        (at(end, (4, kernel)), {
            let kernel = hex(&kernel);
            format!("after the unified image it started another program (Authenticode digest {kernel})")
        }),
        (at(end, (11, other)), sections.to_owned()),
        (without(11), sections.to_owned()),
        (at(end, (12, other)), outside(12)),
        (at(end, (13, other)), outside(13)),
        (without(4), "its firmware measured no program that it started".to_owned()),
        (vec![(4, other), (4, kernel)], loader),
        (
            vec![(4, kernel), (9, other)],
            "its kernel was started without the unified image, so nothing tells its command line: let it start slipway.efi"
                .to_owned(),
        ),
        (vec![(4, other)], format!("it started a program that is not known {named}")),
    ];
    for (events, expect) in table {
        assert_eq!(fault(&events, &ours), Some(expect));
    }
    ours.programs.push(hex(&other));
    assert_eq!(fault(&at(2, (4, other)), &ours), None, "the site named it");
    assert!(fault(&at(end, (4, other)), &ours).is_some(), "not after the image");
    // With Secure Boot, the kernel is not measured. Other registers are not judged.
    assert_eq!(fault(&events.iter().copied().filter(|event| *event != (4, kernel)).collect::<Vec<_>>(), &ours), None);
    assert_eq!(fault(&at(0, (1, other)), &ours), None);
}

/// The events of the recorded machine, and what was predicted for its image.
fn recorded() -> (Vec<Event>, Measurements) {
    let log = EventLog::parse(LOG).unwrap();
    let sections = [
        (".linux", "51349501a3d1ff83"),
        (".osrel", "19be6643e12014d6"),
        (".cmdline", "2b5f12a14ed69614"),
        (".initrd", "a6802de180516902"),
        (".uname", "7a5a8cffed3c386b"),
        (".sbat", "a69093ca087489b0"),
    ];
    let events: Vec<Event> = log.events.iter().map(|event| (event.pcr, event.sha256)).collect();
    // The files are too large to be kept here: their digests were noted down when the machine was started.
    let whole =
        |short: &str| events.iter().map(|event| hex(&event.1)).find(|digest| digest.starts_with(short)).unwrap();
    let sections = sections.map(|(name, short)| SectionDigest { name: name.to_owned(), sha256: whole(short) }).to_vec();
    let told = Measurements {
        arch: Arch::X86_64,
        program: whole("044b5ad0d2cf9b9c"),
        kernel: Some(whole("5f21ff2c0d5d8998")),
        sections,
        pcr4: "63fd818a8053cc7d523774e16d1f909537442ef1866aae07edda2f2ad87b252e".to_owned(),
        pcr11: "c2691c9698cde7dca86b5f609d5c353d6aeaeba89b4cdb6b370c4db1b6a1740d".to_owned(),
    };
    (events, told)
}

#[test]
fn the_log_of_a_machine_that_started_from_a_stick_shows_the_image_and_the_settings() {
    let (events, told) = recorded();
    assert_eq!((replayed(&events, 4), replayed(&events, 11)), (told.pcr4.clone(), told.pcr11.clone()));
    let ours = known(std::slice::from_ref(&told));
    let log = EventLog::parse(SIGNED_LOG).unwrap();
    let signed: Vec<Event> = log.events.iter().map(|event| (event.pcr, event.sha256)).collect();
    // A medium as it was built has settings that say nothing.
    let empty = MachineSettings::default().measured().unwrap();
    let token = MachineSettings { token: Some(Secret::from("t".to_owned())), network: None }.measured().unwrap();
    assert_eq!(judge(&events, &ours, &[token, empty]), Ok(&told));
    assert_eq!(
        judge(&signed, &ours, &[empty]),
        Ok(&told),
        "the same image with a signature, whose kernel is not measured"
    );
    for settings in [&[][..], &[token]] {
        let refused = judge(&events, &ours, settings);
        assert_eq!(refused, Err(Mismatch::Outside { register: 12, digest: hex(&empty) }));
    }
    let twice = [events.clone(), vec![(12, empty)]].concat();
    assert!(judge(&twice, &ours, &[empty]).is_err(), "there is one place for settings");
}
