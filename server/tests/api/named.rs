//! What operators call images, and what shells complete.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use slipway_server::operate::{self, NewRun, Task};
use slipway_server::store;
use slipway_server::store::images::{self, Image};

use crate::program::{command, fail, made, name_database, serve, succeed};
use crate::support::{IMAGE, TestServer, UUID};
use crate::work::new_run;

/// Adds an image of this name whose second half has this byte, and returns its digest.
fn add(data: &Path, name: &str, byte: u8) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, [&IMAGE[..], &[byte; 512]].concat()).unwrap();
    succeed(data, &["image", "add", file.to_str().unwrap()]).trim().to_owned()
}

#[test]
fn an_image_is_called_by_its_name_its_digest_or_the_start_of_that() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    assert!(fail(data, &["image", "show", "a.img"]).contains("add it with `image add`"));
    let (one, two) = (add(data, "a.img", 1), add(data, "b.img", 2));
    let hex = one.strip_prefix("sha256:").unwrap();
    for called in ["a.img", &one, hex, &one[..15], &hex[..8], &hex[..8].to_uppercase()] {
        succeed(data, &["os", "add", "debian", "--image", called]);
        let shown: Value = serde_json::from_str(&succeed(data, &["image", "show", called, "--json"])).unwrap();
        assert_eq!((&shown["digest"], &shown["file_name"]), (&one.as_str().into(), &"a.img".into()), "{called}");
        let lines = succeed(data, &["image", "show", called]);
        assert!(lines.contains(&one) && lines.contains("1 KiB (1024 bytes)") && lines.contains("debian"), "{lines}");
    }
    for wrong in ["c.img", &hex[..3], "sha256:", &two[..12].replace("sha256", "sha512"), &format!("{hex}0"), "a.im"] {
        for line in [&["os", "add", "x", "--image", wrong][..], &["image", "show", wrong], &["image", "remove", wrong]]
        {
            let said = fail(data, line);
            assert!(said.contains(&format!("there is no image {wrong:?}")) && said.contains("`image list`"), "{said}");
        }
    }
    let other = add(data, "a.img", 3);
    let said = fail(data, &["os", "add", "x", "--image", "a.img"]);
    assert!(said.contains("may be 2 images") && said.contains(&one) && said.contains(&other), "{said}");
    assert!(fail(data, &["image", "remove", "a.img"]).contains("may be 2 images"));
    let expect = format!("image a.img ({other}) is removed\n");
    assert_eq!(succeed(data, &["image", "remove", "--yes", &other[..19]]), expect);
}

#[tokio::test]
async fn a_start_that_several_digests_have_is_refused_and_a_name_comes_first() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    for (name, digest) in [("one", "abcd0"), ("two", "abcd1"), ("abcd", "ffff0")] {
        let digest = format!("sha256:{digest:0<64}").parse().unwrap();
        let (file_name, size) = (name.to_owned(), 512);
        let image = Image { digest, file_name, size, raw_size: None, raw_digest: None, added_at: 0, captured: false };
        images::save(&mut transaction, &image).await.unwrap();
    }
    store::commit(transaction).await.unwrap();
    let mut connection = store.read().await.unwrap();
    let refused = operate::known_image(&mut connection, "sha256:abcd").await.expect_err("two").to_string();
    assert!(refused.contains("abcd000") && refused.contains("abcd100") && refused.contains("(two)"), "{refused}");
    assert_eq!(operate::known_image(&mut connection, "abcd1").await.unwrap().file_name, "two");
    assert_eq!(operate::known_image(&mut connection, "abcd").await.unwrap().file_name, "abcd");
}

#[test]
fn a_workflow_names_images_of_the_server_as_commands_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let _server = serve(data);
    let (one, two) = (add(data, "a.img", 1), add(data, "b.img", 2));
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let workflow = folder.path().join("workflow.yaml");
    let start = |stream: &str| {
        let steps = format!("steps:\n- {{name: x, action: {{stream-image: {{{stream}}}}}}}\n");
        fs::write(&workflow, steps).unwrap();
        ["run", "start", "--yes", "web1", "--replace", "--workflow", workflow.to_str().unwrap()].map(str::to_owned)
    };
    let run = |line: [String; 7]| succeed(data, &line.each_ref().map(String::as_str));
    let sent = || {
        let line = ["node", "show", "web1"];
        serde_json::from_str::<Value>(&succeed(data, &line)).unwrap()["run"]["id"].as_str().unwrap().to_owned()
    };
    for called in ["a.img", &one[..14], &one[7..15]] {
        let id = run(start(&format!("url: https://server.test/images/{called}")));
        assert_eq!(sent(), id.trim());
        let used = fail(data, &["image", "remove", "--yes", "a.img"]);
        assert!(used.contains(&format!("run {} of node web1", id.trim())), "{used}");
    }
    run(start(&format!("url: https://elsewhere.test/x, mirrors: [https://server.test/images/{}]", &two[7..13])));
    assert!(fail(data, &["image", "remove", "--yes", "b.img"]).contains("has a step that uses it"));
    let line = start("url: https://server.test/images/c.img");
    let said = fail(data, &line.each_ref().map(String::as_str));
    assert!(said.contains("there is no image \"c.img\""), "{said}");
}

#[tokio::test]
async fn a_machine_gets_the_digests_of_what_a_workflow_names() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let data = server.data_path();
    let (one, two) = (add(&data, "a.img", 1), add(&data, "b.img", 2));
    let steps = |action: &str| {
        let action =
            action.replace("HERE", "https://server.test:8443/images").replace("ONE", &one).replace("TWO", &two);
        new_run(&format!("steps:\n- {{name: x, action: {{{action}}}}}\n"))
    };
    let start = async |action: &str| {
        let new = NewRun { replace: true, ..steps(action) };
        operate::start_run(&server.store().await, &server.ca(), "web1", new).await
    };
    let there = "url: https://elsewhere.test/x";
    for (given, expect) in [
        ("stream-image: {url: HERE/a.img}", "stream-image: {url: HERE/ONE, digest: ONE}"),
        ("stream-image: {url: HERE/a.img, digest: ONE}", "stream-image: {url: HERE/ONE, digest: ONE}"),
        ("stream-image: {url: HERE/a.img, raw_digest: ONE}", "stream-image: {url: HERE/ONE, raw_digest: ONE}"),
        ("stream-image: {url: HERE/ONE}", "stream-image: {url: HERE/ONE}"),
        ("stream-image: {url: HERE/a.img, sums: https://s.test/SUMS}", "stream-image: {url: HERE/ONE, digest: ONE}"),
        (
            "unpack-archive: {partition: 1, url: HERE/a.img}",
            "unpack-archive: {partition: 1, url: HERE/ONE, digest: ONE}",
        ),
        ("write-file: {path: /x, url: HERE/b.img}", "write-file: {path: /x, url: HERE/TWO, digest: TWO}"),
        (
            &format!("stream-image: {{{there}, mirrors: [HERE/a.img], bmap: HERE/b.img}}"),
            &format!("stream-image: {{{there}, mirrors: [HERE/ONE], bmap: HERE/TWO}}"),
        ),
        (
            &format!("write-file: {{path: /x, {there}, sums: HERE/b.img}}"),
            &format!("write-file: {{path: /x, {there}, sums: HERE/TWO}}"),
        ),
    ] {
        start(given).await.unwrap_or_else(|error| panic!("{given}: {error}"));
        let Task::Workflow(expect) = steps(expect).task else { panic!("{given}") };
        assert_eq!(node.workflow(&server).await.unwrap().steps[0].action, expect.steps[0].action, "{given}");
    }
    let signed = "stream-image: {url: HERE/a.img, sums: https://s.test/SUMS, \
                  signature: {url: https://s.test/SUMS.sig, public_key: k}}";
    let refused = start(signed).await.expect_err("signed").to_string();
    assert!(refused.contains("give `digest` in place of `sums` and `signature`"), "{refused}");
}

#[test]
fn times_in_json_are_there_in_rfc_3339_too() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    add(data, "a.img", 1);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    succeed(data, &["token", "add", "--expires", "1h"]);
    for (line, field) in [
        (&["image", "list", "--json"][..], "added_at"),
        (&["token", "list", "--json"], "created_at"),
        (&["token", "list", "--json"], "expires_at"),
        (&["operator", "list", "--json"], "created_at"),
    ] {
        let shown: Value = serde_json::from_str(&succeed(data, line)).unwrap();
        let (at, date) = (&shown[0][field], shown[0][format!("{field}_rfc3339")].as_str().unwrap_or_default());
        assert!(at.as_u64().is_some() && date.starts_with("20") && date.ends_with('Z') && date.len() == 24, "{shown}");
    }
}

#[test]
fn the_names_behind_a_word_are_completed() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    add(data, "a.img", 1);
    add(data, "with space.img", 2);
    succeed(data, &["os", "add", "debian-12", "--image", "a.img"]);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let names = |words: &[&str]| succeed(data, &[&["names", "--"], words].concat());
    assert_eq!(names(&["run", "start"]), "web1\n");
    assert_eq!(names(&["run", "start", "web1", "--os"]), "debian-12\n");
    assert_eq!(names(&["image", "remove"]), "a.img\n", "names that a shell would split are left out");
    assert_eq!(names(&["image", "add"]), "");
    let nowhere = folder.path().join("nowhere");
    let output = command(&nowhere, &["names", "--", "node", "show"]).output().unwrap();
    assert!(output.stdout.is_empty() && String::from_utf8(output.stderr).unwrap().is_empty());
    assert!(!nowhere.exists());

    // The schema of a database is left as it is: a server of another version may be running on it.
    let older = folder.path().join("older");
    made(&older);
    let file = older.join("slipway.db");
    let sum = || (fs::read(&file).unwrap().len(), fs::metadata(&file).unwrap().modified().unwrap());
    fs::write(&file, "").unwrap();
    let before = sum();
    assert_eq!(succeed(&older, &["names", "--", "node", "show"]), "");
    assert_eq!(sum(), before);
}

/// What these words are completed to, by each shell that is here, as a user types them.
const LINES: [(&str, &str); 4] = [
    ("run start w", "run start web1"),
    ("run start web1 --os d", "run start web1 --os debian-12"),
    ("os add other --image ", "os add other --image a.img"),
    ("nod", "node"),
];

#[test]
fn each_shell_completes_commands_and_names() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    add(data, "a.img", 1);
    succeed(data, &["os", "add", "debian-12", "--image", "a.img"]);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    let manual = folder.path().join("manual");
    fs::create_dir(&manual).unwrap();
    succeed(data, &["manual", manual.to_str().unwrap()]);
    let completed = |shell: &[&str], script: &str| {
        let programs = Path::new(env!("CARGO_BIN_EXE_slipway-server")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("timeout");
        command.arg("60").args(shell).arg(script).current_dir(&manual).stdin(Stdio::null());
        name_database(&mut command, data);
        let output = command.env("PATH", path).env("SLIPWAY_DATA", data).env("HOME", &manual).output().unwrap();
        if output.status.code() == Some(127) {
            eprintln!("not checked: there is no {}", shell[0]);
            return LINES.iter().map(|(_, expect)| format!("{expect}\n")).collect();
        }
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let expect: String = LINES.iter().map(|(_, expect)| format!("{expect}\n")).collect();

    let mut in_bash = r#"
        . ./slipway-server.bash
        complete=$(complete -p slipway-server | sed 's/.*-F \([^ ]*\).*/\1/')
        try() {
            local words=$1
            [[ $words == *\  ]] && COMP_WORDS=(slipway-server $words "") || COMP_WORDS=(slipway-server $words)
            COMP_CWORD=$((${#COMP_WORDS[@]}-1)); COMPREPLY=()
            $complete slipway-server "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            unset 'COMP_WORDS[0]' 'COMP_WORDS[COMP_CWORD]'; echo "${COMP_WORDS[@]}" "${COMPREPLY[@]}" | sed 's/^ //'
        }
    "#
    .to_owned();
    // The words are written into a terminal, and a key shows what the line has become.
    let mut in_zsh = r#"
        zmodload zsh/zpty
        zpty z zsh -f -i
        zpty -w z "PROMPT= fpath=($PWD \$fpath); autoload -Uz compinit; compinit -u -d $PWD/dump"
        zpty -w z "show() { print -r -- \"<\${BUFFER% }>\" }; zle -N show; bindkey '^X' show; print read''y"
        zpty -r z said '*ready*'
        try() {
            zpty -w -n z "slipway-server $1"$'\t\x18'
            zpty -r z said '*<slipway-server*>*'
            print -r -- ${${said##*<slipway-server }%%>*}
            zpty -w -n z $'\x15'
        }
    "#
    .to_owned();
    let mut in_fish = r#"
        source ./slipway-server.fish
        function try
            set -l found (complete -C "slipway-server $argv[1]")
            echo (string replace -r '[^ ]*$' '' -- $argv[1])(string split -f 1 \t -- $found)
        end
    "#
    .to_owned();
    for script in [&mut in_bash, &mut in_zsh, &mut in_fish] {
        LINES.iter().for_each(|(line, _)| *script += &format!("try '{line}'\n"));
    }
    assert_eq!(completed(&["bash", "-c"], &in_bash), expect);
    assert_eq!(completed(&["zsh", "-f", "-c"], &in_zsh), expect);
    assert_eq!(completed(&["fish", "-c"], &in_fish), expect);
}
