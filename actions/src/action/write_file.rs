//! `write-file`: writes one file in the installed system, atomically.

use std::io::{self, Seek, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use slipway_protocol::{NumberOrName, WriteFile, workflow};

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::error::{Error, TargetError};
use crate::fetch::source::Source;
use crate::machine::Machine;
use crate::report::Tell;
use crate::stream::read;
use crate::target::layout::{Folder, Held, Layout};
use crate::target::root::{Attributes, NewFile, TargetRoot, target_file};
use crate::target::{self, Target};
use crate::text;

/// Attributes of a new file.
const NEW: Attributes = Attributes { uid: 0, gid: 0, mode: 0o644 };
const NEW_DIR_MODE: u32 = 0o755;
const USERS: &str = "etc/passwd";
const GROUPS: &str = "etc/group";

pub(crate) fn run(inputs: &WriteFile, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let origin = inputs.origin();
    let source = origin.map(|origin| Source::prepare(&origin, machine, report)).transpose()?;
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let target = target::find(&disk, inputs.partition.as_ref(), report)?;
    let folder = folder(inputs, &disk, &target)?;
    let Folder { root, path, name, kind } = &folder;
    let attributes = attributes(inputs, &target.root, root, path)?;
    let mut warnings = target.warnings.clone();
    if !folder.keeps_owners() && (inputs.owner.is_some() || inputs.group.is_some() || inputs.mode.is_some()) {
        warnings.push(format!("{kind} does not store the owner or mode of a file"));
    }
    machine.cancel().check()?;
    let new = root.begin(path, mode(&inputs.dir_mode).unwrap_or(NEW_DIR_MODE))?;
    let size = match source {
        Some(mut source) => {
            let (size, warning) = fetch(&new, path, &mut source, machine, report)?;
            if !origin.is_some_and(|origin| origin.is_verified()) {
                warnings.push("the file was written without a digest to check it against".to_owned());
            }
            warnings.extend(warning);
            size
        }
        None => {
            let content = content(inputs)?;
            new.file().write_all(&content).map_err(|source| target_file("writing", path, source))?;
            content.len() as u64
        }
    };
    let attributes = folder.keeps_owners().then_some(attributes);
    new.finish(attributes).map_err(|source| target_file("writing", path, source))?;
    root.sync()?;
    let summary = format!("wrote {} to /{path} of {name}", text::size(size));
    Ok(Done::go_on(summary, warnings))
}

/// Finds the file system that holds the path: the selected one, or the one that the installed system mounts there.
fn folder(inputs: &WriteFile, disk: &OpenDisk, target: &Target) -> Result<Folder, Error> {
    let path = inputs.path.trim_start_matches('/').to_owned();
    let held = match inputs.partition {
        Some(_) => Held::Root(path.clone()),
        None => Layout::of(disk, target)?.held(&path)?,
    };
    held.folder(target)?.map_err(|reason| {
        let reason = format!("{reason}, which would hide the file; give partition to write it nevertheless");
        target_file("writing", &path, io::Error::other(reason))
    })
}

/// Fetches the content into a file. Returns its size in bytes, and a warning for the operator.
fn fetch(
    new: &NewFile,
    path: &str,
    source: &mut Source<'_>,
    machine: &dyn Machine,
    report: Tell,
) -> Result<(u64, Option<String>), Error> {
    read::run(source, None, machine, report, &|input| {
        let mut file = new.file();
        let mut copy = || {
            file.rewind()?;
            file.set_len(0)?;
            io::copy(input, &mut file)
        };
        copy().map_err(|source| target_file("writing", path, source))
    })
}

fn content(inputs: &WriteFile) -> Result<Vec<u8>, Error> {
    let Some(encoded) = &inputs.content_base64 else {
        return Ok(inputs.content.as_deref().unwrap_or_default().as_bytes().to_vec());
    };
    let digits: Vec<u8> = encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let refused = |error| Error::Inputs {
        action: "write-file",
        problems: vec![format!("has a content_base64 that is not valid base64: {error}")],
    };
    STANDARD.decode(digits).map_err(refused)
}

/// Returns the attributes of the file to write: from the inputs, else from the existing file, else [`NEW`]. Names are
/// looked up in the root file system `home`.
fn attributes(inputs: &WriteFile, home: &TargetRoot, root: &TargetRoot, path: &str) -> Result<Attributes, Error> {
    let before = root.attributes(path)?.unwrap_or(NEW);
    Ok(Attributes {
        uid: id(inputs.owner.as_ref(), USERS, home)?.unwrap_or(before.uid),
        gid: id(inputs.group.as_ref(), GROUPS, home)?.unwrap_or(before.gid),
        mode: mode(&inputs.mode).unwrap_or(before.mode),
    })
}

fn mode(digits: &Option<String>) -> Option<u32> {
    digits.as_deref().and_then(workflow::file_mode)
}

/// Returns the numeric ID of a user or group, looked up in `file` of the installed system.
fn id(who: Option<&NumberOrName>, file: &'static str, root: &TargetRoot) -> Result<Option<u32>, Error> {
    let name = match who {
        None => return Ok(None),
        Some(NumberOrName::Number(number)) => return Ok(Some(*number)),
        Some(NumberOrName::Name(name)) => name,
    };
    let unknown = |reason| Error::Target(TargetError::Owner { name: name.clone(), file, reason });
    let text = root.read(file)?.ok_or_else(|| unknown("there is no such file"))?;
    number_of(name, &text).map(Some).ok_or_else(|| unknown("there is no such name"))
}

/// Returns the numeric ID in the third field of the line for `name` (passwd(5), group(5)).
fn number_of(name: &str, text: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    let mut line = lines.find_map(|mut fields| (fields.next()? == name).then_some(fields))?;
    line.nth(1)?.parse().ok()
}
