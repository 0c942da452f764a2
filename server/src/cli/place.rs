//! Finds out where the server keeps everything: by options, or else by environment variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use slipway_protocol::shared::given::is_blank;
use slipway_server::base::data::{DatabaseUrl, Place, SiteKey};
use slipway_server::base::objects::{Bucket, Defaults, Keys};

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
        None => variable("SLIPWAY_SITE_KEY")?.map(PathBuf::from).or_else(|| credential("site-key")),
    };
    let site_key = site_key.map(|file| SiteKey::parse(&super::read(&file)?).with_context(|| format!("using {file:?}")));
    Ok(Place { root, postgres: postgres(database, password)?, site_key: site_key.transpose()?, bucket: None })
}

/// Returns the bucket that an option or a variable names, with the key to it.
pub fn bucket(given: Option<String>, key: Option<PathBuf>) -> anyhow::Result<Option<Bucket>> {
    let Some(url) = given.map_or_else(|| text("SLIPWAY_OBJECTS"), |given| Ok(Some(given)))? else {
        ensure!(key.is_none(), "--objects-credentials needs --objects or SLIPWAY_OBJECTS");
        return Ok(None);
    };
    // As the programs of Amazon read them ("Configuration and credential file settings" in the AWS SDKs reference).
    let endpoint = text("AWS_ENDPOINT_URL_S3")?.map_or_else(|| text("AWS_ENDPOINT_URL"), |url| Ok(Some(url)))?;
    let region = text("AWS_REGION")?.map_or_else(|| text("AWS_DEFAULT_REGION"), |name| Ok(Some(name)))?;
    Ok(Some(Bucket::open(&url, Defaults { endpoint, region }, keys(key)?)?))
}

fn keys(given: Option<PathBuf>) -> anyhow::Result<Keys> {
    let file = match given {
        Some(file) => Some(file),
        None => {
            variable("SLIPWAY_OBJECTS_CREDENTIALS")?.map(PathBuf::from).or_else(|| credential("objects-credentials"))
        }
    };
    if let Some(file) = file {
        return Keys::parse(&super::read(&file)?).with_context(|| format!("using {file:?}"));
    }
    match (text("AWS_ACCESS_KEY_ID")?, text("AWS_SECRET_ACCESS_KEY")?) {
        (Some(id), Some(secret)) => Ok(Keys { id, secret, session: text("AWS_SESSION_TOKEN")? }),
        _ => bail!(
            "the bucket needs an access key: give --objects-credentials FILE, or set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY"
        ),
    }
}

/// Returns the file of a systemd credential, if the service has it (systemd.exec(5), "LoadCredential=").
fn credential(name: &str) -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?).join(name);
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
    match text("SLIPWAY_DATABASE")? {
        Some(text) => with_password(DatabaseUrl::new(&text)?, password).map(Some),
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

/// Returns the value of an environment variable that is text.
fn text(name: &str) -> anyhow::Result<Option<String>> {
    let value = variable(name)?.map(|value| value.into_string().map_err(|_| anyhow!("{name} is not text in UTF-8")));
    value.transpose()
}

/// Returns the value of an environment variable. A blank value is refused, because it would mean another place than
/// intended.
fn variable(name: &str) -> anyhow::Result<Option<OsString>> {
    let value = std::env::var_os(name);
    let is_blank = value.as_ref().and_then(|value| value.to_str()).is_some_and(is_blank);
    ensure!(!is_blank, "{name} is set but has no value: unset it, or give it one");
    Ok(value)
}
