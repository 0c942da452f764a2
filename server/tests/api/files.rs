//! Images, boot files and boot scripts.

use reqwest::{Client, Response, StatusCode};
use slipway_protocol::ErrorCode;
use slipway_server::image;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{TestServer, UUID, refusal};

/// Larger than one read, and not a multiple of its size.
fn content() -> Vec<u8> {
    (0..1_500_001_u32).map(|n| (n % 251) as u8).collect()
}

async fn add_image(server: &TestServer) -> String {
    let file = server.folder.path().join("disk.img");
    std::fs::write(&file, content()).unwrap();
    let added =
        image::add(&server.store().await, &server.data(), &file, image::Known::default(), |_| {}).await.unwrap().image;
    assert_eq!((added.size, added.file_name.as_str()), (1_500_001, "disk.img"));
    let left = std::fs::read_dir(server.data_path().join("images")).unwrap().count();
    assert_eq!(left, 1, "nothing but the folder of finished images");
    server.url(&format!("/images/{}", added.digest))
}

async fn get(url: &str, headers: &[(&str, &str)], client: &Client) -> Response {
    let request = headers.iter().fold(client.get(url), |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn an_image_is_had_whole_or_in_part() {
    let (server, content) = (TestServer::start().await, content());
    let (url, client) = (add_image(&server).await, server.client());
    let whole = get(&url, &[], &client).await;
    let etag = header(&whole, "etag").to_owned();
    assert_eq!(etag, format!("\"{}\"", url.rsplit('/').next().unwrap()));
    assert_eq!(header(&whole, "cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(header(&whole, "accept-ranges"), "bytes");
    assert_eq!(whole.bytes().await.unwrap(), content);

    let part = get(&url, &[("range", "bytes=1000000-1000009")], &client).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(header(&part, "content-range"), "bytes 1000000-1000009/1500001");
    assert_eq!(part.bytes().await.unwrap(), content[1_000_000..1_000_010]);

    let rest = get(&url, &[("range", "bytes=1400000-"), ("if-range", &etag)], &client).await;
    assert_eq!(rest.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(rest.bytes().await.unwrap(), content[1_400_000..]);

    let changed = get(&url, &[("range", "bytes=1400000-"), ("if-range", "\"other\"")], &client).await;
    assert_eq!((changed.status(), changed.content_length()), (StatusCode::OK, Some(1_500_001)));
}

#[tokio::test]
async fn an_image_is_had_without_its_body() {
    let server = TestServer::start().await;
    let (url, client) = (add_image(&server).await, server.client());
    let head = client.head(&url).send().await.unwrap();
    assert_eq!((head.status(), header(&head, "content-length")), (StatusCode::OK, "1500001"));
    let etag = header(&head, "etag").to_owned();
    assert_eq!(head.bytes().await.unwrap().len(), 0);
    let known = get(&url, &[("if-none-match", &etag)], &client).await;
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
}

#[tokio::test]
async fn what_is_not_there_is_refused() {
    let server = TestServer::start().await;
    let (url, client) = (add_image(&server).await, server.client());
    let outside = get(&url, &[("range", "bytes=1500001-")], &client).await;
    assert_eq!(header(&outside, "content-range"), "bytes */1500001");
    assert_eq!(refusal(outside).await.code, ErrorCode::RangeNotSatisfiable);
    let other = server.url(&format!("/images/sha256:{}", "0".repeat(64)));
    assert_eq!(refusal(get(&other, &[], &client).await).await.code, ErrorCode::NotFound);
    let nonsense = server.url("/images/..%2f..%2fca.key");
    assert_eq!(refusal(get(&nonsense, &[], &client).await).await.code, ErrorCode::InvalidRequest);
    assert_eq!(refusal(get(&server.url("/nowhere"), &[], &client).await).await.code, ErrorCode::NotFound);
    let slash = client.post(server.url("/v1/phone-home/secret/")).send().await.unwrap();
    let slash = refusal(slash).await;
    assert_eq!((slash.code, slash.message.contains("secret")), (ErrorCode::NotFound, false), "{}", slash.message);
    let wrong = client.delete(&url).send().await.unwrap();
    assert_eq!(wrong.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn boot_files_are_given_out_with_and_without_tls() {
    let server = TestServer::start().await;
    std::fs::write(server.folder.path().join("boot/x86_64/vmlinuz"), "kernel").unwrap();
    let plain = Client::new();
    for (client, url) in
        [(server.client(), server.url("/boot/x86_64/vmlinuz")), (plain, server.boot_url("/boot/x86_64/vmlinuz"))]
    {
        let part = get(&url, &[("range", "bytes=2-3")], &client).await;
        assert!(!header(&part, "etag").is_empty());
        assert_eq!(part.text().await.unwrap(), "rn");
    }
}

/// What firmware goes by: it asks for the size first, and then for the file on the same connection, and by the type it
/// tells a program from an image.
#[tokio::test]
async fn firmware_gets_size_and_type_of_a_boot_file_and_keeps_its_connection() {
    let server = TestServer::start().await;
    let table = [
        ("slipway.efi", "application/efi"),
        ("slipway.iso", "application/vnd.efi-iso"),
        ("slipway.img", "application/vnd.efi-img"),
        ("initramfs", "application/octet-stream"),
    ];
    let url = reqwest::Url::parse(&server.boot_url("/")).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", url.port().unwrap())).await.unwrap();
    for (name, media_type) in table {
        std::fs::write(server.folder.path().join("boot").join(name), "0123456789").unwrap();
        // The Host is as edk2 sends it, without the port.
        for (method, range, expect) in [
            ("HEAD", "", ("200 OK", "10", "")),
            ("GET", "", ("200 OK", "10", "0123456789")),
            ("GET", "Range: bytes=4-\r\n", ("206 Partial Content", "6", "456789")),
        ] {
            let request = format!("{method} /boot/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n{range}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let head = head(&mut stream).await;
            let mut body = vec![0; expect.2.len()];
            stream.read_exact(&mut body).await.unwrap();
            let has = |line: &str| head.lines().any(|found| found == line);
            assert!(head.starts_with(&format!("HTTP/1.1 {}\r\n", expect.0)), "{head}");
            assert!(
                has(&format!("content-length: {}", expect.1)) && has(&format!("content-type: {media_type}")),
                "{head}"
            );
            assert!(!head.contains("transfer-encoding") && !head.contains("connection"), "{head}");
            assert_eq!(String::from_utf8(body).unwrap(), expect.2);
        }
    }
}

/// An answer up to its body, and no byte of that.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn without_tls_there_is_nothing_but_boot_files() {
    let server = TestServer::start().await;
    let image = add_image(&server).await;
    let client = Client::new();
    for path in [image.rsplit_once("/images/").unwrap().1, "v1/time", "v1/enrol", "v1/operator/nodes"] {
        let response = get(&server.boot_url(&format!("/{path}")), &[], &client).await;
        assert_eq!(refusal(response).await.code, ErrorCode::NotFound, "{path}");
    }
}

#[tokio::test]
async fn paths_do_not_leave_the_boot_folder() {
    let server = TestServer::start().await;
    for path in
        ["/boot/..%2fdata%2fca.key", "/boot/x86_64/..%2f..%2fdata/ca.key", "/boot/x86_64", "/boot/%2fetc%2fpasswd"]
    {
        let response = get(&server.boot_url(path), &[], &Client::new()).await;
        assert_eq!(refusal(response).await.code, ErrorCode::NotFound, "{path}");
    }
}

#[tokio::test]
async fn a_boot_file_nobody_can_have_is_refused() {
    let server = TestServer::start().await;
    let table = [("%ff".to_owned(), ErrorCode::InvalidRequest), ("a".repeat(300), ErrorCode::NotFound)];
    for (path, code) in table {
        let response = get(&server.boot_url(&format!("/boot/{path}")), &[], &Client::new()).await;
        assert_eq!(refusal(response).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn a_machine_gets_the_boot_script_of_its_node() {
    let server = TestServer::start().await;
    let client = Client::new();
    let script = async |query: &str| {
        get(&server.boot_url(&format!("/boot/ipxe{query}")), &[], &client).await.text().await.unwrap()
    };
    // iPXE reads a relative URI with a colon as one with a scheme, so MAC addresses must be written without colons.
    let first = script("").await;
    assert!(!first.contains("/mac}&"), "{first}");
    assert!(first.starts_with("#!ipxe\n") && first.contains("/boot/ipxe?uuid=${uuid}&serial=${serial:uristring}"));

    let query = format!("?uuid={UUID}&serial=&mac=52%3A54%3A00%3A12%3A34%3A56&arch=x86_64");
    assert!(script(&query).await.contains("\nkernel /boot/x86_64/vmlinuz "), "unknown");
    let node = server.enrolled("web1").await;
    let held = script(&query).await;
    assert!(held.contains("\nkernel ") && !held.contains("web1"), "{held}");

    let run = crate::work::new_run("steps:\n- {name: leave, action: {reboot: {}}}\n");
    slipway_server::operate::start_run(&server.store().await, &server.ca(), "web1", run).await.unwrap();
    let workflow = node.workflow(&server).await.unwrap();
    assert!(script(&query).await.contains("\nkernel "), "a run goes on");
    node.finish(&server, &workflow).await;
    let done = script(&query).await;
    assert!(done.contains("\nexit 1\n") && !done.contains("\nkernel ") && !done.contains("web1"), "{done}");
    let guess = "?serial=7CZ1&mac=52%3A54%3A00%3A12%3A34%3A56&arch=x86_64";
    assert!(script(guess).await.contains("\nkernel "), "who does not know its UUID learns nothing");
}
