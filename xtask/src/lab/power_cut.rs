//! Computes a possible content of a disk with a volatile cache after a power cut. Everything before the last flush is
//! on the disk. Of each later request, any subset of sectors may be; a sector is written whole or not at all. If two
//! requests wrote the same sector and both survived, the later one wins, because the cache holds one content per
//! sector.

use crate::lab::write_log::Request;

/// Random numbers that depend only on the seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Starts the sequence of random numbers for one trial.
    pub fn new(seed: u64, trial: u64) -> Self {
        let mut dice = Self(seed);
        Self(dice.roll() ^ trial.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// Returns a number below `sides`, which must not be 0.
    pub fn below(&mut self, sides: usize) -> usize {
        (self.roll() % sides as u64) as usize
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns true with a probability of `sixteenths`/16.
    fn chance(&mut self, sixteenths: usize) -> bool {
        self.below(16) < sixteenths
    }
}

/// Probabilities of survival in sixteenths. The extremes matter as much as half: a fault may show only if a single
/// request survives, or is the only one missing.
const SHARES: [usize; 5] = [0, 1, 8, 15, 16];

/// Applies the requests that survive the cut. `requests` are those since the last flush. The disk writes aligned pieces
/// of `whole` bytes whole or not at all.
pub fn survive(disk: &mut [u8], requests: &[Request], whole: usize, dice: &mut Dice) {
    let (kept, torn) = (SHARES[dice.below(SHARES.len())], SHARES[dice.below(SHARES.len())]);
    for request in requests {
        let Request::Write { offset, bytes } = request else { continue };
        let is_kept = dice.chance(kept);
        let share = SHARES[dice.below(SHARES.len())];
        // Any request may be torn, because a disk works on many at once.
        if !is_kept && !dice.chance(torn) {
            continue;
        }
        let (mut at, mut rest) = (*offset as usize, bytes.as_slice());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(whole - at % whole));
            if is_kept || dice.chance(share) {
                put(disk, at, piece);
            }
            (at, rest) = (at + piece.len(), behind);
        }
    }
}

/// Applies a whole request.
pub fn apply(disk: &mut [u8], request: &Request) {
    if let Request::Write { offset, bytes } = request {
        put(disk, *offset as usize, bytes);
    }
}

fn put(disk: &mut [u8], offset: usize, bytes: &[u8]) {
    disk[offset..offset + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::lab::write_log::SECTOR;

    /// One request writes two sectors and another rewrites the second. Only possible results may occur.
    #[test]
    fn any_part_of_what_was_not_flushed_survives_and_nothing_else() {
        let write = |offset: usize, bytes: Vec<u8>| Request::Write { offset: offset as u64, bytes };
        let requests = [write(0, vec![1; 2 * SECTOR]), write(SECTOR, vec![2; SECTOR])];
        let mut seen = BTreeSet::new();
        for trial in 0..2000 {
            let mut disk = vec![0; 3 * SECTOR];
            survive(&mut disk, &requests, SECTOR, &mut Dice::new(1, trial));
            assert!(disk.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "a torn sector");
            seen.insert([disk[0], disk[SECTOR], disk[2 * SECTOR]]);
        }
        let all = [0, 1].into_iter().flat_map(|first| [0, 1, 2].map(|second| [first, second, 0]));
        assert_eq!(seen, all.collect());
    }

    #[test]
    fn what_a_disk_writes_whole_is_never_torn() {
        let request = Request::Write { offset: SECTOR as u64, bytes: vec![1; 4 * SECTOR] };
        for trial in 0..500 {
            let mut disk = vec![0; 6 * SECTOR];
            survive(&mut disk, std::slice::from_ref(&request), 2 * SECTOR, &mut Dice::new(1, trial));
            assert_eq!((disk[0], disk[5 * SECTOR]), (0, 0));
            assert_eq!(disk[2 * SECTOR], disk[3 * SECTOR]);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let rolls = |seed, trial| {
            let mut dice = Dice::new(seed, trial);
            [0; 4].map(|_| dice.below(1 << 30))
        };
        assert_eq!(rolls(1, 2), rolls(1, 2));
        assert_ne!(rolls(1, 2), rolls(1, 3));
        assert_ne!(rolls(1, 2), rolls(2, 2));
    }
}
