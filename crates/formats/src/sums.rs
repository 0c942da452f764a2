//! Finds the digest of a file in a list of checksums, as written by `sha256sum` and the similar programs of coreutils
//! (GNU coreutils manual, "md5sum: Print or check MD5 digests") and `openssl dgst`. A line counts where `sha256sum
//! --check` takes it (coreutils, digest.c: split_3, bsd_split_3). In addition, a byte order mark, names of algorithms
//! in small letters, OpenSSL's `SHA2-256`, and spaces at the end of a line are accepted.
//!
//! A PGP clear signature around the list (RFC 9580, section 7) is skipped and not verified.

use std::collections::BTreeMap;

use slipway_protocol::shared::digest::DigestError;
use slipway_protocol::workflow::Location;
use slipway_protocol::{Algorithm, Digest};

use crate::escapes::decoded_text;

/// Most bytes of a list that are read; a longer list is refused.
pub const MAX_TEXT: usize = 1 << 20;
/// Number of other file names shown when the wanted one is missing.
const SHOWN_NAMES: usize = 5;
/// The characters that coreutils treats as a blank.
const BLANK: [char; 2] = [' ', '\t'];

/// Why a list gives no digest for a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The text is longer than a mebibyte.
    #[error(
        "reading the list of sums: it has {size} bytes, but at most {MAX_TEXT} are supported; give the digest itself \
         instead"
    )]
    TooLong { size: usize },
    /// No line names the file.
    #[error("looking for {name:?} in the list of sums: {there}; check the name in the URL and the URL of the list")]
    Missing { name: String, there: String },
    /// The list has only checksums for the file that slipway cannot compute.
    #[error(
        "looking for {name:?} in the list of sums: line {line} gives {algorithm}; sha256, sha384 or sha512 is needed"
    )]
    Unsupported { name: String, line: usize, algorithm: String },
    /// The line for the file has a damaged digest.
    #[error("reading line {line} of the list of sums")]
    Damaged { line: usize, source: DigestError },
    /// Two lines give the file different digests.
    #[error(
        "looking for {name:?} in the list of sums: lines {first} and {second} give different digests; give the digest \
         itself instead"
    )]
    Ambiguous {
        name: String,
        /// Line of the first digest, from 1.
        first: usize,
        /// Line of the other, from 1.
        second: usize,
    },
}

/// The name that a list uses for the file at a URL: the last segment of its path, percent-decoded (RFC 3986, section
/// 2.1). For a local file, its own name, not decoded. None if the URL does not end with a name.
pub fn file_name(url: &str) -> Option<String> {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let name = match (Location::local_path(url), url.split_once("://")) {
        (Some(path), _) => last(path),
        (None, Some((_, rest))) => {
            let without_query = rest.split(['?', '#']).next().unwrap_or_default();
            let (_, path) = without_query.split_once('/')?;
            decoded_text(&last(path), "%", 2, 16)
        }
        (None, None) => return None,
    };
    (!name.is_empty()).then_some(name)
}

/// The longer names that a list may use for the file at a URL: the path relative to the folder of the list, if the file
/// is below that, and the whole path of a local file.
pub fn paths(list: &str, url: &str) -> impl Iterator<Item = String> {
    let whole = Location::local_path(url).filter(|path| path.starts_with('/')).map(str::to_owned);
    path_below(list, url).into_iter().chain(whole)
}

fn path_below(list: &str, url: &str) -> Option<String> {
    let below = |list: &str, path: &str| {
        let (folder, _) = list.rsplit_once('/')?;
        Some(path.strip_prefix(folder)?.strip_prefix('/')?.to_owned())
    };
    let without_query = |url: &str| url.split(['?', '#']).next().unwrap_or_default().to_owned();
    let path = match (Location::local_path(list), Location::local_path(url)) {
        (Some(list), Some(path)) => below(list, path),
        (None, None) => below(&without_query(list), &without_query(url)).map(|path| decoded_text(&path, "%", 2, 16)),
        _ => None,
    };
    path.filter(|path| path.contains('/'))
}

/// The digest that a list gives for a file: the longest, if there are several algorithms.
pub fn find(text: &[u8], name: &str) -> Result<Digest, Error> {
    if text.len() > MAX_TEXT {
        return Err(Error::TooLong { size: text.len() });
    }
    let decoded = String::from_utf8_lossy(text);
    let mut found: Vec<(usize, Digest)> = Vec::new();
    let mut unsupported = None;
    let mut others = Vec::new();
    let mut separators = BTreeMap::new();
    let lines = signed_lines(decoded.strip_prefix('\u{FEFF}').unwrap_or(&decoded));
    for (line, entry) in lines.filter_map(|(line, text)| Some((line, entry(text, &mut separators)?))) {
        if entry.name != name && entry.name.strip_prefix("./") != Some(name) {
            if others.len() < SHOWN_NAMES {
                others.push(format!("{:?}", entry.name));
            }
            continue;
        }
        let Ok(algorithm) = entry.algorithm else {
            unsupported = entry.algorithm.err().map(|algorithm| (line, algorithm));
            continue;
        };
        let digest = Digest::new(algorithm, entry.hex).map_err(|source| Error::Damaged { line, source })?;
        let differs = |(_, other): &&(usize, Digest)| other.algorithm() == algorithm && *other != digest;
        if let Some((first, _)) = found.iter().find(differs) {
            return Err(Error::Ambiguous { name: name.to_owned(), first: *first, second: line });
        }
        found.push((line, digest));
    }
    if let Some((_, digest)) = found.into_iter().max_by_key(|(_, digest)| digest.hex().len()) {
        return Ok(digest);
    }
    let name = name.to_owned();
    Err(match unsupported {
        Some((line, algorithm)) => Error::Unsupported { name, line, algorithm },
        None if others.is_empty() => Error::Missing { name, there: without_entries(text, &decoded).to_owned() },
        None => Error::Missing { name, there: format!("it has {}", others.join(", ")) },
    })
}

/// What a list without any entry is instead.
fn without_entries(text: &[u8], decoded: &str) -> &'static str {
    let mut lines = signed_lines(decoded).map(|(_, line)| line.trim()).filter(|line| !line.is_empty());
    match (lines.next(), lines.next()) {
        _ if text.starts_with(&[0xFF, 0xFE]) || text.starts_with(&[0xFE, 0xFF]) => {
            "it is UTF-16 text; save it as UTF-8"
        }
        (Some(only), None) if is_digest(only) => {
            "it has one digest without a name, which may be of any file; give it as the digest instead of the list"
        }
        _ => "it has no line with a digest and a name",
    }
}

/// A line that gives a digest for a name.
struct Entry<'a> {
    /// Algorithm, as the tag or the number of digits gives it. The error describes an algorithm that slipway cannot
    /// compute.
    algorithm: Result<Algorithm, String>,
    hex: &'a str,
    name: String,
}

/// The lines and their numbers, from 1, without the armour and escapes of a clear signature.
fn signed_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    const SIGNATURE_END: &str = "-----END PGP SIGNATURE-----";
    // The line that ends the skipped part: the headers of a signed message, or a signature.
    let mut until = None;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let line = line.trim_end();
        match (line, until) {
            ("-----BEGIN PGP SIGNED MESSAGE-----", None) => until = Some(""),
            ("-----BEGIN PGP SIGNATURE-----", None) => until = Some(SIGNATURE_END),
            (line, Some(end)) => until = until.filter(|_| line != end),
            _ => return Some((number, line.strip_prefix("- ").unwrap_or(line))),
        }
        None
    })
}

fn entry<'a>(line: &'a str, separators: &mut BTreeMap<usize, Separator>) -> Option<Entry<'a>> {
    let line = line.trim_start_matches(BLANK);
    let (escaped, line) = match line.strip_prefix('\\') {
        Some(line) => (true, line),
        None => (false, line),
    };
    let (algorithm, hex, name) = tagged(line).or_else(|| untagged(line, separators))?;
    let name = if escaped { unescaped(name) } else { name.to_owned() };
    Some(Entry { algorithm, hex, name })
}

/// Reads `ALGORITHM (NAME) = HEX`, as in BSD and with `--tag`, or `ALGORITHM(NAME)= HEX`, as by OpenSSL.
fn tagged(line: &str) -> Option<(Result<Algorithm, String>, &str, &str)> {
    let (tag, rest) = line.split_once('(')?;
    let tag = tag.strip_suffix(' ').unwrap_or(tag);
    let (name, value) = rest.rsplit_once(')')?;
    let hex = value.trim_start_matches(BLANK).strip_prefix('=')?.trim_matches(BLANK);
    let algorithm = match tag.to_ascii_uppercase().as_str() {
        "SHA256" | "SHA2-256" => Ok(Algorithm::Sha256),
        "SHA384" | "SHA2-384" => Ok(Algorithm::Sha384),
        "SHA512" | "SHA2-512" => Ok(Algorithm::Sha512),
        _ if is_word(tag) => Err(tag.to_owned()),
        _ => return None,
    };
    Some((algorithm, hex, name))
}

/// What separates digest and name. It is the same in all lines of a list with digests of one length: a name could
/// otherwise begin with a space or an asterisk in some lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Separator {
    /// A blank, then a space, or an asterisk for a file read in binary mode.
    Marked,
    /// One blank, as with `-r` in BSD.
    Blank,
}

/// Reads `HEX  NAME`, `HEX *NAME`, or `HEX NAME`. The blank after the digits may be a tab.
fn untagged<'a>(
    line: &'a str,
    separators: &mut BTreeMap<usize, Separator>,
) -> Option<(Result<Algorithm, String>, &'a str, &'a str)> {
    let (hex, rest) = line.split_once(BLANK)?;
    if !is_digest(hex) || rest.is_empty() {
        return None;
    }
    let marked = rest.strip_prefix([' ', '*']).filter(|name| !name.is_empty());
    let here = if marked.is_some() { Separator::Marked } else { Separator::Blank };
    let name = match (*separators.entry(hex.len()).or_insert(here), marked) {
        (Separator::Marked, marked) => marked?,
        (Separator::Blank, _) => rest,
    };
    let known = [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512]
        .into_iter()
        .find(|known| known.hex_len() == hex.len());
    Some((known.ok_or_else(|| format!("a digest of {} digits", hex.len())), hex, name))
}

/// Whether a text may be the digits of a digest. The shortest of any coreutils program is MD5.
fn is_digest(text: &str) -> bool {
    const SHORTEST: usize = 32;
    text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_word(tag: &str) -> bool {
    !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/'))
}

fn unescaped(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => plain.push('\n'),
                Some('r') => plain.push('\r'),
                Some('\\') => plain.push('\\'),
                other => plain.extend(['\\'].into_iter().chain(other)),
            },
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    /// Looks up `image.raw`. Expects a digest as in a workflow, or a part of the message.
    fn check(text: &str, expect: Result<&str, &str>) {
        let found = find(text.as_bytes(), "image.raw");
        let found = found.map(|digest| digest.to_string()).map_err(|error| error.to_string());
        match expect {
            Ok(digest) => assert_eq!(found.as_deref(), Ok(digest), "{text}"),
            Err(part) => assert!(found.as_ref().is_err_and(|message| message.contains(part)), "{found:?} for {text}"),
        }
    }

    #[test]
    fn a_digest_is_found_in_every_form_of_a_line() {
        let sha256 = format!("sha256:{A}");
        check(&format!("{A}  image.raw\n"), Ok(&sha256));
        check(&format!("{A} *image.raw"), Ok(&sha256));
        check(&format!("{}  ./image.raw\r\n", A.to_uppercase()), Ok(&sha256));
        check(&format!("SHA256 (image.raw) = {A}\n"), Ok(&sha256));
        check(&format!("# a comment\n\n{B}  other\n{A}  image.raw\n"), Ok(&sha256));
        check(&format!("{A}  image.raw\n{A} *image.raw\n"), Ok(&sha256));
        check(&format!("{A}  image.raw\n{A}{B}  image.raw\n"), Ok(&format!("sha512:{A}{B}")));
        check(&format!("SHA512 (image.raw) = {A}{B}\nMD5 (image.raw) = 00\n"), Ok(&format!("sha512:{A}{B}")));
    }

    #[test]
    fn a_list_is_read_as_by_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image.raw");
        std::fs::write(&file, "an image").unwrap();
        let output = Command::new("sha256sum").arg(&file).output().unwrap();
        let digest = String::from_utf8(output.stdout).unwrap()[..64].to_owned();
        let upper = digest.to_uppercase();
        for list in [
            "{h}  image.raw",
            "{h} *image.raw",
            "{h} image.raw",
            "{h}\timage.raw",
            "{h}\t image.raw",
            "{h}\t*image.raw",
            "{h}\t\timage.raw",
            "{h}   image.raw",
            "{h}  ./image.raw\r",
            "{upper} image.raw\r",
            " \t {h} image.raw",
            "\\{h} image.raw",
            "SHA256 (image.raw) = {h}",
            "SHA256(image.raw)= {h}",
            "SHA256 (image.raw)={upper}",
            "SHA256(image.raw)\t=\t{h}\r",
            "  SHA256 (image.raw) = {h}",
            "SHA256  (image.raw) = {h}",
            "SHA256 (image.raw) {h}",
            "# a comment\n\n{h} image.raw",
            "{other} other\n{h} image.raw",
            "{other}  other\n{h} image.raw",
            "{other} other\n{h}  image.raw",
            "{other} *other\n{h}  image.raw",
            "SHA256 (other) = {other}\n{h} image.raw",
            "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{h}  image.raw",
            "d41d8cd98f00b204e9800998ecf8427e other\n{h}  image.raw",
            "{h}",
            "{h} ",
            "{h},image.raw",
            "image.raw: {h}",
            "image.raw {h}",
        ] {
            let list = list.replace("{h}", &digest).replace("{upper}", &upper).replace("{other}", B);
            let args = ["--check", "--ignore-missing", "--status", "-"];
            let mut check = Command::new("sha256sum");
            let check = check.current_dir(dir.path()).args(args).stdin(std::process::Stdio::piped()).spawn();
            let mut check = check.unwrap();
            std::io::Write::write_all(&mut check.stdin.take().unwrap(), list.as_bytes()).unwrap();
            let expect = check.wait().unwrap().success();
            let found = find(list.as_bytes(), "image.raw").is_ok_and(|found| found.hex() == digest);
            assert_eq!(found, expect, "{list:?}");
        }
    }

    #[test]
    fn lists_of_other_programs_are_read() {
        let sha256 = format!("sha256:{A}");
        check(&format!("SHA2-256(image.raw)= {A}\n"), Ok(&sha256));
        check(&format!("sha256 (image.raw) = {A}\n"), Ok(&sha256));
        check(&format!("\u{FEFF}{A}  image.raw\r\n"), Ok(&sha256));
        check(&format!("\u{FEFF}SHA256 (image.raw) = {A}  \r\n"), Ok(&sha256));
        check(&format!("BLAKE2b (image.raw) = {A}{B}\nSHA2-512(image.raw)= {A}{B}"), Ok(&format!("sha512:{A}{B}")));
        check(&format!("{A} image.raw\n{B} image.raw\n"), Err("lines 1 and 2 give different digests"));
        check(&format!("SHA2-512/256(image.raw)= {A}"), Err("line 1 gives SHA2-512/256;"));
        check(&format!("HMAC-SHA256(image.raw)= {A}"), Err("line 1 gives HMAC-SHA256;"));
        check(&format!("MD5(image.raw)= {}", &A[..32]), Err("line 1 gives MD5;"));
        check(&format!("{} image.raw", &A[..32]), Err("line 1 gives a digest of 32 digits"));
        check("SHA256 (image.raw) = qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqo=", Err("line 1"));
        check(&format!("{A}\n"), Err("one digest without a name, which may be of any file; give it"));
        check("\u{FF}\u{FE}", Err("no line"));
        let utf16: Vec<u8> = [0xFF, 0xFE].into_iter().chain(A.bytes().flat_map(|byte| [byte, 0])).collect();
        let error = find(&utf16, "image.raw").unwrap_err().to_string();
        assert!(error.contains("it is UTF-16 text; save it as UTF-8"), "{error}");
    }

    #[test]
    fn a_clear_signature_is_skipped() {
        let head = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n";
        // A line inside a signature is not part of the list, even if it looks like one.
        let forged = format!("Version: 1\n\n{B}  image.raw");
        let signature = format!("-----BEGIN PGP SIGNATURE-----\n{forged}\n-----END PGP SIGNATURE-----\n");
        check(&format!("{head}{A}  image.raw\n{signature}"), Ok(&format!("sha256:{A}")));
        check(&format!("{head}- {A}  image.raw\n"), Ok(&format!("sha256:{A}")));
        check(&format!("{head}{signature}"), Err("no line with a digest and a name"));
    }

    #[test]
    fn what_gives_no_single_digest_is_refused() {
        check("", Err("no line with a digest and a name"));
        check("<html>404</html>", Err("no line with a digest and a name"));
        let others: String = ["a", "b", "c", "d", "e", "f"].map(|name| format!("{A}  {name}\n")).concat();
        check(&others, Err("it has \"a\", \"b\", \"c\", \"d\", \"e\"; check"));
        check(&format!("{A}  image.raw.zst\n{A}  dir/image.raw\n"), Err("\"image.raw.zst\", \"dir/image.raw\""));
        check(&format!("{A}  image.raw\n{B}  image.raw\n"), Err("lines 1 and 2 give different digests"));
        check(&format!("{}  image.raw\n", &A[..40]), Err("line 1 gives a digest of 40 digits"));
        check("MD5 (image.raw) = 00\n", Err("line 1 gives MD5"));
        check(&format!("\nSHA256 (image.raw) = {}\n", &A[..63]), Err("line 2"));
        check(&" ".repeat(MAX_TEXT + 1), Err("at most 1048576 are supported"));
    }

    #[test]
    fn the_lists_of_coreutils_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["plain", "with space", "back\\slash", "new\nline", "star*", "a) = b"];
        for name in names {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let programs: [&[&str]; 4] =
            [&["sha256sum"], &["sha512sum", "-b"], &["sha256sum", "--tag"], &["sha512sum", "--tag"]];
        for program in programs {
            let list =
                Command::new(program[0]).args(&program[1..]).args(names).current_dir(dir.path()).output().unwrap();
            for name in names {
                let alone = Command::new(program[0]).current_dir(dir.path()).arg("plain").output().unwrap();
                let found = find(&list.stdout, name).unwrap();
                let plain = find(&alone.stdout, "plain").unwrap();
                assert_eq!(found == plain, name == "plain", "{program:?} {name:?}");
            }
        }
    }

    #[test]
    fn a_path_is_counted_from_the_folder_of_the_list() {
        let path = |list, url| path_below(list, url);
        let list = "https://host/images/SHA256SUMS?x=a/b";
        assert_eq!(path(list, "https://host/images/a/b%20c.raw?x=/y").as_deref(), Some("a/b c.raw"));
        assert_eq!(path("/srv/SHA256SUMS", "/srv/a/b%20c").as_deref(), Some("a/b%20c"));
        assert_eq!(path("file:///srv/SHA256SUMS", "/srv/a/b").as_deref(), Some("a/b"));
        assert_eq!(paths("/srv/SHA256SUMS", "/srv/a/b").collect::<Vec<_>>(), ["a/b", "/srv/a/b"]);
        assert_eq!(paths("https://host/SHA256SUMS", "https://host/a").count(), 0);
        for url in [
            "https://host/images/c",
            "https://host/c",
            "https://other/images/a/c",
            "/images/a/c",
            "https://host/imagesx/a/c",
        ] {
            assert_eq!(path(list, url), None, "{url}");
        }
        check(&format!("{A}  dir/image.raw\n"), Err("it has \"dir/image.raw\""));
        let list = format!("{B}  dir/image\n{A}  ./dir/image.raw\n");
        assert_eq!(find(list.as_bytes(), "dir/image.raw").unwrap().hex(), A);
    }

    #[test]
    fn the_name_is_the_last_segment_of_the_url() {
        let name = |url| file_name(url);
        assert_eq!(name("https://host:8443/images/image.raw").as_deref(), Some("image.raw"));
        assert_eq!(name("https://host/a%20b%2Braw?token=a/b#c/d").as_deref(), Some("a b+raw"));
        assert_eq!(name("https://host/100%").as_deref(), Some("100%"));
        assert_eq!(name("https://host/%+1%zz").as_deref(), Some("%+1%zz"));
        assert_eq!(name("file:///images/a%20b").as_deref(), Some("a%20b"));
        assert_eq!(name("/images/image.raw").as_deref(), Some("image.raw"));
        assert_eq!(name("https://host/images/"), None);
        assert_eq!(name("https://host"), None);
        assert_eq!(name("image.raw"), None);
    }
}
