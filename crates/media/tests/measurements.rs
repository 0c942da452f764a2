//! Tests the predicted values of registers, and the judgement whether a machine started the boot files. systemd-measure
//! confirms the values. The log of a machine with OVMF, a software TPM and systemd's stub confirms both.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

#[path = "common/image.rs"]
mod image;

use std::fs;
use std::process::Command;

use base16ct::lower::encode_string as hex;
use image::{Event, Image, digest, program, unhex};
use slipway_media::judge::{Known, Mismatch, judge};
use slipway_media::{MeasureError, Measurements, SectionDigest, measured};
use slipway_parts::Arch;
use slipway_protocol::{MachineSettings, Secret};
use slipway_secure_boot::{KeySize, SigningKey, authenticode};
use slipway_tpm::judge::event_log::EventLog;
use time::{Duration, OffsetDateTime};

/// What a machine with OVMF and a software TPM measured that started a stick of `media build`.
const LOG: &[u8] = include_bytes!("../../../fuzz/corpus/event_log/unified-image-on-ovmf");

/// Returns the value of a register after these events.
fn replayed(events: &[Event], register: u8) -> String {
    let of = events.iter().filter(|(pcr, _)| *pcr == register);
    hex(&of.fold([0; 32], |value, (_, event)| digest(&[value, *event].concat())))
}

fn known(builds: &[Measurements]) -> Known {
    Known { builds: builds.to_vec(), programs: Vec::new() }
}

/// Returns the mismatch that the judgement finds in these events, in words.
fn fault(events: &[Event], known: &Known) -> Option<String> {
    judge(events, known, &[]).err().map(|mismatch| mismatch.to_string())
}

#[test]
fn systemd_measure_gives_the_same_value_of_register_11() {
    // The host's systemd-measure does not know the section with the release of the kernel yet.
    let image = Image { uname: "", ..Image::new() };
    let folder = tempfile::tempdir().unwrap();
    let mut measure = Command::new("/usr/lib/systemd/systemd-measure");
    // The empty phase, before the first phase that a system measures.
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

    let noise = Image { linux: vec![1; 600], ..Image::new() };
    assert_eq!(noise.predict().kernel, None, "firmware cannot load it");
}

#[test]
fn nothing_is_predicted_of_a_stub_that_may_measure_other_sections() {
    for version in ["252.39", "254.26", "261", "2620", "", "x"] {
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
    let parts = |what| format!("{what} of its unified kernel image matches no recorded build");
    let new = Image::new;
    let table = [
        (Image { linux: program(9), ..new() }, parts("the kernel")),
        (Image { initrd: vec![9; 3000], ..new() }, parts("the initramfs")),
        (Image { cmdline: "quiet init=/bin/sh", ..new() }, parts("the command line")),
        (Image { uname: "6.2.0", ..new() }, parts("the release of the kernel")),
        (
            Image { linux: program(9), initrd: vec![9; 3000], ..new() },
            "the kernel and the initramfs of its unified kernel image match no recorded build".to_owned(),
        ),
        (
            Image { stub: stub.clone(), ..new() },
            format!(
                "the stub of its unified kernel image matches no recorded build (Authenticode digest {})",
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
            "something outside the unified kernel image was added, such as a command line or another machine's \
             settings (register {register}, digest {})",
            hex(&other)
        )
    };
    let loader = format!("it was started by a boot loader that is not allowed {named}");
    let kernel = unhex(&told.kernel.clone().unwrap());
    let sections = "register 11 does not match the sections of the unified kernel image that it started";
    let table = [
        (at(2, (4, other)), loader.clone()),
        (at(end, (4, other)), format!("it started another program after the unified kernel image {named}")),
        (at(end, (4, kernel)), {
            let kernel = hex(&kernel);
            format!("it started another program after the unified kernel image (Authenticode digest {kernel})")
        }),
        (at(end, (11, other)), sections.to_owned()),
        (without(11), sections.to_owned()),
        (at(end, (12, other)), outside(12)),
        (at(end, (13, other)), outside(13)),
        (without(4), "its firmware measured no program".to_owned()),
        (vec![(4, other), (4, kernel)], loader),
        (
            vec![(4, kernel), (9, other)],
            "its kernel was started without the unified kernel image, so its command line is not measured; boot \
             slipway.efi"
                .to_owned(),
        ),
        (vec![(4, other)], format!("it started an unknown program {named}")),
    ];
    for (events, expect) in table {
        assert_eq!(fault(&events, &ours), Some(expect));
    }
    ours.programs.push(hex(&other));
    assert_eq!(fault(&at(2, (4, other)), &ours), None, "the site named it");
    assert!(fault(&at(end, (4, other)), &ours).is_some(), "not after the image");
    // Other registers are not judged.
    assert_eq!(fault(&at(0, (1, other)), &ours), None);
}

/// The events of the recorded machine, and what `media build` predicted for its image, which is too large to be kept
/// here. Its TPM had these values of registers 4 and 11.
fn recorded() -> (Vec<Event>, Measurements) {
    let sections = [
        (".linux", "51349501a3d1ff83836437d2b365fd2d57f2feb8642d315e5181dec23d4c3275"),
        (".osrel", "19be6643e12014d6a21fe9f0733bb9f17a60d9242a0597672c8d6d333656c583"),
        (".cmdline", "4583a6746737a1c5e88e78bec3a9e51a3d1cdf2c61424c99df788e4964365ed9"),
        (".initrd", "aa5a639f0b985bec62f7d3608d3f3263ef8fc7a81bb372af9283283cf3b361cc"),
        (".uname", "dafd29f4045df78572e0fc8910a71792fb84237339d694a8b52d6c6a46c783cc"),
        (".sbat", "b1226216da75bb9d9048ce8cd8eeb4f4b89c30d7529dc8c60044be06afa831ea"),
    ];
    let section = |(name, sha256): (&str, &str)| SectionDigest { name: name.to_owned(), sha256: sha256.to_owned() };
    let told = Measurements {
        arch: Arch::X86_64,
        program: "32650b60a0fdfda96ece9565185133089604cf307d2c9df15543e98b74fd8759".to_owned(),
        kernel: Some("5f21ff2c0d5d899842b28a8b19901ba72cf7a7ab93c02a77fadc6ff72be85b31".to_owned()),
        sections: sections.map(section).to_vec(),
        pcr4: "68c3411044f17792cc6d0a3cf7caa9982aaf67f63e7a0a8ee5b219012cc50e00".to_owned(),
        pcr11: "94f5232145e9d8a99cacab45750fd4b4b45988778058a2caebe5380162dcc239".to_owned(),
    };
    let log = EventLog::parse(LOG).unwrap();
    (log.events.iter().map(|event| (event.pcr, event.sha256)).collect(), told)
}

#[test]
fn the_log_of_a_machine_that_started_from_a_stick_shows_the_image_and_the_settings() {
    let (events, told) = recorded();
    assert_eq!((replayed(&events, 4), replayed(&events, 11)), (told.pcr4.clone(), told.pcr11.clone()));
    let ours = known(std::slice::from_ref(&told));
    // A medium as it was built has settings that say nothing.
    let empty = measured(&MachineSettings::default()).unwrap();
    let token = MachineSettings { token: Some(Secret::from("t".to_owned())), ..MachineSettings::default() };
    let token = measured(&token).unwrap();
    assert_eq!(judge(&events, &ours, &[token, empty]), Ok(&told));
    for settings in [&[][..], &[token]] {
        let refused = judge(&events, &ours, settings);
        assert_eq!(refused, Err(Mismatch::Outside { register: 12, digest: hex(&empty) }));
    }
    let twice = [events.clone(), vec![(12, empty)]].concat();
    assert!(judge(&twice, &ours, &[empty]).is_err(), "there is one place for settings");
}
