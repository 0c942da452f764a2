//! Unified images made by hand, and what a machine measures when it starts such an image.
#![allow(dead_code, reason = "shared by several tests")]

use slipway_media::{Measurements, SectionDigest, assemble};
use slipway_parts::{Arch, sha256};

const SEPARATOR: [u8; 4] = [0; 4];

/// A register and a digest.
pub type Event = (u8, [u8; 32]);

/// Headers of a PE32+ image without sections (Microsoft, "PE Format"), which is also small enough to be a kernel.
pub fn program(seed: u8) -> Vec<u8> {
    let mut program = vec![0; 1024];
    let mut put = |at: usize, bytes: &[u8]| program[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3C, &[0x40]);
    put(0x40, b"PE\0\0\x64\x86");
    put(0x54, &240_u16.to_le_bytes());
    put(0x58, &0x20B_u16.to_le_bytes());
    for (at, value) in [(32, 4096_u32), (36, 512), (56, 0x1000), (60, 1024), (108, 16)] {
        put(0x58 + at, &value.to_le_bytes());
    }
    program.extend([seed; 512]);
    program
}

/// Returns the text by which a stub tells its version.
fn magic(version: &str) -> Vec<u8> {
    format!("#### LoaderInfo: systemd-stub {version} ####\0").into_bytes()
}

/// Returns a stub of the version whose measurements are known.
pub fn stub() -> Vec<u8> {
    assemble(&program(0)[..1024], &[(".sdmagic", &magic("262-1"))]).unwrap()
}

/// The parts of an image.
#[derive(Clone)]
pub struct Image {
    pub stub: Vec<u8>,
    pub version: &'static str,
    pub linux: Vec<u8>,
    pub initrd: Vec<u8>,
    pub cmdline: &'static str,
    pub uname: &'static str,
}

impl Image {
    pub fn new() -> Self {
        let (stub, linux) = (program(0)[..1024].to_vec(), program(1));
        Self { stub, version: "262-1", linux, initrd: vec![7; 3000], cmdline: "quiet", uname: "6.1.0" }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let magic = magic(self.version);
        let mut sections: Vec<(&str, &[u8])> = vec![
            (".sdmagic", &magic),
            (".osrel", b"ID=slipway\n"),
            (".cmdline", self.cmdline.as_bytes()),
            (".uname", self.uname.as_bytes()),
            (".linux", &self.linux),
            (".initrd", &self.initrd),
        ];
        sections.retain(|(_, content)| !content.is_empty());
        assemble(&self.stub, &sections).unwrap()
    }

    pub fn predict(&self) -> Measurements {
        Measurements::predict(Arch::X86_64, &self.to_bytes()).unwrap()
    }

    /// Returns the events that a machine measures when it starts the image.
    pub fn events(&self) -> Vec<Event> {
        let told = self.predict();
        let mut events = vec![(4, digest(b"Calling EFI Application from Boot Option")), (4, digest(&SEPARATOR))];
        events.push((4, unhex(&told.program)));
        events.extend(sections(&told).into_iter().map(|digest| (11, digest)));
        events.push((9, digest(b"the initramfs")));
        events
    }
}

fn sections(told: &Measurements) -> Vec<[u8; 32]> {
    let names = |section: &SectionDigest| [digest(format!("{}\0", section.name).as_bytes()), unhex(&section.sha256)];
    told.sections.iter().flat_map(names).collect()
}

pub fn digest(bytes: &[u8]) -> [u8; 32] {
    unhex(&sha256(bytes))
}

pub fn unhex(text: &str) -> [u8; 32] {
    base16ct::lower::decode_vec(text).unwrap().try_into().unwrap()
}
