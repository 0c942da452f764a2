//! What the files of a crate import from each other, read from their text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::host::files;

/// The path of a module from the root of its crate. The root's own path is empty.
pub type Module = Vec<String>;

/// A place in a module at which another module of the crate is named.
pub struct Import {
    /// Path of the file, relative to the root of the repository.
    pub file: String,
    pub line: usize,
    /// The imported path, as the code has it.
    pub written: String,
    pub from: Module,
    /// The module that defines what is imported: re-exports are followed.
    pub to: Module,
    /// The first name after the root of the crate, for a path that begins there.
    pub from_root: Option<String>,
}

struct File {
    path: String,
    module: Module,
    code: String,
}

/// What `use` brings into a module. The key is the module and the name; the value is a path from the root of the crate.
type Names<'a> = BTreeMap<(&'a Module, String), Module>;

/// Reads the imports of all files below the source folder of a crate, except tests. Also returns the number of files.
/// `root` is the root of the repository.
pub fn of_crate(root: &Path, source: &Path) -> Result<(Vec<Import>, usize)> {
    let mut files = Vec::new();
    read_files(root, source, &[], &mut files)?;
    let modules: BTreeSet<&Module> = files.iter().map(|file| &file.module).collect();
    let names = names(&files, &modules);
    let mut imports = Vec::new();
    for file in &files {
        for path in paths(&file.code) {
            let Some(target) = absolute(&file.module, &path.words) else { continue };
            let up = path.words.iter().filter(|word| **word == "super").count();
            let is_from_root = path.words.first() == Some(&"crate") || (up > 0 && up == file.module.len());
            imports.push(Import {
                file: file.path.clone(),
                line: file.code[..path.at].matches('\n').count() + 1,
                written: path.words.join("::"),
                from: file.module.clone(),
                from_root: target.first().filter(|_| is_from_root).cloned(),
                to: resolve(target, &modules, &names),
            });
        }
    }
    Ok((imports, files.len()))
}

fn names<'a>(files: &'a [File], modules: &BTreeSet<&Module>) -> Names<'a> {
    let mut names = BTreeMap::new();
    for File { module, code, .. } in files {
        for (at, _) in code.match_indices("use ").filter(|(at, _)| begins_word(code, *at)) {
            let mut paths = Vec::new();
            read_path(code, at + "use ".len(), &[], &mut paths);
            for path in paths {
                let is_child = modules.contains(&join(module, &path.words[..path.words.len().min(1)]));
                let in_child = is_child.then(|| join(module, &path.words));
                if let Some(target) = absolute(module, &path.words).or(in_child) {
                    names.insert((module, path.name.to_owned()), target);
                }
            }
        }
    }
    names
}

/// Returns the module that a path leads to. Follows what a module itself imports, a limited number of times, because
/// imports may form a circle.
fn resolve(mut path: Module, modules: &BTreeSet<&Module>, names: &Names<'_>) -> Module {
    for _ in 0..8 {
        let is_module = |length: &usize| *length == 0 || modules.contains(&path[..*length].to_vec());
        let length = (0..=path.len()).rev().find(is_module).unwrap_or_default();
        let (module, rest) = (path[..length].to_vec(), &path[length..]);
        match rest.first().and_then(|name| names.get(&(&module, name.clone()))) {
            Some(target) if *target != path => path = [target, &rest[1..]].concat(),
            _ => return module,
        }
    }
    path
}

/// Adds the files below a folder. `tests.rs` and the folder `tests` are left out.
fn read_files(root: &Path, folder: &Path, module: &[String], files: &mut Vec<File>) -> Result<()> {
    for path in files::children(folder)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_root = module.is_empty() && (name == "lib" || name == "main");
        let module = [module, &(if is_root { vec![] } else { vec![name.clone()] })].concat();
        if name == "tests" {
            continue;
        } else if path.is_dir() {
            read_files(root, &path, &module, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = files::read_text(&path)?;
            let path = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            files.push(File { path, module, code: code_of(&text) });
        }
    }
    Ok(())
}

/// Returns a text with spaces in place of comments and literals, up to its tests. Lines keep their numbers.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = literal(rest).unwrap_or_default();
        code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
        if length == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    let end = code.find("\n#[cfg(test)]\nmod tests {").unwrap_or(code.len());
    code.truncate(end);
    code
}

/// Returns the length of the comment, string or character that a text begins with, in bytes.
fn literal(text: &str) -> Option<usize> {
    let until = |end: &str, from: usize| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(until("*/", 2));
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.bytes().take_while(|byte| *byte == b'#').count();
        return raw[hashes..].starts_with('"').then(|| until(&format!("\"{}", "#".repeat(hashes)), hashes + 2));
    }
    let mut characters = text.char_indices();
    let (_, quote) = characters.next()?;
    // A lifetime has no second quote.
    let is_lifetime = || !text[1..].starts_with('\\') && text.chars().nth(2) != Some('\'');
    if quote != '"' && (quote != '\'' || is_lifetime()) {
        return None;
    }
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => drop(characters.next()),
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

struct Written<'a> {
    at: usize,
    words: Vec<&'a str>,
    /// The name under which the module uses the path, which `as` may change.
    name: &'a str,
}

/// Finds the paths in a text of code that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<Written<'_>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start).filter(|(at, _)| begins_word(code, *at)) {
            read_path(code, at, &[], &mut found);
        }
    }
    found
}

fn begins_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'))
}

fn word(code: &str, at: usize) -> &str {
    let rest = &code[at..];
    &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())]
}

fn skip(code: &str, at: usize, skipped: &[char]) -> usize {
    code.len() - code[at..].trim_start_matches(|c: char| c.is_whitespace() || skipped.contains(&c)).len()
}

/// Adds the path at a place in the code, or each path of a group in braces. Returns the place after the path or group.
fn read_path<'a>(code: &'a str, start: usize, before: &[&'a str], found: &mut Vec<Written<'a>>) -> usize {
    let start = skip(code, start, &[]);
    let (mut at, mut words) = (start, before.to_vec());
    loop {
        at = skip(code, at, &[]);
        if code[at..].starts_with('{') {
            at = skip(code, at + 1, &[',']);
            while !word(code, at).is_empty() {
                at = skip(code, read_path(code, at, &words, found), &[',']);
            }
            return at + usize::from(code[at..].starts_with('}'));
        }
        match word(code, at) {
            "" => break,
            "self" if !words.is_empty() => at += "self".len(),
            next => {
                words.push(next);
                at += next.len();
            }
        }
        let separator = skip(code, at, &[]);
        if !code[separator..].starts_with("::") {
            break;
        }
        at = separator + 2;
    }
    let mut name = words.last().copied().unwrap_or_default();
    let renamed = skip(code, at, &[]);
    if word(code, renamed) == "as" {
        let new = skip(code, renamed + 2, &[]);
        name = word(code, new);
        at = new + name.len();
    }
    found.push(Written { at: start, words, name });
    at
}

/// Converts a path in a module to a path from the root of the crate. `None` if it begins elsewhere.
fn absolute(module: &[String], words: &[&str]) -> Option<Module> {
    let up = words.iter().take_while(|word| **word == "super").count();
    match *words.first()? {
        "crate" => Some(join(&[], &words[1..])),
        "self" => Some(join(module, &words[1..])),
        "super" => Some(join(&module[..module.len().checked_sub(up)?], &words[up..])),
        _ => None,
    }
}

fn join(module: &[String], words: &[&str]) -> Module {
    module.iter().cloned().chain(words.iter().map(|word| word.to_string())).collect()
}
