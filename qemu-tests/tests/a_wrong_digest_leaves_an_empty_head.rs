//! The image that arrives is not the one the workflow names.

use anyhow::{Context, Result};
use qemu_tests::{Bench, UUID};
use slipway_protocol::{NodeState, StepState};

#[test]
fn a_wrong_digest_leaves_an_empty_head() -> Result<()> {
    let bench = Bench::new()?;
    // An unmistakable start of a disk: without the check, the firmware would find a boot sector here.
    let mut image: Vec<u8> = (0..32u32 << 20).map(|i| (i / 512 + i % 251) as u8).collect();
    image[510..512].copy_from_slice(&[0x55, 0xAA]);
    let file = bench.file("image");
    std::fs::write(&file, image)?;
    let digest = bench.lab.operator(&["image", "add", file.to_str().context("UTF-8")?])?.trim().to_owned();
    let workflow = bench.file("workflow.yaml");
    let text = format!(
        "steps:\n- name: write\n  action:\n    stream-image:\n      url: {}/images/{digest}\n      digest: sha256:{}\n\
         - name: leave\n  action:\n    reboot: {{}}\n",
        bench.lab.url(),
        "0".repeat(64)
    );
    std::fs::write(&workflow, text)?;
    bench.lab.operator(&["node", "add", "--name", "m1", "--uuid", UUID, "--release"])?;
    bench.lab.operator(&["run", "start", "m1", "--workflow", workflow.to_str().context("UTF-8")?])?;

    let machine = bench.power_on()?;
    let status = bench.wait_for(&machine, "failed", |node| node.state == NodeState::Failed)?;
    let run = status.run.context("a run")?;
    let failure = run.steps[0].failure.as_ref().context("a failure")?;
    assert!(failure.reason.starts_with("checking the digest"), "{failure:?}");
    assert!(failure.log_tail.iter().any(|line| line.contains("step 1/2 write: started")), "{failure:?}");
    assert_eq!(run.steps[1].state, StepState::Skipped);
    assert!(machine.console()?.contains("the machine holds and waits for another"));
    drop(machine);

    assert!(Bench::starts_with_zeros(&bench.disk(), 1 << 20)?);
    bench.done("a wrong digest leaves an empty head");
    Ok(())
}
