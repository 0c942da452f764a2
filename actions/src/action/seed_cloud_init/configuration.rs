//! The configuration of cloud-init in the installed system: judged, and changed so that a seed is taken.

use slipway_user_data::image::{self, ADVICE, File, Image, MARK, Obstacle, Seed};

use crate::error::{Error, TargetError};
use crate::target::layout::Folder;

/// Files and folders of cloud-init, as paths below /etc.
const MAIN: &str = "cloud/cloud.cfg";
const PARTS: &str = "cloud/cloud.cfg.d";
const DS_IDENTIFY: &str = "cloud/ds-identify.cfg";
/// This file keeps cloud-init from running.
const DISABLED: &str = "cloud/cloud-init.disabled";
const UNITS: &str = "systemd/system";
const GENERATORS: &str = "systemd/system-generators";
const GENERATOR: &str = "cloud-init-generator";
/// Units that run cloud-init (systemd/ in its source code).
const SERVICES: &[&str] = &[
    "cloud-init.target",
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-main.service",
    "cloud-init-network.service",
    "cloud-config.target",
    "cloud-config.service",
    "cloud-final.service",
];
/// Target of a link that masks a unit or a generator.
const MASK: &str = "/dev/null";

/// A folder /etc of a system, and its /usr.
#[derive(Debug)]
pub(super) struct Etc {
    pub(super) folder: Folder,
    pub(super) usr: Folder,
    /// Why the folder cannot be written to, if so.
    pub(super) closed: Option<String>,
}

/// What has to change in a folder /etc.
#[derive(Debug, Default)]
pub(super) struct Change {
    remove: Vec<String>,
    write: Option<(String, String)>,
}

/// Plans what has to change for cloud-init to take a seed. Returns warnings too. Fails if no change helps. `disk` is
/// the disk's name in messages.
pub(super) fn plan(etc: &Etc, seed: Seed, boot: &[File], disk: &str) -> Result<(Change, Vec<String>), Error> {
    let folder = &etc.folder;
    let mut image = read(folder, boot)?;
    let before = image.clone();
    let mut change = Change::default();
    if etc.closed.is_none() {
        let (name, text) = image.configure(seed);
        change.write = Some((format!("{PARTS}/{name}"), text));
        let names = folder.root.list(&folder.at(PARTS))?;
        let old = names.into_iter().filter(|other| other.ends_with(MARK) && *other != name);
        change.remove = old.map(|name| format!("{PARTS}/{name}")).collect();
        change.remove.push(DISABLED.to_owned());
        if image.ds_identify != before.ds_identify {
            change.remove.push(DS_IDENTIFY.to_owned());
        }
    }
    let (mut obstacles, mut warnings) = image::judge(&image, seed);
    obstacles.extend(masked(folder));
    if obstacles.is_empty() {
        warnings.extend(replaced(&before, &image));
        warnings.extend(disabled(etc)?);
        return Ok((change, warnings));
    }
    let reasons: Vec<String> = obstacles.iter().map(Obstacle::to_string).collect();
    let closed = etc.closed.iter().map(|reason| format!(", which slipway cannot override, because {reason}"));
    let reason = format!("{}{}; {ADVICE}", reasons.join("; "), closed.collect::<String>());
    Err(TargetError::Seed { disk: disk.to_owned(), reason }.into())
}

impl Change {
    /// Makes the change.
    pub(super) fn make(&self, etc: &Folder) -> Result<(), Error> {
        self.remove.iter().try_for_each(|path| etc.root.remove(&etc.at(path)))?;
        self.write.iter().try_for_each(|(path, text)| etc.root.write(&etc.at(path), text.as_bytes(), 0o644))
    }
}

/// Reads what cloud-init and ds-identify read.
fn read(etc: &Folder, boot: &[File]) -> Result<Image, Error> {
    let file = |path: &str| -> Result<Option<File>, Error> {
        // cloud-init and ds-identify skip everything but regular files.
        let text = if etc.root.is_file(&etc.at(path)) { etc.root.read(&etc.at(path))? } else { None };
        Ok(text.map(|text| File { path: format!("/etc/{path}"), text }))
    };
    let mut parts = Vec::new();
    for name in etc.root.list(&etc.at(PARTS))?.iter().filter(|name| name.ends_with(".cfg")) {
        parts.extend(file(&format!("{PARTS}/{name}"))?);
    }
    Ok(Image {
        main: file(MAIN)?,
        parts,
        ds_identify: file(DS_IDENTIFY)?,
        disabled: etc.root.has(&etc.at(DISABLED)).then(|| format!("/etc/{DISABLED}")),
        boot: boot.to_vec(),
    })
}

/// Returns an obstacle for each masked unit of cloud-init: masked by a link to /dev/null or by an empty file
/// (systemctl(1), "mask").
fn masked(etc: &Folder) -> Vec<Obstacle> {
    let units = SERVICES.iter().map(|name| format!("{UNITS}/{name}"));
    let paths = units.chain([format!("{GENERATORS}/{GENERATOR}")]);
    let is_masked = |path: &String| {
        let path = etc.at(path);
        etc.root.link_at(&path).is_ok_and(|target| target.as_deref() == Some(MASK))
            || etc.root.is_file(&path)
                && etc.root.head(&path, 1).is_ok_and(|head| head.is_some_and(|head| head.is_empty()))
    };
    let obstacle = |path| Obstacle {
        path: format!("/etc/{path}"),
        line: None,
        reason: "masks what runs cloud-init (systemctl unmask takes that back)".to_owned(),
    };
    paths.filter(is_masked).map(obstacle).collect()
}

/// Warns if a configuration of ds-identify is removed.
fn replaced(before: &Image, after: &Image) -> Option<String> {
    let gone = before.ds_identify.as_ref().filter(|_| after.ds_identify.is_none())?;
    Some(format!("removed {} from the installed system, which kept cloud-init from using the seed", gone.path))
}

/// Warns about services that nothing starts: a target should start them, but it has no link to them.
fn disabled(etc: &Etc) -> Result<Option<String>, Error> {
    let usr = &etc.usr;
    let has_link = |folder: &Folder, units: &str, name: &str| -> Result<bool, Error> {
        let wants = folder.root.directories(&folder.at(units))?;
        let wants = wants.iter().filter(|name| name.ends_with(".wants") || name.ends_with(".requires"));
        Ok(wants.into_iter().any(|wants| folder.root.has(&folder.at(&format!("{units}/{wants}/{name}")))))
    };
    let mut off = Vec::new();
    for name in SERVICES.iter().filter(|name| name.ends_with(".service")) {
        let units = "lib/systemd/system";
        let path = usr.at(&format!("{units}/{name}"));
        let unit = if usr.root.is_file(&path) { usr.root.read(&path)? } else { None };
        let is_wanted = unit.is_some_and(|unit| unit.contains("\nWantedBy=") || unit.contains("\nRequiredBy="));
        if is_wanted && !has_link(&etc.folder, UNITS, name)? && !has_link(usr, units, name)? {
            off.push(*name);
        }
    }
    // cloud-init.target is started by a generator, or by a link.
    let target = SERVICES.first().copied().unwrap_or_default();
    let is_there = usr.root.is_file(&usr.at(&format!("lib/systemd/system/{target}")));
    let generators = ["lib/systemd/system-generators", "local/lib/systemd/system-generators"];
    let has_generator = generators.iter().any(|folder| usr.root.has(&usr.at(&format!("{folder}/{GENERATOR}"))))
        || etc.folder.root.has(&etc.folder.at(&format!("{GENERATORS}/{GENERATOR}")));
    let is_wanted = has_link(&etc.folder, UNITS, target)? || has_link(usr, "lib/systemd/system", target)?;
    if is_there && !has_generator && !is_wanted {
        off.push(target);
    }
    let warning = format!("nothing starts {} in the installed system: enable this in the image", off.join(", "));
    Ok((!off.is_empty()).then_some(warning))
}
