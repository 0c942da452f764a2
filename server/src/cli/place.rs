//! Finds out where the server keeps everything: by options, or else by environment variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use slipway_protocol::shared::given::is_blank;
use slipway_server::base::data::{DatabaseUrl, Place, SiteKey};

/// Returns the data folder, the database if it is on a PostgreSQL server, and the site key if there is one.
pub fn find(
    data: Option<PathBuf>,
    database: Option<String>,
    password: Option<&Path>,
    site_key: Option<PathBuf>,
) -> anyhow::Result<Place> {
    let root = match data {
        Some(data) => data,
        None => variable("SLIPWAY_DATA")?.map_or_else(|| "/var/lib/slipway".into(), PathBuf::from),
    };
    let site_key = match site_key {
        Some(file) => Some(file),
        None => variable("SLIPWAY_SITE_KEY")?.map(PathBuf::from).or_else(credential),
    };
    let site_key = site_key.map(|file| SiteKey::parse(&super::read(&file)?).with_context(|| format!("using {file:?}")));
    Ok(Place { root, postgres: postgres(database, password)?, site_key: site_key.transpose()? })
}

/// Returns the file of the systemd credential with the site key, if the service has one (systemd.exec(5),
/// "LoadCredential=").
fn credential() -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?).join("site-key");
    file.exists().then_some(file)
}

/// Makes a site key, in a file that only its owner can read.
pub fn make_site_key(file: &Path) -> anyhow::Result<()> {
    let key = SiteKey::generate();
    super::write_secret(file, &key.to_text())?;
    super::print_line(&key.recipient().to_string())
}

fn postgres(given: Option<String>, password: Option<&Path>) -> anyhow::Result<Option<DatabaseUrl>> {
    if let Some(text) = given {
        return url(&text, password).map(Some);
    }
    match variable("SLIPWAY_DATABASE")? {
        Some(text) => {
            let text = text.into_string().map_err(|_| anyhow!("SLIPWAY_DATABASE is not text in UTF-8"))?;
            with_password(DatabaseUrl::new(&text)?, password).map(Some)
        }
        None => {
            ensure!(password.is_none(), "--database-password-file needs --database or SLIPWAY_DATABASE");
            Ok(None)
        }
    }
}

/// Reads a URL from the command line, which must not have the password, and the password from its file.
pub fn url(text: &str, password: Option<&Path>) -> anyhow::Result<DatabaseUrl> {
    DatabaseUrl::check_without_password(text)?;
    with_password(DatabaseUrl::new(text)?, password)
}

fn with_password(url: DatabaseUrl, password: Option<&Path>) -> anyhow::Result<DatabaseUrl> {
    Ok(match password {
        Some(file) => url.with_password(super::read(file)?.trim_end_matches(['\r', '\n'])),
        None => url,
    })
}

/// Returns the value of an environment variable. A blank value is refused, because it would mean another place than
/// intended.
fn variable(name: &str) -> anyhow::Result<Option<OsString>> {
    let value = std::env::var_os(name);
    let is_blank = value.as_ref().and_then(|value| value.to_str()).is_some_and(is_blank);
    ensure!(!is_blank, "{name} is set but has no value: unset it, or give it one");
    Ok(value)
}
