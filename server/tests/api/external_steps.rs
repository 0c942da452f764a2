//! Steps that any program reports with a run's token.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use slipway_protocol::{ErrorCode, ExternalStep, ExternalStepAck, ExternalStepStatus, NodeState, RunStatus};
use slipway_server::operate;
use slipway_server::rules::snippet::{self, Surrounding};
use slipway_server::store::run_tokens::Purpose;
use tokio::process::Command;

use crate::support::{TestServer, refusal};
use crate::work::new_run;

const REBOOT: &str = "steps:\n- {name: leave, action: {reboot: {}}}\n";

/// A machine with a run of this workflow, and a token for the run.
async fn with_run(server: &TestServer, workflow: &str) -> String {
    server.add_released("web1").await;
    let store = server.store().await;
    operate::start_run(&store, &server.ca(), "web1", new_run(workflow)).await.unwrap();
    operate::add_run_token(&store, "web1", Purpose::Steps).await.unwrap().0
}

async fn report(server: &TestServer, token: &str, body: &Value) -> Response {
    server.client().post(server.url("/v1/report")).bearer_auth(token).json(body).send().await.unwrap()
}

async fn post_form(server: &TestServer, token: &str, body: impl Into<reqwest::Body>) -> Response {
    let form = "application/x-www-form-urlencoded";
    let request = server.client().post(server.url("/v1/report")).bearer_auth(token).header("content-type", form);
    request.body(body).send().await.unwrap()
}

async fn warning(response: Response) -> Option<String> {
    assert_eq!(response.status(), StatusCode::OK);
    response.json::<ExternalStepAck>().await.unwrap().warning
}

async fn run_of(server: &TestServer) -> RunStatus {
    operate::show_node(&server.store().await, "web1").await.unwrap().run.unwrap()
}

async fn steps(server: &TestServer) -> Vec<ExternalStep> {
    run_of(server).await.external_steps
}

#[tokio::test]
async fn a_step_is_kept_beside_the_workflows_and_changes_nothing_of_it() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    let before = run_of(&server).await;
    let body = json!({"name": "leave", "status": "failed", "percent": 7, "label": "Leaving", "logs": "one"});
    assert_eq!(warning(report(&server, &token, &body).await).await, None);
    assert_eq!(warning(post_form(&server, &token, "name=early&priority=1&logs=a%0Ab").await).await, None);
    assert_eq!(warning(post_form(&server, &token, "name=leave&status=done&percent=&logs=two").await).await, None);

    let run = run_of(&server).await;
    let names: Vec<&str> = run.external_steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["early", "leave"], "by priority");
    let leave = &run.external_steps[1];
    assert_eq!(
        (leave.status, leave.percent, leave.label.as_deref()),
        (Some(ExternalStepStatus::Done), Some(7), Some("Leaving"))
    );
    assert_eq!((leave.logs.as_str(), leave.reports, leave.unknown), ("one\ntwo\n", 2, false));
    assert_eq!(
        RunStatus { external_steps: Vec::new(), ..run },
        before,
        "the workflow's own step of that name stands where it stood"
    );
    let nodes = slipway_server::node::status::all(&server.store().await).await.unwrap();
    let listed = &nodes[0].run.as_ref().unwrap().external_steps;
    assert_eq!((listed.len(), listed[1].logs.as_str()), (2, ""), "lists come without logs");
    assert!(nodes[0].last_seen.is_some(), "it is a sign of life");
    assert_eq!(nodes[0].state, NodeState::Registered);
}

#[tokio::test]
async fn a_name_nobody_expects_is_flagged_and_taken() {
    let server = TestServer::start().await;
    let token = with_run(&server, &format!("known_steps: [packages, done]\n{REBOOT}")).await;
    let named = |name: &str| json!({ "name": name });
    assert_eq!(warning(report(&server, &token, &named("packages")).await).await, None);
    let told = warning(report(&server, &token, &named("pakcages")).await).await.unwrap();
    assert!(told.ends_with(" does not expect a step \"pakcages\"; the report was stored"), "{told}");
    let flags: Vec<(String, bool)> = steps(&server).await.into_iter().map(|step| (step.name, step.unknown)).collect();
    assert_eq!(flags, [("packages".to_owned(), false), ("pakcages".to_owned(), true)]);
}

#[tokio::test]
async fn only_a_token_of_the_newest_run_reports() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    let body = json!({"name": "a"});
    let code = async |token: &str| refusal(report(&server, token, &body).await).await.code;
    let without = server.client().post(server.url("/v1/report")).json(&body).send().await.unwrap();
    assert_eq!(refusal(without).await.code, ErrorCode::Unauthenticated);
    assert_eq!(code("nonsense").await, ErrorCode::NotFound);
    let store = server.store().await;
    let boot = operate::add_run_token(&store, "web1", Purpose::Boot).await.unwrap().0;
    assert_eq!(code(&boot).await, ErrorCode::NotFound, "good for other reports");
    let newer = operate::NewRun { replace: true, ..new_run(REBOOT) };
    operate::start_run(&store, &server.ca(), "web1", newer).await.unwrap();
    assert_eq!(code(&token).await, ErrorCode::TokenExpired);
    let token = operate::add_run_token(&store, "web1", Purpose::Steps).await.unwrap().0;
    assert_eq!(report(&server, &token, &body).await.status(), StatusCode::OK);
    operate::decommission_node(&store, "web1").await.unwrap();
    assert_eq!(code(&token).await, ErrorCode::Decommissioned);
}

#[tokio::test]
async fn what_means_nothing_is_refused() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    for body in
        [json!({}), json!({"name": ""}), json!({"name": "a", "percent": 101}), json!({"name": "a", "stauts": "done"})]
    {
        assert_eq!(refusal(report(&server, &token, &body).await).await.code, ErrorCode::InvalidRequest, "{body}");
    }
    for form in ["", "name=a&status=none", "name=a&x=y", "name=%00"] {
        assert_eq!(refusal(post_form(&server, &token, form).await).await.code, ErrorCode::InvalidRequest, "{form}");
    }
    let long = format!("name=a&logs={}", "x".repeat(64 << 10));
    assert_eq!(refusal(post_form(&server, &token, long).await).await.code, ErrorCode::TooLarge);
    let (name, label) = ("x".repeat(60_000), "%C3%A4".repeat(201));
    for (form, expect) in [
        (
            format!("name={name}"),
            "a name of 60000 bytes is too long: a name has 1 to 64 bytes and no control characters",
        ),
        (format!("name=a&label={label}"), "the label has 201 characters, but may have at most 200"),
    ] {
        assert_eq!(refusal(post_form(&server, &token, form).await).await.message, expect);
    }
    assert_eq!(steps(&server).await, []);
    assert_eq!(warning(post_form(&server, &token, b"name=a&label=%ff\xfe".to_vec()).await).await, None);
    assert_eq!(steps(&server).await[0].label.as_deref(), Some("\u{fffd}\u{fffd}"));
}

#[tokio::test]
async fn steps_have_a_number_and_a_rate() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    for number in 0..100 {
        assert_eq!(post_form(&server, &token, format!("name={number}")).await.status(), StatusCode::OK);
    }
    let further = refusal(post_form(&server, &token, "name=further").await).await;
    assert_eq!(further.code, ErrorCode::Conflict);
    let expect = " already has 100 external steps; report under the names of existing steps";
    assert!(further.message.ends_with(expect), "{}", further.message);
    for _ in 101..120 {
        assert_eq!(post_form(&server, &token, "name=7").await.status(), StatusCode::OK);
    }
    let response = post_form(&server, &token, "name=7").await;
    assert_eq!(response.headers()["retry-after"], "61", "what is left of the minute, rounded up");
    let refused = refusal(response).await;
    assert_eq!(refused.code, ErrorCode::TooManyRequests);
    assert_eq!(refused.message, "more than 120 reports with one token within a minute; try again in 61 s");
    let other = operate::add_run_token(&server.store().await, "web1", Purpose::Steps).await.unwrap().0;
    assert_eq!(post_form(&server, &other, "name=7").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_is_refused_counts_as_what_is_taken() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    let long = format!("name=a&logs={}", "x".repeat(64 << 10));
    let refused: [(&str, ErrorCode); 4] = [
        ("", ErrorCode::InvalidRequest),
        ("name=a&x=y", ErrorCode::InvalidRequest),
        (&long, ErrorCode::TooLarge),
        (&format!("name={}", "x".repeat(65)), ErrorCode::InvalidRequest),
    ];
    for _ in 0..30 {
        for (form, code) in &refused {
            assert_eq!(refusal(post_form(&server, &token, form.to_string()).await).await.code, *code);
        }
    }
    for form in ["name=a", ""] {
        assert_eq!(refusal(post_form(&server, &token, form).await).await.code, ErrorCode::TooManyRequests, "{form}");
    }
    for _ in 0..150 {
        let guessed = refusal(post_form(&server, "guessed", "name=a").await).await;
        assert_eq!(guessed.code, ErrorCode::NotFound, "nothing is kept of guesses");
    }
    assert_eq!(steps(&server).await, []);

    let old = operate::add_run_token(&server.store().await, "web1", Purpose::Steps).await.unwrap().0;
    let newer = operate::NewRun { replace: true, ..new_run(REBOOT) };
    operate::start_run(&server.store().await, &server.ca(), "web1", newer).await.unwrap();
    for _ in 0..120 {
        assert_eq!(refusal(post_form(&server, &old, "name=a").await).await.code, ErrorCode::TokenExpired);
    }
    assert_eq!(refusal(post_form(&server, &old, "name=a").await).await.code, ErrorCode::TooManyRequests);
}

/// The shells, and the programs a snippet can send with. With busybox, openssl carries the request, so it is always
/// there.
const SHELLS: [&[&str]; 3] = [&["/bin/dash"], &["/bin/bash"], &["/bin/busybox", "sh"]];
const TOOLS: [&str; 3] = ["curl", "wget", "openssl"];
/// Programs that every shell finds besides the tool.
const FOUND: [&str; 12] =
    ["sed", "tr", "tail", "mktemp", "sleep", "rm", "grep", "cat", "base64", "sh", "openssl", "wc"];

/// A folder for PATH with this tool and no other tool to send with. None, with a message, if this host lacks the tool.
fn path_with(tool: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let find = |program: &str| {
        ["/usr/bin", "/bin"].iter().map(|dir| format!("{dir}/{program}")).find(|path| std::fs::exists(path).unwrap())
    };
    let Some(found) = find(tool) else {
        eprintln!("not checked: there is no {tool}");
        return None;
    };
    put_program(folder.path(), tool, &found);
    for program in FOUND.iter().filter(|program| **program != tool) {
        if let Some(found) = find(program) {
            put_program(folder.path(), program, &found);
        }
    }
    Some(folder)
}

/// Puts a wrapper into the folder that logs its arguments and runs the real program.
fn put_program(folder: &Path, name: &str, found: &str) {
    let arguments = folder.join("arguments");
    put_script(folder, name, &format!("printf '%s\\n' \"$@\" >>{}\nexec {found} \"$@\"\n", arguments.display()));
}

/// A separate process writes the script. Otherwise a process forked by another test could hold the file open for
/// writing, and nobody could run it until then (execve(2), ETXTBSY).
fn put_script(folder: &Path, name: &str, script: &str) {
    let mut write = std::process::Command::new("/bin/sh");
    write.args(["-euc", "printf '#!/bin/sh\n%s' \"$1\" >\"$0\"; chmod 755 \"$0\""]).arg(folder.join(name)).arg(script);
    assert!(write.status().unwrap().success());
}

/// Arguments of the programs that were started. Every user of a machine can read these.
fn arguments(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("arguments")).unwrap()
}

/// Runs a script under `set -eu` with a time limit. Returns its output.
async fn run_script(shell: &[&str], path: &Path, script: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-eu", "-c", script, "sh"]).args(arguments);
    command.env("PATH", path).env("TMPDIR", path).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("a bound").unwrap();
    assert!(output.status.success(), "{shell:?}: {output:?}");
    let folders = std::fs::read_dir(path).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(folders.count(), 0, "the secret stays nowhere");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn a_snippet_reports_from_every_shell_by_every_tool() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    let text = snippet::text(Surrounding::Shell, &server.url("/v1/report"), &token, &server.ca());
    let script = format!("{text}\nslipway_report \"$@\"\necho $?\nslipway_report && echo $?\n");
    let odd = "it's 100 % \"a&b=c+d\" \\ $HOME `x` ä";
    for tool in TOOLS {
        let Some(path) = path_with(tool) else { continue };
        for shell in SHELLS {
            let name = format!("{tool} {}", shell[0]);
            let logs = format!("{odd}\n\n  last");
            let printed = run_script(shell, path.path(), &script, &[&name, "init", "5", odd, &logs]).await;
            assert_eq!(printed, "0\n0\n", "{name}");
            let steps = steps(&server).await;
            let step = steps.iter().find(|step| step.name == name).unwrap_or_else(|| panic!("{name} was not stored"));
            assert_eq!(
                (step.status, step.percent, step.label.as_deref()),
                (Some(ExternalStepStatus::Init), Some(5), Some(odd))
            );
            assert_eq!(step.logs, format!("{logs}\n"), "{name}");
        }
        let arguments = arguments(path.path());
        assert!(["--cacert", "--ca-certificate", "s_client"].iter().any(|word| arguments.contains(word)), "{tool}");
        assert!(!arguments.contains(&token) && !arguments.contains("logs="), "{tool}: {arguments}");
    }
}

#[tokio::test]
async fn a_snippet_cuts_what_would_be_refused() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    let text = snippet::text(Surrounding::Shell, &server.url("/v1/report"), &token, &server.ca());
    let Some(path) = path_with("curl") else { return };
    // The cut falls inside a character.
    let (name, label) = (format!("n{}", "ä".repeat(50_000)), "l".repeat(100_000));
    for shell in SHELLS {
        let script = format!("{text}\nslipway_report \"$1\" '' '' \"$2\"\n");
        run_script(shell, path.path(), &script, &[&name, &label]).await;
    }
    let step = &steps(&server).await[0];
    let name = format!("n{}\u{fffd}", "ä".repeat(30));
    assert_eq!((step.name.as_str(), step.label.as_deref(), step.reports), (name.as_str(), Some(&label[..200]), 3));
}

#[tokio::test]
async fn a_snippet_never_fails_nor_stops_what_calls_it() {
    let ca = TestServer::start().await.ca();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [dead.to_string(), silent.local_addr().unwrap().to_string()];
    let mut running = Vec::new();
    for address in addresses {
        let text = snippet::text(Surrounding::Shell, &format!("https://{address}/v1/report"), "T", &ca);
        for (tool, shell) in TOOLS.into_iter().zip(SHELLS) {
            let script = format!("{text}\nslipway_report a done 100 'a label' \"$1\"\necho $?\n");
            running.push(tokio::spawn(async move {
                let Some(path) = path_with(tool) else { return };
                let logs = "x".repeat(100_000);
                let printed = run_script(shell, path.path(), &script, &[&logs]).await;
                assert_eq!(printed, "0\n", "{tool}");
            }));
        }
    }
    for run in running {
        run.await.unwrap();
    }
}

#[tokio::test]
async fn a_snippet_writes_down_why_nothing_arrives_where_it_is_told_to() {
    let server = TestServer::start().await;
    let other = TestServer::start().await.ca();
    for tool in TOOLS {
        let Some(path) = path_with(tool) else { continue };
        for shell in SHELLS {
            let text = snippet::text(Surrounding::Shell, &server.url("/v1/report"), "TOKEN", &other);
            let log = path.path().join("log");
            let script = format!("{text}\nSLIPWAY_REPORT_LOG='{}' slipway_report a\n", log.display());
            assert_eq!(run_script(shell, path.path(), &script, &[]).await, "", "{tool}");
            let said = std::fs::read_to_string(&log).unwrap();
            assert!(said.starts_with("slipway_report: ") && said.contains(" ended with status "), "{said}");
            assert!(said.contains("certificate") && !said.contains("TOKEN"), "{tool}: {said}");
            std::fs::remove_file(log).unwrap();
        }
    }
}

#[tokio::test]
async fn a_snippet_fits_where_it_is_to_stand() {
    let server = TestServer::start().await;
    let token = with_run(&server, REBOOT).await;
    let Some(path) = path_with("curl") else { return };
    let text = |surrounding| snippet::text(surrounding, &server.url("/v1/report"), &token, &server.ca());
    let stored = async || steps(&server).await.into_iter().map(|step| (step.status, step.reports)).collect::<Vec<_>>();

    let kickstart = text(Surrounding::Kickstart);
    for (section, status) in
        [("pre", ExternalStepStatus::Init), ("post", ExternalStepStatus::Done), ("onerror", ExternalStepStatus::Failed)]
    {
        let (_, rest) = kickstart.split_once(&format!("%{section} --log=/tmp/slipway-report.log\n")).unwrap();
        let (script, _) = rest.split_once("%end\n").unwrap();
        assert!(!script.lines().any(|line| line.starts_with('%')), "Anaconda takes such a line for its own");
        run_script(&["/bin/bash"], path.path(), script, &[]).await;
        assert_eq!(steps(&server).await[0].status, Some(status), "{section}");
    }

    // With the programs of the installed system. tests/tests/snippet.rs uses the installer itself.
    let preseed = text(Surrounding::Preseed);
    let line = preseed.lines().find_map(|line| line.strip_prefix("d-i preseed/late_command string ")).unwrap();
    let secret = preseed.lines().find_map(|line| line.strip_prefix("d-i slipway/report string ")).unwrap();
    assert!(!preseed.contains(['\\', '"']) && preseed.matches(secret).count() == 1, "{preseed}");
    put_program(path.path(), "in-target", "/usr/bin/env");
    let preseed_file = path.path().join("preseed");
    std::fs::write(&preseed_file, &preseed).unwrap();
    put_script(path.path(), "debconf-get", &format!("sed -n \"s|^d-i $1 string ||p\" {}\n", preseed_file.display()));
    let root = format!("{}/", path.path().display());
    let line = line.replace("/target/root/", &root).replace("/root/", &root);
    run_script(&["/bin/busybox", "sh"], path.path(), &line, &[]).await;
    assert_eq!(stored().await, [(Some(ExternalStepStatus::Done), 4)]);
    assert!(!path.path().join("slipway-report").exists(), "the secret stays nowhere");
    assert!(!arguments(path.path()).contains(secret), "in-target has its command as an argument");

    let autoinstall: Value = serde_saphyr::from_str(&text(Surrounding::Autoinstall)).unwrap();
    let file = path.path().join("report.sh");
    for (commands, status) in [
        ("early", None),
        ("early", Some(ExternalStepStatus::Init)),
        ("late", Some(ExternalStepStatus::Done)),
        ("error", Some(ExternalStepStatus::Failed)),
    ] {
        let commands = &autoinstall["autoinstall"][format!("{commands}-commands")];
        let command = commands[usize::from(status == Some(ExternalStepStatus::Init))].as_str().unwrap();
        let command = command.replace("/run/slipway-report.sh", file.to_str().unwrap());
        run_script(&["/bin/dash"], path.path(), &command, &[]).await;
        if status.is_some() {
            assert_eq!(steps(&server).await[0].status, status);
        }
    }
    assert_eq!(stored().await[0].1, 7);
}
