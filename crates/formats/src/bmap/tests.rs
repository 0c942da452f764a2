use super::read::bytes_of_hex;
use super::*;

const DIGEST: &str = "b15056c9a8db77ab5708d19b7f330fe13d88eeae3d0ab271081d3438c0f46264";

/// A map of 257 blocks and one byte, with its own digest. The first block, the last, and two others hold data.
fn map() -> String {
    let head = "<?xml version=\"1.0\" ?>\n<!-- <BlockSize> 1 </BlockSize> -->\n<bmap version=\"2.0\">\n";
    let sizes = "<ImageSize> 1052673 </ImageSize>\n<BlockSize> 4096 </BlockSize>\n<BlocksCount>258</BlocksCount>\n";
    let kind = "<MappedBlocksCount> 4   </MappedBlocksCount>\n<ChecksumType> sha256 </ChecksumType>\n";
    let own = "<BmapFileChecksum> OWN </BmapFileChecksum>\n";
    let ranges = format!("<Range chksum=\"{DIGEST}\"> 0 </Range>\n<Range> 3-4 </Range>\n<Range>257</Range>\n");
    format!("{head}{sizes}{kind}{own}<BlockMap>\n{ranges}</BlockMap>\n</bmap>\n")
}

/// Fills in the digest as bmaptool would.
fn sealed(text: &str, checksum: Checksum) -> String {
    let zeros = "0".repeat(checksum.len() * 2);
    let mut context = checksum.context();
    context.update(text.replace("OWN", &zeros).as_bytes());
    text.replace("OWN", &base16ct::lower::encode_string(context.finish().as_ref()))
}

fn message(text: &str) -> String {
    let error = parse(text.as_bytes()).unwrap_err();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Changes the map, seals it, and expects an error whose message contains `part`.
fn check(from: &str, to: &str, part: &str) {
    assert!(map().contains(from), "{from:?} is not in the map");
    let message = message(&sealed(&map().replacen(from, to, 1), Checksum::Sha256));
    assert!(message.contains(part), "{from:?} to {to:?}: {message}");
}

#[test]
fn a_map_gives_sizes_and_ranges() {
    let found = parse(sealed(&map(), Checksum::Sha256).as_bytes()).unwrap();
    let bytes: Vec<_> = found.ranges.iter().map(|mapped| mapped.bytes.clone()).collect();
    assert_eq!((found.block_size, found.image_size), (4096, 1052673));
    assert_eq!(found.checksum, Some(Checksum::Sha256));
    assert_eq!(bytes, [0..4096, 12288..20480, 1052672..1052673]);
    assert_eq!(found.ranges[0].digest, Some(bytes_of_hex(DIGEST).unwrap()));
    assert_eq!(found.ranges[1].digest, None);
}

#[test]
fn every_version_is_read() {
    let old = |version: &str| map().replace("2.0", version).replace("<ChecksumType> sha256 </ChecksumType>\n", "");
    let without = |text: &str| text.replace("<BmapFileChecksum> OWN </BmapFileChecksum>\n", "");
    let plain = without(&old("1.2")).replace(&format!(" chksum=\"{DIGEST}\""), "");
    assert_eq!(parse(plain.as_bytes()).unwrap().checksum, None);
    let sha1 = old("1.3").replace("BmapFileChecksum", "BmapFileSHA1").replace("chksum", "sha1");
    let sha1 = sealed(&sha1.replace(DIGEST, &DIGEST[..40]), Checksum::Sha1);
    let found = parse(sha1.as_bytes()).unwrap();
    assert_eq!((found.checksum, found.ranges[0].digest.as_ref().unwrap().len()), (Some(Checksum::Sha1), 20));
    let sha512 = map().replace("2.0", "1.4").replace("sha256", "sha512").replace(DIGEST, &DIGEST.repeat(2));
    let sha512 = sealed(&sha512, Checksum::Sha512);
    assert_eq!(parse(sha512.as_bytes()).unwrap().checksum, Some(Checksum::Sha512));
    check("2.0", "3.0", "line 3: version \"3.0\" is not supported");
    check("2.0", "2", "line 3: version \"2\" is not supported");
}

#[test]
fn a_changed_map_is_found_by_its_own_digest() {
    let text = sealed(&map(), Checksum::Sha256);
    assert!(message(&text.replace(" 3-4 ", " 4-5 ")).contains("checking the digest of the block map"));
    assert!(message(&text.replace("</bmap>", "</bmap> ")).contains("checking the digest of the block map"));
    assert!(message(&map().replace("OWN", "")).contains("it has no digest of itself"));
}

#[test]
fn what_contradicts_itself_is_refused() {
    check("3-4", "4-3", "line 12: range \"4-3\" ends before it starts");
    check("3-4", "0", "line 12: range \"0\" does not follow");
    check("257<", "256-258<", "range \"256-258\" is not within its 258 blocks");
    check("257<", "18446744073709551615<", "is not within its 258 blocks");
    check("3-4", "3", "its ranges have 3 blocks, but it declares 4");
    let ranges = map()[map().find("<Range").unwrap()..map().find("</BlockMap>").unwrap()].to_owned();
    check(&ranges, "", "it lists no blocks, so there would be nothing to write");
    check("3-4", "three", "line 12: \"three\" is not a number");
    check(DIGEST, &DIGEST[2..], "the digest of range \"0-0\" has the wrong length");
    check(DIGEST, "xy", "line 11: a digest has characters other than hexadecimal digits");
    check("> 4096 <", "> 0 <", "a block cannot have 0 bytes");
    check("> 1052673 <", "> 18446744073709551615 <", "are not 258 blocks");
    check("<BlocksCount>258", "<BlocksCount>259", "are not 259 blocks");
    check("<BlocksCount>258</BlocksCount>", "", "it has no BlocksCount");
    check("<BlockMap>", "<BlockSize>1</BlockSize><BlockMap>", "line 10: BlockSize is given twice");
    check("sha256 ", "md5 ", "line 8: checksum type \"md5\" is not supported");
    check(
        "<!-- <BlockSize>",
        "<!DOCTYPE a [<!ENTITY b \"c\">]><!-- <BlockSize>",
        "line 2: a block map cannot contain entities",
    );
    check("3-4", "&#51;-4", "line 12: a block map cannot contain entities");
    check("</Range>", "</range>", "line 11");
    check("</bmap>\n", "", "the text ends inside \"bmap\"");
}

#[test]
fn what_is_no_map_is_refused() {
    assert!(message("").contains("it has no element bmap"));
    assert!(message("<html><body>404</body></html>").contains("line 1: this is not a block map"));
    assert!(message("not XML").contains("there is text outside the map"));
    assert!(message("<bmap/>").contains("it has no element bmap"));
    assert!(message(&"<bmap version=\"2.0\">".repeat(9)).contains("line 1: its elements are nested more than 8 deep"));
    assert!(message(&" ".repeat(MAX_TEXT + 1)).contains("at most 16777216 are supported"));
    let text = sealed(&map(), Checksum::Sha256);
    for cut in 0..text.len() - "\n".len() {
        parse(&text.as_bytes()[..cut]).unwrap_err();
    }
    let many: String = (0..=MAX_RANGES).map(|block| format!("<Range>{block}</Range>")).collect();
    check("<BlockMap>\n", &format!("<BlockMap>{many}"), "it has more than 131072 ranges; write the image without it");
    assert!(!message(&map().replace("<BlockMap>\n", &format!("<BlockMap>{many}"))).contains("make it again"));
}

#[test]
fn the_parts_that_hold_data_are_found() {
    let map = parse(sealed(&map(), Checksum::Sha256).as_bytes()).unwrap();
    // Parts in brackets hold data.
    let check = |bytes: Range<u64>, expect: &str| {
        let mapped = map.mapped(bytes.clone()).map(|part| (part.start, format!("[{}-{}]", part.start, part.end)));
        let unmapped = map.unmapped(bytes.clone()).map(|part| (part.start, format!("{}-{}", part.start, part.end)));
        let mut parts: Vec<_> = mapped.chain(unmapped).collect();
        parts.sort();
        let found: Vec<String> = parts.into_iter().map(|(_, part)| part).collect();
        assert_eq!(found.join(" "), expect, "{bytes:?}");
    };
    check(0..1 << 20, "[0-4096] 4096-12288 [12288-20480] 20480-1048576");
    check(4095..12289, "[4095-4096] 4096-12288 [12288-12289]");
    check(4096..12288, "4096-12288");
    check(13000..13001, "[13000-13001]");
    check(20480..1052672, "20480-1052672");
    check(20480..2000000, "20480-1052672 [1052672-1052673] 1052673-2000000");
    check(2000000..3000000, "2000000-3000000");
    check(5..5, "");
    check(5000..5000, "");
    assert_eq!(map.mapped_size(), 12289);
}

#[test]
fn a_map_proves_what_each_of_its_digests_proves() {
    let check = |text: &str, checksum: Checksum, expect: (bool, bool)| {
        let map = parse(sealed(text, checksum).as_bytes()).unwrap();
        assert_eq!((map.has_digests(), map.proves()), expect, "{text}");
    };
    let all = map().replace("<Range>", &format!("<Range chksum=\"{DIGEST}\">"));
    check(&map(), Checksum::Sha256, (true, false));
    check(&all, Checksum::Sha256, (true, true));
    check(&map().replace(&format!(" chksum=\"{DIGEST}\""), ""), Checksum::Sha256, (false, false));
    let sha1 = all.replace(DIGEST, &DIGEST[..40]).replace("sha256", "sha1");
    check(&sha1, Checksum::Sha1, (true, false));
}
