//! Which programs may use a schema. Servers of a site are upgraded one after the other, so a program also runs on the
//! schema of the next version, unless a migration of that version says that it cannot.
//!
//! Each migration begins with a line that says so. `-- expand` adds what older programs ignore: tables, indices, and
//! columns that may be empty or have a default. `-- contract` does anything else: it removes what no program that is
//! still in use needs, one version after the last that needed it.

use slipway_protocol::ErrorCode;
use sqlx::migrate::Migrator;

use crate::base::error::{DatabaseFault, Error};
use crate::base::time::Millis;
use crate::store::servers::{self, Server};
use crate::store::{Connection, database, db, get, optional_number, settings};

/// Name of the setting with the number of the last migration that a program must know, and the version of the program
/// that said so: `21 0.1.0`.
pub const USABLE_FROM: &str = "schema-usable-from";
/// Name of the setting with the number of the last migration, and the version of the first program that knew it:
/// `24 0.1.0`. So a program can name the version that made a schema which it does not know.
pub const MADE_BY: &str = "schema-made-by";
/// The first line of a migration after which programs that do not know it cannot go on.
const CONTRACT: &str = "-- contract";

/// Number of the migration that made the table of servers.
const SERVERS: i64 = 21;

/// What a database says about its schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Number of the last migration that was applied. 0 if none was.
    newest: i64,
    /// Value of the setting [`USABLE_FROM`], if there is one.
    usable_from: Option<String>,
    /// Value of the setting [`MADE_BY`], if there is one.
    made_by: Option<String>,
}

/// A schema of a newer version than this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newer {
    /// The program that made it, as far as the database says so, and the numbers of the changes.
    pub description: String,
    /// Whether this program may use the tables that it knows.
    pub is_usable: bool,
}

/// Prepares the migrations of a database that has tables. Fails if this program may not use it, or if a server runs
/// that could not use it afterwards. `name` is the name of the database, `now` the time by its clock.
pub async fn prepare(
    connection: &mut Connection,
    name: &str,
    mut migrations: Migrator,
    now: Millis,
) -> Result<Migrator, Error> {
    let found = found(connection).await?;
    let judged = is_ahead(&migrations, &found);
    let is_ahead = judged.map_err(|source| Error::OpenDatabase { database: name.to_owned(), source })?;
    migrations.set_ignore_missing(is_ahead);
    if found.newest >= SERVERS {
        check_servers(&migrations, &found, &servers::all(connection).await?, now)?;
    }
    Ok(migrations)
}

/// Stores which programs may use the database from now on: before its migrations, so that no older program starts
/// during them, and again afterwards, because they may make the table of settings.
pub async fn record(connection: &mut Connection, migrations: &Migrator) -> Result<(), Error> {
    let found = found(connection).await?;
    if let Some(value) = raised(migrations, &found) {
        settings::write(connection, USABLE_FROM, &value).await?;
    }
    match first_of(migrations, &found) {
        Some(value) => settings::write(connection, MADE_BY, &value).await,
        None => Ok(()),
    }
}

/// Returns what is known of the schema if it is newer than this program, which knows the migrations up to `known`.
pub async fn newer(connection: &mut Connection, known: i64) -> Result<Option<Newer>, Error> {
    let found = found(connection).await?;
    Ok(describe(&found, known))
}

fn describe(found: &Found, known: i64) -> Option<Newer> {
    if found.newest <= known {
        return None;
    }
    let made_by = found.made_by.as_deref().and_then(parse).filter(|(newest, _)| *newest == found.newest);
    let program = match made_by {
        Some((_, version)) => format!("slipway-server {version}"),
        None => "a newer slipway-server".to_owned(),
    };
    let from = found.usable_from.as_deref().and_then(parse).map_or(i64::MAX, |(from, _)| from);
    let mine = env!("CARGO_PKG_VERSION");
    Some(Newer {
        description: format!(
            "{program} made it, with changes up to {}, and this version, {mine}, knows those up to {known}",
            found.newest
        ),
        is_usable: from <= known,
    })
}

async fn found(connection: &mut Connection) -> Result<Found, Error> {
    let sql = "SELECT (SELECT MAX(version) FROM _sqlx_migrations) AS newest, \
               (SELECT value FROM settings WHERE name = $1) AS usable_from, \
               (SELECT value FROM settings WHERE name = $2) AS made_by";
    let row = db::query(sql).bind(USABLE_FROM).bind(MADE_BY).fetch_one(connection).await;
    let row = row.map_err(database("reading the version of the schema"))?;
    let newest = optional_number(&row, "newest")?.map_or(0, u64::cast_signed);
    Ok(Found { newest, usable_from: get(&row, "usable_from")?, made_by: get(&row, "made_by")? })
}

/// Number of the last migration that a program knows.
fn known(migrations: &Migrator) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Whether the database has migrations that this program does not know, but may be used nevertheless. Fails if it may
/// not be used.
fn is_ahead(migrations: &Migrator, found: &Found) -> Result<bool, DatabaseFault> {
    let known = known(migrations);
    if found.newest <= known {
        return Ok(false);
    }
    // A database of a version that did not know this rule is refused by the list of its migrations.
    let Some((from, version)) = found.usable_from.as_deref().and_then(parse) else { return Ok(false) };
    if known >= from {
        return Ok(true);
    }
    Err(DatabaseFault::new(format!(
        "slipway-server {version} changed its schema so that older versions such as this one, {mine}, cannot use it \
         (change {from}; this version knows change {known}): install version {version} or a newer one here, or restore \
         a backup from before the upgrade",
        mine = env!("CARGO_PKG_VERSION")
    )))
}

/// The number of the last migration that a program must know to use the schema of this program.
fn usable_from(migrations: &Migrator) -> i64 {
    let contracts = migrations.iter().filter(|migration| migration.sql.as_str().starts_with(CONTRACT));
    contracts.map(|migration| migration.version).max().unwrap_or_default()
}

/// The new value of [`USABLE_FROM`]. `None` if it stays as it is.
fn raised(migrations: &Migrator, found: &Found) -> Option<String> {
    let from = usable_from(migrations);
    let said = found.usable_from.as_deref().and_then(parse).map_or(0, |(from, _)| from);
    let is_ours = found.newest <= known(migrations);
    (is_ours && said < from).then(|| format!("{from} {}", env!("CARGO_PKG_VERSION")))
}

/// The new value of [`MADE_BY`]. `None` if it stays as it is.
fn first_of(migrations: &Migrator, found: &Found) -> Option<String> {
    let known = known(migrations);
    let said = found.made_by.as_deref().and_then(parse).map_or(0, |(newest, _)| newest);
    // Before its migrations this program has made nothing yet.
    (found.newest == known && said < known).then(|| format!("{known} {}", env!("CARGO_PKG_VERSION")))
}

fn parse(value: &str) -> Option<(i64, &str)> {
    let (from, version) = value.split_once(' ')?;
    Some((from.parse().ok()?, version))
}

/// Refuses migrations after which a server that runs could not go on.
fn check_servers(migrations: &Migrator, found: &Found, servers: &[Server], now: Millis) -> Result<(), Error> {
    let from = usable_from(migrations);
    if from <= found.newest {
        return Ok(());
    }
    match servers.iter().find(|server| server.known_schema < from && server.is_live(now)) {
        None => Ok(()),
        Some(Server { host, version, last_seen, .. }) => {
            let message = format!(
                "this version of slipway-server changes the schema of the database so that version {version} cannot go \
                 on, which runs on host {host:?} and was seen {} s ago: stop all servers of that version first; one \
                 that was killed counts as running for a minute",
                now.abs_diff(*last_seen) / 1000
            );
            Err(Error::refused(ErrorCode::Conflict, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::migration;

    fn program(migrations: &[(i64, &'static str)]) -> Migrator {
        Migrator::with_migrations(migrations.iter().map(|&(version, sql)| migration(version, "m", sql)).collect())
    }

    #[test]
    fn a_program_runs_on_the_schema_of_the_next_version_unless_that_contracts() {
        let old = program(&[(20, "CREATE"), (21, "-- contract\n"), (22, "-- expand\n")]);
        let mine = format!("21 {}", env!("CARGO_PKG_VERSION"));
        let found = |newest, usable_from: Option<&str>| Found {
            newest,
            usable_from: usable_from.map(str::to_owned),
            made_by: None,
        };
        for (found, expect, raises) in [
            (found(0, None), Some(false), true),
            (found(20, None), Some(false), true),
            (found(22, Some("21 0.1.0")), Some(false), false),
            (found(23, Some("21 0.1.0")), Some(true), false),
            (found(24, Some("22 0.2.0")), Some(true), false),
            (found(24, Some("24 0.3.0")), None, false),
            // sqlx refuses these.
            (found(24, None), Some(false), false),
            (found(24, Some("nonsense")), Some(false), false),
        ] {
            assert_eq!(is_ahead(&old, &found).ok(), expect, "{found:?}");
            assert_eq!(raised(&old, &found), raises.then(|| mine.clone()), "{found:?}");
        }
        let said = is_ahead(&old, &found(24, Some("24 0.3.0"))).unwrap_err().to_string();
        assert!(said.contains("install version 0.3.0 or a newer one here"), "{said}");
    }

    #[test]
    fn a_newer_schema_is_named_by_the_program_that_made_it() {
        let [old, new] = [program(&[(22, "-- expand")]), program(&[(22, "-- expand"), (24, "-- expand")])];
        let found = |newest, made_by: Option<&str>, from: &str| Found {
            newest,
            usable_from: Some(from.to_owned()),
            made_by: made_by.map(str::to_owned),
        };
        let mine = |number| Some(format!("{number} {}", env!("CARGO_PKG_VERSION")));
        assert_eq!(first_of(&new, &found(22, Some("22 0.0.1"), "21 0.1.0")), None, "its changes are not made yet");
        assert_eq!(first_of(&new, &found(24, Some("22 0.0.1"), "21 0.1.0")), mine(24));
        assert_eq!(first_of(&new, &found(24, Some("24 0.0.1"), "21 0.1.0")), None, "another version was first");
        assert_eq!(first_of(&old, &found(24, Some("24 0.2.0"), "21 0.1.0")), None);
        assert_eq!(describe(&found(22, Some("22 0.0.1"), "21 0.1.0"), 22), None);
        let newer = describe(&found(24, Some("24 0.2.0"), "21 0.1.0"), 22).unwrap();
        assert!(
            newer.is_usable && newer.description.starts_with("slipway-server 0.2.0 made it, with changes up to 24")
        );
        let newer = describe(&found(25, Some("24 0.2.0"), "25 0.3.0"), 22).unwrap();
        assert!(!newer.is_usable && newer.description.starts_with("a newer slipway-server made it"), "{newer:?}");
    }

    #[test]
    fn nothing_is_removed_while_a_server_runs_that_needs_it() {
        let new = program(&[(21, "-- contract"), (22, "-- expand"), (23, "-- contract")]);
        let server = |known_schema| Server {
            id: "1".to_owned(),
            host: "a".to_owned(),
            version: "0.1.0".to_owned(),
            url: String::new(),
            site_key: None,
            known_schema,
            started_at: 0,
            last_seen: 5000,
            clock_ahead: 0,
        };
        let check = |newest, known| {
            let found = Found { newest, ..Found::default() };
            check_servers(&new, &found, &[server(23), server(known)], 8000).map_err(|error| error.to_string())
        };
        let gone = check_servers(&new, &Found { newest: 22, ..Found::default() }, &[server(22)], 100_000);
        assert!(gone.is_ok());
        assert_eq!(check(22, 23), Ok(()));
        assert_eq!(check(23, 22), Ok(()), "it is done already");
        let refused = check(21, 22).unwrap_err();
        assert!(
            refused.contains("version 0.1.0 cannot go on, which runs on host \"a\" and was seen 3 s ago"),
            "{refused}"
        );
    }
}
