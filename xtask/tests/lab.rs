//! The lab's server: operators' commands work on it, and it restarts on the same ports.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context, Result};
use xtask::lab::server::Lab;

/// Requests a boot file, and returns the status line of the answer.
fn get(boot_url: &str, path: &str) -> Result<String> {
    let port = boot_url.trim_start_matches("http://10.0.2.2:").split('/').next().unwrap_or_default();
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse()?))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).lines().next().context("reading the answer")?.to_owned())
}

#[test]
fn a_server_comes_back_on_its_ports_with_what_it_knew() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut lab = Lab::new(folder.path())?;
    std::fs::write(folder.path().join("boot/hello"), "hello")?;
    lab.start_server()?;
    lab.stop_server()?;
    assert!(lab.operator(&["ca"])?.starts_with("-----BEGIN CERTIFICATE-----"));
    lab.operator(&["node", "add", "--name", "web1", "--serial", "7CZ1234"])?;

    for _ in 0..2 {
        lab.start_server()?;
        assert_eq!(get(&lab.boot_url(), "/boot/hello")?, "HTTP/1.1 200 OK");
        assert!(lab.operator(&["node", "list"])?.contains("web1"));
        lab.stop_server()?;
        assert!(get(&lab.boot_url(), "/boot/hello").is_err(), "it answers after its end");
    }
    Ok(())
}

#[test]
fn a_wrong_operator_command_says_what_the_server_said() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut lab = Lab::new(folder.path())?;
    lab.start_server()?;
    let error = lab.operator(&["node", "show", "nobody"]).err().context("it worked")?;
    assert!(format!("{error:#}").contains("nobody"), "{error:#}");
    Ok(())
}
