//! `slipway-server serve`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::log;
use clap::{Args, ValueEnum};
use serde::Serialize;
use slipway_protocol::Proof;
use slipway_server::base::data::Place;
use slipway_server::base::limits::Limits;
use slipway_server::boot_files::pxe;
use slipway_server::listen::serve::{Config, Server};
use slipway_server::listen::url::ServerUrl;
use slipway_server::node::admission::Policy;
use slipway_server::power::hook;

use super::boot_files::PARTS_FOLDER;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server serve --url https://install.example:8443 --listen 192.0.2.1:8443
  slipway-server serve --url https://install.example:8443 --listen 192.0.2.1:8443 --boot-listen 192.0.2.1:8080 \
--boot /srv/boot
  slipway-server serve --url https://install.example:8443 --listen 192.0.2.1:8443 --boot-listen 192.0.2.1:8080 \
--boot /srv/boot --proxy-dhcp eth1")]
pub struct Options {
    /// URL at which machines reach this server: https://HOST:PORT.
    #[arg(long, env = "SLIPWAY_URL")]
    url: ServerUrl,
    /// Address to listen on for HTTPS.
    #[arg(long, default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
    /// Address to serve boot files on without TLS, for boot loaders that cannot use TLS. Off by default.
    #[arg(long)]
    boot_listen: Option<SocketAddr>,
    /// Address to serve metrics and health checks on, without TLS and to whoever reaches it: a loopback address, or one
    /// of a network for management. Off by default. Operators can read metrics on the HTTPS port too.
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Folder with the boot files: x86_64/vmlinuz, x86_64/initramfs, and anything else to serve under /boot. With a
    /// bucket, the server keeps the boot files that are published there in it.
    #[arg(long)]
    boot: Option<PathBuf>,
    /// Folder of the prebuilt parts, from which operators make boot files over HTTPS.
    #[arg(long, value_name = "FOLDER", env = "SLIPWAY_PARTS", default_value = PARTS_FOLDER)]
    parts: PathBuf,
    /// Whether operators get a page, at the server's URL.
    #[arg(long, value_enum, value_name = "WHETHER", default_value_t = Switch::On)]
    page: Switch,
    /// Address of a proxy, such as nginx, that is trusted to name the machine in the header X-Forwarded-For; may be
    /// given several times. From other addresses the header is ignored.
    #[arg(long = "trusted-proxy", value_name = "ADDRESS", requires = "boot")]
    trusted_proxies: Vec<IpAddr>,
    /// Network interface on which the server tells machines by PXE what to boot, beside somebody else's DHCP server;
    /// may be given several times. Needs --boot, and ports 67, 69 and 4011.
    #[arg(long, value_name = "INTERFACE", requires = "boot")]
    proxy_dhcp: Vec<String>,
    /// Also answer machines that are not registered.
    #[arg(long, requires = "proxy_dhcp")]
    proxy_dhcp_unknown: bool,
    /// Additional host name or address for the server's certificate; may be given several times.
    #[arg(long = "san", value_name = "NAME")]
    names: Vec<String>,
    /// Largest image of a captured disk that the server accepts, in bytes after compression.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 40)]
    max_capture: u64,
    /// Redirect machines to the bucket for images, with URLs that are valid for an hour.
    #[arg(long, requires = "images_ca")]
    objects_redirect: bool,
    /// File with the CA certificates that machines verify the object store with, in PEM.
    #[arg(long, value_name = "FILE", requires = "objects_redirect")]
    images_ca: Option<PathBuf>,
    /// Folder of hooks, the programs that switch the power of machines; may be given several times, and the first that
    /// has a hook counts. [default: /etc/slipway/power and /usr/lib/slipway/power]
    #[arg(long, value_name = "FOLDER")]
    power_hooks: Vec<PathBuf>,
    /// Let operators have virtual machines, in QEMU on this host. They reach what listens on its loopback.
    #[arg(long)]
    virtual_machines: bool,
    /// What every machine must prove before it is let in.
    #[arg(long, value_enum, value_name = "PROOF", default_value_t)]
    require: Proof,
    /// Require an operator's decision each time a node has another key, which is at each restart of its machine, unless
    /// the machine has the node's TPM.
    #[arg(long)]
    strict: bool,
    /// File with certificates of TPM manufacturers, in PEM: roots and intermediates. The first machine of a node counts
    /// as attested if they certify its TPM.
    #[arg(long, value_name = "FILE")]
    ek_ca: Option<PathBuf>,
    /// Seconds in which requests are still answered after the signal to stop, while GET /readyz already answers 503, so
    /// that balancers send new requests elsewhere. Another signal ends the wait.
    #[arg(long, env = "SLIPWAY_DRAIN", value_name = "SECONDS", default_value_t = 0)]
    drain: u16,
    /// Format of the log on standard error. By default the log goes to the journal if standard error is connected to
    /// it, as in a systemd service, and otherwise it is text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<log::Format>,
}

/// Whether a part of the server is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The only line on standard output, printed once all addresses are bound.
#[derive(Serialize)]
struct Ready {
    https: SocketAddr,
    boot: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
}

pub async fn run(data: Place, options: Options) -> anyhow::Result<()> {
    let Options { url, listen, boot_listen, metrics_listen, boot, parts, trusted_proxies, names, max_capture, .. } =
        options;
    let Options { virtual_machines, require, strict, ek_ca, drain, images_ca: redirect, page, .. } = options;
    let pxe = pxe::Settings { interfaces: options.proxy_dhcp, unknown: options.proxy_dhcp_unknown };
    let policy = Policy { require, strict };
    let power_hooks = match options.power_hooks {
        folders if folders.is_empty() => hook::FOLDERS.map(PathBuf::from).to_vec(),
        // Hooks are started in the root folder.
        folders => folders.iter().map(std::path::absolute).collect::<Result<_, _>>()?,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let limits = Limits::default();
    let config = Config {
        data,
        url: url.clone(),
        listen,
        boot_listen,
        metrics_listen,
        boot,
        parts,
        page: page == Switch::On,
        trusted_proxies,
        pxe,
        power_hooks,
        virtual_machines,
        names,
        max_capture,
        redirect,
        policy,
        ek_ca,
        limits,
    };
    let server = Server::bind(config).await?;
    let ready =
        Ready { https: server.https_address()?, boot: server.boot_address()?, metrics: server.metrics_address()? };
    // If printing fails, machines are served nevertheless.
    if let Err(error) = super::print_line(&serde_json::to_string(&ready)?) {
        tracing::warn!("{error:#}");
    }
    if page == Switch::On {
        tracing::info!(
            %url,
            "operators have a page at this URL; sign in with a token: `slipway-server operator-token` prints the first"
        );
    }
    let health = server.health();
    let mut signalled = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let stop = async {
        signalled().await;
        if drain > 0 {
            health.drain();
            tracing::info!(seconds = drain, "draining: /readyz answers 503, and requests are still answered");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(drain.into())) => {}
                () = signalled() => {}
            }
        }
    };
    server.serve(stop).await;
    Ok(())
}
