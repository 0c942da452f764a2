//! Which nodes an operator means.

use slipway_protocol::{NodeState, NodeStatus};

/// What selected nodes have in common. What is empty or `None` does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFilter {
    /// Ids, names or claim codes, or patterns of them: `*` stands for any characters, `?` for one.
    pub names: Vec<String>,
    /// Names of sites.
    pub sites: Vec<String>,
    /// Labels, all of which a node has: a key with a value, or a key with any value.
    pub labels: Vec<(String, Option<String>)>,
    /// States.
    pub states: Vec<NodeState>,
    /// Part of the vendor and model of the machine, in any case.
    pub model: Option<String>,
    /// Only nodes with trouble.
    pub flagged: bool,
}

impl NodeFilter {
    /// Returns whether a node is selected.
    pub fn matches(&self, node: &NodeStatus) -> bool {
        let is_named = self.names.is_empty() || self.names.iter().any(|name| is_called(node, name));
        let is_at = self.sites.is_empty() || node.site.as_ref().is_some_and(|site| self.sites.contains(site));
        let has = |(key, value): &(String, Option<String>)| {
            node.labels.get(key).is_some_and(|found| value.as_ref().is_none_or(|value| value == found))
        };
        let is_in = self.states.is_empty() || self.states.contains(&node.state);
        let is_model = |part: &String| model(node).to_lowercase().contains(&part.to_lowercase());
        let is_flagged = !self.flagged || !node.flags.is_empty();
        is_named
            && is_at
            && is_in
            && is_flagged
            && self.labels.iter().all(has)
            && self.model.as_ref().is_none_or(is_model)
    }
}

/// Returns vendor and model of a node's machine, as far as they are known.
pub fn model(node: &NodeStatus) -> String {
    let Some(system) = node.inventory.as_ref().map(|inventory| &inventory.system) else { return String::new() };
    let words = [system.vendor.as_deref(), system.model.as_deref()];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn is_called(node: &NodeStatus, pattern: &str) -> bool {
    let names = [Some(&node.id), node.name.as_ref(), node.claim_code.as_ref()];
    names.into_iter().flatten().any(|name| is_like(name, pattern))
}

/// Returns whether a word is a pattern, and not a name.
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Returns whether a text fits a pattern with `*` and `?`.
fn is_like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let (mut at, mut place) = (0, 0);
    // Where to go on if what follows the last `*` does not fit: that `*` then stands for one more character.
    let mut last: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(place) {
            Some('*') => {
                last = Some((place + 1, at));
                place += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == text[at] => (at, place) = (at + 1, place + 1),
            _ => match &mut last {
                Some((after, from)) => {
                    *from += 1;
                    (at, place) = (*from, *after);
                }
                None => return false,
            },
        }
    }
    pattern[place..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use slipway_protocol::{Identity, Inventory};

    use super::*;

    #[test]
    fn patterns_stand_for_names() {
        for (text, pattern, expect) in [
            ("web1", "web1", true),
            ("web1", "web", false),
            ("web1", "web*", true),
            ("web1", "*", true),
            ("web1", "w?b1", true),
            ("web1", "web?1", false),
            ("web11", "*1", true),
            ("web-1-a", "web-*-a", true),
            ("web-1-b", "web-*-a", false),
            ("", "*", true),
            ("", "?", false),
        ] {
            assert_eq!(is_like(text, pattern), expect, "{text} {pattern}");
        }
    }

    #[test]
    fn a_node_is_selected_by_all_that_is_asked_for() {
        let mut node = NodeStatus::new("0123".to_owned(), NodeState::Running, Identity::default());
        node.name = Some("web1".to_owned());
        node.site = Some("fra".to_owned());
        node.labels = [("role", "web"), ("rack", "12")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let mut inventory = Inventory::default();
        (inventory.system.vendor, inventory.system.model) = (Some("Dell Inc.".to_owned()), Some("R650".to_owned()));
        node.inventory = Some(inventory);
        let label = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        let all = NodeFilter::default();
        for (filter, expect) in [
            (all.clone(), true),
            (NodeFilter { names: vec!["db*".to_owned(), "web*".to_owned()], ..all.clone() }, true),
            (NodeFilter { names: vec!["db*".to_owned()], ..all.clone() }, false),
            (NodeFilter { sites: vec!["fra".to_owned()], ..all.clone() }, true),
            (NodeFilter { sites: vec!["ams".to_owned()], ..all.clone() }, false),
            (NodeFilter { labels: vec![label("role", Some("web")), label("rack", None)], ..all.clone() }, true),
            (NodeFilter { labels: vec![label("role", Some("db"))], ..all.clone() }, false),
            (NodeFilter { labels: vec![label("owner", None)], ..all.clone() }, false),
            (NodeFilter { states: vec![NodeState::Running], ..all.clone() }, true),
            (NodeFilter { states: vec![NodeState::Failed], ..all.clone() }, false),
            (NodeFilter { model: Some("dell inc. r6".to_owned()), ..all.clone() }, true),
            (NodeFilter { model: Some("HPE".to_owned()), ..all.clone() }, false),
            (NodeFilter { flagged: true, ..all }, false),
        ] {
            assert_eq!(filter.matches(&node), expect, "{filter:?}");
        }
    }
}
