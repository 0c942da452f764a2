//! The manual: a book of Markdown pages in `docs/`, checked and built by Zensical. Option tables come from the types.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

mod foreign;

use crate::host::command::{command, run_quietly};
use crate::host::{cache, files, python, workspace};

/// Marker in a page: the option table of a type follows, up to [`END`].
const BEGIN: &str = "<!-- options: ";
const END: &str = "<!-- end of options -->";
/// Types that have a page of their own, and so no table elsewhere.
const ELSEWHERE: &[(&str, &str)] = &[
    ("DiskHints", "[hints](../disk-hints.md)"),
    ("RegistryAuth", "[login](../sources.md#artifacts-in-a-registry)"),
    ("DetachedSignature", "[signature](../sources.md#what-proves-the-file)"),
];

/// Builds the book and returns the folder of its pages. Fails on a broken link, on a page that the book does not list,
/// and on a page that loads something from another host.
pub fn build() -> Result<PathBuf> {
    let root = workspace::root();
    let unlisted = unlisted(&root)?;
    ensure!(unlisted.is_empty(), "mkdocs.yml does not list {}", unlisted.join(", "));
    let zensical = python::environment(python::ZENSICAL)?.join("zensical");
    let mut build = command(zensical, ["build", "--strict", "--clean", "--config-file", "mkdocs.yml"]);
    run_quietly(build.current_dir(&root)).context("building the manual")?;
    let folder = root.join("target/slipway/manual");
    foreign::check(&folder)?;
    Ok(folder)
}

/// Returns the pages that mkdocs.yml does not list, as paths below `docs`.
fn unlisted(root: &Path) -> Result<Vec<String>> {
    let path = root.join("mkdocs.yml");
    let book = files::read_text(&path)?;
    let docs = root.join("docs");
    let names = pages(&docs)?.into_iter().filter_map(|page| Some(page.strip_prefix(&docs).ok()?.display().to_string()));
    Ok(names.filter(|name| !book.lines().any(|line| line.ends_with(&format!(": {name}")))).collect())
}

/// Rewrites the option tables. Returns the changed pages.
pub fn fill_in_options() -> Result<Vec<PathBuf>> {
    let outdated = outdated_pages()?;
    for (page, filled) in &outdated {
        files::write(page, filled)?;
    }
    Ok(outdated.into_iter().map(|(page, _)| page).collect())
}

/// Returns the pages whose option tables do not match the types, each with the text that it should have.
fn outdated_pages() -> Result<Vec<(PathBuf, String)>> {
    let root = workspace::root();
    let openapi: Value = serde_json::from_str(&files::read_text(&root.join("server/openapi.json"))?)?;
    let mut outdated = Vec::new();
    for page in pages(&root.join("docs"))? {
        let text = files::read_text(&page)?;
        let filled = filled(&text, &openapi).with_context(|| format!("filling in {}", page.display()))?;
        if filled != text {
            outdated.push((page, filled));
        }
    }
    Ok(outdated)
}

/// The Markdown pages below a folder.
pub(super) fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = cache::files_below(folder)?.into_iter();
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect())
}

/// Returns the page with up-to-date tables at its markers.
fn filled(page: &str, openapi: &Value) -> Result<String> {
    let mut text = String::new();
    let mut lines = page.split_inclusive('\n');
    while let Some(line) = lines.next() {
        text.push_str(line);
        let Some(name) = line.trim_end().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let rest: String = lines.by_ref().collect();
        // Replaces the old table. After a new marker there is none yet.
        let after = match rest.split_once(END) {
            Some((old, after)) if !old.contains(BEGIN) => after.to_owned(),
            _ => format!("\n{rest}"),
        };
        text.push_str(&format!("\n{}\n{END}", options(name, openapi)?));
        text.push_str(&filled(&after, openapi)?);
        return Ok(text);
    }
    Ok(text)
}

/// Writes the options of a type, followed by those of the types it contains.
fn options(name: &str, openapi: &Value) -> Result<String> {
    let (mut text, mut nested, mut done) =
        (table(name, openapi)?, nested(name, openapi), BTreeSet::from([name.to_owned()]));
    while let Some(next) = nested.pop() {
        if done.insert(next.clone()) {
            text.push_str(&format!("\n`{next}`:\n\n{}", table(&next, openapi)?));
            nested.extend(self::nested(&next, openapi));
        }
    }
    Ok(text)
}

fn schema<'a>(name: &str, openapi: &'a Value) -> &'a Value {
    &openapi["components"]["schemas"][name]
}

/// Finds the types of a type's options that have options themselves.
fn nested(name: &str, openapi: &Value) -> Vec<String> {
    let properties = schema(name, openapi)["properties"].as_object();
    let types = properties.into_iter().flatten().filter_map(|(_, property)| reference(property));
    let is_nested = |name: &String| {
        schema(name, openapi)["properties"].is_object() && ELSEWHERE.iter().all(|(other, _)| other != name)
    };
    let mut types: Vec<String> = types.filter(is_nested).collect();
    types.reverse();
    types
}

/// Returns the type that a property refers to, directly, as the item of a list, or as one of several choices.
fn reference(property: &Value) -> Option<String> {
    let name = |value: &Value| Some(value["$ref"].as_str()?.rsplit('/').next()?.to_owned());
    let choices = property["oneOf"].as_array().into_iter().flatten();
    name(property).or_else(|| name(&property["items"])).or_else(|| choices.into_iter().find_map(name))
}

fn table(name: &str, openapi: &Value) -> Result<String> {
    let schema = schema(name, openapi);
    if schema["type"] == "object" && schema["properties"].is_null() {
        return Ok("There are no options.\n".to_owned());
    }
    let Some(properties) = schema["properties"].as_object() else {
        bail!("{name} is not a type with options; see server/openapi.json");
    };
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut text = "| option | type | meaning |\n|---|---|---|\n".to_owned();
    // Required options first.
    let (must, may): (Vec<_>, Vec<_>) = properties.iter().partition(|(option, _)| required.contains(&option.as_str()));
    for (is_required, (option, property)) in
        must.into_iter().map(|one| (true, one)).chain(may.into_iter().map(|one| (false, one)))
    {
        let choices = property["oneOf"].as_array().into_iter().flatten();
        let described = property["description"]
            .as_str()
            .or_else(|| choices.into_iter().find_map(|one| one["description"].as_str()));
        let mut meaning = described.unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        if is_required {
            meaning.push_str(" **Required.**");
        }
        if let Some(default) = property.get("default").filter(|default| !default.is_null()) {
            meaning.push_str(&format!(" Default: `{}`.", default.to_string().trim_matches('"')));
        }
        text.push_str(&format!("| `{option}` | {} | {meaning} |\n", kind(property, openapi)));
    }
    Ok(text)
}

/// Describes a property's type for the table.
fn kind(property: &Value, openapi: &Value) -> String {
    if property["type"] == "array" {
        return format!("list of {}", kind(&property["items"], openapi));
    }
    if let Some(name) = reference(property) {
        let schema = schema(&name, openapi);
        let values: Vec<String> = schema["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|value| Some(format!("`{}`", value.as_str()?)))
            .collect();
        let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|(_, link)| (*link).to_owned());
        return match (elsewhere, values.is_empty(), schema["properties"].is_object()) {
            (Some(link), ..) => link,
            (None, false, _) => values.join(", "),
            (None, true, true) => format!("`{name}`"),
            (None, true, false) => kind(schema, openapi),
        };
    }
    let choices: Vec<String> = property["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| kind(one, openapi))
        .filter(|kind| kind != "null")
        .collect();
    if !choices.is_empty() {
        return choices.join(" or ");
    }
    let types = property["type"].as_array().map_or(vec![&property["type"]], |types| types.iter().collect());
    let named = types.iter().filter_map(|kind| kind.as_str()).filter(|kind| *kind != "null").map(|kind| match kind {
        "integer" => "number",
        "boolean" => "true or false",
        "object" => "keys and values",
        "string" => "text",
        other => other,
    });
    named.collect::<Vec<&str>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_tables_of_options_are_those_of_the_types() -> Result<()> {
        let outdated: Vec<PathBuf> = outdated_pages()?.into_iter().map(|(page, _)| page).collect();
        assert!(outdated.is_empty(), "run `cargo xtask manual`, which renews the tables of {outdated:?}");
        Ok(())
    }

    #[test]
    fn a_page_that_the_book_does_not_list_is_found() -> Result<()> {
        assert_eq!(unlisted(&workspace::root())?, [""; 0]);
        let folder = tempfile::tempdir()?;
        fs::create_dir_all(folder.path().join("docs/a"))?;
        fs::write(folder.path().join("mkdocs.yml"), "nav:\n- A: a/index.md\n- B: b.md\n")?;
        for name in ["a/index.md", "b.md", "index.md"] {
            fs::write(folder.path().join("docs").join(name), "")?;
        }
        assert_eq!(unlisted(folder.path())?, ["index.md"]);
        Ok(())
    }

    #[test]
    fn a_marker_is_followed_by_a_table_that_replaces_the_old_one() -> Result<()> {
        let openapi = serde_json::json!({ "components": { "schemas": {
            "A": { "properties": {
                "mode": { "$ref": "#/components/schemas/Mode", "description": "How." },
                "inner": { "oneOf": [
                    { "$ref": "#/components/schemas/B", "description": "More\nof it." },
                    { "type": "null" },
                ] },
                "name": { "type": "string", "description": "a|b" },
            }, "required": ["name"] },
            "B": { "properties": { "n": { "type": ["integer", "null"], "default": 3, "description": "Number." } } },
            "Mode": { "enum": ["x", "y"], "type": "string" },
        } } });
        let expect = "# A\n<!-- options: A -->\n\n| option | type | meaning |\n|---|---|---|\n\
                      | `name` | text | a\\|b **Required.** |\n| `inner` | `B` | More of it. |\n\
                      | `mode` | `x`, `y` | How. |\n\
                      \n`B`:\n\n| option | type | meaning |\n|---|---|---|\n| `n` | number | Number. Default: `3`. |\n\
                      \n\
                      <!-- end of options -->\nafter\n";
        let first = filled("# A\n<!-- options: A -->\nafter\n", &openapi)?;
        assert_eq!(first, expect);
        assert_eq!(filled(&first, &openapi)?, expect);
        assert!(filled("<!-- options: Mode -->\n", &openapi).is_err());
        Ok(())
    }
}
