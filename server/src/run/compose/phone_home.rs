//! Adds or removes the `phone_home` block in the user-data, by which an installed system reports that it has booted.

use slipway_protocol::{Action, ErrorCode, PhoneHome, SeedCloudInit, Step, workflow};
use slipway_user_data::ignition::{self, Additions};
use slipway_user_data::{Block, Refusal, inject_phone_home, inject_text, remove_text};

use crate::base::error::Error;

/// Paths of this server that installed systems report to. After the first path comes a run's token.
const PATHS: [&str; 3] = ["/v1/phone-home/", "/latest/meta-data/phone_home", "/2009-04-04/meta-data/phone_home"];

/// Adds the block to every `seed-cloud-init` step, and removes all other blocks. The report trusts `ca` for TLS.
pub fn enable_phone_home(steps: &mut [Step], block: &Block, ca: &str) -> Result<(), Error> {
    let mut asked = false;
    for seed in seeds(steps) {
        asked = true;
        if seed.is_for_ignition() {
            // No cloud-init reads this user-data. Instead, the machine adds a unit that reports.
            seed.phone_home = Some(PhoneHome { url: block.url.clone(), tries: block.tries });
            seed.ca = Some(ca.to_owned());
            continue;
        }
        seed.phone_home = None;
        seed.user_data = inject_text(&seed.user_data, block).map_err(cannot_report)?;
        seed.vendor_data = Some(trusting(seed.vendor_data.as_deref(), ca)?);
    }
    if asked {
        return Ok(());
    }
    let message = "the workflow has no seed-cloud-init step to set up the report of the installed system";
    Err(Error::refused(ErrorCode::InvalidRequest, message))
}

/// Removes every block that reports to `server`, and inserts the block that a step itself asks for.
pub fn disable_phone_home(steps: &mut [Step], server: Option<&str>) -> Result<(), Error> {
    let is_ours = |url: &str| server.is_some_and(|server| is_of(url, server));
    for seed in seeds(steps) {
        if seed.is_for_ignition() {
            seed.phone_home = seed.phone_home.take().filter(|own| !is_ours(&own.url));
            continue;
        }
        let removed = remove_text(&seed.user_data, &is_ours).map_err(|refusal| {
            let message = format!("phone_home cannot be removed from the user-data: {refusal}");
            Error::refused(ErrorCode::InvalidRequest, message)
        })?;
        if let Some(removed) = removed {
            seed.user_data = removed;
        }
        if let Some(own) = seed.phone_home.take().filter(|own| !is_ours(&own.url)) {
            seed.user_data = inject_phone_home(&seed.user_data, &own).map_err(cannot_report)?;
        }
    }
    Ok(())
}

/// Returns whether this URL is one at which this server takes reports of installed systems, of whatever run.
fn is_of(url: &str, server: &str) -> bool {
    let Some((at, _)) = url.match_indices('/').nth(2) else { return false };
    let (origin, path) = url.split_at(at);
    without_default_port(origin).eq_ignore_ascii_case(without_default_port(server))
        && PATHS.iter().any(|ours| path.starts_with(ours))
}

/// Removes the default port from `https://HOST[:PORT]` (RFC 9110, section 4.2.2).
fn without_default_port(origin: &str) -> &str {
    origin.strip_suffix(":443").unwrap_or(origin)
}

/// Returns whether the user-data has a `phone_home` block of its own, which the server's block would replace.
pub fn has_own_block(user_data: &str) -> bool {
    !workflow::is_ignition(user_data) && matches!(remove_text(user_data, &|_| true), Ok(Some(_)))
}

fn trusting(vendor_data: Option<&str>, ca: &str) -> Result<String, Error> {
    slipway_user_data::trusting(vendor_data.unwrap_or_default(), ca).map_err(|refusal| {
        let message = format!("the vendor-data cannot be used: {refusal}");
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}

fn cannot_report(refusal: Refusal) -> Error {
    let message = format!("phone_home cannot be added to the user-data: {refusal}");
    Error::refused(ErrorCode::InvalidRequest, message)
}

/// Refuses an Ignition config that cannot be extended.
pub fn complete_config(config: &str, additions: &Additions) -> Result<(), Error> {
    ignition::complete(config, additions).map(drop).map_err(|refusal| {
        let message = format!("the Ignition config cannot be used: {refusal}");
        Error::refused(ErrorCode::InvalidRequest, message)
    })
}

fn seeds(steps: &mut [Step]) -> impl Iterator<Item = &mut SeedCloudInit> {
    steps.iter_mut().filter_map(|step| match &mut step.action {
        Action::SeedCloudInit(seed) => Some(seed),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::phone_home_settings::{PhoneHomeSettings, PostKeys};

    const SERVER: &str = "https://s.example:8443";
    const CA: &str = "-----BEGIN CERTIFICATE-----\nPEM\n-----END CERTIFICATE-----\n";

    fn steps(seed: SeedCloudInit) -> [Step; 1] {
        [Step { name: "seed".to_owned(), action: Action::SeedCloudInit(seed), retries: 0, timeout: None }]
    }

    fn seeded(user_data: &str) -> SeedCloudInit {
        SeedCloudInit { user_data: user_data.to_owned(), ..SeedCloudInit::default() }
    }

    fn asked(mut seed: SeedCloudInit, settings: PhoneHomeSettings) -> SeedCloudInit {
        let mut steps = steps(std::mem::take(&mut seed));
        enable_phone_home(&mut steps, &settings.block(format!("{SERVER}/v1/phone-home/T")), CA).expect("it can report");
        seeds(&mut steps).next().expect("a seed").clone()
    }

    #[test]
    fn a_system_that_reports_has_one_block_and_trusts_the_server() {
        let block = "phone_home:\n  url: \"https://s.example:8443/v1/phone-home/T\"\n";
        let own = Some(PhoneHome { url: "https://other.example/".to_owned(), tries: None });
        let seed = SeedCloudInit { phone_home: own, ..seeded("#cloud-config\na: 1\nphone_home: {url: x}\n") };
        let seed = asked(seed, PhoneHomeSettings::default());
        assert_eq!(seed.user_data, format!("#cloud-config\na: 1\n{block}  post: all\n  tries: 10\n"));
        assert_eq!(seed.phone_home, None);
        let trust = seed.vendor_data.unwrap_or_default();
        assert!(trust.starts_with("#cloud-boothook\n#!/bin/sh\n") && trust.contains(CA), "{trust}");

        let post = PostKeys("hostname,fqdn".parse().expect("keys"));
        let seed = SeedCloudInit { vendor_data: Some("#!/bin/sh\n".to_owned()), ..seeded("") };
        let seed = asked(seed, PhoneHomeSettings { post: Some(post), tries: Some(3), ..PhoneHomeSettings::default() });
        assert_eq!(seed.user_data, format!("#cloud-config\n{block}  post: [hostname, fqdn]\n  tries: 3\n"));
        let vendor_data = seed.vendor_data.unwrap_or_default();
        assert!(vendor_data.contains("\n#!/bin/sh\n\n--") && vendor_data.contains(&trust), "{vendor_data}");

        let mut steps = steps(SeedCloudInit { vendor_data: Some("a: 1\n".to_owned()), ..seeded("") });
        let refused = enable_phone_home(&mut steps, &PhoneHomeSettings::default().block(SERVER.to_owned()), CA)
            .expect_err("no header");
        let expect = "the vendor-data cannot be used: line 1, column 1: cloud-init does not recognise the text";
        assert!(refused.to_string().starts_with(expect), "{refused}");
    }

    #[test]
    fn a_system_that_ignition_sets_up_is_given_url_and_ca_beside_its_config() {
        let config = "{\"ignition\": {}}";
        let seed = asked(seeded(config), PhoneHomeSettings::default());
        assert_eq!((seed.user_data.as_str(), seed.ca.as_deref(), &seed.vendor_data), (config, Some(CA), &None));
        let url = |seed: &SeedCloudInit| seed.phone_home.as_ref().map(|block| block.url.clone());
        assert_eq!(url(&seed), Some(format!("{SERVER}/v1/phone-home/T")));
        let kept = |phone_home: &str| {
            let phone_home = Some(PhoneHome { url: phone_home.to_owned(), tries: None });
            let mut steps = steps(SeedCloudInit { phone_home, ..seeded(config) });
            disable_phone_home(&mut steps, Some(SERVER)).expect("nothing to edit");
            url(seeds(&mut steps).next().expect("a seed"))
        };
        assert_eq!(kept(&format!("{SERVER}/v1/phone-home/T")), None);
        assert_eq!(kept("https://other/").as_deref(), Some("https://other/"));
    }

    fn check_kept(user_data: &str, expect: &str) {
        let mut steps = steps(seeded(&user_data.replace("SERVER", SERVER)));
        disable_phone_home(&mut steps, Some(SERVER)).expect("blocks that can be taken out");
        assert_eq!(seeds(&mut steps).next().expect("a seed").user_data, expect.replace("SERVER", SERVER));
    }

    #[test]
    fn a_system_that_does_not_report_has_no_block_of_this_server() {
        for path in ["/v1/phone-home/old", "/latest/meta-data/phone_home", "/2009-04-04/meta-data/phone_home?x"] {
            check_kept(&format!("#cloud-config\nphone_home: {{url: 'SERVER{path}'}}\n"), "");
        }
        check_kept(
            "#cloud-config\nphone_home: {url: 'HTTPS://S.example:8443/v1/phone-home/a'}\nb: 1 # kept\n\
             phone_home: {url: SERVER/v1/phone-home/b}\nphone_home: {url: SERVER0/v1/phone-home/c}",
            "#cloud-config\nb: 1 # kept\nphone_home: {url: SERVER0/v1/phone-home/c}",
        );
        for as_it_is in ["", "hello\r\n", "#cloud-config\na: [SERVER/v1/phone-home/", "#!/bin/sh\nphone_home: SERVER"] {
            check_kept(as_it_is, as_it_is);
        }
        let anchored = format!("#cloud-config\nphone_home: &x {{url: '{SERVER}/v1/phone-home/a'}}\nb: *x\n");
        let refused =
            disable_phone_home(&mut steps(seeded(&anchored)), Some(SERVER)).expect_err("b would mean nothing");
        assert!(refused.to_string().contains("line 2, column 1"), "{refused}");
    }

    #[test]
    fn a_server_at_the_default_port_is_known_with_it_and_without() {
        let check = |origin: &str, server: &str, expect: bool| {
            assert_eq!(is_of(&format!("{origin}/v1/phone-home/x"), server), expect, "{origin} of {server}");
        };
        for (one, other) in
            [("https://s.example", "https://s.example:443"), ("https://[2001:db8::443]", "https://[2001:db8::443]:443")]
        {
            check(one, one, true);
            check(one, other, true);
            check(other, one, true);
            check(other, other, true);
        }
        check("HTTPS://S.example:443", "https://s.example", true);
        for (origin, server) in [
            ("https://s.example", SERVER),
            ("https://s.example:443", SERVER),
            ("https://s.example:8443", "https://s.example"),
            ("https://s.example:80", "https://s.example"),
            ("https://s.example.", "https://s.example"),
            ("http://s.example:443", "https://s.example:443"),
            ("s.example:443", "https://s.example"),
        ] {
            check(origin, server, false);
        }
    }

    #[test]
    fn a_block_of_the_workflow_itself_stays_if_it_is_of_another_server() {
        let own = |url: &str| {
            let phone_home = Some(PhoneHome { url: url.to_owned(), tries: Some(2) });
            let mut steps = steps(SeedCloudInit { phone_home, ..seeded("") });
            disable_phone_home(&mut steps, Some(SERVER)).expect("nothing to refuse");
            seeds(&mut steps).next().expect("a seed").clone()
        };
        assert_eq!(own(&format!("{SERVER}/v1/phone-home/a")), seeded(""));
        let expect = "#cloud-config\nphone_home:\n  url: \"https://o.example/\"\n  post: all\n  tries: 2\n";
        assert_eq!(own("https://o.example/"), seeded(expect));
    }
}
