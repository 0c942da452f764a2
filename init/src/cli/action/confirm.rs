//! Asks before a disk is overwritten, and shows what would be lost.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, Result, bail, ensure};
use slipway_actions::{Candidate, Host, Place};
use slipway_protocol::shared::printable::{self, line};

/// Maximum number of partitions and file systems to list. A partition table may have thousands.
const MOST_PLACES: usize = 16;
/// Length of a GUID in characters. Only partitions of a GPT have one.
const GUID_LEN: usize = 36;

/// Shows the disk and its content, and asks whether `what` may be overwritten. Fails if the answer is no, or if
/// standard input is not a terminal, because nobody can answer then.
pub fn confirm(machine: &Host, path: &str, what: &str) -> Result<()> {
    let found = slipway_actions::named(path, machine)?;
    let content = match slipway_actions::probe(&found.disk.path) {
        Ok(places) => content(&places),
        Err(error) => {
            let reason = format!("{:#}", anyhow::Error::from(error));
            format!("its content cannot be read: {}\n", line(&reason))
        }
    };
    let mut stderr = std::io::stderr();
    write!(stderr, "{}\n{content}", line(&description(found))).context("showing what would be lost")?;
    if !std::io::stdin().is_terminal() {
        bail!(
            "asking whether to overwrite {what}: standard input is not a terminal; give --yes to continue without \
             asking"
        );
    }
    write!(stderr, "everything on {} will be lost; type \"yes\" to continue: ", line(what))
        .context("asking for confirmation")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
    ensure!(answer.trim() == "yes", "{path} was not changed");
    Ok(())
}

fn description(found: Candidate) -> String {
    let disk = found.disk;
    let medium = found.boot_medium.map(|mark| format!("a boot medium ({mark})"));
    let best = disk.other_path_to.map(|best| format!("another path to {best}"));
    let known: String = found.in_use.into_iter().chain(medium).chain(best).map(|what| format!(", {what}")).collect();
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
    let (size, model, serial) = (printable::size(disk.size), or_unknown(disk.model), or_unknown(disk.serial));
    format!("{}: {size}, model {model}, serial {serial}{known}", disk.path)
}

/// Describes the content of a disk in lines of text.
fn content(places: &[Place]) -> String {
    let known: Vec<&Place> = places.iter().filter(|place| place.number > 0 || place.kind.is_some()).collect();
    let partitions: Vec<&&Place> = known.iter().filter(|place| place.number > 0).collect();
    let summary = match partitions.as_slice() {
        [] if known.is_empty() => "no partitions and no known file system".to_owned(),
        [] => "no partitions".to_owned(),
        [first, others @ ..] => {
            let is_gpt = first.partuuid.as_ref().is_some_and(|uuid| uuid.len() == GUID_LEN);
            let (table, plural) = (if is_gpt { "a GPT" } else { "an MBR" }, if others.is_empty() { "" } else { "s" });
            format!("{table} with {} partition{plural}", partitions.len())
        }
    };
    let mut text = format!("on it: {summary}\n");
    known.iter().take(MOST_PLACES).for_each(|place| text.push_str(&place_line(place)));
    if let Some(more) = known.len().checked_sub(MOST_PLACES).filter(|more| *more > 0) {
        text.push_str(&format!("  and {more} more\n"));
    }
    text
}

fn place_line(place: &Place) -> String {
    let number = if place.number > 0 { place.number.to_string() } else { "whole".to_owned() };
    let (size, kind) = (printable::size(place.size), place.kind.unwrap_or("-"));
    // Debug escapes the label, which may contain terminal escape sequences.
    let label = place.label.as_ref().map(|label| format!("{label:?}")).unwrap_or_default();
    format!("{}\n", format!("  {number:>5}  {size:>11}  {kind:<11}  {label}").trim_end())
}

#[cfg(test)]
mod tests {
    use slipway_protocol::Disk;

    use super::*;

    fn place(number: u32, mib: u64, kind: Option<&'static str>, label: Option<&str>, partuuid: Option<&str>) -> Place {
        let [label, partuuid] = [label, partuuid].map(|text| text.map(str::to_owned));
        Place { number, start: 0, size: mib << 20, kind, uuid: None, label, partuuid, partlabel: None }
    }

    #[test]
    fn what_is_on_a_disk_is_listed_and_nothing_a_terminal_would_obey() {
        let check = |places: &[Place], expect: &str| assert_eq!(content(places), expect);
        let nothing = "on it: no partitions and no known file system\n";
        check(&[], nothing);
        check(&[place(0, 64, None, None, None)], nothing);
        let whole = place(0, 64, Some("LVM2_member"), None, None);
        check(&[whole], "on it: no partitions\n  whole       64 MiB  LVM2_member\n");
        let guid = Some("4f68bce3-e8cd-4db1-96e7-fbcaf984b709");
        let esp = place(1, 512, Some("vfat"), Some("EFI"), guid);
        let root = place(2, 1_536_000, Some("ext4"), Some("a\u{1b}[2J\u{202e}\n\"é"), guid);
        let expect = concat!(
            "on it: a GPT with 2 partitions\n",
            "      1      512 MiB  vfat         \"EFI\"\n",
            "      2      1.5 TiB  ext4         \"a\\u{1b}[2J\\u{202e}\\n\\\"é\"\n",
        );
        check(&[esp, root], expect);
        let disc = place(0, 700, Some("iso9660"), Some("LIVE"), None);
        let part = place(2, 4, None, None, Some("1234abcd-02"));
        let expect = concat!(
            "on it: an MBR with 1 partition\n",
            "  whole      700 MiB  iso9660      \"LIVE\"\n",
            "      2        4 MiB  -\n",
        );
        check(&[disc, part], expect);
        // Partitions of an MBR without a signature have no identity.
        check(&[place(5, 1, None, None, None)], "on it: an MBR with 1 partition\n      5        1 MiB  -\n");
    }

    #[test]
    fn of_a_long_table_the_beginning_is_shown() {
        let places: Vec<Place> = (1..=19).map(|number| place(number, 1, None, None, None)).collect();
        let text = content(&places);
        assert_eq!(text.lines().count(), 1 + MOST_PLACES + 1);
        assert!(text.ends_with("     16        1 MiB  -\n  and 3 more\n"), "{text}");
        assert!(!content(places.get(..MOST_PLACES).unwrap_or_default()).contains("more"));
    }

    #[test]
    fn a_disk_is_described_with_what_speaks_against_it() {
        let disk =
            Disk { path: "/dev/sda".to_owned(), size: 3 << 30, model: Some("A 1".to_owned()), ..Disk::default() };
        let in_use = Some("/dev/sda1 is mounted at /srv".to_owned());
        let found =
            Candidate { disk, in_use, by_name_only: false, boot_medium: Some("its label is SLIPWAY".to_owned()) };
        let expect = "/dev/sda: 3 GiB, model A 1, serial unknown, \
                      /dev/sda1 is mounted at /srv, a boot medium (its label is SLIPWAY)";
        assert_eq!(description(found), expect);
    }
}
