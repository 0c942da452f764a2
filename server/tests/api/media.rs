//! Boot files, and the keys they are signed with.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use base16ct::lower::encode_string as hex;
use slipway_media::Manifest;
use slipway_parts::{About, Arch, Parts};
use slipway_secure_boot::lists::{self, Content};
use slipway_secure_boot::{Certificate, KeySize, SigningKey, authenticode};
use time::{Duration, OffsetDateTime};

use crate::image::stub;
use crate::program::{command, fail, made, started, succeed};

/// A folder of parts. Another seed gives another kernel.
pub fn write_parts(folder: &Path, arch: Arch, seed: u8) {
    let about = About::new(arch, "generic", "6.1.0-1-amd64", 1_767_225_600, Vec::new());
    let parts = Parts::new(about, vec![seed; 3000], vec![seed; 5000], stub());
    let folder = folder.join(format!("{}-generic", arch.name()));
    fs::create_dir_all(&folder).unwrap();
    for (name, content) in parts.files() {
        fs::write(folder.join(name), content).unwrap();
    }
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        made(&bench.data());
        write_parts(&bench.path("parts"), Arch::X86_64, 1);
        bench
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn data(&self) -> std::path::PathBuf {
        self.path("data")
    }

    fn arguments<'a>(&self, paths: &'a [String; 2], more: &[&'a str]) -> Vec<&'a str> {
        [&["media", "build", "--parts", &paths[0], "--out", &paths[1]], more].concat()
    }

    fn paths(&self) -> [String; 2] {
        ["parts", "boot"].map(|name| self.path(name).to_str().unwrap().to_owned())
    }

    fn build(&self, more: &[&str]) -> Manifest {
        let paths = self.paths();
        let said = succeed(&self.data(), &[&self.arguments(&paths, more)[..], &["--json"]].concat());
        serde_json::from_str(&said).unwrap()
    }

    fn refused(&self, more: &[&str]) -> String {
        let paths = self.paths();
        fail(&self.data(), &self.arguments(&paths, more))
    }

    fn program(&self) -> Vec<u8> {
        fs::read(self.path("boot/x86_64/slipway.efi")).unwrap()
    }
}

#[test]
fn builds_are_recorded_until_an_operator_forgets_them() {
    let bench = Bench::new();
    let list = |bench: &Bench| -> serde_json::Value {
        serde_json::from_str(&succeed(&bench.data(), &["media", "list", "--json"])).unwrap()
    };
    assert_eq!(list(&bench), serde_json::json!({ "required": true, "builds": [], "programs": [] }));
    let first = bench.build(&[]);
    let [measured] = &first.measurements[..] else { panic!("{first:?}") };
    let digest = authenticode::digest(&bench.program()).unwrap();
    assert_eq!(measured.program, hex(&digest));
    // The files of the first are gone after two more.
    let ids = [first.id, bench.build(&["--argument", "a"]).id, bench.build(&["--argument", "b"]).id];
    assert!(!bench.path("boot/media").join(&ids[0]).exists());
    let text = succeed(&bench.data(), &["media", "list"]);
    assert!(
        ids.iter().all(|id| text.contains(id)) && text.contains("only if they started one of the builds"),
        "{text}"
    );
    succeed(&bench.data(), &["media", "forget", &ids[0]]);
    assert_eq!(list(&bench)["builds"].as_array().unwrap().len(), 2);
    assert!(fail(&bench.data(), &["media", "forget", &ids[0]]).contains("media list"));

    let program = bench.path("boot/x86_64/slipway.efi");
    succeed(&bench.data(), &["media", "allow", program.to_str().unwrap()]);
    assert!(list(&bench)["programs"][0]["name"].as_str().unwrap().ends_with("slipway.efi"));
    succeed(&bench.data(), &["media", "require", "any"]);
    assert_eq!(list(&bench)["required"], false);
}

#[test]
fn an_operator_makes_boot_files_that_the_server_hands_out() {
    let bench = Bench::new();
    let manifest = bench.build(&[]);
    assert_eq!(manifest.server.as_deref(), Some("https://server.test"));
    let ca = succeed(&bench.data(), &["ca"]);
    assert_eq!(manifest.ca_sha256, slipway_parts::sha256(ca.as_bytes()));
    let names: Vec<&str> = manifest.assets.iter().map(|asset| asset.path.as_str()).collect();
    let network = ["x86_64/vmlinuz", "x86_64/initramfs", "x86_64/slipway.efi"];
    assert_eq!(names, [&network[..], &["slipway.img", "slipway.iso", "slipway.spdx.json"]].concat());
    for asset in &manifest.assets {
        assert_eq!(slipway_parts::sha256(&fs::read(bench.path("boot").join(&asset.path)).unwrap()), asset.sha256);
    }
    let initramfs = fs::read(bench.path("boot/x86_64/initramfs")).unwrap();
    let text = String::from_utf8_lossy(&initramfs);
    assert!(text.contains("server: \"https://server.test\"\n") && text.contains(ca.lines().nth(1).unwrap()), "{text}");

    let boot = bench.path("boot");
    let serve =
        ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--boot-listen", "127.0.0.1:0", "--boot"];
    let (_server, ready) = started(command(&bench.data(), &[&serve[..], &[boot.to_str().unwrap()]].concat()));
    let url = format!("http://{}/boot/x86_64/slipway.efi", ready["boot"].as_str().unwrap());
    let fetched = std::process::Command::new("curl").args(["--silent", "--fail", &url]).output().unwrap();
    assert!(fetched.stdout == bench.program());
}

#[test]
fn a_stick_is_written_by_the_program_that_writes_disks() {
    let bench = Bench::new();
    let [image, slipway] = ["boot/slipway.img", "slipway"].map(|name| bench.path(name).to_str().unwrap().to_owned());
    let write = ["media", "write", "--disk", "/dev/sdz", "--image", &image, "--slipway", &slipway];
    let said = fail(&bench.data(), &write);
    assert!(said.contains("slipway-server media build"), "{said}");

    let manifest = bench.build(&[]);
    let said = fail(&bench.data(), &write);
    assert!(said.contains("install the package slipway"), "{said}");

    // Stands in for the program, and tells what it was asked.
    fs::write(&slipway, "#!/bin/sh\necho \"$@\"\n").unwrap();
    fs::set_permissions(&slipway, fs::Permissions::from_mode(0o755)).unwrap();
    let built = bench.path("boot/media").join(&manifest.id).join("slipway.img").canonicalize().unwrap();
    let digest = &manifest.assets.iter().find(|asset| asset.path == "slipway.img").unwrap().sha256;
    let asked = format!(
        "action stream-image --no-grow --verify readback --url {} --disk /dev/sdz --digest sha256:{digest}\n",
        built.display()
    );
    assert_eq!(succeed(&bench.data(), &write), asked);
    // A copy without the manifest has no digest.
    fs::copy(&image, bench.path("copy.img")).unwrap();
    let copy = bench.path("copy.img").to_str().unwrap().to_owned();
    let write = ["media", "write", "--disk", "/dev/sdz", "--image", &copy, "--slipway", &slipway, "--yes"];
    let asked = format!("action stream-image --no-grow --verify readback --url {copy} --disk /dev/sdz --yes\n");
    assert_eq!(succeed(&bench.data(), &write), asked);

    fs::write(&slipway, "#!/bin/sh\nexit 1\n").unwrap();
    assert!(fail(&bench.data(), &write).contains("slipway ended with exit status: 1"));
}

#[test]
fn the_newest_build_has_the_names_and_the_one_before_stays() {
    let bench = Bench::new();
    let builds = || {
        let entries = fs::read_dir(bench.path("boot/media")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let sorted = |ids: &[&str]| {
        let mut ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        ids.sort();
        ids
    };
    let first = bench.build(&[]).id;
    assert_eq!(bench.build(&[]).id, first);
    assert_eq!(builds(), sorted(&[&first]));
    let second = bench.build(&["--argument", "panic=30"]).id;
    assert_eq!(builds(), sorted(&[&first, &second]));
    let third = bench.build(&["--console", "ttyS1,115200"]).id;
    assert_eq!(builds(), sorted(&[&second, &third]));
    let link = fs::read_link(bench.path("boot/x86_64")).unwrap();
    assert_eq!(link, Path::new("media").join(&third).join("x86_64"));

    // What is made no more keeps its name as long as its build is there.
    let stick = || fs::symlink_metadata(bench.path("boot/slipway.img")).is_ok();
    bench.build(&["--kind", "network", "--argument", "a"]);
    assert!(stick());
    let third = bench.build(&["--kind", "network", "--argument", "b"]).id;
    assert!(!stick());
    let second = fs::read_dir(bench.path("boot/media")).unwrap();
    let second =
        second.map(|entry| entry.unwrap().file_name().into_string().unwrap()).find(|name| *name != third).unwrap();

    // Files of an operator are not replaced.
    fs::remove_file(bench.path("boot/x86_64")).unwrap();
    fs::create_dir(bench.path("boot/x86_64")).unwrap();
    let said = bench.refused(&[]);
    assert!(said.contains("/boot/x86_64 is not a link from an earlier build"), "{said}");
    assert_eq!(builds(), sorted(&[&second, &third]), "nothing was made or removed");
}

#[test]
fn others_can_read_what_has_no_token() {
    let bench = Bench::new();
    let mode = |path: &str| fs::metadata(bench.path(path)).unwrap().permissions().mode() & 0o777;
    let id = bench.build(&[]).id;
    for (path, expect) in
        [("boot", 0o755), ("boot/media", 0o755), (&format!("boot/media/{id}"), 0o755), ("boot/x86_64/vmlinuz", 0o644)]
    {
        assert_eq!(mode(path), expect, "{path}");
    }
    fs::write(bench.path("token"), "s3cret\n").unwrap();
    bench.build(&["--token-file", bench.path("token").to_str().unwrap()]);
    assert_eq!((mode("boot/x86_64"), mode("boot/x86_64/initramfs")), (0o700, 0o600));
}

#[test]
fn what_root_makes_belongs_to_the_owner_of_the_folder() {
    const OWNER: u32 = 65534;
    let bench = Bench::new();
    let boot = bench.path("boot");
    fs::create_dir(&boot).unwrap();
    if chown(&boot, Some(OWNER), Some(OWNER)).is_err() {
        eprintln!("not checked: only root gives files away");
        return;
    }
    let id = bench.build(&[]).id;
    for path in ["media", &format!("media/{id}"), "x86_64", "x86_64/slipway.efi", "manifest.json"] {
        assert_eq!(fs::metadata(boot.join(path)).unwrap().uid(), OWNER, "{path}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let bench = Bench::new();
    let check = |more: &[&str], expect: &str| {
        let said = bench.refused(more);
        assert!(said.contains(expect), "{said}");
    };
    check(&["--url", "http://a"], "server \"http://a\" does not begin with https://");
    check(&["--require", "token"], "require \"token\" needs a bootstrap token in the files");
    check(
        &["--metadata", "ec2", "--url", "https://a"],
        "metadata \"ec2\" has no effect beside the URL of a server: leave one of them out",
    );
    check(&["--proxy", "https://p"], "proxy \"https://p\" does not begin with http://");
    check(&["--proxy", "http://u:pw@p:1"], "proxy \"...@p:1\" must be a host without user name and password");
    check(
        &["--proxy", "http://p:1", "--no-proxy", "a/b"],
        "no_proxy \"a/b\" has an entry, number 1, that is not a name",
    );
    check(&["--kernel", "a/b"], "kernel \"a/b\" must be a name such as generic or cloud");
    check(&["--kernel", "cloud"], "there are none for any architecture with kernel cloud in ");
    check(&["--arch", "aarch64"], "there are none for aarch64 with kernel generic in ");
    check(&["--ca", "/nowhere"], "reading \"/nowhere\"");
    fs::write(bench.path("token"), "a b\n").unwrap();
    check(&["--token-file", bench.path("token").to_str().unwrap()], "token \"(secret)\" must be one word");
    let vmlinuz = bench.path("parts/x86_64-generic/vmlinuz");
    fs::write(&vmlinuz, "damaged").unwrap();
    check(&[], "x86_64-generic/vmlinuz does not have the digest that parts.json names");
    assert!(!bench.path("boot").exists());
}

#[test]
fn without_a_data_folder_url_and_ca_must_be_given() {
    let bench = Bench::new();
    let (paths, nowhere, ca) = (bench.paths(), bench.path("nowhere"), bench.path("data/ca.pem"));
    let given = ["--url", "https://other.example", "--ca", ca.to_str().unwrap()];
    assert!(fail(&nowhere, &bench.arguments(&paths, &given[..2])).contains("there is no slipway data in"));
    assert!(succeed(&nowhere, &bench.arguments(&paths, &given)).contains("slipway.img") && !nowhere.exists());
}

#[test]
fn files_are_signed_with_the_keys_of_the_site_while_it_has_some() {
    let bench = Bench::new();
    assert!(bench.build(&[]).signed_by.is_none());
    assert!(authenticode::signatures(&bench.program()).unwrap().is_empty());
    succeed(&bench.data(), &["keys", "init"]);
    let signer = bench.build(&[]).signed_by.unwrap();
    let export = |name: &str| {
        succeed(&bench.data(), &["keys", "export", bench.path(name).to_str().unwrap()]);
        bench.path(name)
    };
    let db = Certificate::from_der(&fs::read(export("keys").join("db.cer")).unwrap()).unwrap();
    assert_eq!((signer.subject.as_str(), signer.certificate_sha256), (db.subject(), hex(&db.sha256())));
    let first = bench.program();
    authenticode::verify(&first, std::slice::from_ref(&db)).unwrap();
    assert!(bench.build(&["--unsigned"]).signed_by.is_none());
    assert!(bench.build(&["--url", "https://other.example"]).signed_by.is_some(), "whoever runs it has the keys");

    // Both keys, then only the new one.
    succeed(&bench.data(), &["keys", "rotate"]);
    let certificates = |folder: &Path, name: &str| {
        let found = lists::parse(&fs::read(folder.join(name)).unwrap()).unwrap();
        let own = found.into_iter().filter(|entry| entry.owner != slipway_secure_boot::microsoft::OWNER);
        own.map(|entry| entry.content).collect::<Vec<_>>()
    };
    let folder = export("both");
    let next = Certificate::from_der(&fs::read(folder.join("next-db.cer")).unwrap()).unwrap();
    assert_eq!(certificates(&folder, "db.esl").len(), 2);
    assert!(!folder.join("dbx.esl").exists());
    bench.build(&[]);
    assert!(bench.program() == first, "the old key goes on signing");
    assert!(fail(&bench.data(), &["keys", "rotate"]).contains("a rotation is already in progress"));
    succeed(&bench.data(), &["keys", "rotate", "--finish"]);
    bench.build(&[]);
    authenticode::verify(&bench.program(), &[next]).unwrap();
    authenticode::verify(&bench.program(), std::slice::from_ref(&db)).unwrap_err();

    // What may not start any more: the old key, and a program.
    let file = bench.path("old.efi");
    fs::write(&file, &first).unwrap();
    succeed(&bench.data(), &["keys", "revoke", file.to_str().unwrap()]);
    let folder = export("after");
    assert_eq!(certificates(&folder, "db.esl").len(), 1);
    let revoked = certificates(&folder, "dbx.esl");
    let program = Content::Sha256(authenticode::digest(&first).unwrap());
    assert_eq!(revoked, [Content::Certificate(db.clone()), program]);
    assert!(succeed(&bench.data(), &["keys", "show"]).contains("revoked: everything signed with a replaced key"));
}

#[test]
fn media_of_two_machines_differ_in_their_settings_alone() {
    let bench = Bench::new();
    let range = |manifest: Manifest| {
        let asset = manifest.assets.into_iter().find(|asset| asset.path == "slipway.img").unwrap();
        asset.machine_settings.unwrap()
    };
    let range = range(bench.build(&[]));
    let whole = fs::read(bench.path("boot/slipway.img")).unwrap();
    let (copy, token) = (bench.path("web1.img"), bench.path("token"));
    let named = |path: &Path| path.to_str().unwrap().to_owned();
    fs::write(&copy, &whole).unwrap();
    fs::write(&token, "s3cret\n").unwrap();
    succeed(&bench.data(), &["media", "settings", &named(&copy), "--token-file", &named(&token)]);
    let changed = fs::read(&copy).unwrap();
    let (from, to) = (range.offset as usize, (range.offset + range.length) as usize);
    assert!(changed[..from] == whole[..from] && changed[to..] == whole[to..], "only the settings");
    assert!(String::from_utf8_lossy(&changed[from..to]).contains("\ntoken: \"s3cret\"\n"));
    let network = bench.path("network.yaml");
    fs::write(&network, "interfaces: [{name: any, dhcp4: true, mtu: 1400}]\n").unwrap();
    succeed(&bench.data(), &["media", "settings", &named(&copy), "--network", &named(&network)]);
    let changed = fs::read(&copy).unwrap();
    assert!(String::from_utf8_lossy(&changed[from..to]).contains("\nnetwork: \"{\\\"interfaces\\\":[{"));
    let said = succeed(&bench.data(), &["media", "settings", &named(&copy), "--hostname", "rack3-u12"]);
    assert!(said.starts_with("wrote the machine's settings to ") && said.ends_with(": hostname\n"), "{said}");
    assert!(String::from_utf8_lossy(&fs::read(&copy).unwrap()[from..to]).contains("\nhostname: \"rack3-u12\"\n"));
    succeed(&bench.data(), &["media", "settings", &named(&copy)]);
    assert!(fs::read(&copy).unwrap() == whole, "they can be removed again");

    let refused = fail(&bench.data(), &["media", "settings", &named(&token)]);
    assert!(refused.contains("it was not made by `slipway-server media build`"), "{refused}");
    fs::write(&token, "two words\n").unwrap();
    let refused = fail(&bench.data(), &["media", "settings", &named(&copy), "--token-file", &named(&token)]);
    assert!(refused.contains("token \"(secret)\" must be one word"), "{refused}");
    for (text, expect) in [
        ("interfaces: [{name: any}]", "network \"any\" is not valid: no interface has an address"),
        ("interfaces: [{name: any, dhcp: true}]", "unknown field `dhcp`"),
    ] {
        fs::write(&network, text).unwrap();
        let refused = fail(&bench.data(), &["media", "settings", &named(&copy), "--network", &named(&network)]);
        assert!(refused.contains(expect), "{refused}");
    }
    assert!(fs::read(&copy).unwrap() == whole);
}

#[test]
fn keys_are_imported_or_made_once() {
    let bench = Bench::new();
    let data = bench.data();
    assert!(fail(&data, &["keys", "show"]).contains("make them with `slipway-server keys init`"));
    let now = OffsetDateTime::now_utc();
    let key = SigningKey::generate(KeySize::Rsa2048, "ours", now - Duration::days(1), now + Duration::days(1)).unwrap();
    let other =
        SigningKey::generate(KeySize::Rsa2048, "other", now - Duration::days(9), now - Duration::days(1)).unwrap();
    let write = |name: &str, text: String| {
        fs::write(bench.path(name), text).unwrap();
        bench.path(name).to_str().unwrap().to_owned()
    };
    let (file, cert) = (write("key", key.key_to_pem().unwrap()), write("cert", key.certificate().to_pem()));
    let (old_file, old_cert) =
        (write("old-key", other.key_to_pem().unwrap()), write("old-cert", other.certificate().to_pem()));
    let init = |key: &str, cert: &str| fail(&data, &["keys", "init", "--db-key", key, "--db-cert", cert]);
    assert!(init(&file, &old_cert).contains("is for another key"));
    assert!(init(&old_file, &old_cert).contains("it was valid until"));
    assert!(init(&cert, &cert).contains("the text has no private key in PEM"));
    succeed(&data, &["keys", "init", "--db-key", &file, "--db-cert", &cert, "--without-microsoft"]);
    let shown = succeed(&data, &["keys", "show"]);
    assert!(shown.contains("db: CN=ours\n") && shown.contains("excluded"), "{shown}");
    assert!(!shown.contains("PRIVATE"), "{shown}");
    let rotate = |key: &str, cert: &str| fail(&data, &["keys", "rotate", "--key", key, "--cert", cert]);
    assert!(rotate(&file, &cert).contains("the new key is the current one"));
    assert!(rotate(&old_file, &old_cert).contains("it was valid until"));
    assert!(fail(&data, &["keys", "init"]).contains("this data folder already has Secure Boot keys"));
    let keys = data.join("secure-boot.json");
    assert_eq!(fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o640)).unwrap();
    let serve = fail(&data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]);
    assert!(serve.contains("other users can read or change") && serve.contains("secure-boot.json"), "{serve}");
    fs::write(&keys, "{\n").unwrap();
    let damaged = fail(&data, &["keys", "show"]);
    let expect = format!(
        "slipway-server: {keys:?} does not have slipway's format of Secure Boot keys (line 2, column 0): restore it \
         from a backup"
    );
    assert_eq!(damaged, expect);
}
