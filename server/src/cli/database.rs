//! `slipway-server database`.

mod check;
mod copy;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Subcommand;
use slipway_server::base::data::Place;
use slipway_server::store::copy::Progress;

use super::tell;

/// Interval at which progress is printed.
const TELL_EVERY: Duration = Duration::from_secs(2);

#[derive(Subcommand)]
pub enum DatabaseCommand {
    /// Copy all tables between SQLite and PostgreSQL, and compare each row. Afterwards the old database cannot be used.
    /// The server must be stopped.
    #[command(after_help = "\
Examples:
  slipway-server database copy --to postgres://slipway@db.example/slipway
  slipway-server database copy --database postgres://slipway@db.example/slipway --to sqlite")]
    Copy {
        /// Database to copy to, which must be empty: postgres://USER@HOST/NAME, or `sqlite` for the file slipway.db in
        /// the data folder.
        #[arg(long, value_name = "DATABASE")]
        to: String,
        /// File with the password for the database to copy to.
        #[arg(long, value_name = "FILE")]
        to_password_file: Option<PathBuf>,
    },
    /// Check that all rows can be read and fit together, and that images have their files. Changes nothing; the server
    /// may run.
    Check,
}

pub async fn run(place: &Place, command: DatabaseCommand) -> anyhow::Result<()> {
    match command {
        DatabaseCommand::Copy { to, to_password_file } => copy::run(place, &to, to_password_file.as_deref()).await,
        DatabaseCommand::Check => check::run(place).await,
    }
}

/// Prints progress now and then.
fn teller() -> impl FnMut(Progress<'_>) {
    let mut last = Instant::now();
    move |Progress { done, table, rows }| {
        if last.elapsed() >= TELL_EVERY {
            last = Instant::now();
            tell(&format!("{table}: {rows} rows {done}\n"));
        }
    }
}
