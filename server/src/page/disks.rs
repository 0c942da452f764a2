//! Which disks of a node a run erases.

use maud::{Markup, html};
use slipway_protocol::shared::printable::line;
use slipway_protocol::{Disk, NodeStatus};

use crate::run::foresee::Erased;

/// Returns the disks of a node, as last seen.
pub fn disks_of(node: &NodeStatus) -> &[Disk] {
    node.inventory.as_ref().map(|inventory| inventory.disks.as_slice()).unwrap_or_default()
}

/// Says which disks are erased.
pub fn erases(erased: &Erased<'_>) -> Markup {
    html! {
        @match erased {
            Erased::Unknown => "Erases the disk that the machine chooses: its disks are not known yet.",
            Erased::Path(path) => { "Erases " strong { (line(path)) } ", which the machine has not reported." },
            Erased::None => span.warn {
                "▲ None of its disks, as last seen, fits the hints: the run would fail before it writes."
            },
            Erased::One(disk) => { "Erases " strong { (disk.in_words()) } ", as last seen." },
            Erased::Several(which, disks) => {
                "Erases " (which) ". As last seen:"
                ul { @for disk in disks { li { (disk.in_words()) } } }
            },
        }
    }
}
