//! Shell snippets that report external steps: one shell function, wrapped for several installers.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The shell function `slipway_report`, with placeholders.
const FUNCTION: &str = include_str!("snippet/report.sh");
/// File that holds the function on the machine, for installers that run each command in a separate shell.
const FILE: &str = "/run/slipway-report.sh";
/// Name of the debconf value with the function, and of the file that carries it into the installed system.
const PRESEED_VALUE: &str = "slipway/report";
const PRESEED_FILE: &str = "slipway-report";

/// The installer or shell that a snippet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surrounding {
    /// A kickstart file (Anaconda; pykickstart documentation, "%pre", "%post", "%onerror").
    Kickstart,
    /// A preseed file (Debian Installation Guide, appendix B.5).
    Preseed,
    /// A file for Ubuntu's autoinstall (Subiquity's autoinstall reference).
    Autoinstall,
    /// Any POSIX shell.
    Shell,
}

/// Returns a snippet that reports to `url` with `token`. The snippet verifies the server against `ca`, which is PEM.
pub fn text(surrounding: Surrounding, url: &str, token: &str, ca: &str) -> String {
    let function = function(url, token, ca);
    match surrounding {
        Surrounding::Kickstart => kickstart(&function),
        Surrounding::Preseed => preseed(&function),
        Surrounding::Autoinstall => autoinstall(&function),
        Surrounding::Shell => shell(&function),
    }
}

fn function(url: &str, token: &str, ca: &str) -> String {
    let place = url.strip_prefix("https://").unwrap_or(url);
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, "443"),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let kind = if bare.parse::<IpAddr>().is_ok() { "ip" } else { "hostname" };
    FUNCTION
        .replace("@URL@", &quoted(url))
        .replace("@PATH@", &quoted(&format!("/{path}")))
        .replace("@ADDRESS@", &quoted(&format!("{host}:{port}")))
        .replace("@VERIFY@", &format!("-verify_{kind} '{}'", quoted(bare)))
        .replace("@TOKEN@", &quoted(token))
        .replace("@CA@", &quoted(ca.trim()))
}

/// Escapes text for single quotes.
fn quoted(text: &str) -> String {
    text.replace('\'', r"'\''")
}

fn shell(function: &str) -> String {
    format!(
        "{function}\n# Such as:\n#   slipway_report packages init 0 'installing packages'\n\
         #   slipway_report packages done 100\n\
         #   slipway_report packages failed '' '' \"$(tail -n 20 /var/log/packages.log)\"\n"
    )
}

/// Returns sections of a kickstart file. Each runs in its own shell, `%post` in another root, so all have the function.
fn kickstart(function: &str) -> String {
    let section = |name: &str, calls: &str| format!("%{name} --log=/tmp/slipway-report.log\n{function}{calls}%end\n");
    let pre = section("pre", "slipway_report installer init 0 'the installer has started'\n");
    let post = section("post", "slipway_report installer done 100 'the system is installed'\n");
    let failed = "slipway_report installer failed '' 'the installer has failed' \"$(tail -n 40 /tmp/anaconda.log)\"\n";
    format!("{pre}\n{post}\n{}", section("onerror", failed))
}

/// A debconf value ends with the line, so the function is in base64, which has no quotes or backslashes. The value is
/// separate because the installer passes commands to a shell as arguments, which every user on the machine can read. An
/// installer loaded over the network has a wget that verifies certificates, and has a network when a preseed file
/// arrives over it. An installer loaded from a medium may lack such a wget; then the installed system reports.
fn preseed(function: &str) -> String {
    let lines = function.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let script = lines.map(|line| format!("{line}\n")).collect::<String>() + "slipway_report \"$@\"\n";
    let script = BASE64.encode(script);
    let own = |arguments: &str| format!("debconf-get {PRESEED_VALUE} | base64 -d | sh -s {arguments}");
    let (in_target, done) = (format!("/root/{PRESEED_FILE}"), "installer done 100 installed");
    let command = format!("in-target sh -c 'base64 -d {in_target} | sh -s {done}'");
    format!(
        "d-i {PRESEED_VALUE} string {script}\n\
         # If such a command exists already, put a semicolon and this one after it.\n\
         d-i preseed/early_command string {early} || true\n\
         d-i partman/early_command string {partman} || true\n\
         d-i preseed/late_command string if wget --version | grep -q GNU; then {own}; else (umask 077; \
         debconf-get {PRESEED_VALUE} >/target{in_target} && {command}; rm -f /target{in_target}); fi || true\n",
        early = own("installer init 0 started"),
        partman = own("installer init 10 partitioning"),
        own = own(done),
    )
}

/// Returns the commands of an autoinstall file. Each runs in a separate shell, so the function is in a file.
fn autoinstall(function: &str) -> String {
    let script = format!("{function}slipway_report \"$@\"\n");
    let script: String = script.lines().map(|line| format!("      {line}\n")).collect();
    let call = |arguments: &str| format!("    - sh {FILE} {arguments} || true\n");
    format!(
        "autoinstall:\n  early-commands:\n    - |\n      umask 077\n      cat >{FILE} <<'slipway' || true\n\
         {script}      slipway\n{}  late-commands:\n{}  error-commands:\n{}",
        call("installer init 0 \"the installer has started\""),
        call("installer done 100 \"the system is installed\""),
        call(
            "installer failed \"\" \"the installer has failed\" \"$(tail -n 40 /var/log/installer/curtin-install.log)\""
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_verified_by_its_name_or_its_address() {
        let check = |url: &str, address: &str, verify: &str| {
            let function = function(url, "T", "PEM");
            assert!(function.contains(&format!("-connect '{address}'")), "{url}: {function}");
            assert!(function.contains(&format!("-verify_return_error {verify}\n")), "{url}: {function}");
            assert!(function.contains("'/v1/report'"), "{url}: {function}");
            assert!(!function.contains("@'") && !function.contains("@ "), "{url}: {function}");
        };
        check("https://s.example/v1/report", "s.example:443", "-verify_hostname 's.example'");
        check("https://192.0.2.1:8443/v1/report", "192.0.2.1:8443", "-verify_ip '192.0.2.1'");
        check("https://[2001:db8::1]:8443/v1/report", "[2001:db8::1]:8443", "-verify_ip '2001:db8::1'");
        check("https://[2001:db8::1]/v1/report", "[2001:db8::1]:443", "-verify_ip '2001:db8::1'");
    }
}
