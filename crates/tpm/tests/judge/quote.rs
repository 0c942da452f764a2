//! Quotes of a software TPM, whole and changed. Others are in `swtpm.rs`.

use slipway_protocol::node::attestation::QUOTED_PCRS;
use slipway_tpm::judge::quote::Quote;

const QUOTE: &[u8] = include_bytes!("../../../../fuzz/corpus/tpm_quote/quote");
/// SHA-256 (TPM_ALG_ID).
const SHA_256: u16 = 0x0b;

#[test]
fn a_quote_is_read_if_it_is_whole_and_nothing_else() {
    let quote = Quote::parse(QUOTE).unwrap();
    assert_eq!((quote.extra_data, quote.digest.len()), (&[7; 32][..], 32));
    assert_eq!(quote.selection, [(SHA_256, QUOTED_PCRS.to_vec())]);

    // The magic number and the type. 0x8017 is a TPM's statement on a key.
    for at in 0..6 {
        let mut other = QUOTE.to_vec();
        other[at] ^= 0x0f;
        assert_eq!(Quote::parse(&other), None, "{at}");
    }
    for end in 0..QUOTE.len() {
        assert_eq!(Quote::parse(&QUOTE[..end]), None, "{end}");
    }
    assert_eq!(Quote::parse(&[QUOTE, &[0]].concat()), None);
}
