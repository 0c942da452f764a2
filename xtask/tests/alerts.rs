//! The rules for alerts: Prometheus' own program reads them, and they say what they should of example values.

use std::process::Command;

use anyhow::{Result, ensure};
use xtask::host::{debian, workspace};

#[test]
fn prometheus_understands_the_alerts_and_they_fire() -> Result<()> {
    let promtool = debian::unpacked(&debian::PROMETHEUS)?.join("usr/bin/promtool");
    let rules = workspace::root().join("packaging/prometheus");
    for (what, file) in [("check", "slipway-alerts.yml"), ("test", "slipway-alerts.test.yml")] {
        let output = Command::new(&promtool).args([what, "rules"]).arg(rules.join(file)).output()?;
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
        ensure!(output.status.success(), "{what} {file}: {stdout}{stderr}");
    }
    Ok(())
}
