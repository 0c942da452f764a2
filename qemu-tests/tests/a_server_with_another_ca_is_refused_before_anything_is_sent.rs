//! The machine's boot medium trusts one CA, and the server's certificate is from another.

use anyhow::Result;
use qemu_tests::{Bench, LIMIT, timed};
use xtask::lab::server::Lab;

#[test]
fn a_server_with_another_ca_is_refused_before_anything_is_sent() -> Result<()> {
    timed("a server with another CA is refused before anything is sent", || {
        let folder = tempfile::tempdir()?;
        let mut other = Lab::new(folder.path())?;
        other.start_server()?;
        let bench = Bench::with_boot_files(|lab| lab.make_boot_files_with_ca(other.operator(&["ca"])?))?;
        bench.register()?;

        let mut machine = bench.power_on(&bench.machine())?;
        let line = machine.wait_for_line("not signed by the CA", LIMIT)?;
        assert!(line.contains(&bench.lab.url()) && line.contains("nothing was sent"), "{line}");

        let node = bench.status()?.remove(0);
        assert_eq!((node.last_seen, node.inventory), (None, None));
        let log = std::fs::read_to_string(bench.lab.server_log())?;
        assert!(log.contains("TLS handshake"), "no machine connected to the server:\n{log}");
        assert!(!log.contains("request"), "the server got a request:\n{log}");
        Ok(())
    })
}
