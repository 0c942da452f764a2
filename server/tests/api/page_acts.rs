//! What operators do to nodes on the page, as a browser without script sends it.

use reqwest::StatusCode;
use slipway_protocol::{Disk, Identity, Inventory, NodeState};
use slipway_server::node::status;
use slipway_server::operate::{self, NewNode};

use crate::installing::{add_system, debian, start, web1};
use crate::page::{Browser, location};
use crate::retrying::fails_at;
use crate::support::{Machine, Node, TestServer, UUID};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_after_the_disk_was_named_and_the_name_was_typed() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let machine = Machine::with_uuid(UUID);
    let mut request = machine.request();
    let disk =
        Disk { path: "/dev/sda".to_owned(), size: 960 << 30, model: Some("Samsung".to_owned()), ..Disk::default() };
    request.inventory = Inventory { disks: vec![disk], ..Inventory::default() };
    let enrolled = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(enrolled.status(), StatusCode::OK);
    add_system(&server, |_| {}).await.unwrap();
    let token = operate::add_operator(&server.store().await, &server.data(), "anna", None).await.unwrap().token;
    let browser = Browser::signed_in(&server, &token).await;
    let id = operate::show_node(&server.store().await, "web1").await.unwrap().id;

    let page = browser.page(&format!("/nodes/{id}")).await;
    assert!(page.contains(&format!("href=\"/act/start?node={id}\"")), "{page}");
    assert!(page.contains("disabled>Cancel run…</button> <span class=\"muted\">no run is in progress"), "{page}");
    let page = browser.page(&format!("/act/start?node={id}")).await;
    assert!(page.contains("<option value=\"debian\""), "{page}");
    let page = browser.page(&format!("/act/start?node={id}&os=debian")).await;
    assert!(page.contains("Erases <strong>Samsung, 960 GiB, /dev/sda</strong>"), "{page}");
    let start = async |confirm: &str| {
        browser.send("/act/start", &[("node", &id), ("os", "debian"), ("confirm", confirm)]).await
    };
    let refused = start("web2").await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(refused.text().await.unwrap().contains("nothing was done"));
    assert_eq!(operate::show_node(&server.store().await, "web1").await.unwrap().run, None);
    assert_eq!(location(&start("web1").await), format!("/nodes/{id}"));
    let status = operate::show_node(&server.store().await, "web1").await.unwrap();
    let run = status.run.unwrap().id;
    let page = browser.page(&format!("/runs/{run}")).await;
    assert!(page.contains("&quot;seed-cloud-init&quot;") && page.contains(&format!("href=\"/nodes/{id}\"")), "{page}");
    let events = browser.page("/events?kind=run-started").await;
    assert!(events.contains("<td class=\"muted\">anna</td>"), "{events}");
    assert_eq!(location(&browser.send("/act/cancel", &[("node", &id)]).await), format!("/nodes/{id}"));
    let runs = browser.page("/runs").await;
    assert!(runs.contains("<span class=\"state quiet\">cancelled</span>") && !runs.contains("state bad"), "{runs}");
    // A page that was opened before something changed does nothing.
    let proof = browser.proof().await;
    let old = [("node", &*id), ("os", "debian"), ("confirm", "web1"), ("proof", &proof), ("said", "of another time")];
    let refused = browser.post("/act/start", &old).await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let refused = refused.text().await.unwrap();
    assert!(refused.contains("changed after the page was opened"), "{refused}");
    assert!(refused.contains(&format!("href=\"/nodes/{id}\"")) && refused.contains("href=\"/runs\""), "{refused}");
    // What cannot be done is not done, and says why.
    let page = browser.page(&format!("/act/remove?node={id}")).await;
    assert!(page.contains("nothing, because the node is in service"), "{page}");
    assert_eq!(browser.send("/act/remove", &[("node", &id), ("confirm", "web1")]).await.status(), StatusCode::CONFLICT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_retried_after_the_disk_was_named() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let system = add_system(&server, |_| {}).await.unwrap();
    start(&server, debian()).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    fails_at(&server, &node, &workflow, "stream-image").await;
    let token = operate::add_operator(&server.store().await, &server.data(), "anna", None).await.unwrap().token;
    let browser = Browser::signed_in(&server, &token).await;
    let id = web1(&server).await.id;
    let path = format!("/nodes/{id}/retry");

    assert!(browser.page(&format!("/nodes/{id}")).await.contains(&format!("href=\"{path}\"")));
    assert!(browser.page("/fleet").await.contains(&format!("href=\"{path}\"")));
    let page = browser.page(&path).await;
    assert!(page.contains("Erases the disk that the machine chooses"), "{page}");
    let said = |page: &str| {
        let (_, value) = page.split_once("name=\"said\" value=\"").unwrap();
        value.split('"').next().unwrap().to_owned()
    };
    let proof = browser.proof().await;
    let fields = |confirm: &'static str, said: String| {
        [("confirm", confirm.to_owned()), ("said", said), ("proof", proof.clone())]
    };
    let post = async |fields: [(&str, String); 3]| {
        let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
        browser.post(&path, &fields).await
    };
    assert_eq!(post(fields("web2", said(&page))).await.status(), StatusCode::BAD_REQUEST);
    let system = slipway_server::store::systems::System { kernel_args: vec!["quiet".to_owned()], ..system };
    operate::add_system(&server.store().await, system).await.unwrap();
    let changed = post(fields("web1", said(&page))).await;
    assert_eq!(changed.status(), StatusCode::CONFLICT, "it would do something else");
    let page = browser.page(&path).await;
    assert_eq!(web1(&server).await.run.unwrap().id, workflow.run);
    assert_eq!(location(&post(fields("web1", said(&page))).await), format!("/nodes/{id}"));
    let steps: Vec<String> = node.workflow(&server).await.unwrap().steps.into_iter().map(|step| step.name).collect();
    assert!(steps.iter().any(|step| step == "kernel-args"), "{steps:?}");
    let refused = browser.get(&path).await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    assert!(refused.text().await.unwrap().contains("is not over"));
}

#[tokio::test]
async fn several_nodes_are_acted_on_with_a_result_for_each() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let mut ids = Vec::new();
    for name in ["web1", "web2", "web3"] {
        let identity = Identity { serial: Some(name.to_owned()), ..Identity::default() };
        let new = NewNode { name: Some(name.to_owned()), identity, ..NewNode::default() };
        ids.push(operate::add_node(&store, new).await.unwrap().id);
    }
    let [one, two, three] = &ids[..] else { panic!("three") };
    let page = browser.page(&format!("/act/decommission?node={one}&node={two}")).await;
    assert!(page.contains("web1") && page.contains("web2") && !page.contains("web3"), "{page}");
    operate::remove_node(&store, two).await.unwrap();
    let response = browser.send("/act/decommission", &[("node", one), ("node", two), ("node", three)]).await;
    let page = response.text().await.unwrap();
    assert!(page.contains("done on 2 of 3 machines"), "{page}");
    for (id, state) in [(one, NodeState::Decommissioned), (three, NodeState::Decommissioned)] {
        assert_eq!(operate::show_node(&store, id).await.unwrap().state, state);
    }
    // The number of machines is asked for where something is lost.
    let remove =
        async |confirm| browser.send("/act/remove", &[("node", one), ("node", three), ("confirm", confirm)]).await;
    assert_eq!(remove("3").await.status(), StatusCode::BAD_REQUEST);
    assert!(remove("2").await.text().await.unwrap().contains("done on 2 of 2 machines"));
}

#[tokio::test]
async fn all_that_match_are_acted_on_and_no_other() {
    let server = TestServer::start().await;
    let store = server.store().await;
    // More than fit into a URL by their ids, and more than are looked up one by one.
    for number in 0..30 {
        let name = if number == 7 { "db".to_owned() } else { format!("web{number}") };
        let identity = Identity { serial: Some(name.clone()), ..Identity::default() };
        let labels = [("old".to_owned(), "yes".to_owned()), ("rack".to_owned(), "1".to_owned())].into();
        let new = NewNode { name: Some(name), identity, labels, ..NewNode::default() };
        operate::add_node(&store, new).await.unwrap();
    }
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let page = browser.page("/fleet?q=name%3Aweb&order=-name").await;
    for part in ["all 29 that match", "name=\"q\" value=\"name:web\"", "formaction=\"/act/label\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page = browser.page("/act/label?all=1&q=name%3Aweb").await;
    assert!(page.contains("29 machines") && page.contains("Has old=yes, rack=1."), "{page}");
    let ids: Vec<&str> =
        page.split("name=\"node\" value=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(ids.len(), 29);
    let fields = |labels| -> Vec<(&str, &str)> {
        let nodes = ids.iter().map(|id| ("node", *id));
        nodes.chain([("site", "fra"), ("labels", labels), ("forget", "old")]).collect()
    };
    let refused = browser.send("/act/label", &fields("rack")).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let page = browser.send("/act/label", &fields("rack=2 role=web")).await.text().await.unwrap();
    assert!(page.contains("done on 29 of 29 machines"), "{page}");
    for node in status::all(&store).await.unwrap() {
        let is_one = node.name.as_deref() != Some("db");
        let labels: Vec<(&str, &str)> = node.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        let expect = if is_one { [("rack", "2"), ("role", "web")] } else { [("old", "yes"), ("rack", "1")] };
        assert_eq!((node.site.is_some(), labels), (is_one, expect.to_vec()));
    }
    // Which system is asked first, and the view goes on.
    add_system(&server, |_| {}).await.unwrap();
    let page = browser.page("/act/start?all=1&q=name%3Aweb").await;
    assert!(page.contains("name=\"all\"") && !page.contains("name=\"node\""), "{page}");
    let page = browser.page("/act/start?all=1&q=name%3Aweb&os=debian").await;
    assert!(page.contains("Type the number of machines, <strong>29</strong>"), "{page}");
}

#[tokio::test]
async fn a_waiting_machine_is_found_by_its_code_and_let_in() {
    let server = TestServer::start().await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let machine = Machine::with_uuid(UUID);
    let wait: slipway_protocol::Wait = machine.try_enrol(&server).await.json().await.unwrap();
    let code = wait.claim_code;
    let page = browser.page("/waiting").await;
    assert!(page.contains(&code) && page.contains(UUID), "{page}");
    let lower = code.to_lowercase();
    assert_eq!(
        location(&browser.get(&format!("/waiting?code={}-{}", &lower[..3], &lower[3..])).await),
        format!("/nodes/{code}")
    );
    let page = browser.page(&format!("/nodes/{code}")).await;
    assert!(
        page.contains("this machine is not a node yet") && page.contains(&format!("/act/release?node={code}")),
        "{page}"
    );
    let page = browser.page(&format!("/act/release?node={code}")).await;
    assert!(page.contains(&format!("name=\"node\" value=\"{code}\"")), "{page}");
    let response = browser.send("/act/release", &[("node", &code), ("name", "web1")]).await;
    let node = location(&response).to_owned();
    assert!(browser.page(&node).await.contains("<h1>web1</h1>"));
    let machine = Node::enrol(&server, machine).await;
    for (boot, text) in [("b1", "one\n"), ("b2", "two\n")] {
        let url = server.url(&format!("/v1/node/logs?boot_id={boot}&offset=0"));
        assert!(machine.client.post(url).body(text).send().await.unwrap().status().is_success());
    }
    assert_eq!(browser.page(&format!("{node}/log?type=installer")).await, "two\n");
    let page = browser.page(&node).await;
    assert!(page.contains(&format!("href=\"{node}/log?type=installer&amp;boot=2\"")), "{page}");
    assert_eq!(browser.page(&format!("{node}/log?type=installer&boot=2")).await, "one\n");
    assert_eq!(browser.get("/waiting?code=ZZZZZZ").await.status(), StatusCode::NOT_FOUND);
}
