//! No line of the repository's own texts has more than 120 columns.

use anyhow::{Result, ensure};

use crate::host::command::{command, stdout};
use crate::host::{files, workspace};

const MOST: usize = 120;
/// File name extensions of texts. Two kinds are left out: SQL, because databases know the digests of the migrations
/// they have run, and scripts of iPXE, whose long lines are URLs.
const TEXTS: &[&str] = &["rs", "md", "toml", "sh", "py", "yml", "conf", "service", "txt"];
/// Folders of data, in which no file is a text, whatever its extension is.
const DATA: &[&str] = &["fuzz/corpus/"];

/// Fails if a line is too long. Returns the number of files read.
pub fn check() -> Result<usize> {
    let root = workspace::root();
    let listed = stdout(command("git", ["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(&root))?;
    let is_text = |name: &&str| {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        ending.is_some_and(|ending| TEXTS.contains(&ending)) && !DATA.iter().any(|folder| name.starts_with(folder))
    };
    let (mut found, mut files) = (Vec::new(), 0);
    for name in listed.lines().filter(is_text) {
        let path = root.join(name);
        // git lists deleted files until the deletion is committed.
        if path.exists() {
            let text = files::read_text(&path)?;
            found.extend(
                too_long(&text, name.ends_with(".md"))
                    .map(|(line, columns)| format!("{name}:{line}: {columns} columns, but at most {MOST}")),
            );
            files += 1;
        }
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(files)
}

/// Returns the lines that are too long, each as its number and its columns. In Markdown only prose counts: no tables,
/// no code, and no line that is a single link.
fn too_long(text: &str, is_markdown: bool) -> impl Iterator<Item = (usize, usize)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let words = line.trim_start();
        is_code ^= words.starts_with("```");
        let is_link = (words.starts_with('[') || words.starts_with("![")) && words.ends_with([')', ']']);
        let is_prose = !is_code && !is_link && !words.starts_with('|') && !line.starts_with("    ");
        let columns = line.chars().count();
        (columns > MOST && (is_prose || !is_markdown)).then_some((index + 1, columns))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_too_long() -> Result<()> {
        assert!(check()? > 500, "fewer files than there are");
        Ok(())
    }

    #[test]
    fn what_cannot_be_wrapped_may_be_long() {
        let check = |start: &str, end: &str, is_markdown: bool, expect: &[(usize, usize)]| {
            let text = format!("short\n{start}{}{end}\n", "ü".repeat(121 - start.chars().count() - end.len()));
            assert_eq!(Vec::from_iter(too_long(&text, is_markdown)), expect, "{text}");
        };
        for is_markdown in [false, true] {
            check("", "", is_markdown, &[(2, 121)]);
            check("- a ", " (b)", is_markdown, &[(2, 121)]);
        }
        check("| ", " |", false, &[(2, 121)]);
        check("| ", " |", true, &[]);
        check("    ", "", true, &[]);
        check("[a](", ")", true, &[]);
        let code = format!("```sh\n{0}\n```\n{0}\n", "x".repeat(121));
        assert_eq!(Vec::from_iter(too_long(&code, true)), [(4, 121)]);
        assert_eq!(Vec::from_iter(too_long(&"x".repeat(120), false)), []);
    }
}
