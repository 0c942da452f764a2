use super::*;

fn machine() -> Vec<Candidate> {
    let disk = |path: &str, gib: u64| Disk { path: path.to_owned(), size: gib << 30, ..Disk::default() };
    let free = |disk| Candidate { disk, in_use: None, by_name_only: false, boot_medium: None };
    let text = |text: &str| Some(text.to_owned());
    vec![
        free(Disk {
            serial: text("S1"),
            wwn: text("eui.5000C500AB"),
            model: text("Fast"),
            transport: text("nvme"),
            by_path: text("/dev/disk/by-path/pci-0000:01:00.0-nvme-1"),
            ..disk("/dev/nvme0n1", 100)
        }),
        free(Disk {
            serial: text("S2"),
            model: text("ACME Slow 10K"),
            vendor: text("ACME"),
            hctl: text("0:0:0:0"),
            wwn: text("naa.6001405d27e5d898829468b90ce4ef8c"),
            by_path: text("/dev/disk/by-path/pci-0000:02:00.0-scsi-0:0:0:0"),
            transport: text("sas"),
            rotational: true,
            ..disk("/dev/sda", 10)
        }),
        // Shorter than the format in its first digit requires.
        free(Disk {
            model: text("ACME Slow 10K"),
            vendor: text("ACME"),
            wwn: text("naa.6001"),
            ..disk("/dev/sdb", 10)
        }),
        free(Disk { removable: true, serial: text("S3"), ..disk("/dev/sdc", 5) }),
        free(Disk { read_only: true, ..disk("/dev/sdd", 200) }),
        Candidate { in_use: Some("/dev/sde1 is mounted at /".to_owned()), ..free(disk("/dev/sde", 500)) },
        Candidate { by_name_only: true, ..free(disk("/dev/loop0", 900)) },
        Candidate {
            boot_medium: text("its partition 1 has the label SLIPWAY"),
            ..free(Disk { serial: text("S6"), ..disk("/dev/sdf", 300) })
        },
    ]
}

/// Text hints, by key.
fn hints(texts: &[(&str, &str)]) -> DiskHints {
    let mut hints = DiskHints::default();
    for (key, value) in texts {
        let hint = value.parse().ok();
        match *key {
            "device" => hints.device = Some((*value).to_owned()),
            "name" => hints.name = hint,
            "serial" => hints.serial = hint,
            "wwn" => hints.wwn = hint,
            "wwn_with_extension" => hints.wwn_with_extension = hint,
            "wwn_vendor_extension" => hints.wwn_vendor_extension = hint,
            "model" => hints.model = hint,
            "vendor" => hints.vendor = hint,
            "hctl" => hints.hctl = hint,
            "by_path" => hints.by_path = hint,
            "tran" => hints.tran = hint,
            "size" => hints.size = value.parse().ok(),
            "rotational" => hints.rotational = value.parse().ok(),
            key => panic!("{key} is no key"),
        }
    }
    hints
}

fn check(hints: DiskHints, expect: Result<&str, &str>) {
    let machine = machine();
    match (choose(&hints, &machine), expect) {
        (Ok((disk, _)), Ok(path)) => assert_eq!(disk.path, path, "{hints:?}"),
        (Err(found), Err(part)) => assert!(found.contains(part), "{found:?} lacks {part:?}"),
        (found, expect) => panic!("{hints:?} gave {found:?}, expected {expect:?}"),
    }
}

#[test]
fn hints_lead_to_one_disk() {
    check(hints(&[("serial", "S2")]), Ok("/dev/sda"));
    check(hints(&[("device", "/dev/sdb")]), Ok("/dev/sdb"));
    check(hints(&[("device", "/dev/sdc")]), Ok("/dev/sdc"));
    check(hints(&[("device", "/dev/loop0")]), Ok("/dev/loop0"));
    check(hints(&[("model", "Fast")]), Ok("/dev/nvme0n1"));
    check(DiskHints { min_size: Some(50 << 30), ..DiskHints::default() }, Ok("/dev/nvme0n1"));
    for wwn in ["naa.5000c500ab", "0x5000C500AB", "5000c500ab"] {
        check(hints(&[("wwn", wwn)]), Ok("/dev/nvme0n1"));
    }
    check(DiskHints { choose: DiskChoice::Smallest, ..hints(&[]) }, Ok("/dev/sda"));
    check(DiskHints { choose: DiskChoice::Largest, ..hints(&[]) }, Ok("/dev/nvme0n1"));
    check(DiskHints { choose: DiskChoice::Largest, ..hints(&[("vendor", "ACME")]) }, Ok("/dev/sda"));
}

#[test]
fn every_key_of_ironic_is_about_its_fact() {
    for (key, value, path) in [
        ("name", "/dev/sdb", "/dev/sdb"),
        ("name", "/dev/disk/by-path/pci-0000:01:00.0-nvme-1", "/dev/nvme0n1"),
        ("name", "<in> nvme", "/dev/nvme0n1"),
        ("serial", "<or> s9 <or> s1", "/dev/nvme0n1"),
        ("wwn", "0x6001405d27e5d898", "/dev/sda"),
        ("wwn", "<in> 0x6001405D", "/dev/sda"),
        ("wwn", "0x6001405d27e5d898829468b90ce4ef8c", "/dev/sda"),
        ("wwn_with_extension", "0x6001405d27e5d898829468b90ce4ef8c", "/dev/sda"),
        ("wwn_vendor_extension", "0x829468b90ce4ef8c", "/dev/sda"),
        ("hctl", "0:0:0:0", "/dev/sda"),
        ("by_path", "/dev/disk/by-path/pci-0000:02:00.0-scsi-0:0:0:0", "/dev/sda"),
        ("by_path", "pci-0000:02:00.0-scsi-0:0:0:0", "/dev/sda"),
        ("tran", "<or> sata <or> sas", "/dev/sda"),
        ("size", ">= 50", "/dev/nvme0n1"),
        ("size", "100", "/dev/nvme0n1"),
        ("rotational", "true", "/dev/sda"),
    ] {
        check(hints(&[(key, value)]), Ok(path));
    }
    check(hints(&[("vendor", "acme"), ("rotational", "false")]), Ok("/dev/sdb"));
    check(hints(&[("model", "slow 10k")]), Err("there are 2"));
    check(hints(&[("model", "ACME slow 10k")]), Err("there are 2"));
    check(hints(&[("wwn_with_extension", "0x6001405d27e5d898")]), Err("/dev/sda has wwn_with_extension \"naa.6001"));
    check(hints(&[("wwn_vendor_extension", "5000c500ab")]), Err("/dev/nvme0n1 has wwn_vendor_extension none"));
}

#[test]
fn what_is_to_be_skipped_is_never_chosen() {
    let but = |skip: &[DiskHints]| DiskHints { skip: skip.to_vec(), ..DiskHints::default() };
    check(but(&[hints(&[("tran", "nvme")]), hints(&[("serial", "s2")])]), Ok("/dev/sdb"));
    check(
        DiskHints { device: Some("/dev/sda".to_owned()), ..but(&[hints(&[("tran", "sas"), ("vendor", "acme")])]) },
        Err("/dev/sda is to be skipped: it is a disk with vendor acme and tran sas"),
    );
    check(but(&[hints(&[("tran", "sas"), ("vendor", "other")])]), Err("there are 3"));
}

#[test]
fn a_removable_disk_is_taken_only_by_who_names_it() {
    check(hints(&[("serial", "S3")]), Ok("/dev/sdc"));
    check(hints(&[("serial", "<or> S3 <or> S9")]), Ok("/dev/sdc"));
    for (key, value) in [("serial", "<in> 3"), ("size", "5"), ("name", "<in> sdc")] {
        check(hints(&[(key, value)]), Err("/dev/sdc is removable, and is not named"));
    }
}

#[test]
fn a_boot_medium_is_taken_only_by_who_names_it() {
    check(hints(&[("device", "/dev/sdf")]), Ok("/dev/sdf"));
    check(hints(&[("serial", "S6")]), Ok("/dev/sdf"));
    for (key, value) in [("size", "300"), ("name", "/dev/sdf"), ("serial", "<in> 6")] {
        let expect = "/dev/sdf is a boot medium (its partition 1 has the label SLIPWAY), and is not named";
        check(hints(&[(key, value)]), Err(expect));
    }
}

#[test]
fn no_match_says_why_for_each_disk() {
    check(hints(&[("serial", "S9")]), Err("a disk with serial S9 is wanted"));
    check(hints(&[("serial", "S9")]), Err("/dev/sda has serial \"S2\", not \"S9\""));
    check(hints(&[("serial", "S9")]), Err("/dev/sdb has serial none, not \"S9\""));
    check(hints(&[("model", "none")]), Err("/dev/sdc is removable, and is not named"));
    check(hints(&[("serial", "S9")]), Err("/dev/loop0 is not a disk of its own"));
    check(hints(&[("size", "> 100")]), Err("/dev/nvme0n1 has size 100 GiB, not \"> 100\""));
    check(hints(&[("rotational", "true"), ("serial", "S1")]), Err("/dev/nvme0n1 has rotational false, not true"));
    check(hints(&[("device", "/dev/sda1")]), Err("not a whole disk; did you mean /dev/sda?"));
    check(hints(&[("device", "/dev/null")]), Err("/dev/null is not a whole disk; this machine has /dev/nvme0n1"));
    check(hints(&[("device", "/dev/sdd")]), Err("/dev/sdd is write-protected"));
    check(hints(&[("device", "/dev/sde")]), Err("/dev/sde is in use: /dev/sde1 is mounted at /"));
    let large = DiskHints { min_size: Some(300 << 30), ..DiskHints::default() };
    check(large, Err("/dev/sda has 10 GiB, less than 300 GiB"));
    check(hints(&[("serial", "S1"), ("model", "Slow")]), Err("has model \"Fast\""));
    assert_eq!(choose(&hints(&[]), &[]), Err("a disk is wanted, but this machine has no disk".to_owned()));
}

#[test]
fn several_matches_are_an_error_unless_a_rule_is_given() {
    check(DiskHints::default(), Err("there are 3: /dev/nvme0n1 (Fast, serial S1, 100 GiB), /dev/sda"));
    check(hints(&[("vendor", "ACME")]), Err("there are 2"));
    let expect = Err("3 disks are chosen, but this action needs exactly one");
    check(DiskHints { choose: DiskChoice::All, ..hints(&[]) }, expect);
}

#[test]
fn all_that_match_can_be_chosen() {
    let paths = |choose, texts: &[(&str, &str)]| {
        let machine = machine();
        let chosen = choose_all(&DiskHints { choose, ..hints(texts) }, &machine)?;
        Ok::<_, String>(chosen.into_iter().map(|(disk, _)| disk.path.clone()).collect::<Vec<_>>())
    };
    let free = ["/dev/nvme0n1", "/dev/sda", "/dev/sdb"].map(str::to_owned).to_vec();
    assert_eq!(paths(DiskChoice::All, &[]), Ok(free));
    assert_eq!(paths(DiskChoice::All, &[("tran", "nvme")]), Ok(vec!["/dev/nvme0n1".to_owned()]));
    assert_eq!(paths(DiskChoice::Smallest, &[]), Ok(vec!["/dev/sda".to_owned()]));
    assert_eq!(paths(DiskChoice::Only, &[]).map_err(|error| error.contains("there are 3")), Err(true));
    assert_eq!(
        paths(DiskChoice::All, &[("tran", "fc")]).map_err(|error| error.contains("/dev/sda has tran")),
        Err(true)
    );
}

#[test]
fn a_place_names_its_disk_where_nothing_makes_links() {
    let by_path = "/dev/disk/by-path/pci-0000:01:00.0-nvme-1";
    assert_eq!(known_as(by_path, &machine()).as_deref(), Some("/dev/nvme0n1"));
    assert_eq!(known_as("/dev/sda", &machine()).as_deref(), Some("/dev/sda"));
    assert_eq!(known_as("/dev/disk/by-path/pci-0", &machine()), None);
    assert_eq!(known_as(by_path, &[machine(), machine()].concat()), None, "two disks at one place");
}

#[test]
fn several_paths_to_one_disk_are_one_disk_that_is_chosen_by_its_best() {
    let disk = |path: &str, other: Option<&str>| {
        let (other_path_to, wwn) = (other.map(str::to_owned), Some("naa.5000c500a1b2c3d4".to_owned()));
        let hctl = Some(format!("{}:0:0:0", path.len() + usize::from(path.as_bytes()[7])));
        let disk = Disk { path: path.to_owned(), size: 10 << 30, wwn, hctl, other_path_to, ..Disk::default() };
        Candidate { disk, in_use: None, by_name_only: false, boot_medium: None }
    };
    let mut machine =
        vec![disk("/dev/sda", Some("/dev/sdb")), disk("/dev/sdb", None), disk("/dev/sdc", Some("/dev/sdb"))];
    let chosen = |machine: &[Candidate], hints: &DiskHints| {
        choose_all(hints, machine)
            .map(|chosen| chosen.into_iter().map(|(disk, why)| (disk.path.clone(), why)).collect::<Vec<_>>())
    };
    let all = DiskHints { choose: DiskChoice::All, ..DiskHints::default() };
    for hints in [DiskHints::default(), hints(&[("wwn", "naa.5000c500a1b2c3d4")]), all.clone()] {
        let found = chosen(&machine, &hints).expect("one disk");
        let [(path, why)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(path, "/dev/sdb");
        assert!(why.ends_with("this is the only one (/dev/sda, /dev/sdc are other paths to it)"), "{why}");
    }
    // Who names one path gets it.
    let found = chosen(&machine, &hints(&[("device", "/dev/sdc")])).expect("the path that is named");
    let why = "it is named by device (/dev/sda, /dev/sdb are other paths to it)";
    assert_eq!(found, [("/dev/sdc".to_owned(), why.to_owned())]);
    let place = machine[0].disk.hctl.clone().expect("an address");
    assert_eq!(chosen(&machine, &hints(&[("hctl", &place)])).expect("one path")[0].0, "/dev/sda");
    // The best path cannot be written to.
    machine[1].disk.read_only = true;
    assert_eq!(chosen(&machine, &all).expect("another path")[0].0, "/dev/sda");
    machine.push(disk("/dev/sdd", None));
    let refusal = chosen(&machine, &DiskHints::default()).expect_err("two disks");
    assert!(refusal.contains("there are 2: /dev/sda (10 GiB), /dev/sdd (10 GiB)"), "{refusal}");
}
