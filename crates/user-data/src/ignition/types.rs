//! The keys of a config of specification 3 and the types of their values (Ignition, config/v3_5/schema/ignition.json).
//! Ignition stops at a value of another type, and ignores keys that it does not know.

use serde_json::Value;

use super::judge::{Judged, wrong};

/// What the value of a key is, if it is there and not null.
enum Is {
    Bool,
    Number,
    Text,
    Texts,
    Object(Keys),
    Objects(Keys),
}

type Keys = &'static [(&'static str, Is)];

use Is::{Bool, Number, Object, Objects, Text, Texts};

const RESOURCE: Keys = &[
    ("source", Text),
    ("compression", Text),
    ("httpHeaders", Objects(&[("name", Text), ("value", Text)])),
    ("verification", Object(&[("hash", Text)])),
];
const OWNER: Keys = &[("id", Number), ("name", Text)];
const CONFIG: Keys = &[
    (
        "ignition",
        Object(&[
            ("version", Text),
            ("config", Object(&[("merge", Objects(RESOURCE)), ("replace", Object(RESOURCE))])),
            ("proxy", Object(&[("httpProxy", Text), ("httpsProxy", Text), ("noProxy", Texts)])),
            ("security", Object(&[("tls", Object(&[("certificateAuthorities", Objects(RESOURCE))]))])),
            ("timeouts", Object(&[("httpResponseHeaders", Number), ("httpTotal", Number)])),
        ]),
    ),
    ("kernelArguments", Object(&[("shouldExist", Texts), ("shouldNotExist", Texts)])),
    ("passwd", Object(&[("users", Objects(USER)), ("groups", Objects(GROUP))])),
    (
        "storage",
        Object(&[
            ("disks", Objects(&[("device", Text), ("wipeTable", Bool), ("partitions", Objects(PARTITION))])),
            ("raid", Objects(RAID)),
            ("filesystems", Objects(FILE_SYSTEM)),
            ("files", Objects(FILE)),
            ("directories", Objects(DIRECTORY)),
            ("links", Objects(LINK)),
            ("luks", Objects(LUKS)),
        ]),
    ),
    ("systemd", Object(&[("units", Objects(UNIT))])),
];
const USER: Keys = &[
    ("name", Text),
    ("gecos", Text),
    ("groups", Texts),
    ("homeDir", Text),
    ("noCreateHome", Bool),
    ("noLogInit", Bool),
    ("noUserGroup", Bool),
    ("passwordHash", Text),
    ("primaryGroup", Text),
    ("shell", Text),
    ("shouldExist", Bool),
    ("sshAuthorizedKeys", Texts),
    ("system", Bool),
    ("uid", Number),
];
const GROUP: Keys = &[("name", Text), ("gid", Number), ("passwordHash", Text), ("shouldExist", Bool), ("system", Bool)];
const PARTITION: Keys = &[
    ("guid", Text),
    ("label", Text),
    ("number", Number),
    ("resize", Bool),
    ("shouldExist", Bool),
    ("sizeMiB", Number),
    ("startMiB", Number),
    ("typeGuid", Text),
    ("wipePartitionEntry", Bool),
];
const RAID: Keys = &[("name", Text), ("level", Text), ("devices", Texts), ("options", Texts), ("spares", Number)];
const FILE_SYSTEM: Keys = &[
    ("device", Text),
    ("format", Text),
    ("label", Text),
    ("mountOptions", Texts),
    ("options", Texts),
    ("path", Text),
    ("uuid", Text),
    ("wipeFilesystem", Bool),
];
const FILE: Keys = &[
    ("path", Text),
    ("overwrite", Bool),
    ("user", Object(OWNER)),
    ("group", Object(OWNER)),
    ("mode", Number),
    ("contents", Object(RESOURCE)),
    ("append", Objects(RESOURCE)),
];
const DIRECTORY: Keys =
    &[("path", Text), ("overwrite", Bool), ("user", Object(OWNER)), ("group", Object(OWNER)), ("mode", Number)];
const LINK: Keys = &[
    ("path", Text),
    ("overwrite", Bool),
    ("user", Object(OWNER)),
    ("group", Object(OWNER)),
    ("target", Text),
    ("hard", Bool),
];
const LUKS: Keys = &[
    ("name", Text),
    ("device", Text),
    ("discard", Bool),
    ("keyFile", Object(RESOURCE)),
    ("label", Text),
    ("openOptions", Texts),
    ("options", Texts),
    ("uuid", Text),
    ("wipeVolume", Bool),
    ("cex", Object(&[("enabled", Bool)])),
    (
        "clevis",
        Object(&[
            ("tang", Objects(&[("url", Text), ("thumbprint", Text), ("advertisement", Text)])),
            ("tpm2", Bool),
            ("threshold", Number),
            ("custom", Object(&[("pin", Text), ("config", Text), ("needsNetwork", Bool)])),
        ]),
    ),
];
const UNIT: Keys = &[
    ("name", Text),
    ("enabled", Bool),
    ("mask", Bool),
    ("contents", Text),
    ("dropins", Objects(&[("name", Text), ("contents", Text)])),
];

/// Refuses a value of another type than its key has.
pub(super) fn judge(root: &Value) -> Judged {
    judge_keys(root, CONFIG, "")
}

fn judge_keys(object: &Value, keys: Keys, place: &str) -> Judged {
    for (key, is) in keys {
        let value = &object[*key];
        let place = if place.is_empty() { (*key).to_owned() } else { format!("{place}.{key}") };
        if !value.is_null() {
            judge_value(value, is, &place)?;
        }
    }
    Ok(())
}

fn judge_value(value: &Value, is: &Is, place: &str) -> Judged {
    let needs = |what: &str| wrong(place, format!("needs {what}"));
    match (is, value) {
        (Bool, Value::Bool(_)) | (Text, Value::String(_)) => Ok(()),
        (Number, value) if value.as_i64().is_some() => Ok(()),
        (Texts, Value::Array(items)) if items.iter().all(Value::is_string) => Ok(()),
        (Object(keys), Value::Object(_)) => judge_keys(value, keys, place),
        (Objects(keys), Value::Array(items)) => items.iter().enumerate().try_for_each(|(index, item)| {
            let place = format!("{place}[{index}]");
            if item.is_object() { judge_keys(item, keys, &place) } else { wrong(&place, "is not an object") }
        }),
        (Bool, _) => needs("true or false, without quotes"),
        (Number, _) => needs("a whole number, without quotes"),
        (Text, _) => needs("a text, in quotes"),
        (Texts, _) => needs("a list of texts"),
        (Object(_), _) => wrong(place, "is not an object"),
        (Objects(_), _) => wrong(place, "is not a list"),
    }
}
