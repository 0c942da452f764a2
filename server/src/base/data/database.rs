//! Addresses of databases on PostgreSQL servers.

use std::fmt::{self, Debug, Formatter};
use std::net::IpAddr;

use slipway_protocol::ErrorCode;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::base::error::{DatabaseFault, Error};

/// Schemes of URLs of PostgreSQL (its manual, "Connection URIs").
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// Parameters that are passed on. `password` is refused or taken like a password before the host.
const PARAMETERS: [&str; 7] = ["host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "password"];

/// The address of a database on a PostgreSQL server, and how to log in there.
#[derive(Clone)]
pub struct DatabaseUrl {
    options: PgConnectOptions,
    name: String,
}

impl DatabaseUrl {
    /// Reads a URL such as `postgres://slipway@db.example/slipway`. What it leaves out, such as the password, is taken
    /// from the variables of PostgreSQL's own programs and from ~/.pgpass.
    ///
    /// Over a network, the database server must prove its name: only the mode `verify-full` is accepted, and it is the
    /// default.
    pub fn new(text: &str) -> Result<Self, Error> {
        let parts = Parts::of(text)?;
        if parts.parameters.iter().any(|(name, _)| !PARAMETERS.contains(&name.as_str())) {
            // It is not repeated, because it may be a part of a password with a question mark.
            let known = PARAMETERS.join(", ");
            return Err(refused(format!("it has a parameter that slipway-server does not know; it knows {known}")));
        }
        let options: PgConnectOptions =
            text.parse().map_err(|error: sqlx::Error| refused(DatabaseFault::from(error).to_string()))?;
        let host = options.get_host().trim_matches(['[', ']']).to_owned();
        let options = options.host(&host);
        let Some(database) = options.get_database().filter(|database| !database.is_empty()) else {
            return Err(refused("it has no name of a database: postgres://USER@HOST/NAME"));
        };
        let socket = options.get_socket().map(|socket| socket.display().to_string());
        let place = match &socket {
            Some(socket) => socket.clone(),
            None => format!("{host}:{}", options.get_port()),
        };
        let name = format!("postgres://{}@{place}/{database}", options.get_username());
        let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let is_here = socket.is_some() || host.starts_with('/') || is_loopback;
        let is_chosen = parts.has("sslmode") || std::env::var_os("PGSSLMODE").is_some();
        let options = match options.get_ssl_mode() {
            _ if is_here => options,
            PgSslMode::VerifyFull => options,
            _ if !is_chosen => options.ssl_mode(PgSslMode::VerifyFull),
            _ => {
                return Err(refused(format!(
                    "with its sslmode, secrets would go to {host} without a check of who answers there: leave sslmode \
                     and PGSSLMODE out, or set them to verify-full; if the certificate of the database server is from \
                     your own authority, add sslrootcert=FILE"
                )));
            }
        };
        // Statements of all tables stay prepared.
        Ok(Self { options: options.application_name("slipway-server").statement_cache_capacity(256), name })
    }

    /// Refuses a URL with a password, for URLs that other users of this host can read.
    pub fn check_without_password(text: &str) -> Result<(), Error> {
        let parts = Parts::of(text)?;
        if !parts.has_password && !parts.has("password") {
            return Ok(());
        }
        let message = "the URL of the database has a password, which every user of this host can read on the command \
                       line: put it into a file and give --database-password-file FILE, into ~/.pgpass, or into a file \
                       that PGPASSFILE names";
        Err(Error::refused(ErrorCode::InvalidRequest, message))
    }

    /// Sets the password.
    #[must_use]
    pub fn with_password(self, password: &str) -> Self {
        Self { options: self.options.password(password), ..self }
    }

    /// How to connect.
    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// The URL without the password, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Debug for DatabaseUrl {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.name)
    }
}

fn refused(why: impl fmt::Display) -> Error {
    Error::refused(ErrorCode::InvalidRequest, format!("the URL of the database cannot be used: {why}"))
}

/// What of a URL decides whether it is accepted.
struct Parts {
    has_password: bool,
    parameters: Vec<(String, String)>,
}

impl Parts {
    fn of(text: &str) -> Result<Self, Error> {
        let Some(rest) = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)) else {
            return Err(refused("it is not of the form postgres://USER@HOST/NAME"));
        };
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        // A password may have any character that somebody forgot to encode.
        let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
        let parameters = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Ok(Self { has_password: user.contains(':'), parameters })
    }

    fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|(parameter, _)| parameter == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_the_network_must_prove_its_name() {
        let mode = |text: &str| DatabaseUrl::new(text).map(|url| format!("{:?}", url.options.get_ssl_mode())).ok();
        assert_eq!(mode("postgres://slipway@db.example/slipway").as_deref(), Some("VerifyFull"));
        assert_eq!(mode("postgres://u@192.0.2.1/x?sslrootcert=/ca.pem").as_deref(), Some("VerifyFull"));
        assert_eq!(mode("postgres://u@db.example/x?sslmode=verify-full").as_deref(), Some("VerifyFull"));
        for bad in ["disable", "allow", "prefer", "require", "verify-ca", "nonsense"] {
            assert_eq!(mode(&format!("postgres://u@db.example/x?sslmode={bad}")), None, "{bad}");
        }
        for here in ["u@localhost/x", "u@127.0.0.1/x", "u@[::1]/x", "/x?host=/run/postgresql", "u@%2Frun/x"] {
            assert!(mode(&format!("postgres://{here}")).is_some(), "{here}");
            assert_eq!(mode(&format!("postgres://{here}")).as_deref(), Some("Prefer"), "{here}");
        }
        // The host may also be in a parameter.
        assert_eq!(mode("postgres://u@localhost/x?host=db.example").as_deref(), Some("VerifyFull"));
        for bad in ["postgres://u@db.example", "mysql://u@h/x", "", "postgres://u@h/x?options=-cfsync%3Doff"] {
            assert_eq!(mode(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_password_is_not_on_the_command_line_and_in_no_message() {
        for text in ["postgres://u:s3cret@db.example/x", "postgres://u@db.example/x?password=s3cret"] {
            let refusal = DatabaseUrl::check_without_password(text).expect_err("it has a password").to_string();
            assert!(refusal.contains("--database-password-file") && !refusal.contains("s3cret"), "{refusal}");
            let url = DatabaseUrl::new(text).expect("it is good in the environment");
            assert_eq!(url.name(), "postgres://u@db.example:5432/x");
            assert!(!format!("{url:?}").contains("s3cret"));
        }
        assert!(DatabaseUrl::check_without_password("postgres://u@db.example/x").is_ok());
        for bad in ["postgres://u:s3/cret@db.example/x", "postgres://u:a?cret=b@db.example/x"] {
            assert!(DatabaseUrl::check_without_password(bad).expect_err(bad).to_string().contains("PGPASSFILE"));
            let refusal = DatabaseUrl::new(bad).expect_err(bad).to_string();
            assert!(!refusal.contains("cret"), "{refusal}");
        }
    }
}
