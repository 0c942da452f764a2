//! Finds what a web page loads from other hosts: readers of the manual are nobody's business, and may be offline.

use std::path::Path;

use anyhow::{Result, bail};

use crate::host::{cache, files};

/// Attributes by which a page loads something, and what loads something in a style sheet.
const ATTRIBUTES: [&str; 5] = ["src=", "href=", "srcset=", "data=", "poster="];
const STYLES: [&str; 2] = ["url(", "@import "];

/// Fails if a page or style sheet below the folder loads something from another host. Links to follow are allowed.
/// Scripts are not judged.
pub fn check(folder: &Path) -> Result<()> {
    let mut found = Vec::new();
    for path in cache::files_below(folder)? {
        let is_page = path.extension().is_some_and(|extension| extension == "html" || extension == "svg");
        if is_page || path.extension().is_some_and(|extension| extension == "css") {
            let text = files::read_text(&path)?;
            found.extend(loads(&text, is_page).map(|address| format!("{} loads {address}", path.display())));
        }
    }
    match found.is_empty() {
        true => Ok(()),
        false => bail!("the manual must not ask other hosts for anything: {}", found.join(", ")),
    }
}

/// Finds the addresses on other hosts that a page or style sheet loads.
fn loads(text: &str, is_page: bool) -> impl Iterator<Item = &str> {
    let tags = text.split('<').filter_map(|rest| Some(rest.split_once('>')?.0)).filter(|tag| !tag.starts_with("a "));
    let in_tags = tags.filter(move |_| is_page).flat_map(|tag| values(tag, &ATTRIBUTES));
    in_tags.chain(values(text, &STYLES)).filter(|value| {
        let value = value.to_ascii_lowercase();
        ["http:", "https:", "//"].iter().any(|start| value.starts_with(start))
    })
}

/// Returns what follows each of these words, without quotes.
fn values<'a>(text: &'a str, words: &'static [&'static str]) -> impl Iterator<Item = &'a str> {
    let end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ')' | '>');
    let start = |c: char| c.is_whitespace() || matches!(c, '"' | '\'');
    let after = words.iter().flat_map(|word| text.split(word).skip(1));
    after.map(move |rest| {
        rest.trim_start_matches("url(").trim_start_matches(start).split(end).next().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_page_loads_from_another_host_is_found() {
        let page = |text: &str, expect: &[&str]| assert_eq!(loads(text, true).collect::<Vec<_>>(), expect, "{text}");
        page(
            r#"<a class=x href="https://a.example/">a</a> <img src="../b.png"> <link href=c.css rel=stylesheet>"#,
            &[],
        );
        page(r#"<p>href="https://a.example/"</p><svg xmlns="http://www.w3.org/2000/svg"/>"#, &[]);
        page(
            r#"<script async src=https://a.example/x.js></script><link rel=preconnect href='//b.example'>"#,
            &["https://a.example/x.js", "//b.example"],
        );
        page(
            "<style>@import url('HTTP://c.example/f.css');</style>",
            &["HTTP://c.example/f.css", "HTTP://c.example/f.css"],
        );
        let style = |text: &str| loads(text, false).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(style("a{b:url(data:image/png;base64,//a)} c{d:url(e.woff2)}"), [""; 0]);
        assert_eq!(style("@font-face{src:url(\"https://f.example/f.woff2\")}"), ["https://f.example/f.woff2"]);
    }

    #[test]
    fn a_manual_that_loads_something_from_another_host_is_refused() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("inner"))?;
        fs::write(folder.path().join("inner/index.html"), "<script src=x.js></script>")?;
        check(folder.path())?;
        fs::write(folder.path().join("inner/index.html"), "<script src=https://a.example/x.js></script>")?;
        let error = check(folder.path()).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("index.html loads https://a.example/x.js")));
        Ok(())
    }
}
