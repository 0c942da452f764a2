//! The boot reporter: the installed system's reports of its own boots.

use serde::{Deserialize, Serialize};

use super::Location;
use super::agent::Agent;
use crate::shared::secret::Secret;
use crate::workflow::disk::DiskHints;

const MAX_HOURS: u32 = 24;
/// The seconds between two uploads of the boot's log. A server with a thousand nodes can bear the lower bound. An
/// operator is ready to wait for the upper bound.
const LOG_INTERVALS: std::ops::RangeInclusive<u32> = 60..=3600;

/// The options of `boot-reporter`. The action installs a service in the installed system. The service reports the
/// system's boots until the system runs, and then removes itself or stays as its agent. The server fills in `url`,
/// `token` and `ca` when it starts a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BootReporter {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// The base URL of the server, beginning with `https://`. In a run, the server fills it in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The token of the run. In a run, the server fills it in.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub token: Secret,
    /// The certificates in PEM that may sign the server's certificate. The service trusts no others. In a run, the
    /// server fills them in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ca: String,
    /// The hours of one boot after which the service gives up and removes itself. Default: 1. From 1 to 24.
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 24))]
    pub hours: u32,
    /// The seconds between two uploads of the boot's log. Default: 600. From 60 to 3600.
    #[serde(default = "ten_minutes")]
    #[cfg_attr(feature = "openapi", schema(minimum = 60, maximum = 3600))]
    pub every: u32,
    /// What the service may do once the system runs, as the agent of the system. Absent: it removes itself instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// Whether the run goes on if the service cannot be installed. The step then warns and says why. Default: `true`.
    #[serde(default = "yes")]
    pub optional: bool,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn ten_minutes() -> u32 {
    600
}

impl Default for BootReporter {
    fn default() -> Self {
        let (url, ca) = (String::new(), String::new());
        let (hours, every, optional) = (one(), ten_minutes(), yes());
        Self { disk: DiskHints::default(), url, token: Secret::default(), ca, hours, every, agent: None, optional }
    }
}

impl BootReporter {
    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if Location::of(&self.url) != Some(Location::Https) {
            problems.push(format!("reports to {:?}: give the server's URL, which begins with https://", self.url));
        }
        let token = self.token.reveal();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            problems.push(
                "has no token to report with, or one with characters other than letters, digits and signs".to_owned(),
            );
        }
        if !self.ca.contains("-----BEGIN CERTIFICATE-----") {
            problems.push("has no CA certificate in PEM to verify the server with".to_owned());
        }
        if !(1..=MAX_HOURS).contains(&self.hours) {
            problems.push(format!("reports for {} hours: give 1 to {MAX_HOURS}", self.hours));
        }
        if !LOG_INTERVALS.contains(&self.every) {
            let (least, most) = (LOG_INTERVALS.start(), LOG_INTERVALS.end());
            problems.push(format!("sends logs every {} seconds: give {least} to {most}", self.every));
        }
        problems.extend(self.agent.iter().flat_map(Agent::validate));
        problems.into_iter().chain(self.disk.validate(false)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::*;
    use crate::Action;

    #[test]
    fn a_reporter_knows_its_server_and_when_to_end() {
        let given = BootReporter {
            url: "https://s".to_owned(),
            token: "t".to_owned().into(),
            ca: "-----BEGIN CERTIFICATE-----\n".to_owned(),
            ..BootReporter::default()
        };
        check(Action::BootReporter(given.clone()), &[]);
        let forever = BootReporter { hours: 25, every: 1, ..given.clone() };
        let expect = ["reports for 25 hours: give 1 to 24", "sends logs every 1 seconds: give 60 to 3600"];
        check(Action::BootReporter(forever), &expect);
        let plain = BootReporter { url: "http://s".to_owned(), token: "a\nb".to_owned().into(), ..given };
        let expect = [
            "reports to \"http://s\": give the server's URL, which begins with https://",
            "has no token to report with, or one with characters other than letters, digits and signs",
        ];
        check(Action::BootReporter(plain), &expect);
        let text = r#"{"boot-reporter": {}}"#;
        let read: Action = serde_json::from_str(text).expect("an action");
        assert_eq!(read, Action::BootReporter(BootReporter::default()));
    }
}
