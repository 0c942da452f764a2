//! AES-256 in XTS mode (IEEE 1619-2007, 5.3) over sectors, like `aes-xts-plain64` of dm-crypt.

use aes::Aes256Enc;
use aes::cipher::array::Array;
use aes::cipher::{BlockCipherEncrypt, KeyInit};

/// Bytes of a key: one half encrypts the data, the other half the sector numbers.
pub(super) const KEY: usize = 64;
/// dm-crypt counts sectors in these units, whatever their size (drivers/md/dm-crypt.c, without `iv_large_sectors`).
const COUNTED_IN: u64 = 512;
const BLOCK: usize = 16;

/// An expanded key.
pub(super) struct Xts {
    data: Aes256Enc,
    number: Aes256Enc,
}

impl Xts {
    pub(super) fn new(key: &[u8; KEY]) -> Self {
        let half = |at: usize| std::array::from_fn::<u8, 32, _>(|index| key[at + index]);
        Self { data: Aes256Enc::new(&half(0).into()), number: Aes256Enc::new(&half(KEY / 2).into()) }
    }

    /// Encrypts whole sectors in place. `offset` is the position of the first sector in the volume. All values are in
    /// bytes.
    pub(super) fn encrypt(&self, bytes: &mut [u8], offset: u64, sector: usize) {
        let mut number = offset / COUNTED_IN;
        for bytes in bytes.chunks_exact_mut(sector) {
            let mut first = [0; BLOCK];
            first[..8].copy_from_slice(&number.to_le_bytes());
            let mut first = Array(first);
            self.number.encrypt_block(&mut first);
            let (blocks, _) = bytes.as_chunks_mut::<BLOCK>();
            add(blocks, first.0);
            self.data.encrypt_blocks(Array::cast_slice_from_core_mut(blocks));
            add(blocks, first.0);
            number += sector as u64 / COUNTED_IN;
        }
    }
}

/// XORs each block with its tweak: the first tweak, multiplied by x once for each block before it.
fn add(blocks: &mut [[u8; BLOCK]], first: [u8; BLOCK]) {
    /// x to the power of 128, modulo the polynomial of the field.
    const REDUCED: u128 = 0x87;
    let mut tweak = u128::from_le_bytes(first);
    for block in blocks {
        *block = (u128::from_le_bytes(*block) ^ tweak).to_le_bytes();
        tweak = (tweak << 1) ^ (REDUCED * (tweak >> 127));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_sector_is_encrypted_as_the_standard_says() {
        // IEEE 1619-2007, B.2: vector 10. Only its beginning and end are given here.
        let key = [
            "2718281828459045235360287471352662497757247093699959574966967627",
            "3141592653589793238462643383279502884197169399375105820974944592",
        ];
        let key: [u8; KEY] = base16ct::lower::decode_vec(key.concat()).unwrap().try_into().unwrap();
        let mut sector: Vec<u8> = (0..512).map(|n: usize| n as u8).collect();
        Xts::new(&key).encrypt(&mut sector, 0xFF * 512, 512);
        let hex = base16ct::lower::encode_string(&sector);
        assert!(hex.starts_with("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"), "{hex}");
        assert!(hex.ends_with("a9fcea70b9c6e693e148c151"), "{hex}");
    }

    #[test]
    fn large_sectors_are_numbered_in_small_ones() {
        let xts = Xts::new(&[7; KEY]);
        let mut at_once = vec![1; 16384];
        xts.encrypt(&mut at_once, 4096, 4096);
        let mut second = vec![1; 4096];
        xts.encrypt(&mut second, 8192, 4096);
        assert!(at_once[4096..8192] == second);
        let mut small = vec![1; 4096];
        xts.encrypt(&mut small, 8192, 512);
        assert!(small[..512] == second[..512] && small[512..] != second[512..]);
    }
}
