//! Precedence of settings when a run is composed: the run's before the system's, and the site's before both.

use slipway_protocol::{ErrorCode, MAX_WORKFLOW_BYTES};
use slipway_server::operate::{NewRun, parse_workflow};
use slipway_server::store::systems::System;

use crate::installing::{add_system, debian, report_path, seed, start};
use crate::support::TestServer;
use crate::work::new_run;

/// Adds the system, starts the run, and returns the node's user-data, with `URL` for the report URL of its system.
async fn composed(change: impl FnOnce(&mut System), new: NewRun) -> String {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, change).await.unwrap();
    start(&server, new).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    assert_eq!(seed(&workflow).phone_home, None, "there is nothing left for the node to put in");
    let user_data = &seed(&workflow).user_data;
    if !user_data.contains("server.test") {
        return user_data.clone();
    }
    user_data.replace(&format!("https://server.test:8443{}", report_path(&workflow)), "URL")
}

fn block(post: &str, tries: u32) -> String {
    format!("phone_home:\n  url: \"URL\"\n  post: {post}\n  tries: {tries}\n")
}

fn with_user_data(user_data: &str) -> NewRun {
    NewRun { user_data: Some(user_data.to_owned()), ..debian() }
}

#[tokio::test]
async fn a_run_wins_over_its_system() {
    let on = |system: &mut System| {
        system.user_data = Some("#cloud-config\nof: system\n".to_owned());
        system.phone_home_post = Some("hostname".to_owned().try_into().unwrap());
        system.phone_home_tries = Some(3);
    };
    let off = |system: &mut System| system.phone_home = false;
    let systems = "#cloud-config\nof: system\n";
    assert_eq!(composed(on, debian()).await, format!("{systems}{}", block("[hostname]", 3)));
    let tries = NewRun { phone_home_tries: Some(4), ..debian() };
    assert_eq!(composed(on, tries).await, format!("{systems}{}", block("[hostname]", 4)));
    let all = NewRun { phone_home_post: Some("all".to_owned().try_into().unwrap()), ..debian() };
    assert_eq!(composed(on, all).await, format!("{systems}{}", block("all", 3)));
    assert_eq!(composed(on, NewRun { phone_home: Some(false), ..debian() }).await, systems);
    assert_eq!(composed(off, debian()).await, "#cloud-config\n");
    let on_after_all = NewRun { phone_home: Some(true), ..debian() };
    assert_eq!(composed(off, on_after_all).await, format!("#cloud-config\n{}", block("all", 10)));
}

#[tokio::test]
async fn user_data_is_inherited_only_by_a_run_that_brings_none() {
    let nothing = |_: &mut System| {};
    let own = with_user_data("#cloud-config\nof: run\n");
    assert_eq!(composed(nothing, own).await, format!("#cloud-config\nof: run\n{}", block("all", 10)));
    let secret = |system: &mut System| system.user_data = Some("#cloud-config\nof: system\n".to_owned());
    let empty = format!("#cloud-config\n{}", block("all", 10));
    assert_eq!(composed(secret, with_user_data("")).await, empty, "empty user-data is what the run brings");
    assert_eq!(composed(|system| system.user_data = None, debian()).await, empty);
}

#[tokio::test]
async fn with_the_flag_off_blocks_of_this_server_go_and_nothing_else() {
    let off = |system: &mut System| system.phone_home = false;
    let old = "phone_home:\n  url: https://server.test:8443/v1/phone-home/old\n  post: all\n";
    assert_eq!(
        composed(off, with_user_data(&format!("#cloud-config\n{old}a: 1\n{old}"))).await,
        "#cloud-config\na: 1\n"
    );
    assert_eq!(composed(off, with_user_data(&format!("#cloud-config\n{old}"))).await, "");
    let metadata = "#cloud-config\n{phone_home: {url: 'https://server.test:8443/latest/meta-data/phone_home'}}\n";
    assert_eq!(composed(off, with_user_data(metadata)).await, "");
    for kept in
        ["#!/bin/sh\n# no YAML: [\n", "#cloud-config\nphone_home: {url: 'https://other.test/v1/phone-home/old'}\n"]
    {
        assert_eq!(composed(off, with_user_data(kept)).await, kept);
    }
}

#[tokio::test]
async fn what_is_refused_is_refused_when_it_is_said() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    add_system(&server, |system| system.allow_override = false).await.unwrap();
    let refused = start(&server, with_user_data("#cloud-config\n")).await.expect_err("own user-data");
    assert_eq!(refused.body().code, ErrorCode::Forbidden);
    assert!(refused.to_string().contains("has allow_override false"), "{refused}");

    add_system(&server, |_| {}).await.unwrap();
    let anchored = "#cloud-config\nphone_home: &x {url: 'https://server.test:8443/v1/phone-home/a'}\nb: *x\n";
    let without = |new: NewRun| NewRun { phone_home: Some(false), ..new };
    let no_tries = NewRun { phone_home_tries: Some(0), ..debian() };
    let no_seed = NewRun { phone_home: Some(true), ..new_run("steps: [{name: a, action: {reboot: {}}}]") };
    for (new, expect) in [
        (
            with_user_data("#cloud-config\na: [b\n"),
            "step \"seed-cloud-init\": the user-data cannot be used: line 2, column 4: ",
        ),
        (
            without(with_user_data("hello\n")),
            "step \"seed-cloud-init\": the user-data cannot be used: line 1, column 1: cloud-init does not recognise",
        ),
        (
            without(with_user_data("{\"ignition\": {}}")),
            "step \"seed-cloud-init\": the Ignition config cannot be used: line 1, column 1: the config has no",
        ),
        (
            without(with_user_data(anchored)),
            "phone_home cannot be removed from the user-data: line 2, column 1: without",
        ),
        (no_tries, "phone_home_tries must not be 0"),
        (no_seed, "the workflow has no seed-cloud-init step"),
    ] {
        let refused = start(&server, new).await.expect_err(expect);
        assert_eq!(refused.body().code, ErrorCode::InvalidRequest);
        assert!(refused.to_string().starts_with(expect), "{refused}");
    }
    add_system(&server, |system| system.phone_home_tries = Some(0)).await.expect_err("no tries");
}

/// The judgement does not depend on whether the system reports.
#[tokio::test]
async fn what_an_installed_system_would_not_understand_is_refused_in_every_way_to_say_it() {
    let server = TestServer::start().await;
    server.enrolled("web1").await;
    let encoded = "I2Nsb3VkLWNvbmZpZwphOiAxCg==\n";
    for (user_data, vendor_data, expect) in [
        (
            "#cloud-config\n- a\n",
            None,
            "the user-data cannot be used: line 2, column 1: the root of the document is a list",
        ),
        (
            encoded,
            None,
            "the user-data cannot be used: line 1, column 1: cloud-init does not recognise the text: it is in base64",
        ),
        (
            "",
            Some("packages: [a]\n"),
            "the vendor-data cannot be used: line 1, column 1: cloud-init does not recognise",
        ),
        ("{}", None, "the Ignition config cannot be used: line 1, column 1: the config has no ignition.version"),
        ("{}", Some("#!/bin/sh\n"), "the operating system has vendor_data or network_config, which Ignition does not"),
    ] {
        for phone_home in [true, false] {
            let change = |system: &mut System| {
                system.phone_home = phone_home;
                system.user_data = Some(user_data.to_owned());
                system.vendor_data = vendor_data.map(str::to_owned);
            };
            let refused = add_system(&server, change).await.expect_err(expect);
            assert_eq!(refused.body().code, ErrorCode::InvalidRequest);
            assert!(refused.to_string().starts_with(expect), "{refused}");
        }
    }
    let seed = |inputs: &str| new_run(&format!("steps: [{{name: a, action: {{seed-cloud-init: {{{inputs}}}}}}}]\n"));
    for (inputs, expect) in [
        (
            "user_data: \"#cloud-config\\na: [\"",
            "step \"a\": the user-data cannot be used: line 2, column 4: this is not YAML",
        ),
        ("vendor_data: hello", "step \"a\": the vendor-data cannot be used: line 1, column 1: "),
        (
            "network_config: \"version: 2\\nethernets: {\"",
            "step \"a\": the network configuration cannot be used: line 2, column 12: ",
        ),
        ("network_config: \"# none\"", "step \"a\": the network configuration cannot be used: line 1, column 1: "),
        ("user_data: \"{}\"", "step \"a\": the Ignition config cannot be used: line 1, column 1: "),
    ] {
        let refused = start(&server, seed(inputs)).await.expect_err(expect);
        assert!(refused.to_string().starts_with(expect), "{refused}");
    }
    start(&server, seed("network_config: \"version: 2\\n\"")).await.unwrap();
}

#[tokio::test]
async fn a_run_is_no_larger_than_what_a_machine_reads() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    // A quote takes two bytes in JSON.
    let quotes = |count: usize| with_user_data(&format!("#!/bin/sh\n# {}\n", "\"".repeat(count)));
    let run = |count| NewRun { phone_home: Some(false), ..quotes(count) };
    let refused = start(&server, run(MAX_WORKFLOW_BYTES / 2)).await.expect_err("too large");
    assert_eq!(refused.body().code, ErrorCode::InvalidRequest);
    let message = refused.to_string();
    assert!(message.contains("at most 8388608; put large files on the server"), "{message}");
    start(&server, run(MAX_WORKFLOW_BYTES / 2 - (64 << 10))).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    assert!(serde_json::to_vec(&workflow).unwrap().len() < MAX_WORKFLOW_BYTES);
}

#[tokio::test]
async fn a_workflow_says_it_in_yaml() {
    let seed = "steps: [{name: a, action: {seed-cloud-init: {user_data: \"#cloud-config\\n\"}}}]\n";
    let workflow = |flag: &str| new_run(&format!("{flag}{seed}"));
    let nothing = |_: &mut System| {};
    assert_eq!(composed(nothing, workflow("")).await, "#cloud-config\n");
    let on = "phone_home: true\nphone_home_post: hostname, fqdn\nphone_home_tries: 2\n";
    assert_eq!(composed(nothing, workflow(on)).await, format!("#cloud-config\n{}", block("[hostname, fqdn]", 2)));
    assert_eq!(composed(nothing, NewRun { phone_home: Some(false), ..workflow(on) }).await, "#cloud-config\n");
    let own = "steps: [{name: a, action: {seed-cloud-init: {phone_home: {url: 'https://o.test/'}}}}]\n";
    let expect = "#cloud-config\nphone_home:\n  url: \"https://o.test/\"\n  post: all\n";
    assert_eq!(composed(nothing, new_run(own)).await, expect);
    let refused = parse_workflow("phone_home_post: password\nsteps: []\n").expect_err("no such key").to_string();
    assert!(refused.contains("cannot post \"password\"") && refused.contains("line 1, column 18"), "{refused}");
}

#[tokio::test]
async fn every_run_of_a_workflow_has_an_instance_id_of_its_own() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let mut found = Vec::new();
    for _ in 0..2 {
        let new = NewRun { replace: true, ..new_run("steps: [{name: a, action: {seed-cloud-init: {}}}]") };
        start(&server, new).await.unwrap();
        found.push(seed(&node.workflow(&server).await.unwrap()).instance_id.clone());
    }
    assert_ne!(found[0], found[1]);
    assert!(found.iter().all(|id| id.starts_with("slipway-") && id.len() == 40), "{found:?}");
}
