//! What the server knows of a run, step by step.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use slipway_installer::config::Config;
use slipway_installer::server::clock;
use slipway_installer::{End, Options, PANIC};
use slipway_protocol::{
    Action, DiskHints, EfiBootOrder, EraseDisk, EraseMode, MachineSettings, NodeState, Reboot, RunState, Step,
    StepState, StreamImage,
};
use slipway_server::operate;
use slipway_tests::{DISK, Lab};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn step(name: &str, action: Action) -> Step {
    Step { name: name.to_owned(), action, retries: 0, timeout: Some(60) }
}

fn stream(lab: &Lab, url: &str, digest: &slipway_protocol::Digest) -> Step {
    let image = StreamImage {
        url: url.to_owned(),
        digest: Some(digest.clone()),
        disk: lab.disk_hints(),
        ..StreamImage::default()
    };
    step("write", Action::StreamImage(image))
}

/// Registers the machine and starts a run. The run's step "write" waits for an image that does not come while the
/// returned listener exists.
async fn start_hanging_run(lab: &Lab) -> TcpListener {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/image", silent.local_addr().expect("an address"));
    let digest = format!("sha256:{}", "0".repeat(64)).parse().expect("a digest");
    lab.register(true).await;
    lab.start_run(vec![stream(lab, &url, &digest), step("leave", Action::Reboot(Reboot::default()))]).await;
    silent
}

fn image() -> Vec<u8> {
    (0..8u32 << 20).map(|i| (i / 4096 + i % 251) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_a_run_is_stored_before_the_machine_leaves() {
    let lab = Lab::start().await;
    let image = image();
    let (url, digest) = lab.add_image(&image).await;
    lab.register(true).await;
    let erase = Action::EraseDisk(EraseDisk { disk: lab.disk_hints(), ..EraseDisk::default() });
    let reboot = Action::Reboot(Reboot::default());
    lab.start_run(vec![step("erase", erase), stream(&lab, &url, &digest), step("leave", reboot)]).await;

    assert_eq!(lab.install().await.unwrap(), End::Reboot);

    let node = lab.status().await;
    assert_eq!(node.state, NodeState::Installed);
    let timing = node.timing.expect("the times of the boot");
    assert_eq!((timing.kernel_to_init, timing.init_to_lease), (1000, Some(400)));
    let run = node.run.unwrap();
    assert_eq!(run.state, RunState::Succeeded);
    assert!(run.steps.iter().all(|s| s.state == StepState::Succeeded && s.attempt == 1), "{run:#?}");
    assert_eq!(run.steps[1].progress.as_ref().map(|p| p.bytes), Some(image.len() as u64));
    assert!(run.steps[1].notes.iter().any(|note| note.contains(lab.disk().to_str().unwrap())), "{run:#?}");
    assert!(std::fs::read(lab.disk()).unwrap().starts_with(&image));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_every_step_names_is_not_kept_waiting_for_others() {
    let lab = Lab::start().await;
    lab.register(true).await;
    // The search for disks never ends.
    let (_looking, disks_settled) = tokio::sync::watch::channel(false);
    let erase = Action::EraseDisk(EraseDisk { disk: lab.disk_hints(), ..EraseDisk::default() });
    lab.start_run(vec![step("erase", erase), step("leave", Action::Reboot(Reboot::default()))]).await;
    let options = Options { disks_settled, ..lab.options(None) };
    assert_eq!(slipway_installer::run(lab.config(), options).await.unwrap(), End::Reboot);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_looks_at_all_disks_or_names_none_waits_for_them() {
    for is_named in [false, true] {
        let lab = Lab::start().await;
        lab.register(true).await;
        let none = DiskHints { min_size: Some(u64::MAX), ..DiskHints::default() };
        let action = match is_named {
            false => Action::EraseDisk(EraseDisk { disk: none, ..EraseDisk::default() }),
            true => Action::EfiBootOrder(EfiBootOrder { disk: lab.disk_hints(), ..EfiBootOrder::default() }),
        };
        let (settled, disks_settled) = tokio::sync::watch::channel(false);
        lab.start_run(vec![step("look", action)]).await;
        let options = Options { disks_settled, ..lab.options(None) };
        let installing = tokio::spawn(slipway_installer::run(lab.config(), options));
        lab.wait_for("enrolled", |node| node.state != NodeState::Registered).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!installing.is_finished(), "it waits");
        settled.send_replace(true);
        assert_eq!(installing.await.unwrap().unwrap(), End::Failed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_says_why_and_no_later_one_runs() {
    let lab = Lab::start().await;
    let (url, _) = lab.add_image(&image()).await;
    // A SHA-512, because the server knows the right SHA-256.
    let wrong = format!("sha512:{}", "0".repeat(128)).parse().unwrap();
    lab.register(true).await;
    lab.start_run(vec![stream(&lab, &url, &wrong), step("leave", Action::Reboot(Reboot::default()))]).await;

    assert_eq!(lab.install().await.unwrap(), End::Failed);

    let node = lab.status().await;
    assert_eq!(node.state, NodeState::Failed);
    let steps = node.run.unwrap().steps;
    let failure = steps[0].failure.as_ref().unwrap();
    assert!(failure.reason.contains("digest"), "{failure:?}");
    assert_eq!(steps[0].state, StepState::Failed);
    assert_eq!(steps[1].state, StepState::Skipped);
    let head = &std::fs::read(lab.disk()).unwrap()[..1 << 20];
    assert!(head.iter().all(|byte| *byte == 0), "a disk with a wrong image must not boot");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_from_a_step_does_not_do_the_steps_before_again() {
    let lab = Lab::start().await;
    let (url, digest) = lab.add_image(&image()).await;
    let wrong = format!("sha512:{}", "0".repeat(128)).parse().unwrap();
    let erase = EraseDisk { disk: lab.disk_hints(), mode: EraseMode::Zero, ..EraseDisk::default() };
    lab.register(true).await;
    let last = Step { name: "last".to_owned(), ..stream(&lab, &url, &wrong) };
    lab.start_run(vec![step("erase", Action::EraseDisk(erase)), stream(&lab, &url, &digest), last]).await;
    assert_eq!(lab.install().await.unwrap(), End::Failed);

    let disk = std::fs::File::options().read(true).write(true).open(lab.disk()).unwrap();
    disk.write_all_at(b"still here", DISK / 2).unwrap();
    let marked = || {
        let mut mark = [0; 10];
        disk.read_exact_at(&mut mark, DISK / 2).unwrap();
        mark == *b"still here"
    };
    for from in [Some("last"), None] {
        let mut retry = operate::retry_of(&lab.store().await, "m1").await.unwrap();
        retry.from = from.map(str::to_owned);
        operate::retry_run(&lab.store().await, &lab.ca(), retry).await.unwrap();
        assert_eq!(lab.install().await.unwrap(), End::Failed);
        let states = lab.status().await.run.unwrap().steps.into_iter().map(|step| step.state).collect::<Vec<_>>();
        assert_eq!(states, [StepState::Succeeded, StepState::Succeeded, StepState::Failed]);
        assert_eq!(marked(), from.is_some(), "the disk is erased by the whole run alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_takes_too_long_is_stopped_and_reported() {
    let lab = Lab::start().await;
    // Accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/image", silent.local_addr().unwrap());
    let digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    lab.register(true).await;
    lab.start_run(vec![Step { timeout: Some(1), ..stream(&lab, &url, &digest) }]).await;

    assert_eq!(lab.install().await.unwrap(), End::Failed);

    let step = lab.status().await.run.unwrap().steps.remove(0);
    assert_eq!(step.state, StepState::TimedOut);
    assert!(step.failure.unwrap().causes[0].contains("longer than the 1 s"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_may_be_tried_again_is() {
    let lab = Lab::start().await;
    let breaking = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = breaking.local_addr().unwrap();
    // Sends a part of the image and hangs up. Without an ETag the fetch cannot resume, so this is a transient fault.
    let server = tokio::spawn(async move {
        while let Ok((mut connection, _)) = breaking.accept().await {
            let _ = connection.read(&mut [0; 4096]).await;
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\npiece").await;
        }
    });
    let digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    lab.register(true).await;
    let step = stream(&lab, &format!("http://{address}/image"), &digest);
    lab.start_run(vec![Step { retries: 1, timeout: None, ..step }]).await;

    assert_eq!(lab.install().await.unwrap(), End::Failed);
    server.abort();

    let step = lab.status().await.run.unwrap().steps.remove(0);
    assert_eq!((step.state, step.attempt), (StepState::Failed, 2));
    assert!(step.failure.unwrap().reason.contains(&address.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installer_that_was_killed_in_a_step_is_reported_by_the_next() {
    let lab = Lab::start().await;
    let _silent = start_hanging_run(&lab).await;
    // A separate runtime, because a killed installer reports nothing more.
    let first = tokio::runtime::Runtime::new().unwrap();
    first.spawn(slipway_installer::run(lab.config(), lab.options(None)));
    lab.wait_for("installing", |node| node.state == NodeState::Installing).await;
    first.shutdown_background();

    let next = lab.options(Some("killed by signal 9 (SIGKILL)"));
    assert_eq!(slipway_installer::run(lab.config(), next).await.unwrap(), End::Failed);

    let failure = lab.status().await.run.unwrap().steps.remove(0).failure.unwrap();
    assert_eq!(failure.reason, "the installer ended in the middle of step 1 write");
    assert_eq!(failure.causes, ["killed by signal 9 (SIGKILL)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_message_of_a_panic_is_kept_until_a_run_begins() {
    let lab = Lab::start().await;
    let options = lab.options(None);
    let message = options.state.join(PANIC);
    std::fs::create_dir_all(&options.state).unwrap();
    std::fs::write(&message, "panicked at x.rs:1").unwrap();
    lab.register(true).await;
    let installing = tokio::spawn(slipway_installer::run(lab.config(), options));
    lab.wait_for("enrolled", |node| node.state == NodeState::Enrolled).await;
    assert!(message.exists());

    let erase = Action::EraseDisk(EraseDisk { disk: lab.disk_hints(), ..EraseDisk::default() });
    lab.start_run(vec![step("erase", erase)]).await;
    assert_eq!(installing.await.unwrap().unwrap(), End::Done);
    assert!(!message.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_replaced_stops_on_the_machine() {
    let lab = Lab::start().await;
    let _silent = start_hanging_run(&lab).await;
    let installing = tokio::spawn(slipway_installer::run(lab.config(), lab.options(None)));
    lab.wait_for("installing", |node| node.state == NodeState::Installing).await;

    let erase = Action::EraseDisk(EraseDisk { disk: lab.disk_hints(), ..EraseDisk::default() });
    lab.replace_run(vec![step("erase", erase)]).await;

    assert_eq!(installing.await.unwrap().unwrap(), End::Failed);
    let run = lab.status().await.run.unwrap();
    assert_eq!((run.state, run.steps[0].name.as_str()), (RunState::Pending, "erase"));
    assert_eq!(lab.install().await.unwrap(), End::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_taken_out_of_service_stops_and_does_not_restart() {
    let lab = Lab::start().await;
    let _silent = start_hanging_run(&lab).await;
    let installing = tokio::spawn(slipway_installer::run(lab.config(), lab.options(None)));
    let node = lab.wait_for("installing", |node| node.state == NodeState::Installing).await;

    operate::decommission_node(&lab.store().await, &node.id).await.unwrap();

    assert_eq!(installing.await.unwrap().unwrap(), End::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_taken_out_of_service_knocks_as_an_unknown_one_and_waits() {
    let lab = Lab::start().await;
    let store = lab.store().await;
    lab.register(true).await;
    // A released machine does not use up the token, but the token must not let this machine in again.
    let token = operate::add_token(&store, None, None).await.unwrap().token;
    let machine = MachineSettings { token: Some(token.into()), ..MachineSettings::default() };
    let config = Config { machine, ..lab.config() };
    let installing = tokio::spawn(slipway_installer::run(config, Options { once: false, ..lab.options(None) }));
    let old = lab.wait_for("enrolled", |node| node.state == NodeState::Enrolled).await;

    operate::decommission_node(&store, &old.id).await.unwrap();

    let held = lab.wait_for("held", |node| node.state == NodeState::Held).await;
    assert_ne!(held.id, old.id);
    assert_eq!(lab.status().await.state, NodeState::Decommissioned);
    operate::release_node(&store, held.claim_code.as_deref().unwrap(), None).await.unwrap();
    lab.wait_for("enrolled", |node| node.id == held.id && node.state == NodeState::Enrolled).await;
    installing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_at_the_terminal_is_told_at_once_of_a_server_that_is_not_trusted() {
    let (lab, other) = (Lab::start().await, Lab::start().await);
    let config = Config { ca: other.ca(), ..lab.config() };
    let error = slipway_installer::run(config, lab.options(None)).await.unwrap_err();
    assert!(error.to_string().contains("nothing was sent"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_for_a_while_misses_nothing() {
    let mut lab = Lab::start().await;
    let image = image();
    // The image comes from a file, so only the reports need the server.
    let file = lab.folder.path().join("elsewhere");
    std::fs::write(&file, &image).unwrap();
    let (_, digest) = lab.add_image(&image).await;
    lab.register(true).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hold =
        Step { timeout: Some(2), ..stream(&lab, &format!("http://{}/image", silent.local_addr().unwrap()), &digest) };
    lab.start_run(vec![stream(&lab, file.to_str().unwrap(), &digest), Step { name: "hold".to_owned(), ..hold }]).await;
    let installing = tokio::spawn(slipway_installer::run(lab.config(), lab.options(None)));
    lab.wait_for("at its second step", |node| {
        node.run.as_ref().is_some_and(|run| run.steps[1].state != StepState::Pending)
    })
    .await;
    lab.stop_server().await;
    // The file that records the step in progress is removed when the step ends, which happens while the server is away.
    while lab.folder.path().join("run/step.json").exists() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    lab.start_server().await;

    assert_eq!(installing.await.unwrap().unwrap(), End::Failed);
    let steps = lab.status().await.run.unwrap().steps;
    assert_eq!(steps[0].state, StepState::Succeeded);
    assert_eq!(steps[1].state, StepState::TimedOut);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unregistered_machine_goes_on_when_it_is_released() {
    let lab = Lab::start().await;
    let installing = tokio::spawn(slipway_installer::run(lab.config(), lab.options(None)));
    let held = lab.wait_for("held", |node| node.state == NodeState::Held).await;
    let store = lab.store().await;
    operate::release_node(&store, held.claim_code.as_deref().unwrap(), None).await.unwrap();
    lab.wait_for("enrolled", |node| node.state == NodeState::Enrolled).await;
    installing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_another_ca_is_refused_before_anything_is_sent() {
    let (lab, other) = (Lab::start().await, Lab::start().await);
    let config = Config { ca: other.ca(), ..lab.config() };
    let error = clock::set_from_server(&config, &lab.folder.path().join("clock")).await.unwrap_err();
    assert!(error.to_string().contains("nothing was sent"), "{error}");
    assert!(error.to_string().contains("not signed by the CA"), "{error}");
    assert_eq!(DISK, std::fs::metadata(lab.disk()).unwrap().len());
}
