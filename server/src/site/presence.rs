//! Which servers run. Each of them stores signs of life, so that operators see it, and so that no two servers use keys
//! of their own on one database.

use std::time::Duration;

use slipway_protocol::ErrorCode;

use crate::base::data::{DataDir, ServeLock};
use crate::base::error::{Error, chain};
use crate::base::random;
use crate::base::readiness::{Need, Readiness};
use crate::base::set_clock::STEP;
use crate::base::time::{self, Millis};
use crate::keys::ca::NODE_LIFETIME;
use crate::store::servers::{self, GONE, Server};
use crate::store::{self, Store, Transaction, clock, leases};

/// Interval of the signs of life.
const SIGN_EVERY: Duration = Duration::from_secs(5);
/// Milliseconds after which a server that is gone is removed.
const FORGOTTEN: Millis = 60 * 60 * 1000;
/// Milliseconds by which the clocks of two servers may differ. Credentials of nodes are renewed at half of their time;
/// beyond that, those of one server expire at the other before.
const APART: u64 = NODE_LIFETIME / 2 * 1000;
/// What clients are told of a server whose clock is that wrong.
const IS_APART: &str = "the clock of this host is more than 12 hours from that of another server of the site";

/// This server, as the others see it.
#[derive(Debug)]
pub struct Presence {
    me: Server,
}

impl Presence {
    /// Stores that this server runs. Fails if another server runs on the database and does not use the same site key:
    /// each would have a certificate authority of its own.
    pub async fn begin(store: &Store, data: &DataDir, lock: &ServeLock, url: &str) -> Result<Self, Error> {
        let mut transaction = store.write().await?;
        let now = clock::now(&mut transaction).await?;
        let me = Server {
            id: format!("{}-{}", lock.id, random::id()),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            url: url.to_owned(),
            site_key: data.site_key().map(|key| key.recipient().to_string()),
            known_schema: store.newest_version(),
            started_at: now,
            last_seen: now,
            clock_ahead: ahead(now),
        };
        for other in servers::all(&mut transaction).await? {
            // What is on the data folder has its lock: others there, or on its SQLite file, do not run any more.
            if data.postgres().is_none() || other.is_on(&lock.id) {
                remove(&mut transaction, &other.id).await?;
            } else if other.is_live(now) {
                check_same_keys(&me, &other, now)?;
            }
        }
        servers::save(&mut transaction, &me).await?;
        store::commit(transaction).await?;
        Ok(Self { me })
    }

    /// Stores signs of life, as long as the server runs, and says if the clock of this host is wrong. The server is not
    /// ready if it is so wrong that other servers do not accept what this one issues.
    pub async fn keep(&self, store: &Store, readiness: &Readiness) {
        let (mut is_failing, mut is_wrong) = (false, false);
        loop {
            match self.sign(store).await {
                Ok((me, others)) => {
                    is_failing = false;
                    let wrong = wrong_clock(me.clock_ahead);
                    if let Some(wrong) = wrong.as_ref().filter(|_| !is_wrong) {
                        tracing::warn!("{wrong}");
                    }
                    is_wrong = wrong.is_some();
                    match others.iter().find(|other| is_apart(&me, other)) {
                        Some(other) => readiness.lack(Need::Clock, IS_APART, &apart(&me, other)),
                        None => readiness.have(Need::Clock),
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(error = chain(&error), "could not store that this server runs");
                    }
                }
            }
            tokio::time::sleep(SIGN_EVERY).await;
        }
    }

    /// Stores a sign of life. Returns this server as it is stored now, and the others that run.
    async fn sign(&self, store: &Store) -> Result<(Server, Vec<Server>), Error> {
        let mut transaction = store.write().await?;
        let now = clock::now(&mut transaction).await?;
        let me = Server { last_seen: now, clock_ahead: ahead(now), ..self.me.clone() };
        let before = servers::all(&mut transaction).await?;
        servers::save(&mut transaction, &me).await?;
        // Signs of life look old also if the clock of the database was set forward, or the database was away: then this
        // server's own does too, and the others need time to give theirs.
        let knows = before.iter().any(|server| server.id == me.id && server.is_live(now));
        let mut others: Vec<Server> = before.into_iter().filter(|server| server.id != me.id).collect();
        for other in others.iter().filter(|other| knows && other.last_seen.saturating_add(FORGOTTEN) < now) {
            remove(&mut transaction, &other.id).await?;
        }
        store::commit(transaction).await?;
        others.retain(|other| other.is_live(now));
        Ok((me, others))
    }

    /// Id of this server, which holds its leases.
    pub fn id(&self) -> &str {
        &self.me.id
    }

    /// Stores that this server runs no more, and gives its leases back.
    pub async fn end(&self, store: &Store) -> Result<(), Error> {
        let mut transaction = store.write().await?;
        remove(&mut transaction, &self.me.id).await?;
        store::commit(transaction).await
    }
}

/// Returns the servers that run, and the time by the clock of the database.
pub async fn live(store: &Store) -> Result<(Vec<Server>, Millis), Error> {
    let mut connection = store.read().await?;
    let now = clock::now(&mut connection).await?;
    let mut servers = servers::all(&mut connection).await?;
    servers.retain(|server| server.is_live(now));
    Ok((servers, now))
}

/// By how many milliseconds the clock of this host is ahead of that of the database, whose time is given.
fn ahead(database: Millis) -> i64 {
    time::now().cast_signed().saturating_sub(database.cast_signed())
}

/// Says by how much the clock of this host is wrong, if that matters: servers compare the times at which another one
/// heard from a machine with their own.
fn wrong_clock(ahead: i64) -> Option<String> {
    let seconds = ahead.unsigned_abs() / 1000;
    let way = if ahead > 0 { "ahead of" } else { "behind" };
    (ahead.unsigned_abs() > STEP).then(|| {
        format!(
            "the clock of this host is {seconds} s {way} that of the database server: machines may be taken for \
             silent; set both by NTP"
        )
    })
}

/// Whether what this server issues is not good at another one, because of its own clock: the one that is nearer to that
/// of the database counts as right.
fn is_apart(me: &Server, other: &Server) -> bool {
    me.clock_ahead.abs_diff(other.clock_ahead) > APART
        && me.clock_ahead.unsigned_abs() >= other.clock_ahead.unsigned_abs()
}

fn apart(me: &Server, other: &Server) -> String {
    let seconds = me.clock_ahead.abs_diff(other.clock_ahead) / 1000;
    let way = if me.clock_ahead > other.clock_ahead { "ahead of" } else { "behind" };
    format!(
        "the clock of this host is {seconds} s {way} that of host {:?}: certificates that machines get from one server \
         are not valid at the other; set both by NTP",
        other.host
    )
}

async fn remove(transaction: &mut Transaction, id: &str) -> Result<(), Error> {
    servers::remove(transaction, id).await?;
    leases::release_all(transaction, id).await
}

fn check_same_keys(me: &Server, other: &Server, now: Millis) -> Result<(), Error> {
    let fault = match (&me.site_key, &other.site_key) {
        (Some(mine), Some(theirs)) if mine == theirs => return Ok(()),
        (Some(mine), Some(theirs)) => {
            format!("it has another site key, {theirs}, than the given one, {mine}: give the same to both")
        }
        (None, Some(_)) => "it has a site key: give the same as --site-key or SLIPWAY_SITE_KEY".to_owned(),
        (Some(_), None) => {
            "it has no site key: stop it, and start it with the same site key before this one".to_owned()
        }
        (None, None) => "several servers need a site key, so that they use the same keys: make one with \
                         `slipway-server site-key FILE`, and start both with --site-key FILE, that one first"
            .to_owned(),
    };
    let message = format!(
        "another server runs on this database, on host {:?} with {}, seen {} s ago; {fault}. If it was killed, try \
         again when it has been silent for {} s",
        other.host,
        other.url,
        now.abs_diff(other.last_seen) / 1000,
        GONE / 1000
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::commit;

    fn server(id: &str, site_key: Option<&str>, last_seen: Millis) -> Server {
        Server {
            id: id.to_owned(),
            host: "a".to_owned(),
            version: "0".to_owned(),
            url: "https://server.test".to_owned(),
            site_key: site_key.map(str::to_owned),
            known_schema: 0,
            started_at: last_seen,
            last_seen,
            clock_ahead: 0,
        }
    }

    #[test]
    fn servers_on_one_database_have_one_site_key() {
        let refused = |mine: Option<&str>, theirs: Option<&str>| {
            let checked = check_same_keys(&server("1", mine, 0), &server("2", theirs, 7000), 9000);
            checked.map_err(|error| error.to_string()).err()
        };
        assert_eq!(refused(Some("age1a"), Some("age1a")), None);
        for (mine, theirs, expect) in [
            (Some("age1a"), Some("age1b"), "seen 2 s ago; it has another site key, age1b, than the given one, age1a"),
            (None, Some("age1b"), "give the same as --site-key"),
            (Some("age1a"), None, "it has no site key: stop it"),
            (None, None, "several servers need a site key"),
        ] {
            let said = refused(mine, theirs).unwrap_or_default();
            assert!(said.contains(expect), "{said}");
        }
    }

    #[test]
    fn a_clock_that_is_wrong_is_told() {
        assert_eq!(wrong_clock(4000), None);
        assert!(wrong_clock(-7500).is_some_and(|said| said.contains("is 7 s behind that of the database")));
        assert!(wrong_clock(7500).is_some_and(|said| said.contains("is 7 s ahead of that of the database")));
    }

    #[test]
    fn of_servers_whose_clocks_are_far_apart_the_one_that_is_wrong_is_not_ready() {
        const HOUR: i64 = 60 * 60 * 1000;
        let at = |hours: i64| Server { clock_ahead: hours * HOUR, ..server("1", None, 0) };
        for (mine, theirs, expect) in [
            (0, 0, false),
            (11, 0, false),
            (13, 0, true),
            (0, 13, false),
            (-13, 0, true),
            (7, -7, true),
            (-7, 7, true),
            // The clock of the database is wrong, and all servers go on.
            (30, 30, false),
        ] {
            assert_eq!(is_apart(&at(mine), &at(theirs)), expect, "{mine} {theirs}");
        }
        assert!(apart(&at(-13), &at(0)).contains("is 46800 s behind that of host \"a\""));
    }

    #[tokio::test]
    async fn servers_that_are_gone_are_left_out_and_later_removed() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let store = Store::of(&data).await?;
        let me = Presence::begin(&store, &data, &data.lock_for_serving("https://server.test")?, "").await?;
        let now = time::now();
        let mut transaction = store.write().await?;
        for (id, ago) in [("lately", 30_000), ("gone", GONE + 5000), ("forgotten", FORGOTTEN + 5000)] {
            servers::save(&mut transaction, &server(id, None, now - ago)).await?;
            assert!(leases::take(&mut transaction, id, id).await?);
        }
        commit(transaction).await?;
        me.sign(&store).await?;
        let ids = |servers: Vec<Server>| servers.into_iter().map(|server| server.id).collect::<Vec<_>>();
        let mut seen = ids(live(&store).await?.0);
        seen.retain(|id| id != me.id());
        assert_eq!(seen, ["lately"]);
        let mut stored = ids(servers::all(&mut *store.read().await?).await?);
        stored.retain(|id| id != me.id());
        assert_eq!(stored, ["gone", "lately"]);
        assert_eq!(leases::holder(&mut *store.read().await?, "forgotten").await?, None);
        // The clock was set forward by a day: for now, nobody knows who is gone.
        let mut transaction = store.write().await?;
        let day = 24 * FORGOTTEN;
        for mut one in servers::all(&mut transaction).await? {
            one.last_seen -= day;
            servers::save(&mut transaction, &one).await?;
        }
        assert!(leases::take(&mut transaction, "work", "lately").await?);
        commit(transaction).await?;
        me.sign(&store).await?;
        assert_eq!(servers::all(&mut *store.read().await?).await?.len(), 3);
        assert_eq!(leases::holder(&mut *store.read().await?, "work").await?.as_deref(), Some("lately"));
        me.sign(&store).await?;
        assert_eq!(servers::all(&mut *store.read().await?).await?.len(), 1, "they have had their time");
        me.end(&store).await?;
        assert!(!ids(live(&store).await?.0).contains(&me.id().to_owned()));
        Ok(())
    }
}
