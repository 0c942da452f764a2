//! Starts the network of a system that stopped in the emergency or rescue shell, where nothing else starts it.

use tracing::info;

use super::Surroundings;
use super::collect::output;

/// Services that set up the network.
const NETWORKS: &[&str] = &["systemd-networkd.service", "networking.service", "NetworkManager.service"];
/// Target that most services require. It conflicts with the emergency shell, so starting a service that requires it
/// would end the shell.
const SYSTEM: &str = "sysinit.target";
/// Maximum size of systemctl's output in bytes.
const ANSWER: usize = 16 << 10;

/// Asks the service manager to start the system's own network services, unless that would end the shell. Does not wait
/// for the services.
pub(crate) async fn start_network(surroundings: &Surroundings) {
    // The rescue shell runs after `sysinit.target`, the emergency shell instead of it.
    let has_system = ask(surroundings, &["is-active", SYSTEM]).await.trim() == "active";
    for service in NETWORKS {
        let shown = ask(surroundings, &["show", "--property=UnitFileState,ActiveState,Requires", service]).await;
        if may_start(&shown, has_system) {
            info!("starting {service}, to report that the system stopped in a shell");
            ask(surroundings, &["start", "--no-block", service]).await;
        }
    }
}

/// Returns the output of systemctl. Empty if systemctl cannot be run.
async fn ask(surroundings: &Surroundings, arguments: &[&str]) -> String {
    let text = output(surroundings, "systemctl", arguments, ANSWER).await.unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// Whether a service is enabled, is not running, and can run next to the shell, by the output of `systemctl show`.
fn may_start(shown: &str, has_system: bool) -> bool {
    let value =
        |key: &str| shown.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
    let is_enabled = value("UnitFileState").starts_with("enabled");
    let needs_system = value("Requires").split(' ').any(|unit| unit == SYSTEM);
    is_enabled && value("ActiveState") == "inactive" && (has_system || !needs_system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_started_only_where_the_shell_stays() {
        let check = |state: &str, active: &str, requires: &str, has_system, expect| {
            let shown = format!("Requires={requires}\nActiveState={active}\nUnitFileState={state}\n");
            assert_eq!(may_start(&shown, has_system), expect, "{shown}");
        };
        check("enabled", "inactive", "system.slice systemd-networkd.socket", false, true);
        check("enabled-runtime", "inactive", "-.mount", false, true);
        check("disabled", "inactive", "", true, false);
        check("masked", "inactive", "", true, false);
        check("enabled", "active", "", true, false);
        check("enabled", "activating", "", true, false);
        check("enabled", "inactive", "dbus.socket sysinit.target", false, false);
        check("enabled", "inactive", "dbus.socket sysinit.target", true, true);
        assert!(!may_start("", true));
    }
}
