//! Keys of Secure Boot that are in a token: SoftHSM, with what other programs put there. sbverify and openssl judge.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use sha2::Digest as _;
use slipway_secure_boot::{SigningKey, Variable, Write, lists, update};
use time::{Date, OffsetDateTime};

use crate::program::{command, started};
use crate::softhsm::{Bench, PIN};
use crate::support::{UUID, is_stored};
use crate::work::new_run;

/// A PIN that no token of these tests has.
const WRONG_PIN: &str = "1111-2222";

#[test]
fn keys_in_a_token_sign_what_machines_start_and_never_leave_it() {
    let Some(bench) = Bench::new() else { return };
    bench.copy_into_token("PK", "01");
    bench.copy_into_token("KEK", "02");
    bench.make_in_token("db", "03");
    let uris = ["PK", "KEK", "db"].map(|label| bench.uri_of(label));
    let [pk, kek, db] = uris.each_ref().map(String::as_str);
    let keys = ["--pk-key", pk, "--pk-cert", "PK.pem", "--kek-key", kek, "--kek-cert", "KEK.pem"];
    let said = bench.succeed(&[&["keys", "init"], &keys[..], &["--db-key", db, "--db-cert", "db.pem"]].concat());
    assert!(said.contains(&format!("the key of db is in a token: {db}\n")), "{said}");
    bench.build_signed_by("db.pem");

    // The same updates as with keys in files, which other tests judge.
    bench.succeed(&["keys", "export", "lists"]);
    let text = |name: &str| String::from_utf8(bench.read(name)).unwrap();
    let key = |name: &str| SigningKey::from_pem(&text(&format!("{name}.key")), &text(&format!("{name}.pem"))).unwrap();
    for (variable, signer) in [(Variable::Pk, "PK"), (Variable::Kek, "PK"), (Variable::Db, "KEK")] {
        let [signed, lists] = ["auth", "esl"].map(|end| bench.read(&format!("lists/{variable}.{end}")));
        assert!(!lists::parse(&lists).unwrap().is_empty());
        let same = update(variable, Write::Replace, &lists, time_of(&signed), &key(signer)).unwrap();
        assert!(same == signed, "{variable}");
    }

    bench.make_in_token("db2", "04");
    let next = bench.uri_of("db2");
    bench.succeed(&["keys", "rotate", "--key", &next, "--cert", "db2.pem"]);
    assert!(bench.succeed(&["keys", "show"]).contains(&format!("the key of next db is in a token: {next}\n")));
    bench.build_signed_by("db.pem");
    bench.succeed(&["keys", "rotate", "--finish"]);
    bench.build_signed_by("db2.pem");

    // Only what signs needs the token.
    fs::remove_dir_all(bench.path("tokens")).unwrap();
    bench.succeed(&["status"]);
    bench.succeed(&["keys", "show"]);

    let stored = String::from_utf8(bench.read("data/secure-boot.json")).unwrap();
    assert!(stored.contains(&next) && !stored.contains("PRIVATE"), "{stored}");
    for entry in
        fs::read_dir(bench.path("data")).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    {
        let content = fs::read(&entry).unwrap();
        assert!(!content.windows(PIN.len()).any(|window| window == PIN.as_bytes()), "{entry:?}");
    }
}

/// The time of an update (EFI_TIME).
fn time_of(update: &[u8]) -> OffsetDateTime {
    let year = u16::from_le_bytes([update[0], update[1]]).into();
    let date = Date::from_calendar_date(year, update[2].try_into().unwrap(), update[3]).unwrap();
    date.with_hms(update[4], update[5], update[6]).unwrap().assume_utc()
}

#[test]
fn each_refusal_says_what_to_do() {
    let Some(bench) = Bench::new() else { return };
    bench.copy_into_token("db", "01");
    bench.copy_into_token("two", "02");
    bench.run(&format!("softhsm2-util --import two.key --token site --label two --id 03 --pin {PIN}"));
    bench.make_in_files("other", "rsa:2048");
    bench.make_in_files("small", "rsa:1024");
    bench.make_in_files("ec", "ec -pkeyopt ec_paramgen_curve:P-256");
    bench.pkcs11_tool("--keypairgen --key-type EC:prime256v1 --label curve --id 04");
    bench.add_token("twin");
    bench.add_token("twin");
    for (name, content, mode) in [("open", PIN, 0o604), ("wrong", WRONG_PIN, 0o600), ("empty", "", 0o600)] {
        bench.write(name, content);
        bench.set_mode(name, mode);
    }
    let db = bench.uri_of("db");
    let db_with = |pin: &str| db.replace(&bench.named("pin"), &bench.named(pin));
    let without_pin = db.split('&').next().unwrap();
    for (uri, certificate, expect) in [
        (
            db.replace(bench.module, "/nowhere/lib.so"),
            "db",
            "loading the module \"/nowhere/lib.so\"; install the package",
        ),
        (db.replace(bench.module, "/etc/passwd"), "db", "passwd\"; install the package"),
        (bench.uri("token=sites;object=db"), "db", "no token with this name; there are: \""),
        (
            bench.uri("token=twin;object=db"),
            "db",
            "the URI matches several tokens; add the serial number; there are: \"twin\" (serial",
        ),
        (
            bench.uri("token=site;object=dc"),
            "db",
            "no such private key; there are: object=curve;id=%04, object=db;id=%01, object=two",
        ),
        (
            bench.uri("token=site;object=two"),
            "two",
            "the URI matches several keys; add object or id; there are: object=two;id=%02",
        ),
        (bench.uri_of("curve"), "other", "the key is not RSA, but firmware supports only RSA"),
        (db.clone(), "other", "signing with the key of CN=other: the key does not match the certificate"),
        (db.clone(), "small", "it has 1024 bits"),
        (db.clone(), "ec", "it is not an RSA key"),
        (without_pin.to_owned(), "db", "the token needs a PIN; write it to a file"),
        (db_with("missing"), "db", "reading the PIN in \"/"),
        (db_with("open"), "db", "every user can read or change it; change the PIN"),
        (db_with("empty"), "db", "it is empty"),
        (db_with("wrong"), "db", "wrong\" is wrong; it was tried once"),
        (format!("{without_pin}&pin-value={PIN}"), "db", "it contains the PIN; write the PIN to a file"),
    ] {
        let said = bench.fail(&["keys", "init", "--db-key", &uri, "--db-cert", &format!("{certificate}.pem")]);
        assert!(said.contains(expect) && !said.contains(WRONG_PIN), "{uri}: {said}");
    }
    assert!(bench.fail(&["keys", "show"]).contains("has no Secure Boot keys"));

    // The id, the serial number, or a single token can say which is meant.
    bench.succeed(&["keys", "init", "--db-key", &bench.uri("token=site;id=%02"), "--db-cert", "two.pem"]);
    // Somebody puts another key in its place.
    bench.pkcs11_tool("--delete-object --type privkey --id 02");
    bench.run(&format!("softhsm2-util --import other.key --token site --label other --id 02 --pin {PIN}"));
    let said = bench.fail(&["media", "build", "--parts", &bench.named("parts"), "--out", &bench.named("boot")]);
    assert!(said.contains("signing the unified kernel image for x86_64"), "{said}");
    assert!(said.contains("signing with the key of CN=two: the key does not match the certificate"), "{said}");
}

#[test]
fn root_loads_no_module_that_others_can_change() {
    let Some(bench) = Bench::new() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: only root has others that it must not trust");
        return;
    }
    bench.copy_into_token("db", "01");
    // Its folder belongs to root, and the folder above that is everybody's.
    bench.write("module.so", fs::read(bench.module).unwrap());
    let uri = bench.uri_of("db").replace(bench.module, &bench.named("module.so"));
    let said = bench.fail(&["keys", "init", "--db-key", &uri, "--db-cert", "db.pem"]);
    assert!(said.contains("module.so\" as root: other users can change it"), "{said}");
    assert!(bench.fail(&["keys", "show"]).contains("has no Secure Boot keys"));
}

#[test]
fn other_ways_to_sign_are_used_where_the_usual_one_is_missing() {
    let Some(bench) = Bench::new() else { return };
    // A key that wants the PIN for each signature.
    bench.make_in_files("always", "rsa:2048");
    bench.run("openssl pkey -in always.key -outform DER -out always.der");
    bench.pkcs11_tool("--write-object always.der --type privkey --label always --id 01 --usage-sign --always-auth");
    bench.copy_into_token("db", "02");
    bench.succeed(&["keys", "init", "--db-key", &bench.uri_of("always"), "--db-cert", "always.pem"]);
    bench.build_signed_by("always.pem");

    // SoftHSM ignores the first of a list of what is switched off.
    bench.configure("slots.mechanisms = -CKM_NONE,CKM_RSA_PKCS\n");
    bench.succeed(&["keys", "rotate", "--key", &bench.uri_of("db"), "--cert", "db.pem"]);
    bench.succeed(&["keys", "rotate", "--finish"]);
    bench.build_signed_by("db.pem");
    bench.configure("slots.mechanisms = -CKM_NONE,CKM_RSA_PKCS,CKM_SHA256_RSA_PKCS\n");
    let said = bench.fail(&["media", "build", "--parts", &bench.named("parts"), "--out", &bench.named("boot")]);
    assert!(said.contains("the token offers neither CKM_RSA_PKCS nor CKM_SHA256_RSA_PKCS"), "{said}");
}

#[test]
fn the_server_signs_with_a_token_for_several_operators_at_once() {
    let Some(bench) = Bench::new() else { return };
    for (label, id) in [("PK", "01"), ("KEK", "02"), ("db", "03")] {
        bench.copy_into_token(label, id);
    }
    let uris = ["PK", "KEK", "db"].map(|label| bench.uri_of(label));
    let [pk, kek, db] = uris.each_ref().map(String::as_str);
    let keys = ["--pk-key", pk, "--pk-cert", "PK.pem", "--kek-key", kek, "--kek-cert", "KEK.pem"];
    bench.succeed(&[&["keys", "init"], &keys[..], &["--db-key", db, "--db-cert", "db.pem"]].concat());
    for name in ["a", "b", "c", "d", "e"] {
        bench.succeed(&["node", "add", "--name", name, "--uuid", &UUID.replace("4c4c4544", &name.repeat(8))]);
    }
    fs::create_dir(bench.path("boot")).unwrap();
    let [boot, parts] = ["boot", "parts"].map(|name| bench.named(name));
    let listen =
        ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--boot", &boot, "--parts", &parts];
    let mut serve = bench.with_tokens(command(&bench.path("data"), &listen));
    serve.stderr(fs::File::create(bench.path("log")).unwrap());
    let (_server, ready) = started(serve);
    bench.write(
        "header",
        format!("Authorization: Bearer {}", String::from_utf8(bench.read("data/operator-token")).unwrap().trim()),
    );
    bench.write(
        "run",
        serde_json::to_string(&new_run("steps:\n- {name: keys, action: {enrol-secure-boot: {}}}\n")).unwrap(),
    );
    bench.write("media", "{}");
    let try_post = |path: &str, body: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail-with-body", "--cacert", "data/ca.pem", "--header", "@header"]);
        curl.args(["--header", "Content-Type: application/json", "--data"]).arg(format!("@{body}"));
        curl.arg(format!("https://{}/v1/operator/{path}", ready["https"].as_str().unwrap()));
        bench.output(curl)
    };
    let post = |path: &str, body: &str| {
        let (is_success, said) = try_post(path, body);
        assert!(is_success, "{path}: {said}");
        said
    };
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            scope.spawn(move || post(&format!("nodes/{name}/runs"), "run"));
        }
        let manifest = post("media", "media");
        assert!(manifest.contains("\"subject\":\"CN=db\""), "{manifest}");
    });
    bench.judge("db.pem");

    // A wrong PIN is tried once, and again only after the file was written: with the old time, the right one is not
    // tried.
    let write_pin = |pin: &str, at: SystemTime| {
        bench.write("pin", pin);
        fs::File::open(bench.path("pin")).unwrap().set_modified(at).unwrap();
    };
    let at = SystemTime::now();
    for pin in [WRONG_PIN, PIN] {
        write_pin(pin, at);
        let (is_success, said) = try_post("nodes/e/runs", "run");
        assert!(!is_success && said.contains("the server failed while signing"), "{said}");
    }
    write_pin(PIN, at + Duration::from_secs(1));
    post("nodes/e/runs", "run");
    let log = String::from_utf8(bench.read("log")).unwrap();
    assert_eq!(log.matches(" is wrong; it was tried once").count(), 2, "{log}");
    assert!(!log.contains(WRONG_PIN) && !log.contains(PIN), "{log}");
}

/// Each command is a process of its own, as each server of a site is.
#[test]
fn a_pin_that_was_refused_to_one_process_is_tried_by_no_other() {
    let Some(bench) = Bench::new() else { return };
    bench.copy_into_token("db", "01");
    bench.write("pin", WRONG_PIN);
    bench.set_mode("pin", 0o600);
    let uri = bench.uri_of("db");
    let init = ["keys", "init", "--db-key", &uri, "--db-cert", "db.pem"];
    assert!(bench.fail(&init).contains("is wrong; it was tried once"));
    // The token would accept it now, if it was tried.
    let change = |from: &str, to: &str| {
        let pins = format!("--pin {from} --new-pin {to}");
        bench.run(&format!("pkcs11-tool --module {} --token-label site --login --change-pin {pins}", bench.module));
    };
    change(PIN, WRONG_PIN);
    assert!(bench.fail(&init).contains("is wrong; it was tried once"));
    assert!(bench.fail(&init).contains("is wrong; it was tried once"));
    // Whoever writes the file again wants it to be tried.
    let later = SystemTime::now() + Duration::from_secs(5);
    fs::File::open(bench.path("pin")).unwrap().set_modified(later).unwrap();
    bench.succeed(&init);
    bench.build_signed_by("db.pem");
    // No digest of a PIN is stored that somebody could find the PIN by.
    let digest = format!("{:x}", sha2::Sha256::digest(WRONG_PIN));
    assert!(!is_stored(&bench.path("data"), &digest) && !is_stored(&bench.path("data"), WRONG_PIN));
}
