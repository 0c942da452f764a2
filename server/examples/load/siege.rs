//! Attacks a server while nodes report to it.
//!
//! The server is a process of its own, and so is each attacker. Attackers run with a lower priority, because on another
//! machine they would take no processor time from the server.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::attack::Attack;
use crate::nodes::Nodes;
use crate::target::Target;

/// How long the nodes report before the first attack, and between two; less if the attacks are shorter.
const REST: Duration = Duration::from_secs(5);

/// What the nodes saw during an attack.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    events_p99_ms: f64,
    errors: usize,
    rss_mib: f64,
    events_p50_ms: f64,
    events_max_ms: f64,
    events: usize,
    server_cpu_s: f64,
}

#[derive(Serialize)]
struct Results {
    attacks: Vec<Row>,
}

/// Runs each attack for `time`, and prints what the nodes saw.
pub async fn run(server: &Path, time: Duration) {
    let rest = REST.min(time);
    let target = Target::start(server).await;
    let nodes = Nodes::start(&target).await;
    tokio::time::sleep(rest).await;
    let mut attacks = vec![row("none", &target, &nodes, time).await];
    for attack in Attack::all() {
        eprintln!("{}: {}", attack.name(), attack.description());
        let mut attacker = target.attack(&attack);
        attacks.push(row(&attack.name(), &target, &nodes, time).await);
        eprintln!("{:?}", attacks.last().unwrap());
        attacker.kill().unwrap();
        attacker.wait().unwrap();
        tokio::time::sleep(rest).await;
    }
    println!("{}", serde_json::to_string(&Results { attacks }).unwrap());
}

/// Watches server and nodes for so long.
async fn row(name: &str, target: &Target, nodes: &Nodes, time: Duration) -> Row {
    nodes.take();
    let (began, cpu) = (Instant::now(), target.cpu());
    let mut rss: f64 = 0.0;
    while began.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rss = rss.max(target.rss_mib());
    }
    let seen = nodes.take();
    let mut times = seen.millis;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    Row {
        name: name.to_owned(),
        events_p99_ms: at(0.99),
        errors: seen.errors,
        rss_mib: rss,
        events_p50_ms: at(0.5),
        events_max_ms: *times.last().unwrap(),
        events: times.len(),
        server_cpu_s: target.cpu() - cpu,
    }
}
