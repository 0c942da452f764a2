//! The page in a browser: live, by keyboard, in light and dark, on a phone, and with hostile texts.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use reqwest::StatusCode;
use serde_json::{Value, json};
use slipway_protocol::{
    Cpu, Disk, Event, EventKind, Failure, Identity, Inventory, Nic, Outcome, Progress, Stage, System, Wait,
};
use slipway_server::operate::{self, NewNode, NewRun, Task};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::agents;
use crate::browser::{Chromium, ENTER, TAB, axe, pictures};
use crate::installing::add_system;
use crate::program::succeed;
use crate::support::{IMAGE, Machine, Node, TestServer, with_certificate};

fn uuid(number: u32) -> String {
    format!("4c4c4544-0042-3010-8058-b7c04f5{number:05x}")
}

fn inventory(number: u32) -> Inventory {
    let gib = 1 << 30;
    Inventory {
        system: System {
            vendor: Some("Dell Inc.".to_owned()),
            model: Some("PowerEdge R650".to_owned()),
            ..System::default()
        },
        cpu: Cpu { model: Some("Intel Xeon Gold 6338".to_owned()), threads: 64, arch: "x86_64".to_owned() },
        memory: 256 * gib,
        disks: vec![
            Disk {
                path: "/dev/nvme0n1".to_owned(),
                size: 894 * gib,
                model: Some("Samsung MZQL2960HCJR".to_owned()),
                serial: Some(format!("S64FNE0R{number:06}")),
                transport: Some("nvme".to_owned()),
                ..Disk::default()
            },
            Disk { path: "/dev/sda".to_owned(), size: 16 * gib, removable: true, ..Disk::default() },
        ],
        nics: vec![Nic {
            name: "eno1".to_owned(),
            mac: Some(format!("52:54:00:12:34:{number:02x}")),
            addresses: vec![format!("192.0.2.{number}/24")],
            carrier: true,
            speed: Some(25_000),
            driver: Some("bnxt_en".to_owned()),
        }],
        ..Inventory::default()
    }
}

/// A machine with hardware that is enrolled as a released node of this name.
async fn enrolled(server: &TestServer, name: &str, number: u32) -> Node {
    enrolled_with(server, name, number, inventory(number)).await
}

async fn enrolled_with(server: &TestServer, name: &str, number: u32, inventory: Inventory) -> Node {
    let serial = Some(format!("7CZ{number:04}"));
    let identity = Identity { uuid: Some(uuid(number)), serial, ..Identity::default() };
    let (site, labels) = (Some("fra".to_owned()), [("rack".to_owned(), "12".to_owned())].into());
    let new = NewNode {
        name: Some(name.to_owned()),
        identity: identity.clone(),
        release: true,
        site,
        labels,
        ..NewNode::default()
    };
    operate::add_node(&server.store().await, new).await.unwrap();
    let machine = Machine::new(identity);
    let mut request = machine.request();
    request.inventory = inventory;
    let response = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let enrolment: slipway_protocol::Enrolment = response.json().await.unwrap();
    let client = with_certificate(&server.ca(), &machine.key, &enrolment.certificate);
    Node { machine, enrolment, client }
}

/// A node that has fetched a run.
struct Working {
    node: Node,
    run: String,
    seq: u64,
}

impl Working {
    async fn start(server: &TestServer, name: &str, number: u32) -> Self {
        Self::of(server, enrolled(server, name, number).await, name).await
    }

    async fn of(server: &TestServer, node: Node, name: &str) -> Self {
        let new = NewRun::new(Task::Os("debian".to_owned()));
        operate::start_run(&server.store().await, &server.ca(), name, new).await.unwrap();
        let run = node.workflow(server).await.unwrap().run;
        Self { node, run, seq: 0 }
    }

    async fn report(&mut self, server: &TestServer, step: u32, kind: EventKind) {
        self.seq += 1;
        let event = Event { seq: self.seq, at: 1, step, attempt: 1, kind };
        assert_eq!(self.node.post_events(server, &self.run, &[event]).await.status(), StatusCode::OK);
    }

    /// Begins this many steps, of which all but the last are done.
    async fn begin(&mut self, server: &TestServer, steps: u32) {
        for step in 0..steps {
            self.report(server, step, EventKind::Started).await;
            if step + 1 < steps {
                self.report(server, step, EventKind::Succeeded(Outcome::default())).await;
            }
        }
    }

    async fn progress(&mut self, server: &TestServer, step: u32, percent: u64) {
        let progress = Progress {
            bytes: percent << 20,
            total: Some(100 << 20),
            fetched: percent << 19,
            fetch_total: Some(50 << 20),
            rate: 250 << 20,
            seconds_left: Some(9),
            waiting_for: Some(Stage::Decode),
        };
        self.report(server, step, EventKind::Progress(progress)).await;
    }
}

async fn sign_in(browser: &Chromium, server: &TestServer, url: &str) {
    browser.open(url).await;
    // The field has the focus, so that an operator only pastes.
    browser.until("document.activeElement.id === 'token'").await;
    browser.press(&(server.operator_token() + ENTER)).await;
    // The form itself is a page that stays as it was loaded.
    browser.until(&format!("!document.querySelector('#token') && ({IS_READY})")).await;
}

/// Whether the script runs on a page: it is live, or one that stays as it was loaded, as one that says what is wrong.
const IS_READY: &str = "document.querySelector('#live')?.textContent.startsWith('live') \
                        || document.body?.dataset.follows === 'nothing' \
                        || document.readyState === 'complete' && !document.querySelector('#live')";

#[tokio::test(flavor = "multi_thread")]
async fn a_row_changes_without_a_reload_and_two_tabs_share_a_stream() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    add_system(&server, |_| {}).await.unwrap();
    let mut web1 = Working::start(&server, "web1", 1).await;
    sign_in(&browser, &server, &server.url("/fleet")).await;
    let one = browser.tab().await;
    browser.run("window.same = true").await;
    web1.report(&server, 0, EventKind::Started).await;
    web1.progress(&server, 0, 40).await;
    let row = "document.querySelector('tbody.row')";
    browser.until(&format!("{row}.innerText.includes('40 %')")).await;
    browser.until(&format!("{row}.innerText.includes('installing')")).await;
    assert_eq!(browser.run(&format!("return {row}.querySelector('progress').value")).await, 40);

    // The second one is live through the stream of the first.
    let other = browser.new_window().await;
    browser.open(&server.url("/fleet")).await;
    browser.until("document.querySelector('#live').textContent.startsWith('live')").await;
    let mut leaders = Vec::new();
    for tab in [&one, &other] {
        browser.switch_to(tab).await;
        leaders.push(browser.run("return [document.hidden, document.body.dataset.leads !== undefined]").await);
    }
    assert_eq!(leaders, [json!([false, true]), json!([false, false])]);
    web1.progress(&server, 0, 70).await;
    for tab in [&other, &one] {
        browser.switch_to(tab).await;
        browser.until(&format!("{row}.innerText.includes('70 %')")).await;
    }
    // A machine that was not there appears, and one that is removed goes.
    enrolled(&server, "web2", 2).await;
    browser.until("document.querySelectorAll('tbody.row').length === 2").await;
    let failure = Failure { reason: "the digest differs".to_owned(), ..Failure::default() };
    web1.report(&server, 0, EventKind::Failed(failure)).await;
    browser.until(&format!("{row}.innerText.includes('■ failed')")).await;
    browser.until(&format!("{row}.innerText.includes('the digest differs')")).await;
    assert_eq!(browser.run("return window.same").await, true, "the page was not loaded again");

    // The page of a node changes too.
    browser.click("tbody.row th a").await;
    browser.until("document.querySelector('h1').textContent === 'web1'").await;
    browser.until("document.querySelector('#live').textContent.startsWith('live')").await;
    browser.run("window.same = true").await;
    let heard = "document.querySelector('#heard time').dateTime";
    let before = browser.run(&format!("return {heard}")).await;
    assert_eq!(web1.node.workflow(&server).await, None, "a sign of life, and no event");
    browser.until(&format!("{heard} !== {before}")).await;
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    browser.until("document.querySelector('.title .state').textContent === 'decommissioned'").await;
    browser.until("document.querySelector('.timeline').innerText.includes('out of service')").await;
    assert_eq!(browser.run("return window.same").await, true);
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn seven_tabs_are_live_by_one_stream() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    add_system(&server, |_| {}).await.unwrap();
    let mut web1 = Working::start(&server, "web1", 1).await;
    web1.report(&server, 0, EventKind::Started).await;
    sign_in(&browser, &server, &server.url("/fleet")).await;
    let mut tabs = vec![browser.tab().await];
    // One more than a browser has connections to a server.
    while tabs.len() < 7 {
        tabs.push(browser.new_window().await);
        browser.open(&server.url("/fleet")).await;
    }
    // What each shows came by the stream: nothing is loaded again.
    let show = async |tabs: &[Value], percent: u64| {
        let mut leaders = Vec::new();
        for tab in tabs {
            browser.switch_to(tab).await;
            browser.until("document.querySelector('#live').textContent.startsWith('live')").await;
            browser.until(&format!("document.querySelector('tbody.row').innerText.includes('{percent} %')")).await;
            let leads = browser.run("return document.body.dataset.leads !== undefined").await;
            leaders.extend((leads == true).then(|| tab.clone()));
        }
        leaders
    };
    web1.progress(&server, 0, 40).await;
    let leaders = show(&tabs, 40).await;
    let [leader] = leaders.as_slice() else { panic!("{} streams", leaders.len()) };
    // When the tab with the stream is closed, another one follows.
    browser.switch_to(leader).await;
    browser.close().await;
    tabs.retain(|tab| tab != leader);
    web1.progress(&server, 0, 70).await;
    assert_eq!(show(&tabs, 70).await.len(), 1);
}

/// A wire to the server that can be cut, and led to another port.
struct Wire {
    url: String,
    target: Arc<Mutex<Option<SocketAddr>>>,
    cut: watch::Sender<()>,
    stall: watch::Sender<()>,
}

impl Wire {
    async fn to(server: &TestServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let wire = Self { url, target: Arc::default(), cut: watch::Sender::default(), stall: watch::Sender::default() };
        wire.lead_to(server);
        let (target, cut, stall) = (Arc::clone(&wire.target), wire.cut.clone(), wire.stall.clone());
        tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let Some(target) = *target.lock().unwrap() else { continue };
                let (mut cut, mut stall) = (cut.subscribe(), stall.subscribe());
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                        // Open at both ends, and nothing comes through.
                        _ = stall.changed() => drop(cut.changed().await),
                    }
                });
            }
        });
        wire
    }

    fn lead_to(&self, server: &TestServer) {
        *self.target.lock().unwrap() = server.url("").strip_prefix("https://").map(|address| address.parse().unwrap());
    }

    /// Lets nothing more through the connections that are open now.
    fn stall(&self) {
        self.stall.send_replace(());
    }

    fn cut(&self) {
        *self.target.lock().unwrap() = None;
        self.cut.send_replace(());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_is_said_to_be_old_and_the_page_recovers_by_itself() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    enrolled(&server, "web1", 1).await;
    let wire = Wire::to(&server).await;
    sign_in(&browser, &server, &format!("{}/fleet", wire.url)).await;
    browser.run("window.same = true").await;
    wire.cut();
    browser.until("document.querySelector('#live').textContent.includes('not live since')").await;
    browser.until("document.querySelector('#said').textContent.includes('not live')").await;
    browser.photograph("not-live").await;
    // What happens meanwhile is there as soon as the page is live again, also after the server was restarted.
    operate::decommission_node(&server.store().await, "web1").await.unwrap();
    let server = server.restart().await;
    wire.lead_to(&server);
    browser.until("document.querySelector('#live').textContent.startsWith('live')").await;
    browser.until("document.querySelectorAll('tbody.row').length === 0").await;
    assert_eq!(browser.run("return window.same").await, true, "the page was not loaded again");

    // A session that ends is said to have ended.
    succeed(&server.data_path(), &["operator", "rotate"]);
    wire.cut();
    wire.lead_to(&server);
    browser.until("document.querySelector('#live').textContent.includes('sign in again')").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stalls_is_noticed_whatever_the_clock_says() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    enrolled(&server, "web1", 1).await;
    let wire = Wire::to(&server).await;
    sign_in(&browser, &server, &format!("{}/fleet", wire.url)).await;
    let jump = "const real = Date.now; window.jump = 0; Date.now = () => real() + window.jump; window.same = true";
    browser.run(jump).await;
    // Set back, a clock must not make what is old look new.
    browser.run("window.jump = -3600000").await;
    wire.stall();
    browser.until("document.querySelector('#live').textContent.includes('not live since')").await;
    enrolled(&server, "web2", 2).await;
    // It opens another stream by itself, and shows what happened meanwhile.
    browser.until("document.querySelector('#live').textContent.startsWith('live')").await;
    browser.until("document.querySelectorAll('tbody.row').length === 2").await;
    // Set forward, it must not make what is new look old.
    browser.run("window.jump = 3600000").await;
    enrolled(&server, "web3", 3).await;
    browser.until("document.querySelectorAll('tbody.row').length === 3").await;
    browser.until("document.querySelector('#live').textContent.startsWith('live')").await;
    browser.until("document.querySelector('[data-f=heard]').textContent.endsWith(' s')").await;
    assert_eq!(browser.run("return window.same").await, true, "the page was not loaded again");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_can_be_done_by_keyboard() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    add_system(&server, |_| {}).await.unwrap();
    enrolled(&server, "web1", 1).await;
    sign_in(&browser, &server, &server.url("/fleet")).await;
    browser.press(TAB).await;
    browser.until("document.activeElement.className === 'skip'").await;
    let outline = "return getComputedStyle(document.activeElement).outlineWidth";
    assert_eq!(browser.run(outline).await, "2px");
    browser.press(ENTER).await;
    browser.until("document.activeElement.id === 'main'").await;
    browser.press("/").await;
    browser.until("document.activeElement.id === 'q'").await;
    browser.press(&format!("name:web1{ENTER}")).await;
    browser.until("location.search.includes('name')").await;
    // From row to run: each stop has a visible focus.
    let to = async |selector: &str| {
        for _ in 0..60 {
            if browser.run(&format!("return document.activeElement.matches('{selector}')")).await == true {
                assert_eq!(browser.run(outline).await, "2px", "{selector}");
                return;
            }
            browser.press(TAB).await;
        }
        panic!("{selector} cannot be reached");
    };
    to("tbody th a").await;
    browser.press(ENTER).await;
    browser.until("document.querySelector('h1').textContent === 'web1'").await;
    to("a[href^=\"/act/start\"]").await;
    browser.press(ENTER).await;
    browser.until("document.activeElement.name === 'os'").await;
    to("button.first").await;
    browser.press(ENTER).await;
    browser.until("document.activeElement.name === 'confirm'").await;
    assert!(browser.text().await.contains("Erases Samsung MZQL2960HCJR"), "{}", browser.text().await);
    browser.press(&format!("web1{ENTER}")).await;
    browser.until("document.querySelector('h1').textContent === 'web1'").await;
    assert!(operate::show_node(&server.store().await, "web1").await.unwrap().run.is_some());
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_sent_with_its_progress() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("debian.raw");
    std::fs::write(&file, IMAGE).unwrap();
    sign_in(&browser, &server, &server.url("/add/image")).await;
    browser.choose("input[type=file]", &file).await;
    browser.run("document.querySelector('[name=sha256]').value = '0'.repeat(64)").await;
    browser.click("form[data-upload] button.first").await;
    browser.until("document.querySelector('[data-said]').textContent.includes('is it the right file?')").await;
    assert_eq!(browser.run("return document.querySelector('[data-upload] progress').value").await, 100);
    browser.run("document.querySelector('[name=sha256]').value = ''").await;
    browser.click("form[data-upload] button.first").await;
    // The page of images follows the work by itself.
    browser.until("location.pathname === '/images'").await;
    browser.until("document.querySelector('[data-sync=adding]').innerText.includes('debian.raw added')").await;
    browser.until("document.querySelector('tbody th')?.innerText === 'debian.raw'").await;
}

/// A fleet in which each kind of row is.
async fn fleet(server: &TestServer) -> Vec<Working> {
    add_system(server, |system| system.name = "debian".to_owned()).await.unwrap();
    let store = server.store().await;
    let mut web1 = Working::start(server, "web1", 1).await;
    web1.begin(server, 2).await;
    web1.report(server, 1, EventKind::Note("/dev/nvme0n1, the only disk that is not removable".to_owned())).await;
    web1.progress(server, 1, 62).await;
    let mut web2 = Working::start(server, "web2", 2).await;
    web2.begin(server, 2).await;
    let failure = Failure {
        reason: "the digest of the image differs".to_owned(),
        causes: vec!["expected sha256:4be1, got sha256:91c0".to_owned()],
        log_tail: vec!["stream-image: 512 MiB written".to_owned(), "stream-image: digest differs".to_owned()],
    };
    web2.report(server, 1, EventKind::Failed(failure)).await;
    let web3 = Working::start(server, "web3", 3).await;
    let workflow = web3.node.workflow(server).await.unwrap();
    web3.node.finish_with(server, &workflow, |_| Outcome { summary: "done".to_owned(), ..Outcome::default() }).await;
    enrolled(server, "db1", 4).await;
    // Another machine claims to be it, while its own was heard from a moment ago.
    let wait =
        Machine::new(Identity { uuid: Some(uuid(4)), serial: Some("7CZ0004".to_owned()), ..Identity::default() });
    assert_eq!(wait.try_enrol(server).await.status(), StatusCode::ACCEPTED);
    let identity = Identity { serial: Some("7CZ0099".to_owned()), ..Identity::default() };
    let new = NewNode { name: Some("spare1".to_owned()), identity, site: Some("ams".to_owned()), ..NewNode::default() };
    operate::add_node(&store, new).await.unwrap();
    let stranger = Machine::new(Identity { serial: Some("7CZ1234".to_owned()), ..Identity::default() });
    let mut request = stranger.request();
    request.inventory = inventory(9);
    let held = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    let _: Wait = held.json().await.unwrap();
    operate::add_token(&store, Some("web1"), None).await.unwrap();
    vec![web1, web2, web3]
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_accessible_and_fit_in_light_and_dark_and_on_a_phone() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    let machines = fleet(&server).await;
    let run = &machines[1].run;
    let id = async |name: &str| operate::show_node(&server.store().await, name).await.unwrap().id;
    let (web1, web2, web3, db1) = (id("web1").await, id("web2").await, id("web3").await, id("db1").await);
    let hook = operate::PowerChange {
        hook: Some("ipmi".to_owned()),
        options: Some([("ip".to_owned(), "192.0.2.71".to_owned())].into()),
        password: Some("hunter2".to_owned().into()),
        ..Default::default()
    };
    operate::change_power(&server.store().await, "web2", hook).await.unwrap();
    operate::switch_power(&server.store().await, "web2", operate::PowerRequest::Cycle).await.unwrap();
    agents::pretend(&server, "web3").await;
    let axe = axe();
    let mut problems = Vec::new();
    for (width, scheme) in [(1280, "light"), (360, "dark")] {
        browser.resize(width, 800).await;
        browser.open(&server.url("/login")).await;
        browser.prefer(scheme).await;
        browser.photograph(&format!("login-{width}-{scheme}")).await;
        if let Some(axe) = &axe {
            problems.extend(browser.check_access(axe).await);
        }
    }
    browser.prefer("light").await;
    sign_in(&browser, &server, &server.url("/fleet")).await;
    browser.resize(1280, 560).await;
    browser.photograph("manual").await;
    let pages = [
        ("fleet", "/fleet".to_owned()),
        ("fleet-none", "/fleet?q=nowhere".to_owned()),
        ("node-working", format!("/nodes/{web1}")),
        ("node-failed", format!("/nodes/{web2}")),
        ("node-contested", format!("/nodes/{db1}")),
        ("waiting", "/waiting".to_owned()),
        ("runs", "/runs".to_owned()),
        ("run", format!("/runs/{run}")),
        ("systems", "/systems".to_owned()),
        ("images", "/images".to_owned()),
        ("tokens", "/tokens".to_owned()),
        ("boot-files", "/boot-files".to_owned()),
        ("events", "/events".to_owned()),
        ("add-image", "/add/image".to_owned()),
        ("add-node", "/add/node".to_owned()),
        ("label", format!("/act/label?node={web1}&node={web2}")),
        ("add-system", "/add/system".to_owned()),
        ("start", format!("/act/start?node={web1}&node={web2}&os=debian")),
        ("replace", "/replace".to_owned()),
        ("retry", format!("/nodes/{web2}/retry")),
        ("power", format!("/nodes/{web2}/power")),
        ("power-none", format!("/nodes/{web1}/power")),
        ("node-agent", format!("/nodes/{web3}")),
        ("agent", format!("/nodes/{web3}/agent")),
        ("agent-none", format!("/nodes/{web1}/agent")),
        ("remove", format!("/act/remove?node={web1}")),
        ("nowhere", "/nodes/nowhere".to_owned()),
    ];
    for width in [1280, 360] {
        browser.resize(width, if width < 600 { 800 } else { 900 }).await;
        for (name, path) in &pages {
            browser.open(&server.url(path)).await;
            browser.until(IS_READY).await;
            let wide = browser.run("return document.documentElement.scrollWidth").await.as_u64().unwrap();
            if wide > u64::from(width) {
                let script = "return [...document.querySelectorAll('main *')].filter((element) => \
                              element.getBoundingClientRect().right > screen.width).map(({ outerHTML }) => outerHTML)";
                problems.push(format!("{name} is {wide} wide on {width}: {}", browser.run(script).await));
            }
            for scheme in ["light", "dark"] {
                browser.prefer(scheme).await;
                browser.photograph(&format!("{name}-{width}-{scheme}")).await;
                if let Some(axe) = &axe {
                    let found = browser.check_access(axe).await;
                    problems.extend(found.iter().map(|found| format!("{name} {width} {scheme}: {found}")));
                }
            }
            // The browser complains of the page that is not there, too.
            let complaints = browser.complaints().await.into_iter();
            problems.extend(complaints.filter(|complaint| !complaint.contains("status of 404")));
        }
    }
    assert!(problems.is_empty(), "{}\npictures: {}", problems.join("\n"), pictures().display());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_do_nothing_in_a_browser() {
    let server = TestServer::start().await;
    let Some(browser) = Chromium::start().await else { return };
    let evil = "\"><img src=x onerror=\"window.evil=1\"><script>window.evil=1</script>";
    let mut stranger = Machine::new(Identity { serial: Some("x".to_owned()), ..Identity::default() });
    stranger.identity.serial = Some(evil.to_owned());
    let mut request = stranger.request();
    request.inventory = inventory(9);
    request.inventory.system.model = Some(evil.to_owned());
    let held = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(held.status(), StatusCode::ACCEPTED);
    sign_in(&browser, &server, &server.url("/fleet")).await;
    let mut other = Machine::with_uuid(&uuid(1));
    other.identity.serial = Some(format!("{evil}2"));
    assert_eq!(other.try_enrol(&server).await.status(), StatusCode::ACCEPTED);
    // This one comes by the script.
    browser.until("document.querySelectorAll('tbody.row').length === 2").await;
    // A node whose machine is hostile in all that it says.
    let mut hardware = inventory(3);
    (hardware.system.vendor, hardware.cpu.model) = (Some(evil.to_owned()), Some(evil.to_owned()));
    (hardware.disks[0].model, hardware.disks[0].path) = (Some(evil.to_owned()), format!("/dev/{evil}"));
    (hardware.nics[0].name, hardware.nics[0].driver) = (evil.to_owned(), Some(evil.to_owned()));
    add_system(&server, |_| {}).await.unwrap();
    let node = enrolled_with(&server, "web3", 3, hardware).await;
    let mut web3 = Working::of(&server, node, "web3").await;
    web3.report(&server, 0, EventKind::Started).await;
    web3.report(&server, 0, EventKind::Note(evil.to_owned())).await;
    let (reason, causes, log_tail) = (evil.to_owned(), vec![evil.to_owned()], vec![evil.to_owned()]);
    web3.report(&server, 0, EventKind::Failed(Failure { reason, causes, log_tail })).await;
    let url = server.url("/v1/node/logs?boot_id=b&offset=0");
    let logged = web3.node.client.post(url).body(format!("{evil}\n")).send().await.unwrap();
    assert!(logged.status().is_success());
    browser.until("document.querySelectorAll('tbody.row').length === 3").await;
    browser.until("document.body.innerText.includes('■ failed')").await;
    let id = operate::show_node(&server.store().await, "web3").await.unwrap().id;
    let (node, start) = (format!("/nodes/{id}"), format!("/act/start?node={id}&os=debian"));
    let run = format!("/runs/{}", web3.run);
    let search: String = form_urlencoded::byte_serialize(evil.as_bytes()).collect();
    let search = format!("/fleet?q={search}");
    for path in ["/fleet?column=model&column=serial", "/waiting", "/events", "/runs", &run, &start, &search, &node] {
        browser.open(&server.url(path)).await;
        browser.until(IS_READY).await;
        assert_eq!(browser.run("return [window.evil ?? null, document.images.length]").await, json!([null, 0]));
    }
    browser.click("details[data-log] summary").await;
    browser.until("document.querySelector('details[data-log] pre').textContent.includes('<script>')").await;
    assert_eq!(browser.run("return [window.evil ?? null, document.images.length]").await, json!([null, 0]));
    assert_eq!(browser.complaints().await, Vec::<String>::new());
}
