//! schemathesis asks a server what the OpenAPI document describes, and much that it does not: thousands of generated
//! requests, of which each answer must be one that the document describes.

use std::fs;

use anyhow::{Context, Result, ensure};
use xtask::host::command::command;
use xtask::host::{python, workspace};
use xtask::lab::server::{Lab, Place};

/// The fewest requests that count as a test of the whole document.
const LEAST: u32 = 5000;

#[test]
fn every_answer_to_generated_requests_is_as_the_api_describes_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The requests come from as many addresses as machines do, so that none is refused for coming too fast.
    let arguments = &["--trusted-proxy", "127.0.0.1"];
    let loopback = Place { listen: "127.0.0.1", host: "127.0.0.1", arguments };
    let mut lab = Lab::at(folder.path(), loopback)?;
    lab.start_server()?;
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, lab.operator(&["ca"])?)?;
    // The token is in a file of this test alone, and not in the arguments, which every user of this host can read.
    let config = folder.path().join("schemathesis.toml");
    let token = lab.operator(&["operator-token"])?;
    fs::write(&config, CONFIG.replace("TOKEN", token.trim()))?;

    let schemathesis = python::environment(python::SCHEMATHESIS)?.join("schemathesis");
    let mut run = command(schemathesis, ["--no-color", "--config-file"]);
    run.arg(&config).arg("run").arg(workspace::root().join("server/openapi.json"));
    run.args(["--url", &lab.url(), "--tls-verify"]).arg(&ca);
    run.args(["--continue-on-failure", "--seed", "1", "--max-examples", "20", "--request-timeout", "30"]);
    run.env("SCHEMATHESIS_HOOKS", workspace::root().join("xtask/tests/schemathesis/hooks.py"));
    let output = run.current_dir(folder.path()).output().context("starting schemathesis")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // Warnings of what it could not reach are longer than what it found.
    let found = said.split_once("= FAILURES =").map_or(&*said, |(_, found)| found);
    let found = found.split_once("= WARNINGS =").map_or(found, |(found, _)| found);
    let log = lab.server_log();
    ensure!(
        output.status.success(),
        "{found}\n{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.contains("ERROR")).collect::<String>()
    );
    let cases = said.lines().find_map(|line| line.trim().split_once(" generated")?.0.parse::<u32>().ok());
    ensure!(cases.is_some_and(|cases| cases >= LEAST), "fewer than {LEAST} requests:\n{said}");
    println!("{} requests", cases.unwrap_or_default());
    Ok(())
}

/// A node that was taken out of service is answered with 410, which no schema can foresee. Nor can it say what a
/// certificate request looks like, which serial numbers identify a machine, or which steps and settings fit together. A
/// node that was just added has no attestation: its machine has not proved anything yet.
const CONFIG: &str = r#"
[auth.openapi.operator]
bearer = "TOKEN"

[checks]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "410", "429", "5xx"]
negative_data_rejection.expected-statuses = ["4xx", "5xx"]

[[operations]]
include-path = [
    "/v1/enrol",
    "/v1/operator/media",
    "/v1/operator/nodes",
    "/v1/operator/nodes/{node}",
    "/v1/operator/nodes/{node}/power",
    "/v1/operator/nodes/{node}/tasks",
    "/v1/operator/nodes/{node}/runs",
    "/v1/operator/os",
]
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path = "/v1/operator/nodes/{node}/attestation"
checks.ensure_resource_availability.enabled = false
"#;
