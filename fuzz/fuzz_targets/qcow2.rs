//! An image that can be read gives every byte once. `Image` gives them in order. Both ways of reading give the size the
//! image states.
#![no_main]

use slipway_formats::qcow2::{Block, Error, FileOrder, Image};

fn len(block: Block<'_>) -> u64 {
    match block {
        Block::Data(bytes) => bytes.len() as u64,
        Block::Zero(len) => len,
    }
}

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let mut read_at = |offset: u64, bytes: &mut [u8]| {
        let start = offset as usize;
        bytes.copy_from_slice(&file[start..start + bytes.len()]);
        Ok(())
    };
    if let Ok(image) = Image::open(file.len() as u64, &mut read_at) {
        let mut end = 0;
        let read = image.read(&mut read_at, |guest, block| {
            assert!(guest == end && len(block) > 0);
            end += len(block);
            Ok::<_, Error>(())
        });
        assert!(read.is_err() || end == image.size());
    }
    if let Ok(image) = FileOrder::open(file) {
        let (size, mut given) = (image.size(), 0);
        let read = image.run(|guest, block| {
            assert!(len(block) > 0 && guest + len(block) <= size);
            given += len(block);
            Ok::<_, Error>(())
        });
        assert!(read.is_err() || given == size);
    }
});
