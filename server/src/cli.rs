//! The command line. Commands work directly on the data folder, whether or not a server is running on it.

mod agent;
mod ask;
mod backup;
mod boot_files;
mod ca;
mod claims;
mod database;
mod disk;
mod events;
mod host_keys;
mod image_add;
mod keys;
mod lab;
mod limits;
mod lists;
pub mod log;
mod manual;
mod names;
mod node;
mod operator;
mod os;
mod owner;
mod place;
mod power;
mod recovery_key;
mod reports;
mod run;
mod serve;
mod server;
mod status;
mod token;
mod words;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use slipway_protocol::shared::given::{is_blank, options};
use slipway_protocol::shared::printable;
use slipway_protocol::{Algorithm, Digest};
use slipway_server::base::data::{DataDir, Place};
use slipway_server::base::error::Error;
use slipway_server::base::time::dated;
use slipway_server::operate::site_keys;
use slipway_server::store::{Erased, Store, systems};
use slipway_server::{image, operate};
use slipway_user_data::MAX_BYTES;

use self::ask::Yes;
use boot_files::MediaCommand;
use database::DatabaseCommand;
use keys::KeysCommand;
use limits::LimitsCommand;
use lists::{image_lines, image_table};
use node::NodeCommand;
use operator::OperatorCommand;
use os::OsCommand;
use recovery_key::recipients::{self, EscrowCommand};
use run::RunCommand;
use server::ServerCommand;
use token::TokenCommand;

pub use lab::check::CheckFailed;
pub use status::wait::Unreached;

/// Heading of the options that all commands have.
const PLACE: &str = "Where everything is kept";

/// slipway's server, and the commands of its operators.
#[derive(Parser)]
#[command(name = "slipway-server", version)]
pub struct Arguments {
    /// Data folder. `serve` creates it if it is missing. [default: SLIPWAY_DATA, or /var/lib/slipway]
    // clap's own `env` and `default` are not used. With the variable set, the usage in every error would show `--data`
    // as required.
    #[arg(long, global = true, help_heading = PLACE)]
    data: Option<PathBuf>,
    /// Database on a PostgreSQL server: postgres://USER@HOST/NAME. [default: SLIPWAY_DATABASE, or an SQLite file in the
    /// data folder]
    #[arg(long, global = true, help_heading = PLACE, value_name = "URL")]
    database: Option<String>,
    /// File with the password for that database.
    #[arg(long, global = true, help_heading = PLACE, value_name = "FILE")]
    database_password_file: Option<PathBuf>,
    /// File with the site key, if the database has the keys of the site. [default: SLIPWAY_SITE_KEY, or the systemd
    /// credential site-key]
    #[arg(long, global = true, help_heading = PLACE, value_name = "FILE")]
    site_key: Option<PathBuf>,
    /// Bucket of S3-compatible storage with images and boot files:
    /// s3://BUCKET[/PREFIX][?endpoint=https://HOST&region=REGION]. [default: SLIPWAY_OBJECTS, or the data folder]
    #[arg(long, global = true, help_heading = PLACE, value_name = "URL")]
    objects: Option<String>,
    /// File with the access key for that bucket. [default: SLIPWAY_OBJECTS_CREDENTIALS, the systemd credential
    /// objects-credentials, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY]
    #[arg(long, global = true, help_heading = PLACE, value_name = "FILE")]
    objects_credentials: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the server.
    Serve(serve::Options),
    /// Try slipway, or an image, on virtual machines of this host, with a server of their own.
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Register, release and show machines.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Issue and revoke tokens, such as those that let in one unknown machine.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Add, list, show and remove images.
    #[command(subcommand)]
    Image(ImageCommand),
    /// Add, list and remove operating systems.
    #[command(subcommand)]
    Os(OsCommand),
    /// Start, list, retry and cancel runs on machines.
    #[command(subcommand)]
    Run(RunCommand),
    /// Make, show and replace the site's keys for UEFI Secure Boot.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Make boot files and boot media.
    #[command(subcommand)]
    Media(MediaCommand),
    /// Show the state of each machine.
    Status(status::Options),
    /// Show what happened to machines, and what operators did.
    Events(events::EventsOptions),
    /// List and change the limits beyond which the server flags a node.
    #[command(subcommand)]
    Limits(LimitsCommand),
    /// Show which servers run on the database.
    #[command(subcommand)]
    Server(ServerCommand),
    /// Print a shell snippet that reports external steps of a machine's newest run. It contains a new token.
    Snippet(reports::SnippetOptions),
    /// Encrypt the recovery keys of disks to operators' public keys.
    #[command(subcommand)]
    Escrow(EscrowCommand),
    /// Write everything this server keeps to a file, while it runs.
    Backup(backup::BackupOptions),
    /// Restore a backup to a data folder, which must be missing or empty.
    Restore(backup::RestoreOptions),
    /// Move the tables to another database, and check a database.
    #[command(subcommand)]
    Database(DatabaseCommand),
    /// Print the token of the first operator of the HTTPS API, which is created with the data folder.
    OperatorToken,
    /// Add, list and remove operators of the HTTPS API, and change their tokens.
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// Print the certificate that machines trust: the certificate authority's, in PEM. The subcommands change it.
    Ca(ca::Options),
    /// Make a site key, which encrypts the keys of the site in the database, so that several servers can share them.
    SiteKey {
        /// File to create; it must not exist yet.
        file: PathBuf,
    },
    /// Print the names that can follow these words of a command line, for shell completion.
    #[command(hide = true)]
    Names {
        /// The words, after --.
        #[arg(last = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Write man pages and completions into an empty folder.
    #[command(hide = true)]
    Manual {
        /// Folder for the files.
        folder: PathBuf,
    },
}

impl Command {
    /// Returns the log format that was given to `serve`, or `None` if none was given. Other commands log as text.
    pub fn log_format(&self) -> Option<log::Format> {
        match self {
            Command::Serve(options) => options.log_format,
            _ => Some(log::Format::Text),
        }
    }

    /// Returns the log level if the environment sets none. The server logs what happens; commands log only problems.
    pub fn default_log(&self) -> &'static str {
        match self {
            Command::Serve(_) => "info",
            _ => "warn",
        }
    }
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Copy an image into the data folder or the bucket, and check that it can be installed; prints its digest.
    #[command(after_help = "\
Examples:
  slipway-server image add debian-12.raw.zst
  slipway-server image add https://images.example/debian-12.raw.zst \
--sha256 sha256:0fd4db0e0b5f0a1b4dd3e7c7d2e5ad2f0f4f9ae6d3df20ad1c4c8f0f2c5b0a11")]
    Add {
        /// Image file, compressed or not, or its https:// or http:// URL.
        #[arg(value_name = "FILE|URL")]
        file: PathBuf,
        /// SHA-256 that the file must have as it is. Needed with a URL. A download that was stopped goes on.
        #[arg(long, value_name = "DIGEST", value_parser = sha256)]
        sha256: Option<Digest>,
        /// File with the CA certificates, in PEM, that the server of the URL is verified with. Default: those of this
        /// host.
        #[arg(long, value_name = "FILE", requires = "sha256")]
        ca: Option<PathBuf>,
        /// SHA-256 that the raw image must have after decompression.
        #[arg(long)]
        raw_digest: Option<Digest>,
        /// Size in bytes that the raw image must have after decompression.
        #[arg(long)]
        raw_size: Option<u64>,
        /// Add a file that is not an image, such as an archive or a block map, for actions to fetch. It is not checked.
        #[arg(long, conflicts_with_all = ["raw_digest", "raw_size"])]
        not_an_image: bool,
    },
    /// List the images.
    List {
        /// Print a JSON array instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show everything known about an image.
    Show {
        /// Name or digest of the image, or the start of its digest.
        image: String,
        /// Print JSON instead of lines.
        #[arg(long)]
        json: bool,
    },
    /// Remove files and objects that no image names and no unfinished run fetches, and boot files in the bucket that
    /// are not published any more, if they are older than a day.
    Clean {
        /// Only list them.
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove an image and its file. Fails while an operating system or an unfinished run uses it.
    Remove {
        /// Name or digest of the image, or the start of its digest.
        image: String,
        #[command(flatten)]
        yes: Yes,
    },
}

/// Parses the arguments of this program. If they are wrong, prints an error and ends the program.
pub fn arguments() -> Arguments {
    options::read(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// Runs the command.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { data, database, database_password_file, site_key, objects, objects_credentials, command } =
        arguments;
    let mut place = place::find(data, database, database_password_file.as_deref(), site_key)?;
    place.bucket = place::bucket(objects, objects_credentials)?;
    run_on(&place, command).await.map_err(|error| owner::told(error, &place.root))
}

async fn run_on(place: &Place, command: Command) -> anyhow::Result<()> {
    let command = match command {
        Command::Serve(options) => return serve::run(place.clone(), options).await,
        Command::Lab(command) => return lab::run(command).await,
        Command::Restore(options) => return backup::restore(place, options).await,
        Command::Media(command) => return boot_files::run(place, command).await,
        Command::Database(command) => return database::run(place, command).await,
        Command::Manual { folder } => return manual::write(&folder),
        Command::SiteKey { file } => return place::make_site_key(&file),
        Command::Names { words } => return names::run(place.clone(), &words),
        command => command,
    };
    let data = DataDir::open(place)?;
    let store = open(&data).await?;
    let done = on_store(&store, &data, command).await;
    store.close().await;
    done
}

/// Opens the database, and copies the keys of the site from it into the data folder if they are there.
async fn open(data: &DataDir) -> Result<Store, Error> {
    let store = Store::of(data).await?.on_behalf_of(&owner::caller());
    if data.site_key().is_some() {
        site_keys::take_over(&store, data).await?;
    }
    Ok(store)
}

async fn on_store(store: &Store, data: &DataDir, command: Command) -> anyhow::Result<()> {
    if let Command::Image(_) | Command::Os(_) | Command::Run(_) = &command {
        operate::check_objects(store).await?;
    }
    match command {
        Command::Node(command) => node::run(store, data, command).await,
        Command::Token(command) => token::run(store, command).await,
        Command::Image(ImageCommand::Add { file, sha256, ca, raw_digest, raw_size, not_an_image: is_other }) => {
            let known = image::Known { digest: sha256, raw_digest, raw_size, is_other };
            image_add::run(store, data, &file, ca.as_deref(), known).await
        }
        Command::Image(ImageCommand::Clean { dry_run }) => {
            let cleaned = operate::clean_images(store, data, dry_run).await?;
            print(&lists::cleaned(&cleaned, dry_run))
        }
        Command::Image(ImageCommand::List { json }) => {
            let images = image::stored::list(store).await?;
            if json { print_json(&images) } else { print(&image_table(&images)) }
        }
        Command::Image(ImageCommand::Show { image, json }) => {
            let image = operate::known_image(&mut *store.read().await?, &image).await?;
            let image = image::stored::status(store, image).await?;
            let systems = systems::all(&mut *store.read().await?).await?;
            if json { print_json(&image) } else { print(&image_lines(&image, &systems)) }
        }
        Command::Image(ImageCommand::Remove { image, yes }) => {
            let known = operate::known_image(&mut *store.read().await?, &image).await?;
            yes.ask("removing the image", &ask::image(&known))?;
            let removed = operate::remove_image(store, &known.digest.to_string()).await?;
            print_line(&format!("image {} ({}) is removed", removed.file_name, removed.digest))
        }
        Command::Os(command) => os::run(store, command).await,
        Command::Run(command) => run::run(store, data, command).await,
        Command::Status(options) => status::run(store, data, options).await,
        Command::Events(options) => events::run(store, options).await,
        Command::Limits(command) => limits::run(store, command).await,
        Command::Server(command) => server::run(store, command).await,
        Command::Backup(options) => backup::back_up(store, data, options).await,
        Command::Escrow(command) => recipients::run(store, command).await,
        Command::OperatorToken => print_line(&operate::first_token(store, data).await?),
        Command::Operator(command) => operator::run(store, data, command).await,
        Command::Snippet(options) => reports::snippet(store, data, options).await,
        Command::Ca(options) => ca::run(store, data, options).await,
        Command::Keys(command) => keys::run(store, data, command).await,
        Command::Serve(_)
        | Command::Lab(_)
        | Command::Restore(_)
        | Command::Media(_)
        | Command::Database(_)
        | Command::SiteKey { .. }
        | Command::Names { .. }
        | Command::Manual { .. } => {
            bail!("this command needs no database")
        }
    }
}

/// Empties the database's write-ahead log, which may still contain deleted secrets.
async fn erase(store: &Store) -> anyhow::Result<()> {
    match store.empty_log().await? {
        Erased::Now => {}
        Erased::Soon => {
            tell("the server is running; its write-ahead log may contain what was removed for another two minutes\n");
        }
        Erased::ByOthers => tell(
            "the files of the PostgreSQL server contain what was removed until it cleans its tables up and removes old \
             write-ahead logs; copies of them contain it for as long as they are kept\n",
        ),
    }
    Ok(())
}

/// Reads user-data or vendor-data. Decompresses gzip, because it is stored and composed as text.
fn read_user_data(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let read = |file: &Path| -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        opened(file)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        let text = slipway_user_data::unpacked(&bytes)?;
        // An empty file is a mistake: nobody could log in to the system.
        ensure!(
            !is_blank(&text),
            "it is empty: leave the option out, or write \"#cloud-config\" for data without settings"
        );
        Ok(text)
    };
    file.map(|file| read(file).with_context(|| format!("reading {file:?}"))).transpose()
}

/// Opens a file named by an option; `-` is standard input.
fn opened(file: &Path) -> std::io::Result<Box<dyn Read>> {
    if file == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    File::open(file).map(|file| Box::new(file) as Box<dyn Read>)
}

/// Reads a file named by an option.
fn read(file: &Path) -> anyhow::Result<String> {
    let text = opened(file).and_then(std::io::read_to_string).with_context(|| format!("reading {file:?}"))?;
    ensure!(!is_blank(&text), "reading {file:?}: it is empty");
    Ok(text)
}

/// Writes a secret to a new file that only its owner can read. When this returns, it is safely on the disk.
fn write_secret(file: &Path, secret: &str) -> anyhow::Result<()> {
    let write = || {
        let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        open.write_all(secret.as_bytes())?;
        open.sync_all()?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    };
    write().with_context(|| format!("writing {file:?}"))
}

/// Prints JSON. Each time appears twice: in milliseconds since 1970 and in RFC 3339.
fn print_json<T: serde::Serialize>(value: &T) -> anyhow::Result<()> {
    print(&printable::json(&serde_json::to_string_pretty(&dated(value)?)?))?;
    print("\n")
}

/// Writes to standard error. Errors are ignored, because the output is not essential.
fn tell(text: &str) {
    let mut output = std::io::stderr().lock();
    let _ = output.write_all(printable::lines(text).as_bytes()).and_then(|()| output.flush());
}

fn print_line(line: &str) -> anyhow::Result<()> {
    print(&format!("{}\n", printable::line(line)))
}

/// Prints text to standard output without control characters, except line breaks and tabs, which are safe on a
/// terminal. Unlike `print!`, does not panic if the reader is gone.
fn print(text: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output
        .write_all(printable::lines(text).as_bytes())
        .and_then(|()| output.flush())
        .context("writing to standard output")
}

/// Parses a SHA-256, with or without its prefix.
fn sha256(text: &str) -> Result<Digest, String> {
    let hex = text.strip_prefix("sha256:").unwrap_or(text);
    Digest::new(Algorithm::Sha256, hex).map_err(|error| error.to_string())
}

/// Parses a duration into milliseconds.
fn parse_duration(text: &str) -> Result<u64, String> {
    slipway_protocol::shared::duration::parse(text)
        .map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    /// The examples in the help of a command and its subcommands: the full name of the command, and the example line.
    fn examples(command: &clap::Command, names: &str) -> Vec<(String, String)> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let own =
            help.lines().filter_map(|line| line.strip_prefix("  ")).map(|line| (names.to_owned(), line.to_owned()));
        let below =
            command.get_subcommands().flat_map(|below| examples(below, &format!("{names} {}", below.get_name())));
        own.chain(below).collect()
    }

    #[test]
    fn the_examples_in_the_help_are_command_lines() {
        use clap::CommandFactory;
        let found = examples(&Arguments::command(), "slipway-server");
        let mut with_examples: Vec<&str> = found.iter().map(|(names, _)| names.as_str()).collect();
        with_examples.dedup();
        assert_eq!(with_examples.len(), 35, "{with_examples:?}");
        let digest = format!("sha256:{}", "0".repeat(64));
        for (names, line) in &found {
            assert!(line.starts_with(names), "{line}");
            // The shell would expand the quoted parts: a digest or a key.
            let quoted = |(index, piece): (usize, &str)| if index % 2 == 1 { digest.clone() } else { piece.to_owned() };
            let line: String = line.split('"').enumerate().map(quoted).collect();
            let line = line.split(" > ").next().unwrap_or_default();
            Arguments::try_parse_from(line.split_whitespace()).map(drop).expect(line);
        }
    }
}
