//! Puts load on a server: `load siege SERVER SECONDS` and `load fleet SERVER NODES IDLE SECONDS`. `cargo xtask bench`
//! builds both programs and runs them.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot be made ends")]

mod attack;
mod client;
mod fleet;
mod nodes;
mod siege;
mod target;

use std::path::Path;
use std::time::Duration;

use slipway_server::base::limits::raise_open_files;

use attack::Attack;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    raise_open_files();
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
    match arguments[..] {
        ["attack", name, ..] => {
            let rest: Vec<String> = arguments.iter().skip(2).map(|argument| (*argument).to_owned()).collect();
            attack::run(Attack::named(name), &rest).await;
        }
        ["siege", server, time] => siege::run(Path::new(server), seconds(time)).await,
        ["fleet", server, nodes, idle, time] => {
            let (nodes, idle) = (nodes.parse().unwrap(), idle.parse().unwrap());
            fleet::run(Path::new(server), nodes, idle, seconds(time)).await;
        }
        _ => panic!("load siege SERVER SECONDS | load fleet SERVER NODES IDLE SECONDS"),
    }
}
