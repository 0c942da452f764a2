//! Verifies a hash tree of dm-verity (Linux, Documentation/admin-guide/device-mapper/verity.rst; superblock:
//! cryptsetup, lib/verity/verity.c).

use ring::digest::{Context, Digest, SHA256};

use crate::disk::probe::{le32, le64};

/// Size of a superblock in bytes.
pub(super) const SUPERBLOCK: usize = 512;
const DIGEST: usize = 32;
/// Valid block sizes in bytes. The kernel only accepts larger ones if its pages are larger.
const BLOCKS: std::ops::RangeInclusive<u32> = 512..=4096;

/// The two areas of blocks: data and hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Data,
    Hashes,
}

/// Why a tree cannot be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The tree is of an unknown kind.
    Unknown(String),
    /// The tree is invalid.
    Damaged(String),
}

/// The parameters of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    data_block: usize,
    hash_block: usize,
    data_blocks: u64,
    salt: Vec<u8>,
    /// Start of each level in hash blocks. The first level has the hashes of the data.
    levels: Vec<u64>,
}

impl Superblock {
    /// Parses a superblock, for partitions of these sizes in bytes.
    pub(super) fn parse(bytes: &[u8; SUPERBLOCK], data_len: u64, hash_len: u64) -> Result<Self, Fault> {
        let damaged = |what: &str| Fault::Damaged(format!("the superblock of its hash tree {what}"));
        let fields = || Some((le32(bytes, 8)?, le32(bytes, 12)?, le32(bytes, 64)?, le32(bytes, 68)?, le64(bytes, 72)?));
        let (version, kind, data_block, hash_block, data_blocks) = fields().ok_or_else(|| damaged("is cut off"))?;
        let algorithm = String::from_utf8_lossy(&bytes[32..64]);
        let algorithm = algorithm.trim_end_matches('\0');
        if (version, kind, algorithm) != (1, 1, "sha256") {
            let what = format!(
                "it has version {version}, type {kind} and algorithm {algorithm:?}, but only version 1, type 1 and \
                 sha256 are supported"
            );
            return Err(Fault::Unknown(what));
        }
        let is_block = |size: u32| size.is_power_of_two() && BLOCKS.contains(&size);
        if !is_block(data_block) || !is_block(hash_block) {
            return Err(damaged("has an invalid block size"));
        }
        if data_blocks == 0 || data_blocks > data_len / u64::from(data_block) {
            return Err(damaged("covers more data than fits in the partition"));
        }
        let salt_len = usize::from(u16::from_le_bytes([bytes[80], bytes[81]]));
        let salt = bytes[88..344].get(..salt_len).ok_or_else(|| damaged("has a salt that is too long"))?.to_vec();
        let (levels, end) = levels(data_blocks, hash_block);
        if end > hash_len / u64::from(hash_block) {
            return Err(damaged("has more hashes than fit in their partition"));
        }
        Ok(Self { data_block: data_block as usize, hash_block: hash_block as usize, data_blocks, salt, levels })
    }

    /// Size of the data in bytes.
    pub(super) fn data_len(&self) -> u64 {
        self.data_blocks * self.data_block as u64
    }

    fn hash(&self, block: &[u8]) -> Digest {
        let mut context = Context::new(&SHA256);
        context.update(&self.salt);
        context.update(block);
        context.finish()
    }
}

/// Returns the start of each level, and the end of the last, in hash blocks. The highest level has one block and comes
/// first on the disk, after the block of the superblock.
fn levels(data_blocks: u64, hash_block: u32) -> (Vec<u64>, u64) {
    let per_block = u64::from(hash_block) / DIGEST as u64;
    let mut sizes = Vec::new();
    let mut blocks = data_blocks;
    while blocks > 1 {
        blocks = blocks.div_ceil(per_block);
        sizes.push(blocks);
    }
    let mut end = 1;
    let mut levels = vec![0; sizes.len()];
    for (level, size) in levels.iter_mut().zip(&sizes).rev() {
        *level = end;
        end += size;
    }
    (levels, end)
}

/// Fills a buffer from an offset in bytes in the data or the hashes.
type ReadAt<'a, E> = &'a mut dyn FnMut(Part, u64, &mut [u8]) -> Result<(), E>;

/// Computes the root hash of a tree. If a hash in the tree is wrong, returns instead which part differs.
pub(super) fn root_hash<E>(tree: &Superblock, read: ReadAt<'_, E>) -> Result<Result<String, String>, E> {
    let mut below = (Part::Data, 0, tree.data_blocks, tree.data_block);
    for level in &tree.levels {
        let (part, start, count, size) = below;
        if let Some(block) = first_other(tree, (part, start, count, size), *level, read)? {
            let of = if part == Part::Data { "data" } else { "hashes" };
            return Ok(Err(format!("block {block} of its {of} does not match its hash tree")));
        }
        let per_block = (tree.hash_block / DIGEST) as u64;
        below = (Part::Hashes, *level, count.div_ceil(per_block), tree.hash_block);
    }
    let (part, start, _, size) = below;
    let mut top = vec![0; size];
    read(part, start * size as u64, &mut top)?;
    Ok(Ok(base16ct::lower::encode_string(tree.hash(&top).as_ref())))
}

/// Finds the first of these blocks (part, first block, number of blocks, block size) whose hash the level above lacks.
fn first_other<E>(
    tree: &Superblock,
    (part, start, count, size): (Part, u64, u64, usize),
    level: u64,
    read: ReadAt<'_, E>,
) -> Result<Option<u64>, E> {
    let per_block = (tree.hash_block / DIGEST) as u64;
    let mut hashes = vec![0; tree.hash_block];
    let mut blocks = vec![0; size * per_block as usize];
    for group in 0..count.div_ceil(per_block) {
        let first = group * per_block;
        blocks.truncate(size * per_block.min(count - first) as usize);
        read(Part::Hashes, (level + group) * tree.hash_block as u64, &mut hashes)?;
        read(part, (start + first) * size as u64, &mut blocks)?;
        let expected = hashes.chunks_exact(DIGEST);
        let other = blocks.chunks_exact(size).zip(expected).position(|(block, hash)| tree.hash(block).as_ref() != hash);
        if let Some(index) = other {
            return Ok(Some(start + first + index as u64));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::fs::{self, File};
    use std::path::Path;
    use std::process::Command;

    /// The root hash and the hashes that veritysetup computes for data; none if there is no veritysetup.
    fn sealed(dir: &Path, data: &[u8], options: &[&str]) -> Option<(String, Vec<u8>)> {
        let (data_path, hash_path) = (dir.join("data"), dir.join("hashes"));
        fs::write(&data_path, data).unwrap();
        File::create(&hash_path).unwrap();
        let output = Command::new("veritysetup").arg("format").args(options).args([&data_path, &hash_path]).output();
        let output = output.ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let root = text.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap().trim().to_owned();
        Some((root, fs::read(hash_path).unwrap()))
    }

    fn parse(data: &[u8], hashes: &[u8]) -> Result<Superblock, Fault> {
        Superblock::parse(hashes.first_chunk().unwrap(), data.len() as u64, hashes.len() as u64)
    }

    fn found(data: &[u8], hashes: &[u8]) -> Result<String, String> {
        let tree = parse(data, hashes).unwrap();
        let read = &mut |part, offset: u64, buffer: &mut [u8]| {
            let from = if part == Part::Data { data } else { hashes };
            buffer.copy_from_slice(&from[offset as usize..offset as usize + buffer.len()]);
            Ok::<(), Infallible>(())
        };
        match root_hash(&tree, read) {
            Ok(found) => found,
        }
    }

    #[test]
    fn the_root_hash_is_the_one_veritysetup_tells_and_every_damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let small = ["--data-block-size=512", "--hash-block-size=512", "--salt=-"];
        for (blocks, size, options) in
            [(1, 4096, &[][..]), (2, 4096, &[]), (128, 4096, &[]), (129, 4096, &[]), (300, 512, &small)]
        {
            let data: Vec<u8> = (0..blocks * size).map(|at: usize| (at / 7) as u8).collect();
            let Some((root, hashes)) = sealed(dir.path(), &data, options) else { return };
            assert_eq!(found(&data, &hashes), Ok(root.clone()), "{blocks} blocks of {size} bytes");
            let last = data.len() - 1;
            let spoilt = |bytes: &[u8], at: usize| [&bytes[..at], &[!bytes[at]], &bytes[at + 1..]].concat();
            let no_more = |found: Result<String, String>| assert_ne!(found, Ok(root.clone()), "{blocks} blocks");
            no_more(found(&spoilt(&data, 0), &hashes));
            no_more(found(&spoilt(&data, last), &hashes));
            if blocks > 1 {
                no_more(found(&data, &spoilt(&hashes, size)));
                let block = (blocks - 1).to_string();
                let expect = format!("block {block} of its data does not match its hash tree");
                assert_eq!(found(&spoilt(&data, last), &hashes), Err(expect));
            }
        }
    }

    #[test]
    fn a_superblock_that_promises_more_than_there_is_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data = vec![1; 300 * 4096];
        let Some((_, hashes)) = sealed(dir.path(), &data, &[]) else { return };
        let check = |at: usize, value: &[u8], is_unknown: bool| {
            let spoilt = [&hashes[..at], value, &hashes[at + value.len()..]].concat();
            let fault = parse(&data, &spoilt).unwrap_err();
            assert_eq!(matches!(fault, Fault::Unknown(_)), is_unknown, "{at}: {fault:?}");
        };
        check(8, &[2], true);
        check(12, &[0], true);
        check(32, b"sha512", true);
        check(64, &[0, 0, 0, 0], false);
        check(68, &[0, 0, 0, 0x80], false);
        check(64, &[1, 2, 0, 0], false);
        check(72, &[0; 8], false);
        check(72, &[0xFF; 8], false);
        check(72, &301_u64.to_le_bytes(), false);
        check(80, &[1, 1], false);
        let cut = parse(&data, &hashes[..2 * 4096]);
        assert!(matches!(cut, Err(Fault::Damaged(_))), "{cut:?}");
    }
}
