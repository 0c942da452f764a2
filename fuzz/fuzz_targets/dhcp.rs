//! An answer to a boot request has the client's transaction id and MAC address, assigns no address, and is not a
//! request.
#![no_main]

use std::net::{Ipv4Addr, SocketAddrV4};

use slipway_pxe::dhcp::{Addresses, BOOT_SERVER_PORT, Files, Policy, Request, SERVER_PORT, answer};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(request) = Request::parse(input) else { return };
    let some = |text: &str| Some(text.to_owned());
    let files = || Files { bios: some("bios"), x64: some("x64"), arm64: some("arm64") };
    let policy = Policy { tftp: files(), http: files(), script: some("http://192.0.2.1/boot/ipxe") };
    for port in [SERVER_PORT, BOOT_SERVER_PORT] {
        let client = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
        let addresses = Addresses { server: Ipv4Addr::new(192, 0, 2, 1), port, client };
        let Ok(answer) = answer(&request, &policy, &addresses) else { continue };
        assert_eq!(answer.bytes[4..8], input[4..8]);
        assert_eq!(answer.bytes[16..20], [0; 4]);
        assert_eq!(answer.bytes[28..34], request.machine.mac);
        assert!(answer.bytes.len() + 28 <= usize::from(request.largest_answer));
        assert_eq!(Request::parse(&answer.bytes), None);
    }
});
