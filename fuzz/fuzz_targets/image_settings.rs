//! An image's cloud.cfg is judged without a panic, and an obstacle names a line that the file has.
#![no_main]

use slipway_user_data::image::{File, Image, Seed, judge};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let file = |path: &str| File { path: path.to_owned(), text: text.to_owned() };
    let part = file("/etc/cloud/cloud.cfg.d/90_x.cfg");
    let image = Image { main: Some(file("/etc/cloud/cloud.cfg")), parts: vec![part], ..Image::default() };
    let seed = Seed { has_network: true, has_vendor_data: true, has_phone_home: true, is_partition: false };
    let (obstacles, _) = judge(&image, seed);
    let lines = 1 + text.replace("\r\n", "\n").matches(['\n', '\r']).count();
    assert!(obstacles.iter().filter_map(|obstacle| obstacle.line).all(|line| line <= lines), "{obstacles:?}");
});
