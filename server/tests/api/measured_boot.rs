//! Nodes that must be attested let in only machines that started boot files of the site. The TPMs are swtpm's, and the
//! machines measure what firmware and the stub of a unified image do.

use reqwest::{Response, StatusCode};
use slipway_media::{Manifest, measured};
use slipway_protocol::{ClaimReason, MachineSettings, Proof, Secret};
use slipway_server::boot_files::builds;
use slipway_server::operate;

use crate::admission::old_store;
use crate::attested::{add_web1, enrol, machine};
use crate::enrolment::reason;
use crate::event_logs::{IPL, header};
use crate::image::{Event, Image, digest, program};
use crate::installing::web1;
use crate::support::{Machine, TestServer};
use crate::swtpm::Swtpm;

/// The boot files of the site, as `media build` records them.
fn manifest(id: &str, image: &Image) -> Manifest {
    Manifest {
        id: id.to_owned(),
        version: "0".to_owned(),
        server: Some("https://server.test".to_owned()),
        ca_sha256: String::new(),
        has_token: false,
        require: Proof::Registered,
        metadata: Default::default(),
        signed_by: None,
        parts: Vec::new(),
        measurements: vec![image.predict()],
        assets: Vec::new(),
    }
}

/// Measures these events after a power cycle. Returns the log of them.
fn boot(tpm: &mut Swtpm, events: &[Event]) -> Vec<u8> {
    tpm.power_cycle();
    let mut log = header(&[(0x0b, 32)]);
    for (register, digest) in events {
        tpm.run("tpm2_pcrextend", &[&format!("{register}:sha256={}", base16ct::lower::encode_string(digest))]);
        log.extend([u32::from(*register).to_le_bytes(), IPL.to_le_bytes(), 1_u32.to_le_bytes()].concat());
        log.extend([&[0x0b, 0], &digest[..], &0_u32.to_le_bytes()].concat());
    }
    log
}

/// A server with web1, which must be attested. It knows the TPM and one build.
async fn site() -> (TestServer, Swtpm) {
    let server = TestServer::start().await;
    let tpm = Swtpm::start();
    let ek = slipway_tpm::judge::Keys::parse(&tpm.attester().keys().unwrap()).unwrap().ek_digest();
    add_web1(&server, Proof::Attested, &[ek]).await;
    let store = server.store().await;
    builds::require(&store, true).await.unwrap();
    builds::record(&store, &manifest("0123456789abcdef", &Image::new()), None).await.unwrap();
    (server, tpm)
}

async fn start(server: &TestServer, tpm: &mut Swtpm, machine: &mut Machine, events: &[Event]) -> Response {
    let log = boot(tpm, events);
    enrol(server, machine, tpm, &log).await
}

/// Whether a machine is let in that measured these events, or what `status` says of it.
async fn outcome(server: &TestServer, tpm: &mut Swtpm, events: &[Event]) -> Result<(), String> {
    let mut machine = machine();
    let response = start(server, tpm, &mut machine, events).await;
    if response.status() == StatusCode::OK {
        return Ok(());
    }
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let claims = web1(server).await.claims;
    let claim = claims.iter().max_by_key(|claim| claim.first_asked).unwrap();
    assert_eq!(claim.reason, ClaimReason::BootFilesUnknown);
    let problem = claim.tpm.clone().unwrap().problem.unwrap();
    operate::remove_node(&server.store().await, &claim.code).await.unwrap();
    Err(problem)
}

#[tokio::test]
async fn a_machine_that_must_be_attested_is_held_with_the_part_that_is_not_as_it_was_built() {
    let (server, mut tpm) = site().await;
    let good = Image::new().events();
    assert_eq!(outcome(&server, &mut tpm, &good).await, Ok(()));
    assert_eq!(web1(&server).await.key.unwrap().proof, Proof::Attested);

    let mut stub = Image::new().stub;
    *stub.last_mut().unwrap() ^= 1;
    let with = |event: Event| [good.clone(), vec![event]].concat();
    let table = [
        (Image { linux: program(9), ..Image::new() }.events(), "the kernel of its unified kernel image"),
        (Image { initrd: vec![9; 3000], ..Image::new() }.events(), "the initramfs of its unified kernel image"),
        (
            Image { cmdline: "quiet init=/bin/sh", ..Image::new() }.events(),
            "the command line of its unified kernel image",
        ),
        (Image { stub, ..Image::new() }.events(), "the stub of its unified kernel image"),
        ([vec![(4, digest(b"iPXE"))], good.clone()].concat(), "started by a boot loader that is not allowed"),
        (with((4, digest(b"later"))), "it started another program after the unified kernel image"),
        (with((12, digest(b"init=/bin/sh"))), "something outside the unified kernel image was added"),
        (vec![(4, digest(b"other system"))], "it started an unknown program"),
        (vec![(0, digest(b"firmware"))], "its firmware measured no program"),
    ];
    for (events, expect) in table {
        let said = outcome(&server, &mut tpm, &events).await.unwrap_err();
        assert!(said.starts_with("measured boot: ") && said.contains(expect), "{said}");
    }
    assert_eq!(outcome(&server, &mut tpm, &good).await, Ok(()));
}

#[tokio::test]
async fn the_settings_of_a_medium_count_if_the_machine_shows_the_token_in_them() {
    let (server, mut tpm) = site().await;
    let store = server.store().await;
    let token = operate::add_token(&store, Some("web1"), None).await.unwrap().token;
    let settings = MachineSettings { token: Some(Secret::from(token.clone())), ..MachineSettings::default() };
    let events = |settings: &MachineSettings| {
        let mut events = Image::new().events();
        events.push((12, measured(settings).unwrap()));
        events
    };
    let mut with_token = machine();
    with_token.token = Some(token);
    let response = start(&server, &mut tpm, &mut with_token, &events(&settings)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        outcome(&server, &mut tpm, &events(&MachineSettings::default())).await,
        Ok(()),
        "a medium without settings"
    );
    let said = outcome(&server, &mut tpm, &events(&settings)).await.unwrap_err();
    assert!(said.contains("something outside"), "it does not show the token: {said}");
}

#[tokio::test]
async fn builds_count_until_an_operator_forgets_them_and_a_program_once_it_is_allowed() {
    let (server, mut tpm) = site().await;
    let store = server.store().await;
    let new = Image { cmdline: "quiet console=ttyS1", ..Image::new() };
    let loader = program(77);
    assert!(outcome(&server, &mut tpm, &new.events()).await.is_err());
    builds::record(&store, &manifest("fedcba9876543210", &new), None).await.unwrap();
    for image in [&Image::new(), &new] {
        assert_eq!(outcome(&server, &mut tpm, &image.events()).await, Ok(()));
    }
    builds::forget(&store, "0123456789abcdef").await.unwrap();
    let said = outcome(&server, &mut tpm, &Image::new().events()).await.unwrap_err();
    assert!(said.contains("the command line"), "{said}");
    assert!(builds::forget(&store, "0123456789abcdef").await.is_err());

    let loaded = [vec![(4, slipway_secure_boot::authenticode::digest(&loader).unwrap())], new.events()].concat();
    assert!(outcome(&server, &mut tpm, &loaded).await.is_err());
    let digest = builds::allow(&store, "ipxe.efi", &loader).await.unwrap();
    assert_eq!(outcome(&server, &mut tpm, &loaded).await, Ok(()));
    builds::forget(&store, &digest).await.unwrap();
    assert!(outcome(&server, &mut tpm, &loaded).await.is_err());
    assert!(builds::allow(&store, "text", b"no program").await.is_err());
}

#[tokio::test]
async fn what_a_machine_started_counts_only_where_it_must_be_attested() {
    let (server, mut tpm) = site().await;
    let store = server.store().await;
    let other = [(4, digest(b"other system"))];
    let mut held = machine();
    let response = start(&server, &mut tpm, &mut held, &other).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(reason(&server).await, ClaimReason::BootFilesUnknown);
    let code = web1(&server).await.claims[0].code.clone();
    // Nobody who reads a claim code from a console can vouch for what was started.
    let refused = operate::release_node(&store, &code, None).await.unwrap_err().to_string();
    assert!(refused.contains("media require any") && refused.contains("unknown program"), "{refused}");

    builds::require(&store, false).await.unwrap();
    assert_eq!(outcome(&server, &mut tpm, &other).await, Ok(()));
    builds::require(&store, true).await.unwrap();
    assert!(outcome(&server, &mut tpm, &other).await.is_err());
    let change = operate::NodeChange { require: Some(Proof::Registered), ..operate::NodeChange::default() };
    operate::change_node(&store, "web1", change).await.unwrap();
    assert_eq!(outcome(&server, &mut tpm, &other).await, Ok(()));
}

#[tokio::test]
async fn a_site_that_has_nodes_already_goes_on_as_before_until_an_operator_asks_for_the_comparison() {
    let required = async |server: &TestServer| builds::known(&server.store().await).await.unwrap().required;
    assert!(required(&TestServer::start().await).await);
    let old = TestServer::start_on(async |data| old_store(&data.join("slipway.db")).await).await;
    assert!(!required(&old).await);
    builds::require(&old.store().await, true).await.unwrap();
    assert!(required(&old.restart().await).await);
}
