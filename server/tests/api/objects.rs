//! Images in a bucket of an object store.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use hyper::{Method, Uri};
use reqwest::header::{CONTENT_RANGE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use slipway_protocol::{Action, Digest, ErrorCode, Identity, Step, StreamImage};
use slipway_server::base::objects::{Bucket, Defaults, Keys};
use slipway_server::image::{self, Known};
use slipway_server::operate::{self, NewNode, NewRun, Task, WorkflowFile};
use slipway_server::store::{commit, findings, images};

use crate::health::until;
use crate::installing::add_system;
use crate::metrics::Scrape;
use crate::object_store::{KEY_ID, ObjectStore, Program, SECRET, is_removal, is_second_part};
use crate::output::logged;
use crate::program::{Ended, command, fail, succeed};
use crate::support::{IMAGE, TestServer, refusal};

const MIB: usize = 1 << 20;

/// The bucket, with the right key.
pub fn bucket(objects: &ObjectStore) -> Bucket {
    let keys = Keys { id: KEY_ID.to_owned(), secret: SECRET.to_owned(), session: None };
    Bucket::open(&objects.url(), Defaults::default(), keys).unwrap()
}

/// A disk that needs several parts.
fn disk(mib: usize) -> Vec<u8> {
    let mut disk = IMAGE.to_vec();
    disk.extend((512..mib * MIB).map(|n| (n.wrapping_mul(n) >> 9) as u8));
    disk
}

fn sha256(bytes: &[u8]) -> Digest {
    format!("sha256:{:x}", Sha256::digest(bytes)).parse().unwrap()
}

async fn add(server: &TestServer, bytes: &[u8]) -> Result<image::Added, slipway_server::Error> {
    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, bytes).unwrap();
    let added = image::add(&server.store().await, &server.data(), &file, Known::default(), |_| {}).await;
    let images = server.data_path().join("images");
    let left = std::fs::read_dir(images).unwrap().map(|file| file.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(left, ["sha256"], "nothing stays in the data folder");
    added
}

async fn get(server: &TestServer, digest: &Digest, headers: &[(reqwest::header::HeaderName, &str)]) -> Response {
    let mut request = server.client().get(server.url(&format!("/images/{digest}")));
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    request.send().await.unwrap()
}

#[tokio::test]
async fn an_image_in_the_bucket_is_served_like_one_in_the_folder() {
    for program in Program::ALL {
        check_served(&ObjectStore::start_program(program).await).await;
    }
}

async fn check_served(objects: &ObjectStore) {
    let mut server = TestServer::start_with_bucket(bucket(objects)).await;
    let disk = disk(9);
    let image = add(&server, &disk).await.unwrap().image;
    assert_eq!((&image.digest, image.size), (&sha256(&disk), disk.len() as u64));
    assert_eq!(names(objects).await, [image.digest.to_string()]);

    for _ in 0..2 {
        let whole = get(&server, &image.digest, &[]).await;
        assert_eq!((whole.status(), whole.content_length()), (StatusCode::OK, Some(disk.len() as u64)));
        let etag = whole.headers()[ETAG].to_str().unwrap().to_owned();
        assert_eq!(etag, format!("\"{}\"", image.digest));
        assert!(whole.bytes().await.unwrap() == disk);

        let (from, to) = (8 * MIB - 5, 8 * MIB + 4);
        let range = format!("bytes={from}-{to}");
        let part = get(&server, &image.digest, &[(RANGE, &range), (IF_RANGE, &etag)]).await;
        assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
        let named = format!("bytes {from}-{to}/{}", disk.len());
        assert_eq!(part.headers()[CONTENT_RANGE].to_str().unwrap(), named);
        assert!(part.bytes().await.unwrap() == disk[from..=to]);
        let other = get(&server, &image.digest, &[(RANGE, "bytes=5-9"), (IF_RANGE, "\"other\"")]).await;
        assert_eq!((other.status(), other.content_length()), (StatusCode::OK, Some(disk.len() as u64)));
        let beyond = get(&server, &image.digest, &[(RANGE, &format!("bytes={}-", disk.len()))]).await;
        assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);
        let same = get(&server, &image.digest, &[(IF_NONE_MATCH, &etag)]).await;
        assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
        let absent = get(&server, &sha256(b"absent"), &[]).await;
        assert_eq!(absent.status(), StatusCode::NOT_FOUND);
        server = server.restart().await;
    }

    operate::remove_image(&server.store().await, image.digest.hex()).await.unwrap();
    assert_eq!(get(&server, &image.digest, &[]).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(names(objects).await, [""; 0]);
}

/// The digests of the images in the bucket.
async fn names(objects: &ObjectStore) -> Vec<String> {
    bucket(objects).list().await.unwrap().keys().map(Digest::to_string).collect()
}

#[tokio::test]
async fn an_object_that_is_missing_or_changed_is_noticed_before_a_disk_is_erased() {
    let objects = ObjectStore::start().await;
    let server = TestServer::start_with_bucket(bucket(&objects)).await;
    let system = add_system(&server, |_| {}).await.unwrap();
    let file = objects.files("images/site/images/sha256").remove(0);
    let store = server.store().await;
    assert!(findings::get(&mut store.read().await.unwrap(), &system.image).await.unwrap().is_some());
    let problem = async || {
        let listed = image::stored::list(&store).await.unwrap();
        listed[0].problem.map(|problem| problem.in_words())
    };
    assert_eq!(problem().await, None);
    let mut changed = IMAGE;
    changed[0] = 1;
    std::fs::write(&file, changed).unwrap();
    std::fs::File::open(&file).unwrap().set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
    operate::add_system(&store, system.clone()).await.expect_err("the digest is another");
    assert_eq!(problem().await, Some("has changed since it was added: its digest differs"));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(problem().await, Some("is missing on this server"));
    let refused = operate::add_system(&store, system).await.expect_err("there is no object").to_string();
    assert!(refused.contains("is missing on this server; add it again"), "{refused}");
}

#[tokio::test]
async fn a_bucket_that_is_away_comes_back() {
    let mut objects = ObjectStore::start().await;
    let server = TestServer::start_with_bucket(bucket(&objects)).await;
    let image = add(&server, &IMAGE).await.unwrap().image;
    objects.stop().await;
    let refused = refusal(get(&server, &image.digest, &[]).await).await;
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused:?}");
    let error = add(&server, &disk(1)).await.expect_err("nobody listens");
    assert_eq!(error.body().code, ErrorCode::Unavailable, "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.ends_with("; check the endpoint, and that the object store runs"), "{cause}");
    // A server also starts meanwhile.
    let server = server.restart().await;
    objects.start_again().await;
    assert!(get(&server, &image.digest, &[]).await.bytes().await.unwrap() == IMAGE[..]);
    add(&server, &disk(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_is_named_by_readyz_the_metrics_and_the_log() {
    let mut objects = ObjectStore::start_program(Program::Ceph).await;
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let (url, key) = (objects.url(), key_file(folder.path(), SECRET));
    let options = ["--objects", &url, "--objects-credentials", &key, "--metrics-listen", "127.0.0.1:0"];
    let server = logged(&data, &log, &options);
    let readyz = format!("{}/readyz", server.https);
    let problems = async || {
        let answer = server.client.get(&readyz).send().await.unwrap();
        // It does its other work, and so do the other servers of the site: a balancer should not take them all out.
        assert_eq!(answer.status(), StatusCode::OK);
        let said: Value = answer.json().await.unwrap();
        assert_eq!(said["ready"], true);
        said["problems"].as_array().unwrap().clone()
    };
    assert_eq!(problems().await, [""; 0]);
    objects.stop().await;
    let problem = until("the bucket is a problem", async || problems().await.pop()).await;
    assert_eq!((&problem["what"], &problem["message"]), (&json!("objects"), &json!(AWAY)));
    let metrics = Scrape::of(server.client.get(format!("{}/metrics", server.metrics.as_ref().unwrap()))).await;
    assert_eq!((metrics.get("slipway_ready"), metrics.get("slipway_problem{what=\"objects\"}")), (1.0, 1.0));
    objects.start_again().await;
    until("there is no problem", async || problems().await.is_empty().then_some(())).await;
    drop(server);
    let log = std::fs::read_to_string(log).unwrap();
    let lines = |with: &str| log.lines().filter(|line| line.contains(with)).collect::<Vec<_>>();
    let [lost] = lines(AWAY)[..] else { panic!("{log}") };
    assert!(lost.contains("check the endpoint, and that the object store runs"), "{lost}");
    assert_eq!(lines("the bucket with the images answers again").len(), 1, "{log}");
}

const AWAY: &str = "the bucket with the images does not answer";

/// Writes a file with an access key.
pub fn key_file(folder: &Path, secret: &str) -> String {
    let file = folder.join("key");
    std::fs::write(&file, format!("aws_access_key_id = {KEY_ID}\naws_secret_access_key = {secret}\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_give_the_bucket_by_option_or_variable_and_the_key_by_file() {
    let objects = ObjectStore::start().await;
    let server = TestServer::start_with_bucket(bucket(&objects)).await;
    let (data, file) = (server.data_path(), server.folder.path().join("web.img"));
    std::fs::write(&file, IMAGE).unwrap();
    let url = objects.url();
    let key = key_file(server.folder.path(), SECRET);
    let given = ["--objects", &url, "--objects-credentials", &key];
    let digest = succeed(&data, &[&given[..], &["image", "add", file.to_str().unwrap()]].concat());
    assert_eq!(objects.files("images/site/images/sha256").len(), 1);
    let mut listing = command(&data, &["image", "list"]);
    listing.env("SLIPWAY_OBJECTS", &url).env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
    let listed = String::from_utf8(listing.output().unwrap().stdout).unwrap();
    assert!(listed.contains("web.img") && !listed.contains("missing"), "{listed}");
    succeed(&data, &[&given[..], &["image", "remove", "--yes", digest.trim()]].concat());
    assert!(objects.files("images/site/images/sha256").is_empty());
    // A command that would look elsewhere than the server changes nothing.
    let said = fail(&data, &["image", "list"]);
    assert!(said.contains("the server keeps its images in s3://images/site at http"), "{said}");
    let (folder, _) = server.stop().await;

    let serve = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
    let with =
        |url: &str, key: &str| fail(&data, &[&["--objects", url, "--objects-credentials", key][..], &serve].concat());
    let said = with(&url, &key_file(folder.path(), "0therSecret"));
    assert!(said.contains("check the secret access key") && !said.contains("0therSecret"), "{said}");
    let key = key_file(folder.path(), SECRET);
    let said = with(&url.replace("s3://images", "s3://elsewhere"), &key);
    assert!(said.contains("NoSuchBucket") && said.contains("create the bucket"), "{said}");
    let said = fail(&data, &["--objects", &url, "image", "list"]);
    assert!(said.contains("--objects-credentials FILE"), "{said}");
    let said = fail(&data, &["--objects-credentials", &key, "image", "list"]);
    assert!(said.contains("needs --objects"), "{said}");
    let plain = "s3://images?endpoint=http://s3.example";
    let said = fail(&data, &["--objects", plain, "--objects-credentials", &key, "image", "list"]);
    assert!(said.contains("has no TLS"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_killed_leaves_no_image() {
    for program in Program::ALL {
        check_killed_upload(&ObjectStore::start_program(program).await).await;
    }
}

async fn check_killed_upload(objects: &ObjectStore) {
    let server = TestServer::start_with_bucket(bucket(objects)).await;
    let (data, file) = (server.data_path(), server.folder.path().join("large.img"));
    std::fs::write(&file, disk(17)).unwrap();
    let (url, key) = (objects.url(), key_file(server.folder.path(), SECRET));
    let add = ["--objects", &url, "--objects-credentials", &key, "image", "add", file.to_str().unwrap()];
    objects.tests().hold(is_second_part);
    let adding = Ended(command(&data, &add).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    objects.tests().has_held(1).await;
    drop(adding);
    assert_eq!(names(objects).await, [""; 0], "no part of it is visible");
    let digest = sha256(&disk(17));
    assert_eq!(get(&server, &digest, &[]).await.status(), StatusCode::NOT_FOUND);
    objects.tests().release();
    assert_eq!(succeed(&data, &add).trim(), digest.to_string());
    assert!(get(&server, &digest, &[]).await.bytes().await.unwrap() == disk(17));
    let left = std::fs::read_dir(data.join("images")).unwrap().count();
    assert_eq!(left, 1, "what the killed command left is removed");
}

/// A file in the past.
pub fn age(file: &Path, days: u64) {
    let then = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
    std::fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
}

#[tokio::test]
async fn what_no_image_has_is_removed_when_it_is_old_and_no_run_fetches_it() {
    let objects = ObjectStore::start().await;
    let servers = [TestServer::start().await, TestServer::start_with_bucket(bucket(&objects)).await];
    for (server, root) in servers.iter().zip([servers[0].data_path(), objects.root().join("images/site")]) {
        let system = add_system(server, |_| {}).await.unwrap();
        let folder = root.join("images/sha256");
        let names = [b"young", b"older", b"inrun"].map(|content| {
            let digest = sha256(content);
            std::fs::write(folder.join(digest.hex()), content).unwrap();
            digest
        });
        for name in [names[1].hex(), names[2].hex(), system.image.hex()] {
            age(&folder.join(name), 2);
        }
        server.add_released("web1").await;
        start_run_with(server, &names[2]).await.unwrap();

        let (store, data) = (server.store().await, server.data());
        let count = || std::fs::read_dir(&folder).unwrap().count();
        let expect = vec![operate::Cleaned { name: names[1].to_string(), size: 5 }];
        assert_eq!(operate::clean_images(&store, &data, true).await.unwrap(), expect);
        assert_eq!(count(), 4, "nothing is removed yet");
        assert_eq!(operate::clean_images(&store, &data, false).await.unwrap(), expect);
        assert_eq!(count(), 3);
        assert_eq!(operate::clean_images(&store, &data, false).await.unwrap(), []);
        operate::cancel_run(&store, "web1").await.unwrap();
        let cleaned = operate::clean_images(&store, &data, false).await.unwrap();
        assert_eq!(cleaned, [operate::Cleaned { name: names[2].to_string(), size: 5 }]);
    }
}

/// A bucket that does not answer to removals, a server, and an image in the bucket that nobody uses.
async fn hanging(objects: &ObjectStore) -> (TestServer, Digest) {
    let server = TestServer::start_with_bucket(bucket(objects)).await;
    server.add_released("web1").await;
    let digest = add(&server, &IMAGE).await.unwrap().image.digest;
    objects.tests().hold(is_removal);
    (server, digest)
}

/// A run whose machine gets the image from a cache, which asks the server for it.
async fn start_run_with(server: &TestServer, digest: &Digest) -> Result<(), slipway_server::Error> {
    let url = format!("https://cache.example/images/{digest}");
    let image = StreamImage { url, digest: Some(digest.clone()), ..StreamImage::default() };
    let step = Step { name: "write".to_owned(), action: Action::StreamImage(image), retries: 0, timeout: None };
    let task = Task::Workflow(WorkflowFile { steps: vec![step], ..WorkflowFile::default() });
    operate::start_run(&server.store().await, &server.ca(), "web1", NewRun::new(task)).await.map(drop)
}

/// Checks what others can do while a file is removed from a bucket that hangs, and that all ends well.
async fn check_meanwhile<T>(
    objects: &ObjectStore,
    (server, digest): (&TestServer, &Digest),
    removing: tokio::task::JoinHandle<T>,
) -> T {
    objects.tests().has_held(1).await;
    // Other writers do not wait.
    let identity = Identity { serial: Some("7CZ1234".to_owned()), ..Identity::default() };
    let new = NewNode { name: Some("web2".to_owned()), identity, ..NewNode::default() };
    let store = server.store().await;
    let writing = tokio::time::timeout(Duration::from_secs(60), operate::add_node(&store, new));
    writing.await.expect("a writer waits for the bucket").unwrap();
    // Nobody can begin to need the image.
    let refused = start_run_with(server, digest).await.expect_err("its image is being removed").to_string();
    assert!(refused.contains("is being added or removed"), "{refused}");
    // Who adds it again has stored its file before it is removed, but does not believe so.
    let (data, file) = (server.data(), server.folder.path().join("disk.img"));
    let adding =
        tokio::spawn(async move { image::add(&store, &data, &file, Known::default(), |_| {}).await.map(drop) });
    until("the file is stored", async || (objects.tests().count(is_stored) == 2).then_some(())).await;
    objects.tests().release();
    let removed = removing.await.unwrap();
    let refused = adding.await.unwrap().expect_err("the file was removed").to_string();
    assert!(refused.contains("was removed, or added again, while it was added"), "{refused}");
    assert!(objects.files("images/site/images/sha256").is_empty());
    assert_eq!(get(server, digest, &[]).await.status(), StatusCode::NOT_FOUND);
    // After that, all is as usual.
    add(server, &IMAGE).await.unwrap();
    start_run_with(server, digest).await.unwrap();
    assert!(get(server, digest, &[]).await.bytes().await.unwrap() == IMAGE[..]);
    removed
}

/// A file that is stored at once.
fn is_stored(method: &Method, uri: &Uri) -> bool {
    method == Method::PUT && uri.path().contains("/sha256/") && uri.query().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn others_write_while_an_image_is_removed_from_a_bucket_that_hangs() {
    let objects = ObjectStore::start().await;
    let (server, digest) = hanging(&objects).await;
    let (store, reference) = (server.store().await, digest.to_string());
    let removing = tokio::spawn(async move { operate::remove_image(&store, &reference).await.unwrap() });
    check_meanwhile(&objects, (&server, &digest), removing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn others_write_while_a_bucket_that_hangs_is_cleaned() {
    let objects = ObjectStore::start().await;
    let (server, digest) = hanging(&objects).await;
    // As `restore` leaves it: an old object without an image.
    let (store, data) = (server.store().await, server.data());
    let mut transaction = store.write().await.unwrap();
    images::remove(&mut transaction, &digest).await.unwrap();
    commit(transaction).await.unwrap();
    age(&objects.files("images/site/images/sha256")[0], 2);
    let removing = tokio::spawn(async move { operate::clean_images(&store, &data, false).await.unwrap() });
    let cleaned = check_meanwhile(&objects, (&server, &digest), removing).await;
    assert_eq!(cleaned, [operate::Cleaned { name: digest.to_string(), size: IMAGE.len() as u64 }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_removed_from_the_bucket_stays_one() {
    let mut objects = ObjectStore::start().await;
    let server = TestServer::start_with_bucket(bucket(&objects)).await;
    let digest = add(&server, &IMAGE).await.unwrap().image.digest;
    let (store, reference) = (server.store().await, digest.to_string());
    let before = image::stored::list(&store).await.unwrap();
    objects.stop().await;
    let refused = operate::remove_image(&store, &reference).await.expect_err("nobody listens");
    assert_eq!(refused.body().code, ErrorCode::Unavailable, "{refused:?}");
    objects.start_again().await;
    assert_eq!(image::stored::list(&store).await.unwrap(), before);
    assert!(findings::get(&mut store.read().await.unwrap(), &digest).await.unwrap().is_some());
    operate::remove_image(&store, &reference).await.unwrap();
    assert_eq!(image::stored::list(&store).await.unwrap(), []);
    assert!(objects.files("images/site/images/sha256").is_empty());
}

/// A web server with one file. It ends the first connection in the middle, and each other one after its answer.
/// Returns its URL, and the ranges that it was asked for.
fn web_server(content: Vec<u8>) -> (String, Arc<Mutex<Vec<Option<usize>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/web.img", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let head = BufReader::new(&connection).lines().map(Result::unwrap).take_while(|line| !line.is_empty());
            let range = head.filter_map(|line| {
                let line = line.to_ascii_lowercase();
                line.strip_prefix("range: bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
            });
            let range = range.last();
            let is_first = log.lock().unwrap().is_empty();
            log.lock().unwrap().push(range);
            let (from, size) = (range.unwrap_or_default(), content.len());
            let status = match range {
                Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{size}", size - 1),
                None => "200 OK".to_owned(),
            };
            let until = if is_first { size / 2 } else { size };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", size - from);
            let _ = connection.write_all(&[head.as_bytes(), &content[from..until]].concat());
        }
    });
    (url, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_added_from_a_url_with_a_digest_and_goes_on_where_it_stopped() {
    let objects = ObjectStore::start().await;
    let server = TestServer::start_with_bucket(bucket(&objects)).await;
    let disk = disk(2);
    let (url, asked) = web_server(disk.clone());
    let data = server.data_path();
    let (place, key) = (objects.url(), key_file(server.folder.path(), SECRET));
    let add = ["--objects", &place, "--objects-credentials", &key, "image", "add"];
    let said = fail(&data, &[&add[..], &[&url]].concat());
    assert!(said.contains("--sha256"), "{said}");
    let secret = "https://user:s3cret@images.example/a";
    let said = fail(&data, &[&add[..], &[secret, "--sha256", &"0".repeat(64)]].concat());
    assert!(said.contains("password") && !said.contains("s3cret"), "{said}");
    assert!(asked.lock().unwrap().is_empty());

    let remote = image::Remote::new(&url, sha256(&disk), None).unwrap();
    let (store, folder) = (server.store().await, server.data());
    // As a command left it that was killed.
    std::fs::write(folder.fetched_image(&sha256(&disk)), &disk[..1000]).unwrap();
    let added = image::add_remote(&store, &folder, &remote, Known::default(), |_| {}).await.unwrap();
    assert_eq!((&*added.image.file_name, &added.image.digest), ("web.img", &sha256(&disk)));
    let asked: Vec<usize> = asked.lock().unwrap().iter().map(|range| range.unwrap()).collect();
    assert_eq!(asked[0], 1000);
    assert!(asked.len() == 2 && asked[1] > 1000 && asked[1] <= disk.len() / 2, "{asked:?}");
    assert!(get(&server, &added.image.digest, &[]).await.bytes().await.unwrap() == disk);

    let wrong = image::Remote::new(&url, sha256(b"other"), None).unwrap();
    let error = image::add_remote(&store, &folder, &wrong, Known::default(), |_| {}).await.expect_err("it is wrong");
    assert!(error.to_string().contains("has the digest"), "{error}");
    let left = std::fs::read_dir(data.join("images")).unwrap().count();
    assert_eq!(left, 1, "a wrong file does not stay");
}
