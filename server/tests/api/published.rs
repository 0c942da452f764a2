//! Boot files in a bucket, from which the servers of a site take them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use hyper::{Method, Uri};
use reqwest::header::RANGE;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use slipway_media::Manifest;
use slipway_parts::{Arch, sha256};
use slipway_protocol::{ErrorCode, FlagKind, SiteEventKind};
use slipway_server::base::time::now;
use slipway_server::boot_files::{outdated, published};
use slipway_server::operate;
use slipway_server::store::history::{self, Filter, Place};
use slipway_server::store::{flags, published as builds};

use crate::health::until;
use crate::media::write_parts;
use crate::object_store::ObjectStore;
use crate::objects::{age, bucket, key_file};
use crate::program::{fail, succeed};
use crate::support::{TestServer, refusal};

/// Objects of boot files in the folder of s3s-fs.
const OBJECTS: &str = "images/site/boot/sha256";

/// Gives a server parts, and an empty folder of boot files.
fn prepare(server: &TestServer) {
    let boot = server.folder.path().join("boot");
    fs::remove_dir_all(&boot).unwrap();
    fs::create_dir(&boot).unwrap();
    write_parts(&server.folder.path().join("parts"), Arch::X86_64, 1);
}

async fn start(objects: &ObjectStore) -> TestServer {
    let server = TestServer::start_with_bucket(bucket(objects)).await;
    prepare(&server);
    server
}

async fn asked(server: &TestServer, new: &Value) -> Response {
    let post = server.client().post(server.url("/v1/operator/media"));
    post.bearer_auth(server.operator_token()).json(new).send().await.unwrap()
}

async fn made(server: &TestServer, new: &Value) -> Manifest {
    made_by(&server.operator_token(), server, new).await
}

async fn made_by(token: &str, server: &TestServer, new: &Value) -> Manifest {
    let post = server.client().post(server.url("/v1/operator/media"));
    let response = post.bearer_auth(token).json(new).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    response.json().await.unwrap()
}

async fn get(server: &TestServer, path: &str) -> Response {
    server.client().get(server.boot_url(&format!("/boot/{path}"))).send().await.unwrap()
}

/// Waits until a server hands a build out by the usual names.
async fn hands_out(server: &TestServer, build: &Manifest) {
    let manifest = async || get(server, "manifest.json").await.json::<Manifest>().await.ok();
    until("the server has the boot files", async || manifest().await.filter(|found| found == build)).await;
}

async fn check_files(server: &TestServer, build: &Manifest, at: &str) {
    for asset in &build.assets {
        let file = get(server, &format!("{at}{}", asset.path)).await;
        assert_eq!(file.status(), StatusCode::OK, "{}", asset.path);
        assert_eq!(sha256(&file.bytes().await.unwrap()), asset.sha256, "{}", asset.path);
    }
}

/// Below which path a machine is told to fetch its files.
async fn told(server: &TestServer) -> String {
    let script = get(server, "ipxe?arch=x86_64").await.text().await.unwrap();
    let after = |word: &str| script.split_once(word).unwrap().1.split_once(' ').unwrap().0.to_owned();
    let kernel = after("\nkernel /boot/");
    assert_eq!(after("\ninitrd --name initramfs /boot/"), kernel.replace("vmlinuz", "initramfs"), "of one build");
    kernel.trim_end_matches("vmlinuz").to_owned()
}

fn at(build: &Manifest) -> String {
    format!("media/{}/", build.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_publishes_all_hand_out_and_no_machine_gets_files_of_two_builds() {
    let objects = ObjectStore::start().await;
    let servers = TestServer::start_two_with(Some(bucket(&objects))).await;
    servers.iter().for_each(prepare);
    let [one, other] = &servers;
    let first = made(one, &json!({})).await;
    for server in &servers {
        hands_out(server, &first).await;
        check_files(server, &first, "").await;
        assert_eq!(told(server).await, at(&first) + "x86_64/");
    }
    let url = other.boot_url(&format!("/boot/{}x86_64/vmlinuz", at(&first)));
    let part = other.client().get(url).header(RANGE, "bytes=5-9").send().await.unwrap();
    assert_eq!((part.status(), part.content_length()), (StatusCode::PARTIAL_CONTENT, Some(5)));
    let newest = other.client().get(other.url("/v1/operator/media")).bearer_auth(one.operator_token());
    assert_eq!(newest.send().await.unwrap().json::<Manifest>().await.unwrap(), first);
    let filter = Filter { kinds: Some(vec![SiteEventKind::Operator]), ..Filter::default() };
    let events =
        history::read(&mut one.store().await.read().await.unwrap(), &filter, Place::After(0), 9).await.unwrap();
    let event = events.last().unwrap();
    let expect = format!("the boot files {} of version {} were published", first.id, first.version);
    assert_eq!((&event.message, event.operator.as_deref()), (&expect, Some("first")));

    // A machine that began with the first goes on with it, at whichever server.
    let second = made_by(&one.operator_token(), other, &json!({ "token": "s3cret" })).await;
    for server in &servers {
        hands_out(server, &second).await;
        assert_eq!(told(server).await, at(&second) + "x86_64/");
        check_files(server, &first, &at(&first)).await;
        check_files(server, &second, &at(&second)).await;
        let initramfs = server.folder.path().join("boot/x86_64/initramfs");
        assert_eq!(fs::metadata(initramfs).unwrap().permissions().mode() & 0o777, 0o600, "it has a secret");
    }
    let third = made(one, &json!({ "consoles": ["ttyS1"] })).await;
    for server in &servers {
        hands_out(server, &third).await;
        check_files(server, &second, &at(&second)).await;
        assert_eq!(get(server, &(at(&first) + "x86_64/initramfs")).await.status(), StatusCode::NOT_FOUND);
    }
    assert_eq!(fs::read_dir(one.data_path()).unwrap().filter(is_incoming).count(), 0);
}

fn is_incoming(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("incoming-")
}

/// The fetch of a boot file from the bucket.
fn is_fetch(method: &Method, uri: &Uri) -> bool {
    method == Method::GET && uri.path().contains("/boot/sha256/")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_published_files_says_that_it_fetches_them() {
    let mut objects = ObjectStore::start().await;
    let server = start(&objects).await;
    assert_eq!(get(&server, "x86_64/vmlinuz").await.status(), StatusCode::NOT_FOUND, "nothing is published");
    assert_eq!(told(&server).await, "x86_64/");
    objects.tests().hold(is_fetch);
    let build = made(&server, &json!({})).await;
    assert_eq!(told(&server).await, at(&build) + "x86_64/", "a machine must not begin with the files of another one");
    for path in ["x86_64/vmlinuz".to_owned(), at(&build) + "x86_64/vmlinuz"] {
        let refused = refusal(get(&server, &path).await).await;
        assert_eq!(refused.code, ErrorCode::Unavailable);
        let expect = format!("this server still fetches the boot files {} from the bucket; try again", build.id);
        assert_eq!(refused.message, expect);
    }
    assert_eq!(get(&server, "media/0000000000000000/x86_64/vmlinuz").await.status(), StatusCode::NOT_FOUND);
    objects.tests().release();
    hands_out(&server, &build).await;

    // A bucket that is away keeps nobody from the files that are here, also after a restart, and nothing is published.
    objects.stop().await;
    let refused = refusal(asked(&server, &json!({ "consoles": ["ttyS1"] })).await).await;
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused:?}");
    let server = server.restart().await;
    check_files(&server, &build, &at(&build)).await;
    assert_eq!(told(&server).await, at(&build) + "x86_64/");
    // A server that has lost its files gets them again when the bucket is back.
    prepare(&server);
    let problem = until("the problem is named", async || problems(&server).await.pop()).await;
    assert_eq!(problem["message"], json!("the published boot files could not be fetched from the bucket"));
    objects.start_again().await;
    hands_out(&server, &build).await;
    until("there is no problem", async || problems(&server).await.is_empty().then_some(())).await;
}

/// What `/readyz` says about boot files.
async fn problems(server: &TestServer) -> Vec<Value> {
    let said: Value = server.client().get(server.url("/readyz")).send().await.unwrap().json().await.unwrap();
    assert_eq!(said["ready"], json!(true), "it does its other work: {said}");
    let problems = said["problems"].as_array().unwrap().iter();
    problems.filter(|problem| problem["what"] == json!("boot_files")).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_is_never_handed_out_and_mended_by_publishing_again() {
    let objects = ObjectStore::start().await;
    let server = start(&objects).await;
    let first = made(&server, &json!({})).await;
    hands_out(&server, &first).await;
    let initramfs = first.assets.iter().find(|asset| asset.path == "x86_64/initramfs").unwrap();
    // A server looks at its own files when it starts.
    let (folder, place) = server.stop().await;
    fs::write(folder.path().join("boot").join(at(&first)).join("x86_64/initramfs"), "damaged").unwrap();
    let server = TestServer::start_at(folder, place).await;
    let content = async || get(&server, "x86_64/initramfs").await.bytes().await.unwrap();
    until("the file is mended", async || (sha256(&content().await) == initramfs.sha256).then_some(())).await;

    let object = objects.root().join(OBJECTS).join(&initramfs.sha256);
    let mut content = fs::read(&object).unwrap();
    content[7] ^= 1;
    fs::write(&object, content).unwrap();
    let (folder, place) = server.stop().await;
    let boot = folder.path().join("boot");
    fs::remove_dir_all(&boot).unwrap();
    fs::create_dir(&boot).unwrap();
    let server = TestServer::start_at(folder, place).await;
    until("the problem is named", async || problems(&server).await.pop()).await;
    assert_eq!(refusal(get(&server, "x86_64/initramfs").await).await.code, ErrorCode::Unavailable);
    assert_eq!(refusal(get(&server, "x86_64/vmlinuz").await).await.code, ErrorCode::Unavailable, "no part of a build");
    assert_eq!(made(&server, &json!({})).await, first, "the same inputs");
    hands_out(&server, &first).await;
    check_files(&server, &first, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_builds_that_are_not_published_any_more_are_removed() {
    let objects = ObjectStore::start().await;
    let server = start(&objects).await;
    let mut made_all = Vec::new();
    for console in ["ttyS0", "ttyS1", "ttyS2"] {
        made_all.push(made(&server, &json!({ "consoles": [console] })).await);
    }
    let (store, data) = (server.store().await, server.data());
    let cleaned = async |dry_run| operate::clean_images(&store, &data, dry_run).await;
    assert_eq!(cleaned(false).await.unwrap(), [], "they are young");
    objects.files(OBJECTS).iter().for_each(|object| age(object, 2));
    let published = builds::all(&mut store.read().await.unwrap()).await.unwrap();
    let ids: Vec<&str> = published.iter().map(|build| build.id.as_str()).collect();
    assert_eq!(ids, [&*made_all[2].id, &*made_all[1].id]);
    let assets = made_all[1..].iter().flat_map(|build| build.assets.iter().map(|asset| asset.sha256.clone()));
    let needed: BTreeSet<String> =
        assets.chain(published.iter().map(|build| build.manifest.hex().to_owned())).collect();

    // If nobody knows what the builds consist of, nothing is removed.
    let manifest = objects.root().join(OBJECTS).join(published[1].manifest.hex());
    let right = fs::read(&manifest).unwrap();
    fs::write(&manifest, "{}").unwrap();
    let count = objects.files(OBJECTS).len();
    let refused = cleaned(false).await.expect_err("a manifest is damaged");
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert!(cause.contains("is not what its name says"), "{cause}");
    assert_eq!(objects.files(OBJECTS).len(), count);
    fs::write(&manifest, right).unwrap();

    let would = cleaned(true).await.unwrap();
    assert_eq!(objects.files(OBJECTS).len(), count, "nothing is removed yet");
    assert_eq!((cleaned(false).await.unwrap(), would.len()), (would, count - needed.len()));
    let name = |object: &std::path::PathBuf| object.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(objects.files(OBJECTS).iter().map(name).collect::<BTreeSet<_>>(), needed);
    // A server that has nothing yet gets both.
    prepare(&server);
    hands_out(&server, &made_all[2]).await;
    until("the build before is there too", async || {
        (get(&server, &(at(&made_all[1]) + "x86_64/initramfs")).await.status() == StatusCode::OK).then_some(())
    })
    .await;
    check_files(&server, &made_all[1], &at(&made_all[1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_publish_what_they_build_or_have_built() {
    let objects = ObjectStore::start().await;
    let server = start(&objects).await;
    let (data, parts) = (server.data_path(), server.folder.path().join("parts"));
    let (url, key) = (objects.url(), key_file(server.folder.path(), crate::object_store::SECRET));
    let out = server.folder.path().join("out");
    let [parts, out] = [parts, out].map(|path| path.to_str().unwrap().to_owned());
    let given = ["--objects", &url, "--objects-credentials", &key, "media"];
    let build = ["build", "--parts", &parts];
    let said = succeed(&data, &[&given[..], &build].concat());
    assert!(said.contains("  x86_64/initramfs\n"), "{said}");
    let (_, id) = said.trim_end().rsplit_once('\n').unwrap();
    let id = id.strip_suffix(" is published: each server with --boot fetches it from the bucket").unwrap();
    let published = async || builds::all(&mut server.store().await.read().await.unwrap()).await.unwrap();
    assert_eq!((published().await[0].id.as_str(), &*published().await[0].version), (id, env!("CARGO_PKG_VERSION")));
    // What is built in a folder is published by another command.
    let said = succeed(&data, &[&given[..], &build, &["--out", &out, "--console", "ttyS1", "--json"]].concat());
    let manifest: Manifest = serde_json::from_str(&said).unwrap();
    assert_eq!(published().await.len(), 1);
    let said = succeed(&data, &[&given[..], &["publish", &out]].concat());
    assert!(said.starts_with(&manifest.id), "{said}");
    hands_out(&server, &manifest).await;
    assert_eq!(published().await.len(), 2);
    let said = succeed(&data, &["media", "list"]);
    let expect = format!("\n{} was published, ", manifest.id);
    assert!(said.contains(&expect) && said.contains(&format!("\n{id} was published before, ")), "{said}");

    let said = fail(&data, &[&["media"], &build[..]].concat());
    assert!(said.contains("give --objects, or set SLIPWAY_OBJECTS"), "{said}");
    let said = fail(&data, &["media", "publish", &out]);
    assert!(said.contains("give --objects, or set SLIPWAY_OBJECTS"), "{said}");
    let said = fail(&data, &[&given[..], &["publish", &parts]].concat());
    assert!(said.contains("there are no boot files of `media build` in"), "{said}");
    let kernel = Path::new(&out).join(at(&manifest)).join("x86_64/vmlinuz");
    fs::write(&kernel, "other").unwrap();
    let said = fail(&data, &[&given[..], &["publish", &out]].concat());
    assert!(said.contains("x86_64/vmlinuz: it was changed since it was made"), "{said}");
}

#[tokio::test]
async fn published_boot_files_of_another_version_are_flagged() {
    let objects = ObjectStore::start().await;
    let server = TestServer::start_with_bucket(bucket(&objects)).await;
    let out = server.folder.path().join("out");
    fs::create_dir_all(out.join("media/b1")).unwrap();
    symlink("media/b1/manifest.json", out.join("manifest.json")).unwrap();
    let manifest = json!({
        "id": "b1", "version": "0.0.1", "server": "https://elsewhere", "ca_sha256": "0", "has_token": false,
        "parts": [], "assets": [],
    });
    fs::write(out.join("media/b1/manifest.json"), manifest.to_string()).unwrap();
    let store = server.store().await;
    published::publish(&store.on_behalf_of("alice"), &out).await.unwrap();
    // A server without a folder of boot files judges them too.
    outdated::look(&store, &server.data(), None, now()).await.unwrap();
    let flagged = flags::all(&mut store.read().await.unwrap(), Some(flags::SITE)).await.unwrap();
    let [(_, flag)] = &flagged[..] else { panic!("{flagged:?}") };
    assert_eq!((flag.kind, &*flag.command), (FlagKind::BootFilesOutdated, "slipway-server media list"));
    let expect = "the boot files that are published were made with version 0.0.1, and the server has ";
    assert!(flag.reason.starts_with(expect), "{}", flag.reason);
}
