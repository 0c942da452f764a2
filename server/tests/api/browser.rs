//! Debian's Chromium, driven by chromedriver (W3C WebDriver, and Chrome DevTools Protocol for what that lacks).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::program::Ended;

const DRIVER: &str = "/usr/bin/chromedriver";
/// Key of an element in answers (W3C WebDriver, section 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// How long a page may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that are not letters (W3C WebDriver, section 17.4.2).
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";

/// A browser with a profile of its own.
pub struct Chromium {
    _driver: Ended,
    /// Process id of the browser, which does not end with its driver.
    browser: String,
    client: Client,
    session: String,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", &self.browser]).status();
    }
}

impl Chromium {
    /// Starts a browser. None, with a message, if this host has none.
    pub async fn start() -> Option<Self> {
        if !Path::new(DRIVER).exists() {
            eprintln!("not checked: there is no {DRIVER} (Debian package chromium-driver)");
            return None;
        }
        let mut driver = Ended(Command::new(DRIVER).arg("--port=0").stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(driver.0.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        std::thread::spawn(move || lines.for_each(drop));
        crate::support::install_provider();
        let client = Client::builder().timeout(PATIENCE).build().unwrap();
        let options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--window-size=1400,900",
            "--hide-scrollbars",
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "acceptInsecureCerts": true,
            "goog:chromeOptions": { "args": options },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let url = format!("http://127.0.0.1:{}/session", port.unwrap());
        let answer: Value = client.post(&url).json(&capabilities).send().await.unwrap().json().await.unwrap();
        let id = answer["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let browser = answer["value"]["capabilities"]["goog:processID"].to_string();
        Some(Self { _driver: driver, browser, client, session: format!("{url}/{id}") })
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, String> {
        let request = self.client.request(method, format!("{}{path}", self.session));
        let request = body.into_iter().fold(request, |request, body| request.json(&body));
        let mut answer: Value = request.send().await.unwrap().json().await.unwrap();
        match answer["value"]["error"].as_str() {
            Some(_) => Err(answer["value"].to_string()),
            None => Ok(answer["value"].take()),
        }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.call(Method::POST, path, Some(body)).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    pub async fn open(&self, url: &str) {
        self.post("/url", json!({ "url": url })).await;
    }

    /// Runs a function's body in the page. Its promise is waited for.
    pub async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Waits until an expression is true in the page.
    pub async fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let script = json!({ "script": format!("return Boolean({expression})"), "args": [] });
            // While a page is replaced by the next, there is none.
            if self.call(Method::POST, "/execute/sync", Some(script)).await == Ok(Value::Bool(true)) {
                return;
            }
            assert!(Instant::now() < deadline, "{expression}: {}", self.text().await);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// The visible text of the page.
    pub async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    async fn find(&self, selector: &str) -> String {
        let found = self.post("/element", json!({ "using": "css selector", "value": selector })).await;
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    pub async fn click(&self, selector: &str) {
        let element = self.find(selector).await;
        self.post(&format!("/element/{element}/click"), json!({})).await;
    }

    /// Chooses a file in a field for files.
    pub async fn choose(&self, selector: &str, file: &Path) {
        let element = self.find(selector).await;
        self.post(&format!("/element/{element}/value"), json!({ "text": file })).await;
    }

    /// Presses keys, wherever the focus is.
    pub async fn press(&self, keys: &str) {
        let each = keys.chars().map(String::from);
        let actions: Vec<Value> = each
            .flat_map(|key| [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })])
            .collect();
        self.post("/actions", json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] })).await;
    }

    /// Opens another window, so that both are visible, and goes there. Returns its handle.
    pub async fn new_window(&self) -> Value {
        let tab = self.post("/window/new", json!({ "type": "window" })).await["handle"].take();
        self.switch_to(&tab).await;
        tab
    }

    /// Closes the window. Another one has to be switched to.
    pub async fn close(&self) {
        self.call(Method::DELETE, "/window", None).await.unwrap();
    }

    pub async fn tab(&self) -> Value {
        self.call(Method::GET, "/window", None).await.unwrap()
    }

    pub async fn switch_to(&self, tab: &Value) {
        self.post("/window", json!({ "handle": tab })).await;
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    /// Sets the colour scheme that the user prefers: `light` or `dark`.
    pub async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    pub async fn resize(&self, width: u32, height: u32) {
        let parameters = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", parameters).await;
    }

    /// Keeps a picture of the page, for people to look at.
    pub async fn photograph(&self, name: &str) {
        let picture = self.call(Method::GET, "/screenshot", None).await.unwrap();
        let folder = pictures();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{name}.png")), STANDARD.decode(picture.as_str().unwrap()).unwrap()).unwrap();
    }

    /// What the browser complained about since the last time, such as what a policy blocked.
    pub async fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", json!({ "type": "browser" })).await;
        let entries = log.as_array().unwrap().iter();
        entries.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// What axe-core finds: rules with the elements that break them.
    pub async fn check_access(&self, axe: &str) -> Vec<String> {
        self.run(&format!("{axe}; window.axe = axe;")).await;
        let found = self
            .run(
                "return axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => \
                 violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html}:
                     ${node.failureSummary}`)))",
            )
            .await;
        found.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }
}

/// Folder with the pictures of the last run.
pub fn pictures() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("page")
}

/// The text of axe-core, from npm. None, with a message, if it cannot be fetched.
pub fn axe() -> Option<String> {
    const VERSION: &str = "4.14.1";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("axe-core");
    let file = folder.join("node_modules/axe-core/axe.min.js");
    fs::create_dir_all(&folder).unwrap();
    let lock = fs::File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !file.exists() {
        let arguments = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"];
        let mut npm = Command::new("npm");
        npm.args(arguments).arg(&folder).arg(format!("axe-core@{VERSION}")).stdout(Stdio::null());
        if !npm.status().is_ok_and(|status| status.success()) {
            eprintln!("not checked: npm cannot fetch axe-core {VERSION}");
            return None;
        }
    }
    Some(fs::read_to_string(file).unwrap())
}
