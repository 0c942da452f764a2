//! An archive changes nothing outside the directory it is unpacked in, whatever links it contains. The checksums of its
//! headers are corrected, because no fuzzer guesses them.
#![no_main]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use slipway_actions::fuzzing;

const CONTENT: &str = "not the archive's";

libfuzzer_sys::fuzz_target!(|archive: &[u8]| {
    let folder = tempfile::tempdir().expect("making a folder");
    let (outside, inside) = (folder.path().join("outside"), folder.path().join("inside"));
    fs::create_dir(&outside).and_then(|()| fs::create_dir(&inside)).expect("making folders");
    fs::write(outside.join("file"), CONTENT).expect("writing a file");
    let before = facts(&outside);
    let directory = fs::File::open(&inside).expect("opening a folder");
    let keeps_owners = rustix::process::geteuid().is_root();
    let archive = sealed(archive);
    let unpacked = fuzzing::unpack(&mut archive.as_slice(), directory.into(), keeps_owners);
    assert!(unpacked.is_err() || archive.len() >= 1024, "what ends without two blocks of zeros has not ended");
    assert_eq!(facts(&outside), before);
    assert_eq!(fs::read_to_string(outside.join("file")).ok().as_deref(), Some(CONTENT));
    assert_eq!(fs::read_dir(folder.path()).expect("reading a folder").count(), 2);
    assert_eq!(fs::read_dir(&outside).expect("reading a folder").count(), 1);
});

/// Returns the archive with the right checksum in every block that is a header.
fn sealed(archive: &[u8]) -> Vec<u8> {
    let mut archive = archive.to_vec();
    for header in archive.chunks_exact_mut(512).filter(|block| block[257..].starts_with(b"ustar")) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    archive
}

/// Returns the properties of a folder and its file that an archive could change: modes, owners, links, times.
fn facts(folder: &Path) -> Vec<(u32, u32, u32, u64, i64, i64)> {
    let paths = [folder.to_owned(), folder.join("file")];
    let facts = paths.iter().map(|path| fs::symlink_metadata(path).expect("looking at a file"));
    facts.map(|file| (file.mode(), file.uid(), file.gid(), file.nlink(), file.mtime(), file.mtime_nsec())).collect()
}
