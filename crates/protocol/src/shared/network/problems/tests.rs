use super::*;

/// Checks the problems of a network, given as JSON. Each expected text is a part of one problem.
fn check(json: serde_json::Value, expect: &[&str]) {
    let network: Network = serde_json::from_value(json).expect("a network");
    let found = problems(&network);
    assert_eq!(found.len(), expect.len(), "{found:?}");
    for (found, expect) in found.iter().zip(expect) {
        assert!(found.contains(expect), "{found:?} has no {expect:?}");
    }
}

fn one(rest: serde_json::Value) -> serde_json::Value {
    let mut interface = serde_json::json!({"name": "lan0", "mac": "52:54:00:12:34:56"});
    interface.as_object_mut().expect("a mapping").extend(rest.as_object().expect("a mapping").clone());
    serde_json::json!({"interfaces": [interface]})
}

#[test]
fn a_network_that_makes_sense_has_no_problem() {
    check(
        serde_json::json!({
            "interfaces": [
                {"name": "nic0", "mac": "52-54-00-12-34-56"},
                {"name": "nic1", "mac": "525400123457", "mtu": 9000},
                {"name": "bond0", "bond": {"of": ["nic0", "nic1"], "mode": "802.3ad"}, "dhcp6": true},
                {"name": "bond0.7", "vlan": {"of": "bond0", "id": 7}, "addresses": ["192.0.2.5/24", "2001:db8::5/64"],
                    "gateways": ["192.0.2.1", "fe80::1"]},
            ],
            "nameservers": ["192.0.2.53", "2001:db8::53"],
            "search": ["site.example", "example"],
        }),
        &[],
    );
    check(one(serde_json::json!({"addresses": ["192.0.2.0/31"], "gateways": ["192.0.2.1"]})), &[]);
}

#[test]
fn addresses_are_those_of_machines() {
    let address = |text: &str| one(serde_json::json!({"addresses": [text]}));
    for text in ["192.0.2.5", "192.0.2.5/33", "192.0.2.5/+8", "192.0.2/24", "x/8", "2001:db8::5/129", "192.0.2.5/"] {
        check(address(text), &["write it with its prefix length"]);
    }
    check(address("192.0.2.0/24"), &["the address of the network itself"]);
    check(address("2001:db8::/64"), &["the address of the network itself"]);
    check(address("192.0.2.255/24"), &["the broadcast address"]);
    for text in ["127.0.0.1/8", "0.0.0.0/24", "224.0.0.5/24", "::1/128", "ff02::1/64", "192.0.2.5/0"] {
        check(address(text), &["it cannot be the address of a machine"]);
    }
    let gateway = |text: &str| one(serde_json::json!({"addresses": ["192.0.2.5/24"], "gateways": [text]}));
    check(gateway("198.51.100.1"), &["not in the network of any of the interface's addresses"]);
    check(gateway("2001:db8::1"), &["not in the network of any of the interface's addresses"]);
    check(gateway("fe80::1"), &["not in the network of any of the interface's addresses"]);
    check(one(serde_json::json!({"dhcp4": true, "gateways": ["192.0.2.1"]})), &["any of the interface's addresses"]);
    check(gateway("192.0.2.5"), &["an address of this interface"]);
    check(gateway("192.0.2.0"), &["the first or the last address"]);
    check(gateway("192.0.2.255"), &["the first or the last address"]);
    check(gateway("192.0.2.1/24"), &["it is not the IP address of a host"]);
    let two = serde_json::json!({"addresses": ["192.0.2.5/24"], "gateways": ["192.0.2.1", "192.0.2.2"]});
    check(one(two), &["more than one gateway for IPv4"]);
}

#[test]
fn an_address_is_given_once() {
    let twice = |first: &str, second: &str| one(serde_json::json!({"addresses": [first, second]}));
    check(twice("192.0.2.5/24", "192.0.2.5/25"), &["has the address 192.0.2.5 twice"]);
    check(twice("2001:db8::5/64", "2001:DB8:0::5/64"), &["has the address 2001:db8::5 twice"]);
    check(twice("fe80::5/64", "fe80::5/10"), &["has the address fe80::5 twice"]);
    check(twice("192.0.2.5/24", "192.0.2.6/24"), &[]);
    let two = |first: &str, second: &str, gateways: &[&str]| {
        serde_json::json!({"interfaces": [
            {"name": "a", "mac": "52:54:00:00:00:01", "addresses": [first], "gateways": gateways},
            {"name": "b", "mac": "52:54:00:00:00:02", "addresses": [second]},
        ]})
    };
    check(
        two("192.0.2.5/24", "192.0.2.5/16", &[]),
        &["interface \"b\" has the address 192.0.2.5, which \"a\" also has"],
    );
    check(two("fe80::5/64", "fe80::5/64", &["fe80::5"]), &["an address of this interface"]);
    check(two("fe80::5/64", "fe80::6/64", &["fe80::6"]), &[]);
    check(two("192.0.2.5/24", "192.0.2.6/24", &["192.0.2.6"]), &["it is an address of \"b\""]);
}

#[test]
fn packets_are_large_enough_for_ipv6_and_for_what_carries_them() {
    let mtu = |mtu: u32, rest: serde_json::Value| {
        let mut interface = serde_json::json!({"mtu": mtu});
        interface.as_object_mut().expect("a mapping").extend(rest.as_object().expect("a mapping").clone());
        one(interface)
    };
    check(mtu(1279, serde_json::json!({"addresses": ["2001:db8::5/64"]})), &["which needs 1280"]);
    check(mtu(1279, serde_json::json!({"dhcp6": true})), &["which needs 1280"]);
    check(mtu(1280, serde_json::json!({"dhcp6": true})), &[]);
    check(mtu(1279, serde_json::json!({"addresses": ["192.0.2.5/24"], "dhcp4": true})), &[]);
    let vlan = |below: serde_json::Value, own: serde_json::Value| {
        serde_json::json!({"interfaces": [
            {"name": "a", "mac": "52:54:00:00:00:01", "mtu": below},
            {"name": "a.7", "vlan": {"of": "a", "id": 7}, "dhcp6": true, "mtu": own},
        ]})
    };
    let none = serde_json::Value::Null;
    check(vlan(1000.into(), none.clone()), &["interface \"a.7\" has an mtu of 1000 and an IPv6 address"]);
    check(vlan(none.clone(), 9000.into()), &["but \"a\", which it is a VLAN of, has only 1500: raise that mtu"]);
    check(vlan(9000.into(), 9000.into()), &[]);
    check(vlan(9000.into(), none), &[]);
}

#[test]
fn interfaces_are_known_and_used_once() {
    check(serde_json::json!({"interfaces": []}), &["1 to 256 interfaces"]);
    check(
        one(serde_json::json!({"name": "sixteen-letters-", "mtu": 68})),
        &["is not a valid interface name", "an mtu of 68"],
    );
    check(one(serde_json::json!({"mac": "52:54"})), &["MAC address"]);
    check(one(serde_json::json!({"mac": "01:00:5e:00:00:01"})), &["a multicast MAC address"]);
    for name in ["lo", "007", "bonding_masters", "a b", ""] {
        check(one(serde_json::json!({"name": name})), &["is not a valid interface name"]);
    }
    for id in [0, 4095] {
        let vlan = serde_json::json!([
            {"name": "a", "mac": "52:54:00:00:00:01"},
            {"name": "b", "vlan": {"of": "a", "id": id}},
        ]);
        check(serde_json::json!({"interfaces": vlan}), &["1 to 4094"]);
    }
    check(one(serde_json::json!({"vlan": {"of": "lan0", "id": 0}})), &["exactly one", "1 to 4094", "a VLAN itself"]);
    let with = |more: serde_json::Value| {
        serde_json::json!({"interfaces": [
            {"name": "a", "mac": "52:54:00:00:00:01"}, {"name": "b", "mac": "52:54:00:00:00:02", "dhcp4": true}, more,
        ]})
    };
    check(
        with(serde_json::json!({"name": "a", "mac": "5254.0000.0001"})),
        &["the same name as", "the same MAC address as"],
    );
    let bond = |of: &[&str]| with(serde_json::json!({"name": "c", "bond": {"of": of}}));
    check(bond(&["a"]), &["fewer than two"]);
    check(bond(&["a", "a"]), &["fewer than two"]);
    check(bond(&["a", "b"]), &["give them to the bond"]);
    check(bond(&["a", "x"]), &["there is no such interface"]);
    check(bond(&["a", "c"]), &["\"c\", which has no MAC address"]);
    let vlan = |of: &str| with(serde_json::json!({"name": "c", "vlan": {"of": of, "id": 7}}));
    check(vlan("b"), &[]);
    check(vlan("x"), &["there is no such interface"]);
}

#[test]
fn names_are_looked_up_by_what_can_be_asked() {
    let mut network = one(serde_json::json!({"dhcp4": true}));
    network["nameservers"] = serde_json::json!(["dns.example", "::"]);
    network["search"] = serde_json::json!(["ok.example", "", "a b", "-x"]);
    check(network, &["dns.example", "\"::\"", "\"\"", "\"a b\"", "\"-x\""]);
}
