//! `cargo xtask bench`: slipway against other tools and against the limit of this machine.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum as _};
use xtask::bench::boot::boot;
use xtask::bench::disk::Kind;
use xtask::bench::load::{self, fleet, siege};
use xtask::bench::stream::{self, Results};
use xtask::bench::streams::{self, Image};
use xtask::bench::{installations, stalls, user_data};
use xtask::build::prepare;
use xtask::build::server::Profile;
use xtask::host::{packages, workspace};

/// Measure slipway against other tools and against the limit of this machine.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
    /// One short round with little data: shows that the benchmark works, but measures nothing
    #[arg(long, global = true)]
    short: bool,
}

#[derive(Subcommand)]
enum What {
    /// Write an image from a server on loopback to a loop device. Needs root and an idle machine.
    Stream {
        /// Number of rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Measure only these formats.
        #[arg(long, value_delimiter = ',', value_parser = formats())]
        format: Vec<String>,
        /// Measure only these disks.
        #[arg(long, value_delimiter = ',', value_enum, default_values_t = Kind::value_variants().to_vec())]
        disk: Vec<Kind>,
    },
    /// Start machines and write their disks. Needs root and an idle machine.
    Boot {
        /// Number of rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Measure only these ways of installing.
        #[arg(long, value_delimiter = ',', value_parser = ["kernel", "https", "pxe"])]
        way: Vec<String>,
    },
    /// Attack the server while fifty nodes report to it.
    Siege {
        /// Duration of each attack in seconds.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
    /// Have a fleet of nodes enrol, wait for work, get it and report each second.
    Fleet(Fleet),
    /// Install systems on loop devices by the real installer, one alone and then many at once. Needs root.
    Installations {
        /// Number of machines at once. Each needs about 0.6 GB on the host's disk.
        #[arg(long, default_value_t = 50)]
        machines: usize,
    },
    /// Put a phone_home block into a mebibyte of user-data with the static binary, including its start.
    UserData {
        /// Number of rounds per kind of user-data.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
}

#[derive(Args)]
struct Fleet {
    /// Number of nodes that get a run and report.
    #[arg(long, default_value_t = 1000)]
    nodes: u64,
    /// Number of further nodes that only wait for work. Each takes two of the open files that the server may have.
    #[arg(long, default_value_t = 0)]
    idle: u64,
    /// Number of further nodes that the store has, and that never ask for anything.
    #[arg(long, default_value_t = 0)]
    stored: u64,
    /// Seconds for which the nodes report.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The database: `sqlite`, `postgres` for a PostgreSQL server that is started and ended, or the URL of an empty
    /// database. By default SQLite, and PostgreSQL with several servers.
    #[arg(long)]
    database: Option<String>,
    /// Number of servers. Several share a database of PostgreSQL, with a balancer before them.
    #[arg(long, default_value_t = 1)]
    replicas: u64,
    /// While the nodes report, kill a server (SIGKILL) each so many seconds and start it again, each in turn.
    #[arg(long)]
    kill_every: Option<u64>,
}

impl Fleet {
    /// Two servers that are killed in turn, in the least time that shows it.
    fn of_two() -> Self {
        Self { nodes: 0, idle: 0, stored: 0, seconds: 0, database: None, replicas: 2, kill_every: Some(3) }
    }

    fn database(&self) -> &str {
        match &self.database {
            Some(database) => database,
            None if self.replicas > 1 => "postgres",
            None => "sqlite",
        }
    }

    fn shortened(self) -> Self {
        let kill_every = self.kill_every.map(|every| every.min(3));
        let seconds = if kill_every.is_some() { 10 } else { 3 };
        Self { nodes: 20, idle: 20, stored: 20, seconds, kill_every, ..self }
    }
}

impl Bench {
    /// Returns the benchmark whose turn it is with the commit of this number, in its short form. Every third has one.
    pub fn in_turn(commit: usize) -> Option<Self> {
        let what = match (commit % 3 == 2).then_some(commit / 3 % 7)? {
            0 => What::Stream { rounds: 1, format: Vec::new(), disk: Kind::value_variants().to_vec() },
            1 => What::Boot { rounds: 1, way: Vec::new() },
            2 => What::Siege { seconds: 1 },
            3 => What::Fleet(Fleet { replicas: 1, kill_every: None, ..Fleet::of_two() }),
            4 => What::Fleet(Fleet::of_two()),
            5 => What::Installations { machines: 0 },
            _ => What::UserData { rounds: 1 },
        };
        Some(Self { what, short: true })
    }

    /// Name of the benchmark's command, with the options that make it another one.
    pub fn name(&self) -> &'static str {
        match &self.what {
            What::Stream { .. } => "stream",
            What::Boot { .. } => "boot",
            What::Siege { .. } => "siege",
            What::Fleet(fleet) if fleet.replicas > 1 => "fleet --replicas 2 --kill-every 3",
            What::Fleet(_) => "fleet",
            What::Installations { .. } => "installations",
            What::UserData { .. } => "user-data",
        }
    }

    /// Returns what this host lacks to run the benchmark. `None` if the benchmark can run.
    pub fn lacks(&self) -> Result<Option<&'static str>> {
        let needs_root = matches!(self.what, What::Stream { .. } | What::Boot { .. } | What::Installations { .. });
        if needs_root && !packages::is_root()? {
            return Ok(Some("no root access"));
        }
        if matches!(&self.what, What::Fleet(fleet) if fleet.database() == "postgres") && !load::has_postgres() {
            return Ok(Some("no PostgreSQL (Debian's package postgresql)"));
        }
        let stalls = matches!(&self.what, What::Stream { disk, .. } if disk.contains(&Kind::Slow));
        Ok((stalls && !stalls::are_possible()).then_some("no control group that can throttle a disk"))
    }

    pub fn run(self) -> Result<()> {
        let (profile, server) = match self.short {
            true => (Profile::Dev, prepare::SERVER),
            false => (Profile::Release, prepare::RELEASE_SERVER),
        };
        match if self.short { self.what.shortened() } else { self.what } {
            What::Stream { rounds, format, disk } => {
                let (image, part) = match self.short {
                    true => (Image::Small, prepare::TARGET_IMAGE),
                    false => (Image::Large, prepare::LARGE_IMAGE),
                };
                let parts = [prepare::BINARY, server, prepare::BENCH, part];
                let each = Duration::from_secs(40);
                let formats = if format.is_empty() { 5 } else { format.len() };
                prepare::prepare("cargo xtask bench stream", &parts, each * (rounds * formats * disk.len()) as u32)?;
                let folder = workspace::root().join("target/slipway/bench");
                let results = stream::run(&folder, image, rounds, &format, &disk, &mut |line| eprintln!("{line}"))?;
                print_tables(&results);
                println!("{}", serde_json::to_string(&results).context("writing JSON")?);
            }
            What::Boot { rounds, way } => {
                let parts =
                    [prepare::BINARY, prepare::SERVER, prepare::BOOT_IMAGE, prepare::TARGET_IMAGE, prepare::MACHINES];
                let ways = if way.is_empty() { 3 } else { way.len() };
                prepare::prepare("cargo xtask bench boot", &parts, Duration::from_secs((60 * rounds * ways) as u64))?;
                boot(rounds, &way)?;
            }
            What::Siege { seconds } => {
                let attacks = Duration::from_secs((seconds + seconds.min(5) + 1) * 13);
                prepare::prepare("cargo xtask bench siege", &[server], attacks)?;
                siege(seconds, profile)?;
            }
            What::Fleet(options) => {
                let database = options.database().to_owned();
                let Fleet { nodes, idle, stored, seconds, replicas, kill_every, .. } = options;
                if replicas == 0 || replicas > 1 && database == "sqlite" {
                    bail!("--replicas {replicas} cannot be: one server, or several with --database postgres or a URL");
                }
                let time = Duration::from_secs(seconds + seconds.min(90) + nodes / 50 + idle / 50);
                prepare::prepare("cargo xtask bench fleet", &[server], time)?;
                fleet(&load::Fleet { nodes, idle, stored, seconds, database, replicas, kill_every }, profile)?;
            }
            What::Installations { machines } => {
                let parts = [prepare::BINARY, server, prepare::BENCH, prepare::TARGET_IMAGE];
                let time = Duration::from_secs(20 + 5 * machines as u64);
                prepare::prepare("cargo xtask bench installations", &parts, time)?;
                let folder = workspace::root().join("target/slipway/bench-installations");
                let results = installations::run(&folder, machines, profile)?;
                println!("{}", serde_json::to_string(&results).context("writing JSON")?);
            }
            What::UserData { rounds } => {
                prepare::prepare("cargo xtask bench user-data", &[prepare::BINARY], Duration::from_secs(30))?;
                let rows = user_data::run(rounds)?;
                println!("| user-data | wall ms |\n|---|---|");
                rows.iter().for_each(|row| println!("| {} | {:.1} |", row.sort, row.wall_ms));
                println!("\n{}", serde_json::to_string(&rows).context("writing JSON")?);
            }
        }
        Ok(())
    }
}

impl What {
    /// Returns the same benchmark with the least work that shows that it works: one round, and by default the most
    /// different cases.
    fn shortened(self) -> Self {
        let or = |chosen: Vec<String>, names: &[&str]| match chosen.is_empty() {
            true => names.iter().map(|name| (*name).to_owned()).collect(),
            false => chosen,
        };
        match self {
            What::Stream { format, disk, .. } => {
                What::Stream { rounds: 1, format: or(format, &["raw", "zstd-3"]), disk }
            }
            What::Boot { way, .. } => What::Boot { rounds: 1, way: or(way, &["kernel"]) },
            What::Siege { .. } => What::Siege { seconds: 1 },
            What::Fleet(fleet) => What::Fleet(fleet.shortened()),
            What::Installations { .. } => What::Installations { machines: 3 },
            What::UserData { .. } => What::UserData { rounds: 1 },
        }
    }
}

fn formats() -> PossibleValuesParser {
    PossibleValuesParser::new(streams::FORMATS.map(|format| format.name))
}

fn print_tables(results: &Results) {
    println!("| format | disk | tool | wall s | CPU s | peak MiB | share of the limit | busy |");
    println!("|---|---|---|---|---|---|---|---|");
    for row in &results.rows {
        let (wall, cpu, peak) = (row.wall_s, row.cpu_s, row.peak_mib);
        let (share, busy) = (row.share_of_limit, row.busy);
        let (format, disk, tool) = (row.format, row.disk, row.tool);
        println!("| {format} | {disk} | {tool} | {wall:.2} | {cpu:.2} | {peak:.0} | {share:.2} | {busy:.2} |");
    }
    println!("\n| format | stage alone | disk | wall s | CPU s |\n|---|---|---|---|---|");
    for row in &results.stages {
        let disk = row.disk.map_or("-".to_owned(), |disk| disk.to_string());
        println!("| {} | {} | {disk} | {:.2} | {:.2} |", row.format, row.stage, row.wall_s, row.cpu_s);
    }
    println!("\n| server | wall s | CPU s |\n|---|---|---|");
    for row in &results.servers {
        println!("| {} | {:.2} | {:.2} |", row.server, row.wall_s, row.cpu_s);
    }
    println!();
}
