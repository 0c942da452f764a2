//! A QR code (ISO/IEC 18004) of half blocks: light on a dark terminal, so that the modules that are dark in print are
//! dark on the screen.

use qrcodegen::{QrCode, QrCodeEcc};

/// Returns the rows of characters of a code for this text, with a quiet zone of `quiet` modules; the standard asks for
/// 4. A row of characters has two rows of modules. `None` if the text is too long for any code.
pub fn rows(text: &str, quiet: usize) -> Option<Vec<String>> {
    let code = QrCode::encode_text(text, QrCodeEcc::Low).ok()?;
    let (size, quiet) = (code.size(), i32::try_from(quiet).ok()?);
    let all = -quiet..size + quiet;
    // Outside of the code, modules are light. Below the last row is the terminal's background.
    let is_light = |x, y| y < all.end && !code.get_module(x, y);
    let rows = all.clone().step_by(2).map(|y| {
        let block = |x| match (is_light(x, y), is_light(x, y + 1)) {
            (true, true) => '█',
            (true, false) => '▀',
            (false, true) => '▄',
            (false, false) => ' ',
        };
        all.clone().map(block).collect()
    });
    Some(rows.collect())
}
