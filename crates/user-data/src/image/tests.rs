use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

/// An image with this cloud.cfg and these files beside it.
fn image(main: &str, parts: &[(&str, &str)]) -> Image {
    let part = |(name, text): &(&str, &str)| file(&format!("{PARTS}/{name}"), text);
    Image {
        main: Some(file("/etc/cloud/cloud.cfg", main)),
        parts: parts.iter().map(part).collect(),
        ..Image::default()
    }
}

fn found(image: &Image, seed: Seed) -> Vec<String> {
    judge(image, seed).0.iter().map(Obstacle::to_string).collect()
}

const ALL: Seed = Seed { has_network: true, has_vendor_data: true, has_phone_home: true, is_partition: true };

#[test]
fn an_image_as_it_is_takes_a_seed_or_says_why_not() {
    let check = |main: &str, parts: &[(&str, &str)], expect: &str| {
        let found = found(&image(main, parts), ALL).join("; ");
        assert!(if expect.is_empty() { found.is_empty() } else { found.contains(expect) }, "{main} {parts:?}: {found}");
    };
    let aws = ("zz-aws.cfg", "datasource_list: [ Ec2, None ]\n");
    check("", &[], "");
    check("users: [default]\n", &[("05.cfg", "a: 1\n")], "");
    check("", &[aws], "/etc/cloud/cloud.cfg.d/zz-aws.cfg (line 1) makes cloud-init use the data source Ec2, None");
    check("datasource_list: [Ec2]\n", &[], "cloud.cfg (line 1) makes cloud-init use the data source Ec2");
    check("datasource_list: [Ec2]\n", &[("a.cfg", "datasource_list: ['NoCloud', \"None\"]")], "");
    check("", &[("99-installer.cfg", "x: 1\ndatasource_list: [None]\n")], "99-installer.cfg (line 2)");
    check("datasource_list: [ None, NoCloud ]\n", &[], "");
    check("datasource_list: [ Azure, Ec2 ]\n", &[], "makes ds-identify disable cloud-init");
    check("datasource_list:\n- Ec2\n", &[], "");
    check("datasource_list: []\n", &[], "");
    check("datasource: {NoCloud: {seedfrom: http://x/}}\n", &[], "take its seed from \"http://x/\"");
    check("datasource:\n  NoCloud:\n    user-data: a\n    meta-data: {}\n", &[], "cloud.cfg (line 3) has user-data");
    check("datasource: {NoCloud: {fs_label: null}}", &[], "another label");
    check("datasource: {NoCloud: {fs_label: CIDATA}}", &[], "");
    check("system_info: {paths: {cloud_dir: /data/cloud}}", &[], "below \"/data/cloud\"");
    check("system_info: {paths: {cloud_dir: /var/lib/cloud/}}", &[], "");
    check("conf_d: /etc/other\n", &[], "read \"/etc/other\" (conf_d)");
    check("allow_userdata: off\n", &[], "ignore user-data");
    check("vendor_data: {enabled: false}\n", &[], "ignore vendor-data");
    check("", &[("99-disable-network-config.cfg", "network: {config: disabled}\n")], "network configuration");
    check("network: {config: disabled}", &[("a.cfg", "network: null\n")], "");
    check("users: [a\n", &[], "/etc/cloud/cloud.cfg (line 1) cannot be read by cloud-init");
    let disabled = Image { disabled: Some("/etc/cloud/cloud-init.disabled".to_owned()), ..Image::default() };
    assert_eq!(found(&disabled, ALL), ["/etc/cloud/cloud-init.disabled keeps cloud-init from running"]);
    let broken = judge(&image("", &[("a.cfg", "a: [\n")]), ALL);
    assert!(broken.0.is_empty() && broken.1[0].starts_with("cloud-init skips /etc/cloud/cloud.cfg.d/a.cfg: line "));
}

#[test]
fn an_image_that_never_reports_is_told() {
    let check = |main: &str, parts: &[(&str, &str)], expect: &str| {
        let (obstacles, warnings) = judge(&image(main, parts), ALL);
        assert!(obstacles.is_empty() && warnings.join("; ") == expect, "{main} {parts:?}: {warnings:?}");
    };
    let will_not = "(cloud_final_modules), so the installed system will not report";
    let modules = "cloud_config_modules: [runcmd]\ncloud_final_modules:\n- package-update-upgrade-install\n";
    check(modules, &[], &format!("/etc/cloud/cloud.cfg (line 2) has no phone_home among its modules {will_not}"));
    for module in ["phone-home", "phone_home", "cc_phone_home", "[phone-home, always]"] {
        check(&format!("{modules}- {module}\n"), &[], "");
    }
    let less = ("z.cfg", "cloud_final_modules: [scripts-user]\n");
    let told = format!("/etc/cloud/cloud.cfg.d/z.cfg (line 1) has no phone_home among its modules {will_not}");
    check(&format!("{modules}- phone-home\n"), &[less], &told);
    check("users: [default]\n", &[], "");
    assert_eq!(judge(&image(modules, &[]), Seed::default()).1, [""; 0]);
}

#[test]
fn one_file_wins_over_the_settings_of_an_image() {
    let check = |main: &str, parts: &[(&str, &str)], di: &str, expect: &str| {
        let mut image = image(main, parts);
        image.ds_identify = Some(file("/etc/cloud/ds-identify.cfg", di)).filter(|file| !file.text.is_empty());
        image.configure(ALL);
        let found = found(&image, ALL).join("; ");
        assert!(if expect.is_empty() { found.is_empty() } else { found.contains(expect) }, "{main} {parts:?}: {found}");
    };
    let all = "datasource_list: [Ec2]\ndatasource: {NoCloud: {seedfrom: a, user-data: a, meta-data: a, fs_label: }}\n\
               allow_userdata: false\nvendor_data: {enabled: no}\nnetwork: {config: disabled}\n\
               system_info: {paths: {cloud_dir: /a}}\n";
    check(all, &[("zz-aws.cfg", all), ("99_slipway.cfg", all)], "policy: disabled\ndatasource: Ec2\n", "");
    check("", &[("~.cfg", all)], "", "/etc/cloud/cloud.cfg.d/~.cfg (line 1)");
    check("conf_d: /a", &[], "", "(conf_d)");
    check("merge_how: dict(replace)+list()\nallow_userdata: false\n", &[], "", "ignore user-data");
    check("merge_how: dict(no_replace,recurse_list)+list(append)\nallow_userdata: false\n", &[], "", "");
    check("", &[], "policy: enabled\n", "");
    let mut plain = image("users: [default]\n", &[]);
    let ours = ("99_slipway.cfg".to_owned(), "datasource_list: [ NoCloud, None ]\n".to_owned());
    assert_eq!(plain.configure(ALL), ours);
}

#[test]
fn ds_identify_obeys_its_own_file_and_the_kernel() {
    let check = |config: &str, boot: &str, expect: &str| {
        let image = Image {
            ds_identify: Some(file("/etc/cloud/ds-identify.cfg", config)),
            boot: vec![file("/boot/grub/grub.cfg", boot)],
            ..Image::default()
        };
        let found = found(&image, ALL).join("; ");
        assert!(if expect.is_empty() { found.is_empty() } else { found.contains(expect) }, "{config} {boot}: {found}");
    };
    check("policy: disabled\n", "", "ds-identify.cfg (line 1) makes ds-identify disable cloud-init");
    check("# policy: disabled\npolicy: enabled\n", "", "");
    check("policy: search,found=first\n", "", "");
    check("\ndatasource: 'Ec2'\n", "", "ds-identify.cfg (line 2) makes cloud-init use the data source Ec2");
    check("datasource: Ec2\npolicy: report\n", "", "");
    check("datasource: Ec2\n", "linux /v ci.ds=NoCloud\n", "");
    let linux = |argument: &str, expect: &str| {
        let expect = if expect.is_empty() { String::new() } else { format!("grub.cfg (line 2) {expect}") };
        check("", &format!("# cloud-init=disabled\n  linux /v root=x {argument} ro\n"), &expect);
    };
    linux("cloud-init=disabled", "gives the kernel cloud-init=disabled");
    linux("cloud-init=enabled", "");
    linux("ds=nocloud", "");
    linux("ds=nocloud-net;", "");
    linux("\"ds=nocloud;s=http://x/\"", "gives the kernel ds=nocloud;s=http://x/");
    linux("ds=nocloud\\;i=x", "gives the kernel ds=nocloud");
    linux("ds=Ec2", "gives the kernel ds=Ec2");
    linux("ci.datasource=Ec2", "makes cloud-init use the data source Ec2");
    linux("ci.di.policy=disabled", "makes ds-identify disable cloud-init");
    linux("network-config=disabled", "gives the kernel network-config=disabled");
    linux("cc:{'datasource_list':['Ec2']}", "gives the kernel cc:");
    let volatile = Image { boot: vec![file("/x", "linux /v systemd.volatile=state\n")], ..Image::default() };
    assert!(found(&volatile, Seed::default())[0].contains("systemd.volatile=state, with which /var is empty"));
    linux("systemd.volatile=yes", "");
    linux("systemd.mask=cloud-init.service", "gives the kernel systemd.mask=");
}

#[test]
fn of_a_boot_text_what_matters_is_kept_with_its_lines() {
    let text = "set timeout=5\n# ds=Ec2\n  linux /v root=x 'cloud-init=disabled' ro\n  linux /w ro ds\ninitrd /i\n";
    let kept = telling(file("/boot/grub/grub.cfg", text)).unwrap();
    assert_eq!(kept.text, "\n# ds=Ec2\n  linux /v root=x 'cloud-init=disabled' ro\n  linux /w ro ds");
    let judged = |file: File| found(&Image { boot: vec![file], ..Image::default() }, ALL);
    assert_eq!(judged(kept), judged(file("/boot/grub/grub.cfg", text)));
    assert_eq!(telling(file("/x", "linux /v root=/dev/sdads=1 quiet\n")), None);
    for argument in ["ds=x", "ds", "cc:{}", "ci.ds=a", "ci.di.policy=a", "systemd.mask=a", "network-config=a"] {
        assert!(is_telling(argument), "{argument}");
    }
}
