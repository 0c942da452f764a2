//! The page for operators, as a browser without script uses it.

use reqwest::header::{COOKIE, HeaderMap, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode};
use slipway_protocol::{Algorithm, Digest, Disk, Identity, MAX_REQUEST_BYTES};
use slipway_server::base::limits::{Limits, Pace};
use slipway_server::base::random::fingerprint;
use slipway_server::image::stored;
use slipway_server::node::status;
use slipway_server::operate::{self, NewNode};
use slipway_server::store::db;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::program::{command, started, succeed};
use crate::support::{IMAGE, Machine, TestServer, UUID, trusting};

const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                   form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
/// What every browser says of a form that a page of the same site sends.
const FETCH_SITE: &str = "sec-fetch-site";

/// A browser that does not follow redirects.
pub struct Browser {
    client: Client,
    base: String,
    pub cookie: String,
}

impl Browser {
    pub fn new(server: &TestServer) -> Self {
        let client = trusting(&server.ca()).redirect(Policy::none()).build().unwrap();
        Self { client, base: server.url(""), cookie: String::new() }
    }

    /// A browser in which an operator with this token is signed in.
    pub async fn signed_in(server: &TestServer, token: &str) -> Self {
        let mut browser = Self::new(server);
        let response = browser.post("/login", &[("token", token)]).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        browser.cookie = cookie_of(&response);
        browser
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.base)).header(COOKIE, &self.cookie).send().await.unwrap()
    }

    /// The text of a page that must be there.
    pub async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.text().await.unwrap()
    }

    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        self.post_with(path, fields, &[(FETCH_SITE, "same-origin")]).await
    }

    async fn post_with(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Response {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let mut request = self.client.request(Method::POST, format!("{}{path}", self.base)).body(body);
        request = request.header(COOKIE, &self.cookie).header("content-type", "application/x-www-form-urlencoded");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().await.unwrap()
    }

    /// The proof that forms of this session have.
    pub async fn proof(&self) -> String {
        let page = self.page("/add/node").await;
        let (_, rest) = page.split_once("name=\"proof\" value=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }

    /// Sends a form of this session.
    pub async fn send(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let proof = self.proof().await;
        // What the page about an act says is sent with it.
        let mut said = Vec::new();
        if path.starts_with("/act/") {
            let asked = fields.iter().filter(|(name, _)| ["node", "os"].contains(name));
            let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(asked).finish();
            let page = self.get(&format!("{path}?{query}")).await.text().await.unwrap();
            let values = page.split("name=\"said\" value=\"").skip(1);
            said.extend(values.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
        let said = said.iter().map(|said| ("said", said.as_str()));
        let fields: Vec<(&str, &str)> = fields.iter().copied().chain([("proof", &*proof)]).chain(said).collect();
        self.post(path, &fields).await
    }
}

fn cookie_of(response: &Response) -> String {
    let set = response.headers()[SET_COOKIE].to_str().unwrap();
    set.split(';').next().unwrap().to_owned()
}

pub fn location(response: &Response) -> &str {
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    response.headers()[LOCATION].to_str().unwrap()
}

/// Checks that an answer has what keeps a browser safe.
fn check_headers(headers: &HeaderMap) {
    let header = |name: &str| headers[name].to_str().unwrap();
    assert_eq!(header("content-security-policy"), CSP);
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("referrer-policy"), "same-origin");
    assert_eq!(header("x-frame-options"), "DENY");
}

const PAGES: [&str; 13] = [
    "/fleet",
    "/waiting",
    "/runs",
    "/systems",
    "/images",
    "/boot-files",
    "/tokens",
    "/events",
    "/add/image",
    "/add/node",
    "/add/system",
    "/add/token",
    "/fleet?q=x&state=failed&flagged=1&order=-heard&column=serial&page=7",
];

#[tokio::test]
async fn every_page_wants_an_operator_and_has_the_strict_policy() {
    let server = TestServer::start().await;
    let stranger = Browser::new(&server);
    assert_eq!(stranger.get("/").await.headers()[LOCATION], "/fleet");
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    for path in PAGES {
        let response = stranger.get(path).await;
        let next: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
        assert_eq!(location(&response), format!("/login?next={next}"));
        check_headers(response.headers());
        let response = browser.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        check_headers(response.headers());
        assert_eq!(response.headers()["cache-control"], "no-store");
        let page = response.text().await.unwrap();
        for inline in [" style=", "<style", " onclick=", "javascript:", "<script>"] {
            assert!(!page.contains(inline), "{path} has {inline}");
        }
    }
    for path in ["/page/stream", "/page/none.js", "/nodes/none"] {
        check_headers(stranger.get(path).await.headers());
    }
    assert_eq!(stranger.get("/page/stream").await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(stranger.post("/act/remove", &[("node", "x")]).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(browser.get("/nodes/none").await.status(), StatusCode::NOT_FOUND);

    // What a page names is there, for anybody, and may be kept.
    let page = browser.page("/fleet").await;
    let assets: Vec<&str> = page.split('"').filter(|text| text.starts_with("/page/")).collect();
    assert_eq!(assets.len(), 3);
    for asset in assets {
        let response = stranger.get(asset).await;
        check_headers(response.headers());
        assert!(response.headers()["cache-control"].to_str().unwrap().contains("immutable"));
        assert!(response.content_length().unwrap() < 30_000);
    }
}

#[tokio::test]
async fn an_operator_signs_in_and_out() {
    let server = TestServer::start().await;
    let mut browser = Browser::new(&server);
    let page = browser.page("/login?next=%2Fruns").await;
    assert!(page.contains("name=\"next\" value=\"/runs\""), "{page}");
    let refused = browser.post("/login", &[("token", "guess")]).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(refused.headers().get(SET_COOKIE).is_none());
    assert!(refused.text().await.unwrap().contains("No operator has this token"));

    let token = server.operator_token();
    let response = browser.post("/login", &[("token", &token), ("next", "/runs")]).await;
    assert_eq!(location(&response), "/runs");
    let set = response.headers()[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(set.starts_with("__Host-slipway=") && !set.contains(&token), "{set}");
    assert!(set.ends_with("; Path=/; Secure; HttpOnly; SameSite=Strict"), "{set}");
    browser.cookie = cookie_of(&response);
    assert!(browser.page("/fleet").await.contains("operator first"));
    // Nobody is led elsewhere.
    for next in ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example"] {
        assert_eq!(location(&browser.post("/login", &[("token", &token), ("next", next)]).await), "/fleet");
    }

    let response = browser.send("/logout", &[]).await;
    assert_eq!(location(&response), "/login");
    assert!(response.headers()[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(location(&browser.get("/fleet").await), "/login?next=%2Ffleet");
    // A link of another site: the browser kept the cookie back, and sends it when the page asks again.
    let request = browser.client.get(server.url("/fleet")).header(FETCH_SITE, "cross-site");
    let again = request.send().await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
    assert!(again.text().await.unwrap().contains("http-equiv=\"refresh\""));
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_after_a_day_of_work() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let token = operate::add_operator(&store, &server.data(), "anna", None).await.unwrap().token;
    let anna = Browser::signed_in(&server, &token).await;
    let first = Browser::signed_in(&server, &server.operator_token()).await;
    assert!(anna.page("/fleet").await.contains("operator anna"));
    succeed(&server.data_path(), &["operator", "remove", "anna"]);
    assert_eq!(anna.get("/fleet").await.status(), StatusCode::SEE_OTHER);
    let age = |millis: i64| db::query("UPDATE sessions SET created_at = created_at - $1").bind(millis);
    let mut transaction = store.write().await.unwrap();
    age(12 * 60 * 60 * 1000 - 60_000).execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(first.get("/fleet").await.status(), StatusCode::OK);
    let mut transaction = store.write().await.unwrap();
    age(60_001).execute(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(first.get("/fleet").await.status(), StatusCode::SEE_OTHER);
    // The next one who signs in clears up.
    Browser::signed_in(&server, &server.operator_token()).await;
    let count =
        db::query("SELECT COUNT(*) AS sessions FROM sessions").fetch_one(&mut store.read().await.unwrap()).await;
    assert_eq!(count.unwrap().get::<i64>("sessions").unwrap(), 1);
}

#[tokio::test]
async fn forged_forms_are_refused() {
    let server = TestServer::start().await;
    let token = server.operator_token();
    let browser = Browser::signed_in(&server, &token).await;
    let other = Browser::signed_in(&server, &token).await;
    let (own, foreign) = (browser.proof().await, other.proof().await);
    let add = |proof: &str| [("uuid", UUID.to_owned()), ("proof", proof.to_owned())];
    let send = async |proof: &str, headers: &[(&str, &str)]| {
        let fields = add(proof);
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        browser.post_with("/add/node", &fields, headers).await.status()
    };
    assert_ne!(own, foreign);
    let same = &[(FETCH_SITE, "same-origin")][..];
    for proof in ["", "x", &foreign] {
        assert_eq!(send(proof, same).await, StatusCode::FORBIDDEN, "{proof:?}");
    }
    for headers in
        [[(FETCH_SITE, "cross-site")], [(FETCH_SITE, "same-site")], [(ORIGIN.as_str(), "https://evil.example")]]
    {
        assert_eq!(send(&own, &headers).await, StatusCode::FORBIDDEN, "{headers:?}");
        let login = browser.post_with("/login", &[("token", &token)], &headers).await;
        assert_eq!(login.status(), StatusCode::FORBIDDEN, "{headers:?}");
    }
    assert_eq!(status::all(&server.store().await).await.unwrap(), []);
    let origin = server.url("");
    assert_eq!(send(&own, &[(ORIGIN.as_str(), &origin)]).await, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn guesses_are_paced_and_keep_no_operator_out() {
    let requests = Pace { per_second: 1, burst: 2 };
    let refusal_pause = std::time::Duration::ZERO;
    let server = TestServer::start_with(Limits { requests, refusal_pause, ..Limits::default() }).await;
    let browser = Browser::new(&server);
    for expect in [StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(browser.post("/login", &[("token", "guess")]).await.status(), expect);
    }
    Browser::signed_in(&server, &server.operator_token()).await;
    let server = TestServer::start_with(Limits { requests, refusal_pause, ..Limits::default() }).await;
    let guess = Browser { cookie: "__Host-slipway=guess".to_owned(), ..Browser::new(&server) };
    for expect in [StatusCode::SEE_OTHER, StatusCode::SEE_OTHER, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(guess.get("/fleet").await.status(), expect);
    }
    assert_eq!(Browser::new(&server).get("/fleet").await.status(), StatusCode::SEE_OTHER);
}

/// A machine whose texts are hostile.
fn hostile() -> Machine {
    let mut machine = Machine::with_uuid(UUID);
    machine.identity.serial = Some("<script>alert(1)</script>".to_owned());
    machine
}

#[tokio::test]
async fn hostile_texts_stay_texts() {
    let server = TestServer::start().await;
    let machine = hostile();
    let mut request = machine.request();
    let evil = "\"><img src=x onerror=alert(1)>\u{202e}</title><script>".to_owned();
    request.inventory.system.model = Some(evil.clone());
    request.inventory.disks.push(Disk { path: evil.clone(), model: Some(evil), size: 1, ..Disk::default() });
    let response = server.client().post(server.url("/v1/enrol")).json(&request).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let mut fleet = String::new();
    // Rows that were read a moment ago may be shown.
    while !fleet.contains("<tbody class=\"row\"") {
        fleet = browser.page("/fleet?column=model&column=serial").await;
    }
    let (_, rest) = fleet.split_once("<tbody class=\"row\"").unwrap();
    let (_, rest) = rest.split_once("href=\"").unwrap();
    let node = rest.split('"').next().unwrap();
    let search = "/fleet?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&state=%22%3E%3Cscript%3E";
    for path in ["/fleet?column=model&column=serial", "/waiting", "/events", "/runs", node, search] {
        let page = browser.page(path).await;
        assert!(!page.contains("<script>") && !page.contains("<img") && !page.contains('\u{202e}'), "{path}: {page}");
    }
    assert!(fleet.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{fleet}");
    let login = Browser::new(&server).page("/login?next=/%22%3E%3Cscript%3E").await;
    assert!(!login.contains("<script>"), "{login}");
}

#[tokio::test]
async fn the_page_can_be_off() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let arguments = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--page", "off"];
    let (_server, ready) = started(command(&data, &arguments));
    let client = trusting(&succeed(&data, &["ca"])).build().unwrap();
    for path in ["/", "/fleet", "/login", "/page/stream"] {
        let url = format!("https://{}{path}", ready["https"].as_str().unwrap());
        let response = client.get(url).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert!(response.headers().get("content-security-policy").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_good_at_every_server_of_the_site() {
    let [one, other] = TestServer::start_two().await;
    let browser = Browser::signed_in(&one, &one.operator_token()).await;
    let there = Browser { cookie: browser.cookie.clone(), ..Browser::new(&other) };
    assert!(there.page("/fleet").await.contains("operator first"));
    assert_eq!(browser.proof().await, there.proof().await);
    assert_eq!(location(&there.send("/logout", &[]).await), "/login");
    assert_eq!(browser.get("/fleet").await.status(), StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn the_table_shows_what_is_asked_for() {
    let server = TestServer::start().await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    assert!(browser.page("/fleet").await.contains("There are three ways to add one"));
    let store = server.store().await;
    for (number, name) in (0..).zip(["web1", "web2", "db1"]) {
        let identity = Identity { serial: Some(format!("S{number}")), ..Identity::default() };
        let labels = [("rack".to_owned(), number.to_string())].into();
        let new = NewNode { name: Some(name.to_owned()), identity, labels, ..NewNode::default() };
        operate::add_node(&store, new).await.unwrap();
    }
    operate::decommission_node(&store, "db1").await.unwrap();
    let shown = async |query: &str| {
        let page = browser.page(&format!("/fleet?{query}")).await;
        let rows = page.split("data-f=\"name\">").skip(1).map(|row| row.split('<').next().unwrap().to_owned());
        rows.collect::<Vec<_>>().join(" ")
    };
    // Rows that were read a moment ago may be shown.
    let mut rows = shown("").await;
    while rows.is_empty() {
        rows = shown("").await;
    }
    assert_eq!(rows, "web1 web2");
    for (query, expect) in [
        ("order=-name", "web2 web1"),
        ("state=decommissioned", "db1"),
        ("flagged=1", ""),
        ("q=WEB", "web1 web2"),
        ("q=name%3Aweb+serial%3As1", "web2"),
        ("q=label%3Arack%3D0", "web1"),
        ("q=S1", "web2"),
        ("q=nowhere", ""),
        ("page=9", "web1 web2"),
    ] {
        assert_eq!(shown(query).await, expect, "{query}");
    }
}

#[tokio::test]
async fn forms_add_and_keep_what_was_typed() {
    let server = TestServer::start().await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let fields = [("name", "web1"), ("macs", "52:54:00:12:34:56"), ("labels", "rack=12"), ("site", "fra")];
    let refused = browser.send("/add/node", &fields).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let page = refused.text().await.unwrap();
    assert!(page.contains("a MAC address alone proves nothing") && page.contains("value=\"rack=12\""), "{page}");
    let fields: Vec<_> = fields.into_iter().chain([("mac_only", "1"), ("release", "1")]).collect();
    let response = browser.send("/add/node", &fields).await;
    let page = browser.page(location(&response)).await;
    assert!(page.contains("rack=12") && page.contains("fra"), "{page}");

    let wrong = browser.send("/add/token", &[("expires_in", "soon")]).await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    let page = browser.send("/add/token", &[("node", "web1"), ("expires_in", "2h")]).await.text().await.unwrap();
    assert!(page.contains("shown only now"), "{page}");
    assert_eq!(operate::list_tokens(&server.store().await).await.unwrap().len(), 1);
    let refused = browser.send("/add/system", &[("name", "debian"), ("image", "")]).await;
    assert!(refused.text().await.unwrap().contains("no image is chosen"));
}

/// A form as a browser sends it that has a field for files (RFC 7578).
fn form_with_file(fields: &[(&str, &str)], file: &str, content: &[u8]) -> Vec<u8> {
    let head = |(name, value): &(&str, &str)| {
        format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let mut form: String = fields.iter().map(head).collect();
    form += &format!("--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{file}\"\r\n\r\n");
    [form.as_bytes(), content, b"\r\n--edge--\r\n"].concat()
}

/// Answers one request for a file.
async fn file_server(content: &'static [u8]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/debian%2012.raw", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
        stream.write_all(&[head.as_bytes(), content].concat()).await.unwrap();
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_sent_by_a_form_or_fetched_from_a_url() {
    let server = TestServer::start().await;
    let store = server.store().await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let proof = browser.proof().await;
    let send = async |fields: &[(&str, &str)], file: &str, content: &[u8]| {
        let request = browser.client.post(server.url("/add/image")).header(COOKIE, &browser.cookie);
        let request = request.header("content-type", "multipart/form-data; boundary=edge");
        request.header(FETCH_SITE, "same-origin").body(form_with_file(fields, file, content)).send().await.unwrap()
    };
    // Until all that is being added is there, or is not.
    let ended = async || loop {
        let page = browser.page("/images").await;
        if !page.contains("data-busy") {
            return page;
        }
    };
    let digest = digest_of(&IMAGE);
    assert_eq!(send(&[("proof", "guess")], "debian.raw", &IMAGE).await.status(), StatusCode::FORBIDDEN);
    let zeros = "0".repeat(64);
    for (fields, file, content, why) in [
        (vec![("sha256", &*zeros)], "debian.raw", &IMAGE[..], "is it the right file?"),
        (vec![("sha256", "0")], "debian.raw", &IMAGE, "the SHA-256 cannot be used"),
        (vec![], "", &[], "no file is chosen"),
        (vec![], "empty.raw", &[], "is empty"),
    ] {
        let refused = send(&[vec![("proof", &*proof)], fields].concat(), file, content).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{why}");
        let page = refused.text().await.unwrap();
        assert!(page.contains(why), "{why}: {page}");
    }
    // Whether it is an image is found out afterwards.
    let qcow2 = b"QFI\xfb no image";
    assert_eq!(location(&send(&[("proof", &proof)], "C:\\broken.qcow2", qcow2).await), "/images");
    let page = ended().await;
    assert!(page.contains("broken.qcow2 <span class=\"state bad\">■ not added"), "{page}");
    assert_eq!(stored::list(&store).await.unwrap().len(), 0);

    // Larger than any other request.
    let large = vec![7; MAX_REQUEST_BYTES + 1];
    assert_eq!(location(&send(&[("proof", &*proof), ("other", "1")], "large", &large).await), "/images");
    let page = ended().await;
    assert!(page.contains("large <span class=\"state good\">added"), "{page}");
    operate::remove_image(&store, "large").await.unwrap();

    let fields = [("proof", &*proof), ("sha256", digest.hex())];
    assert_eq!(location(&send(&fields, "<b>debian.raw", &IMAGE).await), "/images");
    let page = ended().await;
    assert!(page.contains("&lt;b&gt;debian.raw <span class=\"state good\">added"), "{page}");
    let images = stored::list(&store).await.unwrap();
    assert_eq!((images.len(), &images[0].image.digest), (1, &digest));
    let events = browser.page("/events?kind=operator").await;
    assert!(events.contains("debian.raw") && events.contains("<td class=\"muted\">first</td>"), "{events}");
    // Nothing remains of what was refused.
    let left: Vec<_> = std::fs::read_dir(server.data_path().join("images")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");

    let url = file_server(&OTHER).await;
    let missing = browser.send("/add/image-from-url", &[("url", &url)]).await;
    assert!(missing.text().await.unwrap().contains("the SHA-256 of the file is missing"));
    let other = digest_of(&OTHER);
    let fields = [("url", &*url), ("sha256", &*other.to_string()), ("other", "1")];
    assert_eq!(location(&browser.send("/add/image-from-url", &fields).await), "/images");
    ended().await;
    assert!(stored::list(&store).await.unwrap().iter().any(|status| status.image.digest == other));
}

/// A file without an image.
static OTHER: [u8; 100_000] = [7; 100_000];

fn digest_of(content: &[u8]) -> Digest {
    Digest::new(Algorithm::Sha256, &fingerprint(content)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_tells_what_changes() {
    let server = TestServer::start().await;
    let store = server.store().await;
    server.add_released("web1").await;
    let browser = Browser::signed_in(&server, &server.operator_token()).await;
    let mut stream = browser.get("/page/stream").await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    check_headers(stream.headers());
    let mut heard = String::new();
    let mut until = async |text: &str| {
        while !heard.contains(text) {
            heard += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
        }
        std::mem::take(&mut heard)
    };
    // First, which rows the page must show to go on.
    let hello = until("\n\n").await;
    assert!(hello.contains("\"rows\":[]") && hello.contains("\"all\":1"), "{hello}");
    operate::decommission_node(&store, "web1").await.unwrap();
    let news = until("decommissioned").await;
    assert!(news.contains("\"name\":\"web1\"") && news.contains("\"all\":0"), "{news}");
    let id = operate::show_node(&store, "web1").await.unwrap().id;
    operate::remove_node(&store, &id).await.unwrap();
    until(&format!("\"gone\":[\"{id}\"]")).await;
}
