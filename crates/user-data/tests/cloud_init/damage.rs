//! Texts damaged by bytes, lines and YAML words. The same seed gives the same damage.

/// Words with a meaning in YAML, jinja or messages, with "§" between them.
const WORDS: &str = "*x§&x §&y.z §<<: *x\n§<<: §<<§=§? §?§: §:§- §-§, §[§]§{§}§{}§|\n§>-\n§|2\n\
                     §'§\"§''§\\§#§ # §%§@§`§! §!§\
    !!int §!!str§!!binary §!!set §!!omap §!<tag:yaml.org,2002:float> §!x §~§yes§1§1:30§0b_§2024-02-30§\
    2024-1-1 1:1:60§.nan§\t§ §  §\n§\n §\n  §\n\n§\r§\r\n§---\n§--- §...\n§...§%YAML 1.1\n§%TAG ! x\n§a: §\
    a: &x 1\n§a: &x {b: 1}\n§[a, b]: §{a: b}§phone_home: 1\n§phone_home§\u{85}§\u{2028}§\u{feff}§\u{7f}§\0§ü§\
    {{ v1.region }}§{% if true %}§{% endif %}§{#§--b\n§--b--\n§MIME-Version: 1.0\n§Content-Type: text/x\n§\
    content: §type: §merge_how: §#cloud-config\n";

/// `SplitMix64` (Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap()
    }
}

/// The text with one to three places damaged.
pub fn damaged(text: &[u8], random: &mut Random) -> Vec<u8> {
    (0..=random.below(3)).fold(text.to_owned(), |text, _| match random.below(8) {
        0..=3 => in_bytes(text, random),
        _ => in_lines(&text, random),
    })
}

fn word(random: &mut Random) -> &'static str {
    let words: Vec<&str> = WORDS.split('§').collect();
    words[random.below(words.len())]
}

/// Inserts a word, removes bytes, or both.
fn in_bytes(mut text: Vec<u8>, random: &mut Random) -> Vec<u8> {
    let at = random.below(text.len() + 1);
    let gone = [0, 0, 1, 3][random.below(4)].min(text.len() - at);
    let word = if gone > 0 && random.below(2) == 0 { "" } else { word(random) };
    text.splice(at..at + gone, word.bytes());
    text
}

/// Removes, doubles or moves a line, or adds a word at its start or end.
fn in_lines(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_owned).collect();
    // The first line is kept, because it is usually a header, and the rest means nothing without it.
    let (at, to) = (1 + random.below(lines.len()), 1 + random.below(lines.len()));
    let (Some(line), true) = (lines.get(at).cloned(), to <= lines.len()) else {
        return in_bytes(text.to_owned(), random);
    };
    let word = word(random).bytes();
    match random.below(6) {
        0 => _ = lines.remove(at),
        1 => lines.insert(to, line),
        2 => {
            lines.remove(at);
            lines.insert(to.min(lines.len()), line);
        }
        3 => _ = lines[at].splice(0..0, word),
        4 => {
            let end = line.len() - usize::from(line.ends_with(b"\n"));
            lines[at].splice(end..end, word);
        }
        _ => {
            let margin = line.iter().take_while(|byte| matches!(byte, b' ' | b'-')).count();
            lines[at].splice(margin..margin, word);
        }
    }
    lines.concat()
}
