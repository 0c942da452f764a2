//! `slipway probe`: shows what is on a disk, as `KEY="value"` lines like blkid's, or as JSON.

use std::fs::File;
use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use slipway_actions::Place;
use slipway_formats::image::{Format, check_raw};

/// Number of bytes to read from a disk to recognise a format.
const HEAD: u64 = 4096;

#[derive(Args)]
pub struct ProbeArguments {
    /// Disk, partition or image file
    path: String,
    /// Print each file system or partition as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Prints everything that is found, including partitions with unknown content. Only a failure to read is an error.
pub fn run(arguments: &ProbeArguments) -> Result<ExitCode> {
    let places = slipway_actions::probe(&arguments.path)?;
    for place in &places {
        match arguments.json {
            true => super::print_json(&json_line(&arguments.path, place))?,
            false => super::print(&format!("{}\n", text_line(&arguments.path, place)))?,
        }
    }
    if let [Place { number: 0, kind: None, .. }] = places.as_slice() {
        super::print_stderr(&format!("{}: {}", arguments.path, instead(&head(&arguments.path)?)));
    }
    if let Some(reason) = slipway_actions::table_fault(&arguments.path)? {
        let found = if places.iter().any(|place| place.number > 0) { "these partitions" } else { "its partitions" };
        super::print_stderr(&format!(
            "{}: the partition table is damaged, so Linux and firmware may not find {found}: {reason}",
            arguments.path
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the first bytes of a disk, from which the format is recognised.
fn head(path: &str) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let file = File::open(path).with_context(|| format!("opening {path}"))?;
    file.take(HEAD).read_to_end(&mut head).with_context(|| format!("reading {path}"))?;
    Ok(head)
}

/// Describes content that is neither a partition table nor a known file system.
fn instead(head: &[u8]) -> String {
    match Format::of(head) {
        Ok(Format::Raw) => match check_raw(head) {
            Ok(()) => "no partition table, and no file system that slipway knows".to_owned(),
            Err(found) => format!("it is {found}"),
        },
        Ok(format) => format!("it is {} data; slipway does not look inside", format.name()),
        Err(found) => format!("it is {found}"),
    }
}

fn json_line(path: &str, place: &Place) -> String {
    json!({
        "device": path,
        "number": place.number,
        "start": place.start,
        "size": place.size,
        "type": place.kind,
        "uuid": place.uuid,
        "label": place.label,
        "partuuid": place.partuuid,
        "partlabel": place.partlabel,
    })
    .to_string()
}

fn text_line(path: &str, place: &Place) -> String {
    let mut line = match place.number {
        0 => format!("{path}:"),
        number => format!("{path} {number}:"),
    };
    line.push_str(&format!(" START=\"{}\" SIZE=\"{}\"", place.start, place.size));
    let texts = [
        ("TYPE", place.kind),
        ("UUID", place.uuid.as_deref()),
        ("LABEL", place.label.as_deref()),
        ("PARTUUID", place.partuuid.as_deref()),
        ("PARTLABEL", place.partlabel.as_deref()),
    ];
    for (key, value) in texts {
        // Escaped, because values from a disk may contain terminal escape sequences.
        let value = value.map(|value| format!(" {key}=\"{}\"", value.escape_debug()));
        line.push_str(&value.unwrap_or_default());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_there_is_and_no_control_characters() {
        let mut place = Place {
            number: 0,
            start: 0,
            size: 4096,
            kind: None,
            uuid: None,
            label: None,
            partuuid: None,
            partlabel: None,
        };
        assert_eq!(text_line("disk", &place), "disk: START=\"0\" SIZE=\"4096\"");
        place.number = 2;
        place.kind = Some("ext4");
        place.label = Some("a \"b\"\u{1b}[2J".to_owned());
        place.partuuid = Some("1234abcd-02".to_owned());
        let expect = r#"disk 2: START="0" SIZE="4096" TYPE="ext4" LABEL="a \"b\"\u{1b}[2J" PARTUUID="1234abcd-02""#;
        assert_eq!(text_line("disk", &place), expect);
        let json: serde_json::Value = serde_json::from_str(&json_line("disk", &place)).unwrap_or_default();
        let fields = [&json["number"], &json["type"], &json["label"], &json["uuid"]];
        assert_eq!(fields, [&json!(2), &json!("ext4"), &json!("a \"b\"\u{1b}[2J"), &json!(null)]);
    }
}
