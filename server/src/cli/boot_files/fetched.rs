//! Texts about the boot files that machines fetched.

use slipway_protocol::shared::printable::{self, line};
use slipway_protocol::{BootFetch, NodeStatus};
use slipway_server::base::time::Millis;

use super::super::words::{duration, word};

/// Maximum number of strangers' addresses that are named.
const MOST_NAMED: usize = 3;

/// Describes the newest fetch of a machine that fetched boot files and was not heard from since. Else `None`.
pub fn notice(node: &NodeStatus, now: Millis) -> Option<String> {
    let fetched = node.boot_files_fetched.as_ref()?;
    let newest = fetched.files.last()?;
    let ago = duration(now.saturating_sub(newest.at));
    let names = format!("boot files fetched: {} {ago} ago, by {}", newest.file, word(&newest.way));
    Some(match fetched.silent_since {
        None => format!("{names} from {}", newest.address),
        Some(_) => format!(
            "silent for {ago} after fetching its boot files: the kernel or its network did not come up; look at its \
             console"
        ),
    })
}

/// Lists every boot file that a machine fetched since it was last heard from.
pub fn details(node: &NodeStatus, now: Millis) -> String {
    let Some(fetched) = &node.boot_files_fetched else { return String::new() };
    let mut text = "\nBoot files fetched since it was last heard from:\n".to_owned();
    for BootFetch { at, file, bytes: size, way, address } in &fetched.files {
        let (ago, size) = (duration(now.saturating_sub(*at)), printable::size(*size));
        text += &format!("  {}, {size}, by {} from {address}, {ago} ago\n", line(file), word(way));
    }
    text
}

/// Names the addresses of machines that fetched boot files but did not ask to be let in, newest first.
pub fn strangers(fetches: &[BootFetch], now: Millis) -> String {
    if fetches.is_empty() {
        return String::new();
    }
    let named = fetches.iter().take(MOST_NAMED).map(|fetch| {
        format!("{} ({}, {} ago)", fetch.address, line(&fetch.file), duration(now.saturating_sub(fetch.at)))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = fetches.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("boot files fetched by machines that have not asked to be let in: {named}{more}\n")
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{BootFilesFetched, BootWay, Identity, NodeState};

    use super::*;

    fn fetch(at: Millis, address: &str) -> BootFetch {
        let file = "x86_64/slipway.efi".to_owned();
        BootFetch { at, file, bytes: 20_100_000, way: BootWay::Tftp, address: address.to_owned() }
    }

    #[test]
    fn fetches_are_told_and_then_the_silence_after_them() {
        let mut node = NodeStatus::new("0123".to_owned(), NodeState::Registered, Identity::default());
        assert_eq!((notice(&node, 0), details(&node, 0)), (None, String::new()));
        let files = vec![fetch(40_000, "192.0.2.7")];
        node.boot_files_fetched = Some(BootFilesFetched { files, silent_since: None });
        let said = notice(&node, 60_000);
        assert_eq!(said.as_deref(), Some("boot files fetched: x86_64/slipway.efi 20 s ago, by tftp from 192.0.2.7"));
        let listed = "\nBoot files fetched since it was last heard from:\n  \
                      x86_64/slipway.efi, 19.2 MiB, by tftp from 192.0.2.7, 20 s ago\n";
        assert_eq!(details(&node, 60_000), listed);
        node.boot_files_fetched.as_mut().expect("set above").silent_since = Some(40_000);
        let said = notice(&node, 1_000_000).expect("a notice");
        assert!(said.starts_with("silent for 16 min 0 s after fetching its boot files: "), "{said}");
    }

    #[test]
    fn few_strangers_are_named_and_the_others_counted() {
        assert_eq!(strangers(&[], 0), "");
        let fetches: Vec<_> = (1..=5).map(|host| fetch(1000, &format!("192.0.2.{host}"))).collect();
        let said = strangers(&fetches, 3000);
        assert!(said.contains(": 192.0.2.1 (x86_64/slipway.efi, 2 s ago), 192.0.2.2 ("), "{said}");
        assert!(said.ends_with("192.0.2.3 (x86_64/slipway.efi, 2 s ago), and 2 more\n"), "{said}");
        assert!(!strangers(&fetches[..3], 3000).contains("more"));
    }
}
