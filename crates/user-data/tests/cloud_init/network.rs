//! What cloud-init cannot use of network configurations is refused, and the rest is accepted.

use slipway_user_data::network::check;

use crate::cloud_init;

/// Configurations that are accepted, and what cloud-init makes of them. "passed on" is for netplan alone.
const ACCEPTED: &[(&str, &str)] = &[
    ("version: 2\nethernets:\n  eth0:\n    dhcp4: true\n", "used"),
    ("network:\n  version: 2\n  renderer: networkd\n  ethernets: {eth0: {dhcp4: true}}\n", "used"),
    ("#cloud-config\nnetwork:\n  version: 2\n", "used"),
    ("{\"version\": 2, \"ethernets\": {}}\n", "used"),
    ("version: 2\r\nethernets: {eth0: {addresses: [192.0.2.5/24, '2001:db8::5/64'], gateway4: 192.0.2.1}}\r\n", "used"),
    ("version: 2\nethernets: {a: {addresses: [192.0.2.5], nameservers: {addresses: 192.0.2.1}}}\n", "used"),
    (
        "version: 2\nethernets: {a: {addresses: [192.0.2.5/255.255.255.0], routes: [{to: 0.0.0.0/0, via: \
         192.0.2.1}]}}\n",
        "used",
    ),
    ("version: 2\nethernets: {a: {match: {macaddress: '52:54:00:12:34:56'}, set-name: a, dhcp6: true}}\n", "used"),
    ("version: 2\nethernets: {a: &a {dhcp4: true}, b: *a, c: {<<: *a, dhcp6: true}}\n", "used"),
    (
        "version: 2\nethernets: {a: {}, c: {}}\n\
         bonds: {b: {interfaces: [a, c], parameters: {mode: 802.3ad}, dhcp4: true}}\n",
        "used",
    ),
    (
        "version: 2\nethernets: {a: {}}\nbridges: {b: {interfaces: [a]}}\n\
         vlans: {v: {id: '5', link: b, mtu: 1400}}\n",
        "used",
    ),
    ("version: 2\nethernets: {a: {addresses: [192.0.2.5/24: {label: b}]}}\n", "passed on"),
    ("version: 2\nethernets: {a: {dhcp4: true, routes: [{to: default, via: 192.0.2.1}]}}\n", "passed on"),
    ("version: 2\nbridges: {b: {dhcp4: true}}\n", "passed on"),
    ("version: 2\ntunnels: {t: {mode: gre, local: 192.0.2.5, remote: 192.0.2.6}}\n", "passed on"),
    ("version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: dhcp}]}]\n", "used"),
    (
        "version: 1\nconfig:\n- type: physical\n  name: eth0\n  mac_address: '52:54:00:12:34:56'\n  subnets:\n  - \
         type: static\n    \
         address: 192.0.2.5\n    netmask: 255.255.255.0\n    gateway: 192.0.2.1\n    dns_nameservers: [192.0.2.1]\n    \
         routes:\n    \
         - {network: 198.51.100.0, netmask: 255.255.255.0, gateway: 192.0.2.9, metric: 3}\n\
         - {type: nameserver, address: 192.0.2.1, interface: eth0}\n\
         - {type: route, destination: 203.0.113.0/24, gateway: 192.0.2.1}\n",
        "used",
    ),
    ("version: 1\nconfig: [{type: bond, name: b, bond_interfaces: [c], params: {bond-mode: 1}}]\n", "used"),
    (
        "version: 1\nconfig: [{type: physical, name: a, mac_address: '', subnets: [{type: dhcp, gateway: ''}]}]\n",
        "used",
    ),
    ("version: 1\nconfig: []\n", "used"),
    ("config: disabled\n", "disabled"),
    ("network: {config: disabled}\n", "disabled"),
];

/// Configurations that are refused, the place that is named, and what cloud-init makes of them.
const REFUSED: &[(&str, &str, &str)] = &[
    ("", "1:1", "ignored"),
    ("# later\n", "1:1", "ignored"),
    ("{}\n", "1:1", "ignored"),
    ("version: 2\nethernets: {eth0: {addresses: [192.0.2.5/24]}\n", "2:12", "ignored"),
    ("version: 2\nethernets:\n\teth0:\n", "3:2", "ignored"),
    ("version: 2\nethernets:\n  eth0:\n   dhcp4: true\n  dhcp6: true\n dhcp4: true\n", "6:2", "ignored"),
    ("- type: physical\n", "1:1", "ignored"),
    ("dhcp\n", "1:1", "ignored"),
    ("version: 2\n---\nversion: 2\n", "2:1", "ignored"),
    ("version: 2\nethernets: {a: !vault x}\n", "2:16", "ignored"),
    ("auto lo\niface lo inet loopback\n", "1:1", "ignored"),
    ("network:\n", "1:8", "ignored"),
    ("#cloud-config\npackages: [nginx]\n", "2:1", "failed"),
    ("ethernets: {eth0: {dhcp4: true}}\n", "1:1", "failed"),
    ("version: '2'\nethernets: {}\n", "1:10", "failed"),
    ("version: 3\n", "1:10", "failed"),
    ("version: two\n", "1:10", "failed"),
    ("version:\n", "1:8", "failed"),
    ("version: 1\n", "1:1", "failed"),
    ("version: 1\nethernets: {}\n", "1:1", "failed"),
    ("version: 1\nconfig: {eth0: {}}\n", "2:9", "failed"),
    ("version: 1\nconfig: [{name: eth0}]\n", "2:10", "failed"),
    ("version: 1\nconfig: [eth0]\n", "2:10", "failed"),
    ("version: 1\nconfig: [{type: ethernet, name: eth0}]\n", "2:17", "failed"),
    ("version: 1\nconfig: [{type: vlan, name: v, vlan_id: 5}]\n", "2:10", "failed"),
    ("version: 1\nconfig: [{type: physical, name: a, subnets: [{address: 192.0.2.5}]}]\n", "2:46", "failed"),
    ("version: 1\nconfig: [{type: physical, name: a, subnets: [{type: static}]}]\n", "2:46", "failed"),
    (
        "version: 1\nconfig: [{type: physical, name: a, subnets: [{type: static, address: 192.0.2.5/40}]}]\n",
        "2:70",
        "failed",
    ),
    ("version: 1\nconfig: [{type: nameserver, address: 192.0.2.1, interface: a}]\n", "2:60", "failed"),
    ("version: 1\nconfig: [{type: route, destination: default}]\n", "2:37", "failed"),
    ("version: 2\nethernets:\n", "2:10", "failed"),
    ("version: 2\nethernets: [eth0]\n", "2:12", "failed"),
    ("version: 2\nethernets: {eth0: }\n", "2:13", "failed"),
    ("version: 2\nethernets: {eth0: dhcp}\n", "2:19", "failed"),
    // netplan does not take these either.
    ("version: 2\nethernet: {eth0: {dhcp4: true}}\n", "2:1", "passed on"),
    ("version: 2\nethernets: {a: {addresses: 192.0.2.5/24}}\n", "2:28", "passed on"),
    ("version: 2\nethernets: {a: {addresses: [192.0.2.5/40]}}\n", "2:29", "passed on"),
    ("version: 2\nethernets: {a: {addresses: [host]}}\n", "2:29", "passed on"),
    ("version: 2\nethernets: {a: {nameservers: [192.0.2.1]}}\n", "2:30", "passed on"),
    ("version: 2\nethernets: {a: {dhcp4: true, routes: [{via: 192.0.2.1}]}}\n", "2:39", "passed on"),
    ("version: 2\nethernets: {a: {match: {macaddress: 52:54:00:12:34:56}}}\n", "2:37", "passed on"),
    ("version: 2\nethernets: {a: {addresses: [192.0.2.5/24], gateway4: 192.0.2.1/24}}\n", "2:54", "used"),
    ("version: 2\nvlans: {v: {id: 5}}\n", "2:9", "used"),
    ("version: 2\nethernets: {a: {dhcp4: maybe}}\n", "2:24", "used"),
    ("version: 2\nethernets: {a: {adresses: [192.0.2.5/24]}}\n", "2:17", "used"),
    ("version: 2\nethernets: {a: {mtu: big}}\n", "2:22", "used"),
    ("version: 2\nethernets: {a: {set-name: b}}\n", "2:17", "used"),
    ("version: 2\nvlans: {v: {id: 5, link: a}}\n", "2:26", "used"),
    ("version: 2\nbonds: {b: {dhcp4: true}}\n", "2:9", "passed on"),
    ("version: 2\nrenderer: sysconfig\n", "2:11", "used"),
    ("version: 1\nconfig: [{type: physical, name: [a]}]\n", "2:33", "failed"),
    // cloud-init uses only a part of these.
    ("version: 2\nethernets: {a: {dhcp4: true}}\nethernets: {b: {dhcp4: true}}\n", "3:1", "used"),
    ("network: {version: 2}\nethernets: {a: {dhcp4: true}}\n", "2:1", "used"),
];

#[test]
fn what_cloud_init_cannot_use_is_refused_and_the_rest_is_not() {
    let texts: Vec<&str> =
        ACCEPTED.iter().map(|(text, _)| *text).chain(REFUSED.iter().map(|(text, ..)| *text)).collect();
    let outcomes = cloud_init::network(&texts);
    let mut wrong = Vec::new();
    for ((text, expect), outcome) in ACCEPTED.iter().zip(&outcomes) {
        if let (Ok(()), true) = (check(text), outcome == expect) {
            continue;
        }
        wrong.push(format!("{text:?}: {:?}, cloud-init: {outcome}, not {expect}", check(text)));
    }
    for ((text, place, expect), outcome) in REFUSED.iter().zip(&outcomes[ACCEPTED.len()..]) {
        let found = check(text).map_err(|refusal| format!("{}:{}", refusal.line, refusal.column));
        if found != Err((*place).to_owned()) || !outcome.starts_with(expect) {
            wrong.push(format!("{text:?}: {:?}, not at {place}; cloud-init: {outcome}, not {expect}", check(text)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
