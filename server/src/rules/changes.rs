//! What changed between two runs: what is known of each, as names and values, side by side.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use slipway_protocol::shared::printable::size;
use slipway_protocol::{ComparedFact, Disk, Inventory, Nic, RunStatus, Step};

/// Most characters of a value. A longer one is shown by its size and the start of its digest.
const MAX_VALUE: usize = 200;
/// What a step notes when it chose a disk; see `actions/src/disk/choose.rs`.
const CHOSE: &str = "chose ";

/// Names and values, in order.
pub type Named = Vec<(String, String)>;

/// A machine as it was when it fetched a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Version of slipway on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The address that it enrolled from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its hardware.
    #[serde(default)]
    pub inventory: Inventory,
}

/// Stands for a text that may be secret. Equal texts have equal digits. They are too few to tell which of several
/// guesses is right: one of 65,536 texts has them by chance.
pub fn hidden(text: &str) -> String {
    let digest = Sha256::digest(text);
    format!("(hidden, {:02x}{:02x})", digest[0], digest[1])
}

/// Returns the options of steps, each named by its step. Nothing in the steps may be secret.
pub fn settings(steps: &[Step]) -> Named {
    let mut named = Named::new();
    for step in steps {
        let mut add = |option: &str, value: String| named.push((format!("{}: {option}", step.name), value));
        add("action", step.action.name().to_owned());
        if step.retries > 0 {
            add("retries", step.retries.to_string());
        }
        if let Some(timeout) = step.timeout {
            add("timeout", format!("{timeout} s"));
        }
        let action = serde_json::to_value(&step.action).unwrap_or_default();
        let options = action.as_object().and_then(|action| action.values().next()).and_then(Value::as_object);
        for (option, value) in options.into_iter().flatten() {
            let is_empty = matches!(value, Value::Object(fields) if fields.is_empty());
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if !is_empty && !text.is_empty() {
                add(option, shortened(text));
            }
        }
    }
    named
}

fn shortened(text: String) -> String {
    if text.chars().count() <= MAX_VALUE {
        return text;
    }
    let digest = base16ct::lower::encode_string(&Sha256::digest(&text)[..8]);
    format!("{} bytes, sha256:{digest}…", text.len())
}

/// Returns what is known of a run. `is_same_machine` says whether it is compared with a run of the same machine: of
/// others, serial numbers and the like differ anyway.
pub fn facts(
    run: &RunStatus,
    settings: Option<&Named>,
    machine: Option<&MachineFacts>,
    is_same_machine: bool,
) -> Named {
    let mut facts = Facts { named: Named::new(), is_same_machine };
    facts.add("operating system", run.os.as_deref());
    facts.add("image", run.image.as_ref().map(ToString::to_string));
    if let Some(machine) = machine {
        facts.machine(machine);
        let disks = &machine.inventory.disks;
        let written = written(run, disks).iter().map(|disk| facts.disk(disk)).collect::<Vec<_>>();
        facts.add("disk", Some(written.join("; ")).filter(|written| !written.is_empty()));
        facts.hardware(&machine.inventory);
    }
    let own = |name: &str| !is_same_machine && name.ends_with(": hostname");
    facts.named.extend(settings.into_iter().flatten().filter(|(name, _)| !own(name)).cloned());
    facts.named
}

struct Facts {
    named: Named,
    is_same_machine: bool,
}

impl Facts {
    fn add(&mut self, name: impl Into<String>, value: Option<impl Into<String>>) {
        self.named.extend(value.map(|value| (name.into(), value.into())));
    }

    fn machine(&mut self, machine: &MachineFacts) {
        let firmware = &machine.inventory.firmware;
        let words = [firmware.vendor.as_deref(), firmware.version.as_deref()];
        let words = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let on_off = |is_on: bool| if is_on { "on" } else { "off" };
        self.add("slipway", machine.version.as_deref());
        self.add("boot files from", machine.inventory.loaded_from.as_deref());
        self.add("firmware", Some(words).filter(|words| !words.is_empty()));
        self.add("started by", Some(if firmware.uefi { "UEFI" } else { "BIOS" }));
        self.add("Secure Boot", firmware.secure_boot.map(on_off));
        self.add("Setup Mode", firmware.setup_mode.map(on_off));
        self.add("platform key", firmware.platform_key.as_deref());
        self.add("TPM", firmware.tpm.map(|version| format!("version {version}")));
        self.add("address", machine.address.as_deref());
    }

    fn hardware(&mut self, inventory: &Inventory) {
        let system = [inventory.system.vendor.as_deref(), inventory.system.model.as_deref()];
        let system = system.into_iter().flatten().collect::<Vec<_>>().join(" ");
        self.add("model", Some(system).filter(|system| !system.is_empty()));
        let cpu = &inventory.cpu;
        let model = cpu.model.as_deref().unwrap_or("unknown");
        self.add("processor", Some(format!("{model}, {} threads, {}", cpu.threads, cpu.arch)));
        self.add("memory", Some(size(inventory.memory)));
        for disk in &inventory.disks {
            let words = self.disk(disk);
            self.add(format!("disk {}", disk.path), Some(words));
        }
        for nic in &inventory.nics {
            let words = self.nic(nic);
            self.add(format!("network card {}", nic.name), Some(words));
        }
        let unserved = inventory.unserved.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        self.add("without a driver", Some(unserved).filter(|devices| !devices.is_empty()));
    }

    /// Path, model, serial number and size of a disk.
    fn disk(&self, disk: &Disk) -> String {
        let serial = disk.serial.as_ref().filter(|_| self.is_same_machine);
        let words = [Some(disk.path.clone()), disk.model.clone(), serial.map(|serial| format!("serial {serial}"))];
        let write_protected = disk.read_only.then(|| "write-protected".to_owned());
        let words = words.into_iter().chain([Some(size(disk.size)), disk.transport.clone(), write_protected]);
        words.flatten().collect::<Vec<_>>().join(", ")
    }

    fn nic(&self, nic: &Nic) -> String {
        let mac = nic.mac.clone().filter(|_| self.is_same_machine);
        let addresses = Some(nic.addresses.join(" ")).filter(|text| self.is_same_machine && !text.is_empty());
        let link = Some(if nic.carrier { "link" } else { "no link" }.to_owned());
        let speed = nic.speed.map(|speed| format!("{speed} Mbit/s"));
        let driver = nic.driver.as_ref().map(|driver| format!("driver {driver}"));
        [mac, link, speed, driver, addresses].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Returns the disks that the steps of a run chose. One that the inventory lacks has only its path.
fn written(run: &RunStatus, disks: &[Disk]) -> Vec<Disk> {
    let notes = run.steps.iter().flat_map(|step| &step.notes).filter_map(|note| note.strip_prefix(CHOSE));
    let paths = notes.filter_map(|chosen| Some(chosen.split_once(" (")?.0)).collect::<BTreeSet<_>>();
    let known = |path: &str| disks.iter().find(|disk| disk.path == path).cloned();
    paths.into_iter().map(|path| known(path).unwrap_or(Disk { path: path.to_owned(), ..Disk::default() })).collect()
}

/// Puts what is known of two runs side by side, differences first.
pub fn compare(then: &[(String, String)], now: &[(String, String)]) -> Vec<ComparedFact> {
    let find = |facts: &[(String, String)], what: &str| {
        facts.iter().find(|(name, _)| name == what).map(|(_, value)| value.clone())
    };
    let gone = then.iter().filter(|(name, _)| !now.iter().any(|(other, _)| other == name));
    let names = now.iter().chain(gone).map(|(name, _)| name);
    let fact = |what: &String| {
        let (then, now) = (find(then, what), find(now, what));
        ComparedFact { what: what.clone(), differs: then != now, then, now }
    };
    let mut facts: Vec<ComparedFact> = names.map(fact).collect();
    facts.sort_by_key(|fact| !fact.differs);
    facts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(facts: &[(&str, &str)]) -> Named {
        facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn differences_come_first_and_nothing_is_left_out() {
        let check = |then: &[(&str, &str)], now: &[(&str, &str)], expect: &[(&str, Option<&str>, Option<&str>)]| {
            let found = compare(&named(then), &named(now));
            let found: Vec<_> =
                found.iter().map(|fact| (&*fact.what, fact.then.as_deref(), fact.now.as_deref())).collect();
            assert_eq!(found, expect);
        };
        check(&[], &[], &[]);
        check(&[("a", "1")], &[("a", "1")], &[("a", Some("1"), Some("1"))]);
        check(
            &[("a", "1"), ("b", "2"), ("gone", "3")],
            &[("a", "1"), ("new", "4"), ("b", "5")],
            &[
                ("new", None, Some("4")),
                ("b", Some("2"), Some("5")),
                ("gone", Some("3"), None),
                ("a", Some("1"), Some("1")),
            ],
        );
        let differs: Vec<bool> =
            compare(&named(&[("a", "1")]), &named(&[("a", "2")])).iter().map(|f| f.differs).collect();
        assert_eq!(differs, [true]);
    }

    #[test]
    fn settings_are_named_by_their_steps_and_long_ones_are_short() {
        let steps: Vec<Step> = serde_json::from_value(json!([
            { "name": "one", "action": { "kernel-args": { "append": ["quiet"] } }, "retries": 2, "timeout": 60 },
            { "name": "two", "action": { "kernel-args": { "append": ["x".repeat(300)] } } },
        ]))
        .expect("steps");
        let found = settings(&steps);
        let value = |name: &str| found.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        assert_eq!(value("one: action"), Some("kernel-args"));
        assert_eq!((value("one: retries"), value("one: timeout")), (Some("2"), Some("60 s")));
        assert_eq!(value("one: append"), Some("[\"quiet\"]"));
        assert!(value("two: append").expect("the second").starts_with("304 bytes, sha256:"), "{found:?}");
    }

    #[test]
    fn a_hidden_text_says_only_whether_it_is_the_same() {
        assert_eq!(hidden("a"), hidden("a"));
        assert_ne!(hidden("a"), hidden("b"));
        assert_eq!(hidden("password").len(), "(hidden, abcd)".len());
    }
}
