//! What an image is made for is judged without a panic and with a bounded number of reads. A second judgement gives the
//! same, and the image fits a disk of its own size.
#![no_main]

use slipway_formats::image::made_for::MadeFor;

/// Upper limit of reads: more than the folders and programs that are looked at can need.
const MOST_READS: usize = 1 << 19;

libfuzzer_sys::fuzz_target!(|image: &[u8]| {
    let of = |size| {
        let mut reads = 0;
        let judged = MadeFor::of(size, &mut |at, len| {
            reads += 1;
            image.get(usize::try_from(at).ok()?..)?.get(..len).map(<[u8]>::to_vec)
        });
        assert!(reads < MOST_READS, "{reads}");
        judged.map(|(made_for, _)| made_for)
    };
    let size = Some(image.len() as u64);
    let judged = of(size);
    assert_eq!(judged, of(size));
    let _ = of(None);
    if let Ok(made_for) = judged {
        let block = made_for.block.unwrap_or(512);
        let fits = made_for.mismatch("/dev/vda", made_for.end.max(image.len() as u64), block);
        assert_eq!(fits, None);
    }
});
