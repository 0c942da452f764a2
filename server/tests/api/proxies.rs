//! Network boot by two servers of a site on one network: one answers, and the other one when that is gone.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::program::Ended;
use crate::site::{Running, Site, until};

/// A network namespace with three interfaces on one bridge, `a1` to `a3` with the addresses 10.9.0.1 to 10.9.0.3.
const NETWORK: &str = "set -e
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
echo 1 > /proc/sys/net/ipv4/conf/all/accept_local
for i in 1 2 3; do
  ip link add a$i type veth peer name b$i
  ip link set b$i master bridge
  ip link set b$i up
  ip link set a$i up
  ip addr add 10.9.0.$i/24 dev a$i
done
echo ready
cat";

/// The network, which is gone with this.
struct Network {
    holder: Ended,
}

impl Network {
    /// `None` if this user may not make one.
    fn new() -> Option<Self> {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sh", "-c", NETWORK]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder: Child = holder.spawn().ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        let network = Self { holder: Ended(holder) };
        (line == "ready\n").then_some(network)
    }

    /// Runs a command in the network.
    fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("nsenter");
        within.arg(format!("--net=/proc/{}/ns/net", self.holder.0.id())).arg("--").arg(command.get_program());
        within.args(command.get_args()).env_remove("SLIPWAY_LOG").env_remove("SLIPWAY_DATABASE");
        within
    }

    /// Asks which proxy answers on the network, with a server of another site, which refuses to start beside one.
    fn who_answers(&self, site: &Site) -> Option<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway-server"));
        let boot = site.folder.path().join("boot");
        command.arg("--data").arg(site.data("stranger")).args(SERVE).arg("--boot").arg(boot);
        command.args(["--proxy-dhcp", "a3"]);
        let mut stranger = self.within(&command);
        let mut child = Ended(stranger.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if !line.is_empty() {
            return None;
        }
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.0.stderr.take().unwrap(), &mut said).unwrap();
        let address = said.split("another PXE proxy, ").nth(1).unwrap_or_else(|| panic!("{said}"));
        Some(address.split(',').next().unwrap().to_owned())
    }
}

const SERVE: [&str; 5] = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];

#[test]
fn of_two_servers_on_a_network_one_answers_and_the_other_follows_it() {
    let Some(network) = Network::new() else {
        std::io::stderr().write_all(b"not checked: networks of one's own are not allowed\n").unwrap();
        return;
    };
    let site = Site::new();
    let boot = site.folder.path().join("boot");
    std::fs::create_dir(&boot).unwrap();
    let serve = |name: &str, interface: &str| {
        let more = ["--boot", boot.to_str().unwrap(), "--proxy-dhcp", interface];
        let command = site.command(name, &[&SERVE[..], &more].concat());
        Running::start(network.within(&command), site.folder.path().join(format!("{name}.log")))
    };
    let one = serve("one", "a1");
    let offers = |server: &Running| server.log().matches("offering network boot").count();
    until("the first answers", || offers(&one) == 1);
    assert_eq!(network.who_answers(&site).as_deref(), Some("10.9.0.1"));
    // It would refuse to start if it did not know that the first is of its site.
    let other = serve("other", "a2");
    assert!(other.log().contains("another server of this site offers network boot"), "{}", other.log());
    assert_eq!(network.who_answers(&site).as_deref(), Some("10.9.0.1"), "only one of them answers");
    one.kill();
    until("the other one follows", || offers(&other) == 1);
    assert_eq!(network.who_answers(&site).as_deref(), Some("10.9.0.2"));
    // A server that stops gives its turn back at once.
    let one = serve("one", "a1");
    assert_eq!(network.who_answers(&site).as_deref(), Some("10.9.0.2"));
    other.stop();
    until("the first has its turn again", || offers(&one) == 2);
    assert_eq!(network.who_answers(&site).as_deref(), Some("10.9.0.1"));
    one.stop();
    assert_eq!(network.who_answers(&site), None);
}
