//! What ignition-validate says of configs.

use serde_json::json;

use super::*;
use crate::ignition::types;

#[test]
fn what_ignition_refuses_is_refused() {
    // Each was tried with ignition-validate 2.14.
    for (section, value, expect) in [
        (
            "ignition",
            json!({"timeouts": {"httpTotal": "a"}}),
            "ignition.timeouts.httpTotal in the config needs a whole",
        ),
        (
            "ignition",
            json!({"config": {"merge": [{"source": "foo"}]}}),
            "ignition.config.merge[0] in the config needs a source",
        ),
        ("ignition", json!({"config": {"merge": [{}]}}), "ignition.config.merge[0] in the config needs \"source\""),
        ("ignition", json!({"proxy": {"httpProxy": "foo"}}), "ignition.proxy.httpProxy in the config needs a URL"),
        (
            "ignition",
            json!({"security": {"tls": {
                "certificateAuthorities": [{"source": "https://a"}, {"source": "https://a"}],
            }}}),
            "ignition.security.tls.certificateAuthorities[1] in the config has a source again",
        ),
        (
            "ignition",
            json!({"config": {"merge": [{"source": "https://a", "httpHeaders": [{"name": "A"}, {"name": "A"}]}]}}),
            "ignition.config.merge[0] in the config has the header \"A\" twice",
        ),
        (
            "ignition",
            json!({"config": {"replace": {"source": "s3://a/b", "httpHeaders": [{"name": "A", "value": "1"}]}}}),
            "ignition.config.replace in the config has headers, which only http and https have",
        ),
        ("kernelArguments", json!({"shouldExist": ["a", "a"]}), "kernelArguments in the config has \"a\" twice"),
        (
            "kernelArguments",
            json!({"shouldExist": ["a"], "shouldNotExist": ["a"]}),
            "kernelArguments in the config has \"a\" both",
        ),
        (
            "passwd",
            json!({"users": [{"name": "c", "sshAuthorizedKeys": "a"}]}),
            "passwd.users[0].sshAuthorizedKeys in the config needs a list of texts",
        ),
        (
            "passwd",
            json!({"users": [{"name": "c", "sshAuthorizedKeys": ["a", "a"]}]}),
            "passwd.users[0] in the config has \"a\" twice",
        ),
        ("storage", json!({"disks": [{"device": "sda"}]}), "storage.disks[0] in the config needs \"device\""),
        (
            "storage",
            json!({"disks": [{"device": "/a", "partitions": [{"sizeMiB": 1}]}]}),
            "storage.disks[0].partitions[0] in the config needs \"number\"",
        ),
        (
            "storage",
            json!({"disks": [{"device": "/a", "partitions": [{"number": 1}, {"number": 1}]}]}),
            "storage.disks[0].partitions[1] in the config has the number",
        ),
        (
            "storage",
            json!({"disks": [{"device": "/a", "partitions": [{"number": 1, "label": "a:b"}]}]}),
            "storage.disks[0].partitions[0] in the config needs a label",
        ),
        (
            "storage",
            json!({"disks": [{"device": "/a", "partitions": [{"number": 1, "typeGuid": "x"}]}]}),
            "storage.disks[0].partitions[0] in the config needs \"typeGuid\"",
        ),
        (
            "storage",
            json!({"disks": [{"device": "/a", "partitions": [
                {"number": 1, "startMiB": 1, "sizeMiB": 10},
                {"number": 2, "startMiB": 5, "sizeMiB": 10},
            ]}]}),
            "storage.disks[0].partitions[1] in the config overlaps",
        ),
        (
            "storage",
            json!({"filesystems": [{"device": "/a", "format": "zfs"}]}),
            "storage.filesystems[0] in the config needs \"format\", one of",
        ),
        (
            "storage",
            json!({"filesystems": [{"device": "/a", "path": "/a"}]}),
            "storage.filesystems[0] in the config needs \"format\", as",
        ),
        (
            "storage",
            json!({"filesystems": [{"device": "/a", "format": "ext4", "label": "12345678901234567"}]}),
            "storage.filesystems[0] in the config has a label",
        ),
        (
            "storage",
            json!({"raid": [{"name": "a", "level": "raid7", "devices": ["/a"]}]}),
            "storage.raid[0] in the config needs \"level\"",
        ),
        (
            "storage",
            json!({"raid": [{"name": "a", "level": "raid1"}]}),
            "storage.raid[0] in the config needs \"devices\"",
        ),
        (
            "storage",
            json!({"raid": [{"name": "a", "level": "raid0", "spares": 1, "devices": ["/a"]}]}),
            "storage.raid[0] in the config has \"spares\"",
        ),
        ("storage", json!({"luks": [{"name": "a/b", "device": "/a"}]}), "storage.luks[0] in the config needs \"name\""),
        ("storage", json!({"luks": [{"name": "a"}]}), "storage.luks[0] in the config needs \"device\""),
        ("storage", json!({"links": [{"path": "/a"}]}), "storage.links[0] in the config needs \"target\""),
        (
            "storage",
            json!({"links": [{"path": "/a", "target": "/b"}], "files": [{"path": "/a/c"}]}),
            "storage.files[0] in the config is below \"/a\"",
        ),
        (
            "storage",
            json!({"files": [{"path": "/a", "overwrite": true}]}),
            "storage.files[0] in the config has \"overwrite\"",
        ),
        (
            "storage",
            json!({"files": [{"path": "/a", "user": {"id": 1, "name": "a"}}]}),
            "storage.files[0].user in the config has both",
        ),
        ("systemd", json!({"units": [{"name": "a", "enabled": true}]}), "systemd.units[0] in the config needs a name"),
        (
            "systemd",
            json!({"units": [{"name": "a.service", "mask": "true"}]}),
            "systemd.units[0].mask in the config needs true or false",
        ),
        (
            "systemd",
            json!({"units": [{"name": "a.service", "contents": "[Unit\n"}]}),
            "systemd.units[0] in the config has the heading",
        ),
        (
            "systemd",
            json!({"units": [{"name": "a.service", "dropins": [{"name": "a"}]}]}),
            "systemd.units[0].dropins[0] in the config needs a name",
        ),
        (
            "systemd",
            json!({"units": [{"name": "a.service", "dropins": [{"name": "a.conf"}, {"name": "a.conf"}]}]}),
            "systemd.units[0].dropins[1] in the config has the name",
        ),
    ] {
        let config = json!({section: value});
        let found = types::judge(&config).and_then(|()| judge(&config)).err().map(|refusal| refusal.reason);
        assert!(found.as_ref().is_some_and(|found| found.starts_with(expect)), "{config}: {found:?}, not {expect:?}");
    }
}

#[test]
fn what_ignition_takes_is_taken() {
    let config = json!({
        "ignition": {
            "version": "3.3.0",
            "config": {"merge": [{"source": "https://a/b"}]},
            "timeouts": {"httpTotal": 5},
        },
        "unknown": 1,
        "storage": {
            "disks": [{"device": "/dev/sda", "partitions": [{"label": "a"}, {"number": 2, "startMiB": 0}]}],
            "filesystems": [{"device": "/dev/sda1", "format": "ext4", "path": "/a"}, {"device": "/dev/sda2"}],
            "raid": [{"name": "a", "level": "raid1", "devices": ["/dev/sda", "/dev/sdb"], "spares": 1}],
            "luks": [{"name": "a", "device": "/dev/sda", "clevis": {"tpm2": true, "threshold": 1}}],
            "links": [{"path": "/a", "target": "/b"}],
            "files": [{"path": "/ab", "overwrite": true, "contents": {"source": "data:,"}, "user": {"id": 1}}],
        },
        "systemd": {"units": [{"name": "a@b.service", "enabled": true, "contents": "[Unit]\nA=[b\n"}]},
    });
    let found = types::judge(&config).and_then(|()| judge(&config));
    assert_eq!(found.map_err(|refusal| refusal.reason), Ok(()));
}
