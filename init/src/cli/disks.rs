//! `slipway disks`: lists the disks, and shows which of them the given hints select. Only reads.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use slipway_actions::{Host, HostOptions, Verdict};
use slipway_protocol::DiskHints;
use slipway_protocol::shared::given::{self, Rule};
use slipway_protocol::shared::printable::{line, size};

#[derive(Args)]
pub struct DisksArguments {
    /// Hint as in a workflow, such as serial=S1 or "size=>= 100"; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    hint: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the disks. The exit status is 0, unless hints are given and an action with them would find no disk.
pub fn run(arguments: DisksArguments) -> Result<ExitCode> {
    let hints = hints(&arguments.hint)?;
    let machine = Host::new(HostOptions::default());
    let (verdicts, refusal) = slipway_actions::survey(&hints, &machine)?;
    let has_hints = !arguments.hint.is_empty();
    match arguments.json {
        true => super::print_json(&format!("{:#}", as_json(&verdicts, has_hints)))?,
        false => super::print(&table(&verdicts, has_hints))?,
    }
    match refusal.filter(|_| has_hints) {
        Some(refusal) => Err(refusal.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Parses hints from `KEY=VALUE`. Numbers, booleans and lists are written as in JSON.
fn hints(given: &[String]) -> Result<DiskHints> {
    let read = |hints: Map<String, Value>| given::read::<DiskHints, _>(Rule::Settings, Value::from(hints));
    let mut all = Map::new();
    for text in given {
        let (key, value) =
            text.split_once('=').with_context(|| format!("reading --hint {text:?}: expected KEY=VALUE"))?;
        let needed = match key {
            "min_size" => Some("a whole number of bytes"),
            "rotational" => Some("true or false"),
            "skip" => Some("a list of hints in JSON, such as [{\"tran\": \"usb\"}]"),
            _ => None,
        };
        let value = match needed {
            Some(needed) => serde_json::from_str(value)
                .ok()
                .with_context(|| format!("reading --hint {text:?}: {key} needs {needed}"))?,
            None => Value::from(value),
        };
        read(Map::from_iter([(key.to_owned(), value.clone())])).with_context(|| format!("reading --hint {text:?}"))?;
        if all.insert(key.to_owned(), value).is_some() {
            bail!("reading --hint {text:?}: {key} is given twice; use \"<or> a <or> b\" for several values");
        }
    }
    let hints = read(all).context("reading the hints")?;
    match hints.validate(true).as_slice() {
        [] => Ok(hints),
        problems => bail!("the hint {}", problems.join("; ")),
    }
}

fn as_json(verdicts: &[Verdict], has_hints: bool) -> Value {
    let verdicts = verdicts.iter().map(|verdict| {
        let disk = json!({ "disk": verdict.disk, "obstacle": verdict.obstacle });
        let hinted = json!({ "objection": verdict.objection, "chosen": verdict.chosen });
        match (disk, hinted) {
            (Value::Object(disk), Value::Object(hinted)) if has_hints => disk.into_iter().chain(hinted).collect(),
            (disk, _) => disk,
        }
    });
    verdicts.collect()
}

fn table(verdicts: &[Verdict], has_hints: bool) -> String {
    let mut titles = vec!["PATH", "SIZE", "MODEL", "SERIAL", "WWN", "TRAN", "ROTA", "BLOCK", "STATE"];
    if has_hints {
        titles.push("MATCH");
    }
    let mut rows = vec![titles.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(verdicts.iter().map(|verdict| row(verdict, has_hints)));
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let as_line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(as_line).collect()
}

fn row(verdict: &Verdict, has_hints: bool) -> Vec<String> {
    let disk = &verdict.disk;
    let known = |text: &Option<String>| text.as_deref().map_or("-".into(), line).into_owned();
    let state = match (&verdict.obstacle, &disk.other_path_to) {
        (Some(obstacle), _) => obstacle.clone(),
        (None, Some(best)) => format!("free, another path to {best}"),
        (None, None) if disk.removable => "free, removable".to_owned(),
        (None, None) => "free".to_owned(),
    };
    let matched = match &verdict.objection {
        None if verdict.chosen => "chosen".to_owned(),
        None => "yes".to_owned(),
        // The state column already says why.
        objection if *objection == verdict.obstacle => "no".to_owned(),
        Some(objection) => format!("no: {objection}"),
    };
    let mut cells = vec![
        line(&disk.path).into_owned(),
        size(disk.size),
        known(&disk.model),
        known(&disk.serial),
        known(&disk.wwn),
        known(&disk.transport),
        if disk.rotational { "yes" } else { "no" }.to_owned(),
        disk.logical_block.to_string(),
        line(&state).into_owned(),
    ];
    if has_hints {
        cells.push(line(&matched).into_owned());
    }
    cells
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Disk;

    use super::*;

    fn verdicts() -> Vec<Verdict> {
        let free = |path: &str| Verdict {
            disk: Disk { path: path.to_owned(), size: 10 << 30, logical_block: 512, ..Disk::default() },
            obstacle: None,
            objection: None,
            chosen: false,
        };
        let used = "is in use: slipway booted from it".to_owned();
        let odd = free("/dev/sdc");
        vec![
            Verdict { chosen: true, ..free("/dev/nvme0n1") },
            Verdict { obstacle: Some(used.clone()), objection: Some(used), ..free("/dev/sda") },
            Verdict { objection: Some("has serial none, not \"S1\"".to_owned()), ..free("/dev/sdb") },
            Verdict {
                disk: Disk {
                    model: Some("A\u{1b}[2Jé\n".to_owned()),
                    transport: Some("usb".to_owned()),
                    removable: true,
                    rotational: true,
                    ..odd.disk
                },
                ..odd
            },
        ]
    }

    #[test]
    fn the_table_is_aligned_and_shows_nothing_a_terminal_would_obey() {
        let expect = "\
PATH          SIZE    MODEL          SERIAL  WWN  TRAN  ROTA  BLOCK  STATE                              MATCH
/dev/nvme0n1  10 GiB  -              -       -    -     no    512    free                               chosen
/dev/sda      10 GiB  -              -       -    -     no    512    is in use: slipway booted from it  no
/dev/sdb      10 GiB  -              -       -    -     no    512    free                               no: has \
serial none, not \"S1\"
/dev/sdc      10 GiB  A\\u{1b}[2Jé\\n  -       -    usb   yes   512    free, removable                    yes
";
        assert_eq!(table(&verdicts(), true), expect);
        assert!(table(&verdicts(), false).lines().all(|line| !line.contains("chosen") && !line.contains("MATCH")));
    }

    #[test]
    fn json_tells_of_the_match_only_where_hints_were_given() {
        let with = as_json(&verdicts(), true);
        assert_eq!((&with[0]["chosen"], &with[1]["obstacle"]), (&json!(true), &with[1]["objection"]));
        assert_eq!(with[3]["disk"]["transport"], "usb");
        assert!(as_json(&verdicts(), false)[0].get("chosen").is_none());
    }

    #[test]
    fn hints_are_read_as_in_a_workflow() {
        let read = |given: &[&str]| hints(&given.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let found = read(&["size=>= 100", "serial=s== a=b", "rotational=false", "choose=largest"]).expect("hints");
        assert_eq!(found.size.map(|size| size.to_string()).as_deref(), Some(">= 100"));
        assert_eq!(found.serial.map(|serial| serial.to_string()).as_deref(), Some("s== a=b"));
        assert_eq!(found.rotational, Some(false));
        assert_eq!(read(&["skip=[{\"tran\": \"usb\"}]"]).expect("hints").skip.len(), 1);
        for (given, part) in [
            (&["serial"][..], "expected KEY=VALUE"),
            (&["colour=red"], "unknown field `colour`, expected one of `device`"),
            (&["rotational=maybe"], "reading --hint \"rotational=maybe\""),
            (&["size=>> 5"], "\">>\", which is not an operator"),
            (&["serial=a", "serial=b"], "is given twice"),
            (&["skip=[{}]"], "skips every disk"),
            (&["serial="], "reading --hint \"serial=\": serial has no value"),
            (&["device= "], "device has no value"),
            (&["rotational=null"], "rotational has no value"),
            (&["skip=[]"], "skip has no value"),
            (&["serial={{ serial }}"], "a variable of a template that was not filled in"),
        ] {
            let error = format!("{:#}", read(given).expect_err("no hints"));
            assert!(error.contains(part), "{error}");
        }
    }
}
