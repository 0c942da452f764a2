//! Judges a whole run before its first step: when an operator starts it, and when its machine fetches it. The machine
//! judges it once more (`actions::foresee`), with what it alone knows.

use slipway_protocol::workflow::Foreseen;
use slipway_protocol::workflow::foresee::{Need, too_small};
use slipway_protocol::{Digest, Disk, DiskChoice, DiskHints, Step, StreamImage};

use crate::compose::image_at;
use crate::error::Error;
use crate::image::stored;
use crate::store::nodes::Node;
use crate::store::{Connection, Store, images, settings};

/// The first problem that the steps are known to have on this node. `connection` may be in a transaction.
pub async fn foresee(
    store: &Store,
    connection: &mut Connection,
    node: &Node,
    steps: &[Step],
) -> Result<Option<Foreseen>, Error> {
    let images = images::all(connection).await?;
    if let Some(foreseen) = missing(store, connection, &images, steps).await? {
        return Ok(Some(foreseen));
    }
    let Some(inventory) = &node.inventory else { return Ok(None) };
    let raw_size = |step: &StreamImage| {
        let known = || images.iter().find(|image| Some(&image.digest) == image_at(&step.url).as_ref());
        step.raw_size.or_else(|| known()?.raw_size)
    };
    let foreseen = too_small(steps, raw_size, |hints| likely(hints, &inventory.disks));
    let as_reported = |problem| format!("{problem} (disks are as the machine reported them when it last enrolled)");
    Ok(foreseen.map(|foreseen| Foreseen { problem: as_reported(foreseen.problem), ..foreseen }))
}

/// The first file that this server should have for a step, and has not.
async fn missing(
    store: &Store,
    connection: &mut Connection,
    images: &[images::Image],
    steps: &[Step],
) -> Result<Option<Foreseen>, Error> {
    let server = settings::read(connection, settings::SERVER_URL).await?;
    let is_here = |url: &str| server.as_ref().is_some_and(|server| url.starts_with(&format!("{server}/images/")));
    // None: the URL is of somebody else, or all is well.
    let problem = |url: &str| {
        let digest: Digest = image_at(url)?;
        let advice = "add it again (`slipway-server image add FILE`)";
        match images.iter().find(|image| image.digest == digest) {
            Some(image) => {
                let problem = stored::problem(store, image)?.in_words();
                Some(format!("the image {} ({digest}) {problem}; {advice}", image.file_name))
            }
            None if is_here(url) => Some(format!("there is no image {digest} on this server; {advice}")),
            None => None,
        }
    };
    let nowhere = |need: &Need<'_>| {
        let problems: Option<Vec<String>> = need.urls.iter().map(|url| problem(url)).collect();
        problems.and_then(|problems| problems.into_iter().next())
    };
    let of_step = |(step, of): (usize, &Step)| {
        let problem = of.action.needs().iter().find_map(nowhere)?;
        Some(Foreseen { step, problem })
    };
    Ok(steps.iter().enumerate().find_map(of_step))
}

/// The disk that a machine most likely chooses by these hints, of those it reported. If several are possible, the
/// largest: whatever is too large for that is too large for each.
fn likely(hints: &DiskHints, disks: &[Disk]) -> Option<Disk> {
    let is_named = |disk: &Disk| match &hints.device {
        Some(device) => disk.path == *device || disk.by_path.as_ref() == Some(device),
        None => true,
    };
    let may_be = |disk: &&Disk| {
        let is_usable = !disk.read_only && (!disk.removable || hints.names_one_disk());
        is_usable && is_named(disk) && hints.mismatch(disk).is_none()
    };
    let found = || disks.iter().filter(may_be);
    // The medium that the machine started from may look like a disk, and is never chosen.
    let has_medium = || found().any(|disk| disk.transport.as_deref() == Some("usb"));
    let chosen = match hints.choose {
        DiskChoice::Smallest if !has_medium() => found().min_by_key(|disk| disk.size),
        _ => found().max_by_key(|disk| disk.size),
    };
    chosen.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_of_hints_is_known_as_far_as_the_inventory_goes() {
        let disk = |path: &str, size| Disk { path: path.to_owned(), size, ..Disk::default() };
        let usb = Disk { transport: Some("usb".to_owned()), ..disk("/dev/sdc", 1) };
        let card = Disk { removable: true, ..disk("/dev/sdd", 9) };
        let locked = Disk { read_only: true, ..disk("/dev/sde", 8) };
        let serial = Disk { serial: Some("S1".to_owned()), ..disk("/dev/sda", 5) };
        let without_usb = [serial.clone(), disk("/dev/sdb", 7), card, locked];
        let with_usb = [&without_usb[..], &[usb]].concat();
        let hints = |json: &str| serde_json::from_str::<DiskHints>(json).expect(json);
        let table = [
            ("{}", &with_usb[..], Some("/dev/sdb")),
            (r#"{"serial": "S1"}"#, &with_usb, Some("/dev/sda")),
            (r#"{"device": "/dev/sda"}"#, &with_usb, Some("/dev/sda")),
            (r#"{"device": "/dev/md/root"}"#, &with_usb, None),
            (r#"{"choose": "smallest"}"#, &without_usb, Some("/dev/sda")),
            (r#"{"choose": "smallest"}"#, &with_usb, Some("/dev/sdb")),
            (r#"{"serial": "S2"}"#, &with_usb, None),
            ("{}", &[], None),
        ];
        for (text, disks, expect) in table {
            assert_eq!(likely(&hints(text), disks).as_ref().map(|disk| disk.path.as_str()), expect, "{text}");
        }
    }
}
