//! Reads tar archives: ustar and pax (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"), and GNU
//! tar's extensions for long names and large numbers (GNU tar manual, "Basic Tar Format").
//!
//! The tar crate is not used because it reads names and extended headers of any size into memory.

use std::io::{self, Read};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use slipway_formats::escapes::decoded;

/// Size of a header; everything is padded to a multiple of it.
const BLOCK: usize = 512;
/// Maximum bytes of names and extended attributes. More is treated as malicious.
const MAX_EXTENDED: u64 = 1 << 20;
/// Prefix of pax keywords for extended attributes. It comes from star; GNU tar and bsdtar use it too.
const XATTR: &[u8] = b"SCHILY.xattr.";
const ACL: &[u8] = b"SCHILY.acl.";
/// Prefix of pax keywords for extended attributes by libarchive: name percent-encoded, value in base64 (libarchive,
/// tar(5), "Pax Interchange Format").
const LIBARCHIVE_XATTR: &[u8] = b"LIBARCHIVE.xattr.";
/// Pax keyword of GNU tar and star for the SELinux label, and the attribute in which the kernel keeps the label.
const SELINUX: (&[u8], &[u8]) = (b"RHT.security.selinux", b"security.selinux");
/// Prefix of pax keywords of GNU tar for a sparse file.
const SPARSE_KEY: &[u8] = b"GNU.sparse.";
/// Pax keyword of star and libarchive for file flags, such as "immutable".
const FLAGS: &[u8] = b"SCHILY.fflags";

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
}

/// An entry, as it is in the archive. Nothing in it can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds since 1970 and nanoseconds.
    pub(super) modified: (i64, u32),
    pub(super) size: u64,
    /// Major and minor number.
    pub(super) device: (u32, u32),
    /// Names and values of the extended attributes.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether it has access control lists in text form, which are not read.
    pub(super) has_acl: bool,
    /// Whether it has file flags, which are not read.
    pub(super) has_flags: bool,
}

/// Why reading an archive failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The stream returned an error.
    Read(io::Error),
    /// What is damaged, and the entry if known.
    Damaged { entry: Option<Vec<u8>>, reason: &'static str },
    /// What is not supported, and the entry if known.
    Unread { entry: Option<Vec<u8>>, reason: &'static str },
}

/// The reason for a truncated archive.
pub(super) const ENDS_EARLY: &str = "it ends too early";

fn damaged(reason: &'static str) -> Fault {
    Fault::Damaged { entry: None, reason }
}

fn unread(reason: &'static str) -> Fault {
    Fault::Unread { entry: None, reason }
}

/// An archive. Its [`Read`] implementation gives the content of the entry that [`Self::next`] returned last.
pub(super) struct Archive<R> {
    input: R,
    /// Bytes left of the entry's content, and of the padding after it.
    left: u64,
    padding: u64,
}

/// Extended headers that apply to the next entry.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    modified: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    has_acl: bool,
    has_flags: bool,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0 }
    }

    /// Reads the next entry; `None` at the end of the archive. Only zeros may follow the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, Fault> {
        self.skip_content()?;
        let mut extended = Extended::default();
        loop {
            let mut header = [0; BLOCK];
            self.fill(&mut header)?;
            if header.iter().all(|byte| *byte == 0) {
                return self.end().map(|()| None);
            }
            if !has_right_sum(&header) {
                return Err(damaged("the checksum of a header is wrong, or this is not a tar archive"));
            }
            let size = unsigned(&header[124..136]).ok_or_else(|| damaged("a size is not a number"))?;
            match header[156] {
                b'x' => extended.take(&self.extension(size)?)?,
                b'g' => global(&self.extension(size)?)?,
                b'L' => extended.path = Some(without_end(self.extension(size)?)),
                b'K' => extended.link = Some(without_end(self.extension(size)?)),
                // The label of a volume (GNU tar manual, "Basic Tar Format"), not a file.
                b'V' if size == 0 => {}
                _ => return self.entry(&header, size, extended).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &[u8; BLOCK], size: u64, extended: Extended) -> Result<Entry, Fault> {
        let path = extended.path.unwrap_or_else(|| name(header));
        let wrong = |reason| Fault::Damaged { entry: Some(path.clone()), reason };
        let number = |range: std::ops::Range<usize>| u32::try_from(unsigned(header.get(range)?)?).ok();
        let field = |range| number(range).ok_or_else(|| wrong("a number in its header is damaged or too large"));
        let kind = kind(header[156], &path).map_err(|reason| Fault::Unread { entry: Some(path.clone()), reason })?;
        let size = extended.size.unwrap_or(size);
        if kind != Kind::File && size != 0 {
            return Err(wrong("it has a size, but only files have one"));
        }
        let seconds = || signed(&header[136..148]).ok_or_else(|| wrong("its time is damaged"));
        let entry = Entry {
            link: extended.link.unwrap_or_else(|| text(&header[157..257])),
            kind,
            mode: field(100..108)? & 0o7777,
            uid: extended.uid.map_or_else(|| field(108..116), Ok)?,
            gid: extended.gid.map_or_else(|| field(116..124), Ok)?,
            modified: extended.modified.map_or_else(|| seconds().map(|seconds| (seconds, 0)), Ok)?,
            size,
            device: match kind {
                Kind::CharDevice | Kind::BlockDevice => (field(329..337)?, field(337..345)?),
                _ => (0, 0),
            },
            xattrs: extended.xattrs,
            has_acl: extended.has_acl,
            has_flags: extended.has_flags,
            path,
        };
        (self.left, self.padding) = (size, padding(size));
        Ok(entry)
    }

    /// Reads the content of an entry that only describes the next one.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, Fault> {
        if size > MAX_EXTENDED {
            return Err(unread("an extended header is larger than 1 MiB"));
        }
        let mut content = vec![0; size as usize];
        self.fill(&mut content)?;
        self.padding = padding(size);
        self.skip_content()?;
        Ok(content)
    }

    fn skip_content(&mut self) -> Result<(), Fault> {
        let left = self.left + self.padding;
        let skipped = io::copy(&mut (&mut self.input).take(left), &mut io::sink()).map_err(Fault::Read)?;
        (self.left, self.padding) = (0, 0);
        if skipped == left { Ok(()) } else { Err(damaged(ENDS_EARLY)) }
    }

    /// Reads to the end of the stream. An archive ends with two blocks of zeros, and is often padded with more.
    fn end(&mut self) -> Result<(), Fault> {
        let mut buffer = [0; 16 * BLOCK];
        self.fill(&mut buffer[..BLOCK])?;
        let mut n = BLOCK;
        while n > 0 {
            if buffer.iter().take(n).any(|byte| *byte != 0) {
                return Err(damaged("there is data after the end of the archive"));
            }
            n = match self.input.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(Fault::Read)?,
            };
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), Fault> {
        self.input.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged(ENDS_EARLY),
            _ => Fault::Read(error),
        })
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.by_ref().take(self.left).read(buffer)?;
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

impl Extended {
    /// Adds an extended attribute, unless it is there already.
    fn add_xattr(&mut self, name: &[u8], value: Vec<u8>) {
        if !self.xattrs.iter().any(|(there, _)| there == name) {
            self.xattrs.push((name.to_vec(), value));
        }
    }

    fn take(&mut self, content: &[u8]) -> Result<(), Fault> {
        // A second extended header for the same entry replaces the first, except for path and link.
        *self = Self { path: self.path.take(), link: self.link.take(), ..Self::default() };
        let mut of_libarchive = Vec::new();
        for (key, value) in records(content).ok_or_else(|| damaged("an extended header is damaged"))? {
            let id = |what| parse::<u32>(value).ok_or_else(|| damaged(what));
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(parse(value).ok_or_else(|| damaged("a size is not a number"))?),
                b"uid" => self.uid = Some(id("a user is not a number")?),
                b"gid" => self.gid = Some(id("a group is not a number")?),
                b"mtime" => self.modified = Some(time(value).ok_or_else(|| damaged("a time is not a number"))?),
                _ if key.starts_with(SPARSE_KEY) || key.starts_with(b"SCHILY.realsize") => {
                    return Err(unread(SPARSE));
                }
                b"RHT.security.selinux" => self.add_xattr(SELINUX.1, [value, b"\0"].concat()),
                _ if key.starts_with(ACL) => self.has_acl = true,
                _ if key.starts_with(FLAGS) => self.has_flags = true,
                _ => match (key.strip_prefix(XATTR), key.strip_prefix(LIBARCHIVE_XATTR)) {
                    (Some(name), _) => self.add_xattr(name, value.to_vec()),
                    (_, Some(name)) => of_libarchive.push((decoded(name, "%", 2, 16), value)),
                    _ => {}
                },
            }
        }
        // libarchive writes most attributes in both ways.
        for (name, value) in of_libarchive {
            let value = ANY_PADDING.decode(value);
            self.add_xattr(&name, value.map_err(|_| damaged("an extended attribute is not in base64"))?);
        }
        Ok(())
    }
}

/// base64 with padding, as in RFC 4648, or without it, as libarchive writes it.
const ANY_PADDING: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const SPARSE: &str = "it is stored as a sparse file, which is not supported: make the archive without --sparse \
                      (bsdtar: with --no-read-sparse)";

/// Refuses a header that sets something for all following entries. Accepts one with only comments, such as git's.
fn global(content: &[u8]) -> Result<(), Fault> {
    let mut records = records(content).ok_or_else(|| damaged("an extended header is damaged"))?.into_iter();
    match records.any(|(key, _)| {
        matches!(key, b"path" | b"linkpath" | b"size" | b"uid" | b"gid" | b"mtime")
            || [XATTR, LIBARCHIVE_XATTR, SELINUX.0, ACL, FLAGS, SPARSE_KEY].iter().any(|start| key.starts_with(start))
    }) {
        true => Err(unread(
            "a header sets something for all entries that follow, which is not supported; make the archive without \
             that --pax-option",
        )),
        false => Ok(()),
    }
}

/// Splits a pax header into records: length in decimal, a space, key, `=`, value, a line feed.
fn records(mut content: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !content.is_empty() {
        let digits = content.split(|byte| *byte == b' ').next()?;
        let (record, rest) = content.split_at_checked(parse(digits)?)?;
        let mut pair = record.get(digits.len() + 1..)?.strip_suffix(b"\n")?.splitn(2, |byte| *byte == b'=');
        records.push((pair.next()?, pair.next()?));
        content = rest;
    }
    Some(records)
}

fn kind(flag: u8, path: &[u8]) -> Result<Kind, &'static str> {
    Ok(match flag {
        // Before there was a type for directories, they were marked by a slash at the end.
        0 if path.ends_with(b"/") => Kind::Directory,
        0 | b'0' | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' => Kind::CharDevice,
        b'4' => Kind::BlockDevice,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'S' => return Err(SPARSE),
        b'D' => return Err("it is the listing of a directory: make the archive without --listed-incremental"),
        b'M' => return Err("it continues from another volume: make the archive without --multi-volume"),
        b'V' => return Err("it is the label of a volume with a size, which no label has"),
        _ => return Err("it is of an unsupported type; make the archive with tar --format=pax"),
    })
}

fn name(header: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    // GNU tar uses the field of the prefix for something else, and has another magic.
    match &header[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [prefix, name].join(&b'/'),
        false => name,
    }
}

fn text(field: &[u8]) -> Vec<u8> {
    field.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn without_end(mut text: Vec<u8>) -> Vec<u8> {
    text.pop_if(|byte| *byte == 0);
    text
}

/// Checks the checksum: the sum of all bytes of the header, with spaces in place of the checksum.
fn has_right_sum(header: &[u8; BLOCK]) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| i64::from(*byte)).sum::<i64>();
    let found = sum(&header[..148]) + 8 * i64::from(b' ') + sum(&header[156..]);
    signed(&header[148..156]) == Some(found)
}

fn unsigned(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|value| u64::try_from(value).ok())
}

/// Parses a number in octal digits. If the first bit is set, it is binary, and the next bit is its sign.
fn signed(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let start = if first & 0x40 != 0 { -1 } else { 0 };
        let start = (start << 6) | i128::from(first & 0x3F);
        let mut value = start;
        for byte in rest {
            value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if digits.is_empty() {
        return Some(0);
    }
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| i64::from_str_radix(digits, 8).ok()).flatten()
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Parses a time in seconds since 1970 with a fraction. Times before 1970 are negative.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = parse(digits.as_bytes())?;
    match whole.starts_with('-') && nanos > 0 {
        true => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((seconds, nanos)),
    }
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, expect) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"    644 ", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"", None),
            (b"\x80", Some(0)),
            (b"8", None),
            (b"-1", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(signed(field), expect, "{field:?}");
        }
    }

    #[test]
    fn times_before_1970_count_back() {
        for (text, expect) in [
            ("1.5", Some((1, 500_000_000))),
            ("7", Some((7, 0))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-0.5", Some((-1, 500_000_000))),
            ("1.0000000009", Some((1, 0))),
            ("", None),
            ("1.x", None),
        ] {
            assert_eq!(time(text.as_bytes()), expect, "{text}");
        }
    }

    #[test]
    fn an_attribute_of_libarchive_counts_without_its_twin() {
        let record = |key: &str, value: &str| {
            let len = key.len() + value.len() + 3;
            let digits = (len + 2).to_string().len();
            format!("{} {key}={value}\n", len + digits)
        };
        let check = |records: &[(&str, &str)], expect: Option<&[(&str, &[u8])]>| {
            let text: String = records.iter().map(|(key, value)| record(key, value)).collect();
            let mut extended = Extended::default();
            let found = extended.take(text.as_bytes()).ok().map(|()| extended.xattrs);
            let owned = |(name, value): &(&str, &[u8])| (name.as_bytes().to_vec(), value.to_vec());
            assert_eq!(found, expect.map(|expect| expect.iter().map(owned).collect()), "{records:?}");
        };
        check(&[("LIBARCHIVE.xattr.user.a", "AAEC")], Some(&[("user.a", &[0, 1, 2])]));
        check(&[("LIBARCHIVE.xattr.user.a%3d%25%4", "YQ")], Some(&[("user.a=%%4", b"a")]));
        check(&[("LIBARCHIVE.xattr.user.a", "YQ==")], Some(&[("user.a", b"a")]));
        let twins = [("LIBARCHIVE.xattr.user.a", "YQ"), ("SCHILY.xattr.user.a", "a")];
        check(&twins, Some(&[("user.a", b"a")]));
        check(&[("LIBARCHIVE.xattr.user.a", "Y?")], None);
        check(&[("RHT.security.selinux", "a:b:c")], Some(&[("security.selinux", b"a:b:c\0")]));
        check(&[("LIBARCHIVE.creationtime", "1"), ("SCHILY.ino", "7")], Some(&[]));
    }

    #[test]
    fn records_have_the_length_they_say() {
        let check = |text: &[u8], expect: Option<Vec<(&[u8], &[u8])>>| assert_eq!(records(text), expect, "{text:?}");
        check(b"", Some(vec![]));
        check(b"12 path=a=b\n", Some(vec![(b"path", b"a=b")]));
        check(b"6 a=b\n6 c=\n\n", Some(vec![(b"a", b"b"), (b"c", b"\n")]));
        check(b"6 a=b\n7 c=\n\n", None);
        for cut_off in [&b"6"[..], b"6 ", b"6 a", b"6 a=b", b"0 ", b"1 \n", b"2 ", b"6 a=b\n99"] {
            check(cut_off, None);
        }
        for damaged in [&b"7 a=b\n"[..], b"5 a=b\n", b"0 a=b\n", b"99999999999999999999 a=b\n", b"6 a:b\n", b"a=b\n"] {
            check(damaged, None);
        }
    }
}
