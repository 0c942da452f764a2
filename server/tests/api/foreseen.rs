//! Runs that would fail once the disk was erased are refused, or end before it is.

use std::fs;

use slipway_protocol::{Disk, Inventory, NodeState, RunState};
use slipway_server::store::{self, nodes};
use slipway_server::{Error, operate};

use crate::installing::{add_system, debian, start, web1};
use crate::program::{fail, succeed};
use crate::support::{IMAGE, TestServer};
use crate::work::new_run;

/// Why a run of the operating system is refused.
async fn refused(server: &TestServer) -> String {
    start(server, debian()).await.expect_err("refused").to_string()
}

async fn with_disk(server: &TestServer, size: u64) {
    let store = server.store().await;
    let mut transaction = store.write().await.unwrap();
    let mut node = nodes::find(&mut transaction, "web1").await.unwrap().unwrap();
    let disk = Disk { path: "/dev/vda".to_owned(), size, ..Disk::default() };
    node.inventory = Some(Inventory { disks: vec![disk], ..Inventory::default() });
    nodes::save(&mut transaction, &node).await.unwrap();
    store::commit(transaction).await.unwrap();
}

#[tokio::test]
async fn an_image_whose_file_is_not_as_it_was_added_is_shown_and_not_installed() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    let (data, file) = (server.data_path(), server.data().image(&digest));
    let lists = || [["image", "list"], ["os", "list"]].map(|list| succeed(&data, &list));
    assert!(lists().iter().all(|list| list.contains("  there  ")), "{:?}", lists());
    let cases: [(&str, &str, &dyn Fn()); 3] = [
        ("missing", "is missing on this server", &|| fs::remove_file(&file).unwrap()),
        ("wrong-size", "its file has another size", &|| fs::write(&file, &IMAGE[..511]).unwrap()),
        ("unreadable", "cannot be read", &|| fs::create_dir(&file).unwrap()),
    ];
    for (word, words, damage) in cases {
        fs::remove_file(&file).ok();
        fs::write(&file, IMAGE).unwrap();
        if word == "unreadable" {
            fs::remove_file(&file).unwrap();
        }
        damage();
        assert!(lists().iter().all(|list| list.contains(word)), "{:?}", lists());
        let json = |kind: &str| -> serde_json::Value {
            serde_json::from_str(&succeed(&data, &[kind, "list", "--json"])).unwrap()
        };
        assert_eq!((&json("image")[0]["problem"], &json("os")[0]["image_problem"]), (&word.into(), &word.into()));
        let refused = fail(&data, &["run", "start", "web1", "--os", "debian"]);
        assert!(
            refused.contains("step 2 (stream-image) would fail: the image ") && refused.contains(words),
            "{refused}"
        );
        assert!(refused.contains(digest.hex()) && refused.contains("`slipway-server image add FILE`"), "{refused}");
    }
    fs::remove_dir(&file).unwrap();
    add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
}

#[tokio::test]
async fn a_file_that_steps_of_a_workflow_name_on_this_server_must_be_there() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let none = format!("https://server.test:8443/images/sha256:{}", "0".repeat(64));
    let steps = [
        format!("stream-image: {{url: {none}}}"),
        format!("stream-image: {{url: https://elsewhere.test/x, bmap: {none}}}"),
        format!("stream-image: {{url: https://elsewhere.test/x, sums: {none}}}"),
        format!("unpack-archive: {{url: {none}}}"),
        format!("write-file: {{path: /x, url: {none}}}"),
    ];
    for step in steps {
        let workflow =
            format!("steps:\n- {{name: erase, action: {{erase-disk: {{}}}}}}\n- {{name: x, action: {{{step}}}}}\n");
        let refused = operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&workflow)).await;
        let refused = refused.expect_err(&step).to_string();
        assert!(refused.starts_with("step 2 (x) would fail: there is no image sha256:000"), "{refused}");
    }
    let mirrored = format!(
        "steps:\n- {{name: x, action: {{stream-image: {{url: {none}, mirrors: [https://elsewhere.test/x]}}}}}}\n"
    );
    operate::start_run(&server.store().await, &server.ca(), "web1", new_run(&mirrored)).await.unwrap();
}

#[tokio::test]
async fn a_run_ends_before_the_disk_is_erased_if_its_image_vanished_since() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let digest = add_system(&server, |_| {}).await.unwrap().image;
    start(&server, debian()).await.unwrap();
    fs::remove_file(server.data().image(&digest)).unwrap();
    assert_eq!(node.workflow(&server).await, None);
    let shown = web1(&server).await;
    let run = shown.run.unwrap();
    assert_eq!((shown.state, run.state), (NodeState::Failed, RunState::Failed));
    let failure = run.steps[0].failure.as_ref().unwrap();
    assert_eq!(failure.reason, "checking step 2 (stream-image) before the first step; the disks are as they were");
    assert!(failure.causes[0].contains("is missing on this server"), "{failure:?}");
}

#[tokio::test]
async fn an_image_that_is_larger_than_the_disk_is_not_installed() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    with_disk(&server, 256).await;
    let expect = "step 2 (stream-image) would fail: the disk /dev/vda has 256 bytes, but the image needs 512 bytes";
    assert!(refused(&server).await.starts_with(expect), "{}", refused(&server).await);
    with_disk(&server, 512).await;
    let started: Result<_, Error> = start(&server, debian()).await;
    started.unwrap();
    // It was exchanged for a smaller one before the machine asked for work.
    with_disk(&server, 256).await;
    assert_eq!(node.workflow(&server).await, None);
    assert_eq!(web1(&server).await.state, NodeState::Failed);
}
