//! Matches device patterns from modules' tables (modules.alias of depmod(8)).

/// Whether a shell pattern of `*`, `?`, `[...]` matches the whole text, as fnmatch(3) without flags does. Takes at most
/// time proportional to the product of both lengths.
pub fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to continue if the last `*` must match one byte more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                retry = Some((p + 1, t));
                Some((p + 1, t))
            }
            (Some(b'?'), Some(_)) => Some((p + 1, t + 1)),
            (Some(b'['), Some(byte)) => bracket(pattern, p, *byte).map(|end| (end, t + 1)),
            (Some(wanted), Some(byte)) if wanted == byte => Some((p + 1, t + 1)),
            _ => None,
        };
        (p, t) = match (step, retry) {
            (Some(next), _) => next,
            (None, Some((after, at))) if at < text.len() => {
                retry = Some((after, at + 1));
                (after, at + 1)
            }
            _ => return false,
        };
    }
}

/// Returns the position after a bracket expression that contains the byte. `None` if the expression lacks the byte.
fn bracket(pattern: &[u8], open: usize, byte: u8) -> Option<usize> {
    let close = open + pattern.get(open..)?.iter().position(|b| *b == b']')?;
    let inside = pattern.get(open + 1..close)?;
    let mut at = 0;
    while let Some(first) = inside.get(at) {
        let last = if inside.get(at + 1) == Some(&b'-') { inside.get(at + 2) } else { None };
        if (*first..=*last.unwrap_or(first)).contains(&byte) {
            return Some(close + 1);
        }
        at += if last.is_some() { 3 } else { 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_fnmatch_says() {
        let fit = [
            ("virtio:d00000001v*", "virtio:d00000001v00001AF4"),
            ("pci:v00008086d*sv*sd*bc02sc00i*", "pci:v00008086d00001539sv00008086sd00000000bc02sc00i00"),
            ("usb:v*p*d*dc*dsc*dp*ic08isc06ip50in*", "usb:v1p2d3dc0dsc0dp0ic08isc06ip50in00"),
            ("acpi*:QEMU0002:*", "acpi:QEMU0002:"),
            ("of:N*T*Cbrcm,bcm2711", "of:NmmcT(null)Cbrcm,bcm2711"),
            ("x[0-9a]?", "x7z"),
            ("*", ""),
            ("**a", "aaa"),
        ];
        for (pattern, text) in fit {
            assert!(fits(pattern, text), "{pattern} should fit {text}");
        }
        let unfit =
            [("virtio:d1v*", "virtio:d2v1"), ("a*b", "ac"), ("x[0-9]", "xa"), ("x[", "x["), ("", "a"), ("?", "")];
        for (pattern, text) in unfit {
            assert!(!fits(pattern, text), "{pattern} should not fit {text}");
        }
    }
}
