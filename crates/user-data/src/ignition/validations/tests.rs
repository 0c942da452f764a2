//! What ignition-validate says of configs.

use serde_json::json;

use super::*;
use crate::ignition::types;

#[test]
fn what_ignition_refuses_is_refused() {
    // Each was tried with ignition-validate 2.14.
    for (place, value, expect) in [
        ("ignition.timeouts.httpTotal", json!({"timeouts": {"httpTotal": "a"}}), "needs a whole"),
        ("ignition.config.merge[0]", json!({"config": {"merge": [{"source": "foo"}]}}), "needs a source"),
        ("ignition.config.merge[0]", json!({"config": {"merge": [{}]}}), "needs \"source\""),
        ("ignition.proxy.httpProxy", json!({"proxy": {"httpProxy": "foo"}}), "needs a URL"),
        (
            "ignition.security.tls.certificateAuthorities[1]",
            json!({"security": {"tls": {
                "certificateAuthorities": [{"source": "https://a"}, {"source": "https://a"}],
            }}}),
            "has the source of an earlier entry",
        ),
        (
            "ignition.config.merge[0]",
            json!({"config": {"merge": [{"source": "https://a", "httpHeaders": [{"name": "A"}, {"name": "A"}]}]}}),
            "has the header \"A\" twice",
        ),
        (
            "ignition.config.replace",
            json!({"config": {"replace": {"source": "s3://a/b", "httpHeaders": [{"name": "A", "value": "1"}]}}}),
            "has headers, which only http and https have",
        ),
        ("kernelArguments", json!({"shouldExist": ["a", "a"]}), "has \"a\" twice"),
        ("kernelArguments", json!({"shouldExist": ["a"], "shouldNotExist": ["a"]}), "has \"a\" both"),
        (
            "passwd.users[0].sshAuthorizedKeys",
            json!({"users": [{"name": "c", "sshAuthorizedKeys": "a"}]}),
            "needs a list of texts",
        ),
        ("passwd.users[0]", json!({"users": [{"name": "c", "sshAuthorizedKeys": ["a", "a"]}]}), "has \"a\" twice"),
        ("storage.disks[0]", json!({"disks": [{"device": "sda"}]}), "needs \"device\""),
        (
            "storage.disks[0].partitions[0]",
            json!({"disks": [{"device": "/a", "partitions": [{"sizeMiB": 1}]}]}),
            "needs \"number\"",
        ),
        (
            "storage.disks[0].partitions[1]",
            json!({"disks": [{"device": "/a", "partitions": [{"number": 1}, {"number": 1}]}]}),
            "has the number",
        ),
        (
            "storage.disks[0].partitions[0]",
            json!({"disks": [{"device": "/a", "partitions": [{"number": 1, "label": "a:b"}]}]}),
            "needs a label",
        ),
        (
            "storage.disks[0].partitions[0]",
            json!({"disks": [{"device": "/a", "partitions": [{"number": 1, "typeGuid": "x"}]}]}),
            "needs \"typeGuid\"",
        ),
        (
            "storage.disks[0].partitions[1]",
            json!({"disks": [{"device": "/a", "partitions": [
                {"number": 1, "startMiB": 1, "sizeMiB": 10},
                {"number": 2, "startMiB": 5, "sizeMiB": 10},
            ]}]}),
            "overlaps",
        ),
        (
            "storage.filesystems[0]",
            json!({"filesystems": [{"device": "/a", "format": "zfs"}]}),
            "needs \"format\", one of",
        ),
        ("storage.filesystems[0]", json!({"filesystems": [{"device": "/a", "path": "/a"}]}), "needs \"format\", as"),
        (
            "storage.filesystems[0]",
            json!({"filesystems": [{"device": "/a", "format": "ext4", "label": "12345678901234567"}]}),
            "has a label",
        ),
        ("storage.raid[0]", json!({"raid": [{"name": "a", "level": "raid7", "devices": ["/a"]}]}), "needs \"level\""),
        ("storage.raid[0]", json!({"raid": [{"name": "a", "level": "raid1"}]}), "needs \"devices\""),
        (
            "storage.raid[0]",
            json!({"raid": [{"name": "a", "level": "raid0", "spares": 1, "devices": ["/a"]}]}),
            "has \"spares\"",
        ),
        ("storage.luks[0]", json!({"luks": [{"name": "a/b", "device": "/a"}]}), "needs \"name\""),
        ("storage.luks[0]", json!({"luks": [{"name": "a"}]}), "needs \"device\""),
        ("storage.links[0]", json!({"links": [{"path": "/a"}]}), "needs \"target\""),
        (
            "storage.files[0]",
            json!({"links": [{"path": "/a", "target": "/b"}], "files": [{"path": "/a/c"}]}),
            "is below \"/a\"",
        ),
        ("storage.files[0]", json!({"files": [{"path": "/a", "overwrite": true}]}), "has \"overwrite\""),
        ("storage.files[0].user", json!({"files": [{"path": "/a", "user": {"id": 1, "name": "a"}}]}), "has both"),
        ("systemd.units[0]", json!({"units": [{"name": "a", "enabled": true}]}), "needs a name"),
        ("systemd.units[0].mask", json!({"units": [{"name": "a.service", "mask": "true"}]}), "needs true or false"),
        ("systemd.units[0]", json!({"units": [{"name": "a.service", "contents": "[Unit\n"}]}), "has the heading"),
        (
            "systemd.units[0].dropins[0]",
            json!({"units": [{"name": "a.service", "dropins": [{"name": "a"}]}]}),
            "needs a name",
        ),
        (
            "systemd.units[0].dropins[1]",
            json!({"units": [{"name": "a.service", "dropins": [{"name": "a.conf"}, {"name": "a.conf"}]}]}),
            "has the name",
        ),
    ] {
        let (section, _) = place.split_once('.').unwrap_or((place, ""));
        let (config, expect) = (json!({section: value}), format!("{place} in the config {expect}"));
        let found = types::judge(&config).and_then(|()| judge(&config)).err().map(|refusal| refusal.reason);
        assert!(found.as_ref().is_some_and(|found| found.starts_with(&expect)), "{config}: {found:?}, not {expect:?}");
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
