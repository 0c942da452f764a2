//! Notices boot files that do not fit the server any more: of another version, CA or key, or with a token that lets no
//! machine in.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use slipway_media::Manifest;
use slipway_protocol::{Flag, FlagKind, Severity, SiteEventKind};
use tokio::task::spawn_blocking;

use super::{newest, published};
use crate::base::data::DataDir;
use crate::base::error::{Error, chain};
use crate::base::time::{Millis, now, utc};
use crate::keys::ca;
use crate::keys::secure_boot::SecureBoot;
use crate::site::leases::Lease;
use crate::store::history::{self, NewEvent};
use crate::store::tokens::{self, Token};
use crate::store::{self, Store, boot_builds, flags, settings};

/// Interval at which is looked for outdated boot files.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Name of the lease of the server that looks.
const LEASE: &str = "noticing outdated boot files";

/// What boot files must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Current {
    /// Version of this program.
    version: &'static str,
    /// URL at which machines reach the server.
    url: Option<String>,
    /// SHA-256 of what machines trust, in hexadecimal.
    ca: String,
    /// SHA-256 of the certificate of the key for Secure Boot, in hexadecimal.
    signer: Option<String>,
}

/// Looks for outdated boot files, as long as the server runs, if no other server does. `boot` is the folder of boot
/// files, `server` the id of this server.
pub async fn keep(store: &Store, data: &DataDir, boot: Option<&Path>, server: &str) {
    loop {
        let held = Lease::new(store, LEASE, server).wait().await;
        let looking = async {
            let mut is_failing = false;
            loop {
                match look(store, data, boot, now()).await {
                    Ok(()) => is_failing = false,
                    Err(error) => {
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!(error = chain(&error), "could not look for outdated boot files");
                        }
                    }
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        // It ends when the lease is lost.
        let _: Option<()> = held.during(looking).await;
    }
}

/// Looks once, and records what is different from what was noticed before.
pub async fn look(store: &Store, data: &DataDir, boot: Option<&Path>, now: Millis) -> Result<(), Error> {
    let published = published::newest(store, boot).await?;
    let is_published = published.is_some();
    let (folder, site) = (boot.map(Path::to_owned), data.clone());
    let reading = spawn_blocking(move || {
        let manifest = published.or_else(|| folder.as_deref().and_then(|folder| newest(folder).ok().flatten()));
        let signer =
            SecureBoot::open(&site)?.map(|keys| base16ct::lower::encode_string(&keys.signer().certificate().sha256()));
        Ok::<_, Error>((manifest, Sha256::digest(ca::anchors(&site)?), signer))
    });
    let (manifest, ca, signer) = reading.await.map_err(|source| Error::Media { source: Box::new(source) })??;
    let mut connection = store.read().await?;
    let url = settings::read(&mut connection, settings::SERVER_URL).await?;
    let builds = boot_builds::all(&mut connection).await?;
    let tokens = tokens::all(&mut connection).await?;
    let before: Vec<Flag> =
        flags::all(&mut connection, Some(flags::SITE)).await?.into_iter().map(|(_, flag)| flag).collect();
    drop(connection);
    let current = Current { version: env!("CARGO_PKG_VERSION"), url, ca: base16ct::lower::encode_string(&ca), signer };
    let folder = boot.filter(|_| !is_published).map(|folder| folder.display().to_string());
    let flag = match &manifest {
        Some(manifest) => outdated(manifest, &current, folder.as_deref(), now),
        None => boot.filter(|folder| !has_files(folder)).map(|folder| missing(folder, now)),
    };
    let mut found: Vec<Flag> = flag.into_iter().collect();
    for build in &builds {
        found.extend(build.token.as_deref().and_then(|token| useless_token(&build.id, token, &tokens, now)));
    }
    record(store, &before, &found, now).await
}

/// Says why boot files do not fit the server. They are in this folder, or are published.
fn outdated(manifest: &Manifest, current: &Current, folder: Option<&str>, now: Millis) -> Option<Flag> {
    let mut differs = Vec::new();
    if manifest.version != current.version {
        differs.push(format!("version {}, and the server has {}", manifest.version, current.version));
    }
    // Boot files for another address may trust what is there.
    let is_for_us = manifest.server.is_none() || current.url == manifest.server;
    if is_for_us && manifest.ca_sha256 != current.ca {
        differs.push("another certificate authority than the server has now".to_owned());
    }
    let signed_by = manifest.signed_by.as_ref().map(|signer| &signer.certificate_sha256);
    if signed_by.is_some() && signed_by != current.signer.as_ref() {
        differs.push("another key for Secure Boot than the site has now".to_owned());
    }
    if differs.is_empty() {
        return None;
    }
    let which = folder.map_or_else(|| "that are published".to_owned(), |folder| format!("in {folder}"));
    Some(Flag {
        kind: FlagKind::BootFilesOutdated,
        severity: Severity::Warn,
        since: now,
        step: None,
        limit: None,
        reason: format!("the boot files {which} were made with {}", differs.join("; with ")),
        cause: "slipway-server was upgraded, or keys of the site were changed, after they were made; make them again, \
                by `media build` with the options that you gave then"
            .to_owned(),
        command: "slipway-server media list".to_owned(),
    })
}

/// Whether there is anything in a folder of boot files: their names are the operator's.
fn has_files(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

fn missing(folder: &Path, now: Millis) -> Flag {
    Flag {
        kind: FlagKind::BootFilesOutdated,
        severity: Severity::Warn,
        since: now,
        step: None,
        limit: None,
        reason: format!(
            "there are no boot files in {}, so no machine can boot slipway from this server",
            folder.display()
        ),
        cause: "they were not made yet; if all machines boot from media, leave --boot out of the server's options"
            .to_owned(),
        command: "slipway-server media build".to_owned(),
    }
}

/// Says why the token in a build of boot files lets no machine in.
fn useless_token(build: &str, id: &str, tokens: &[Token], now: Millis) -> Option<Flag> {
    let why = match tokens.iter().find(|token| token.hash.starts_with(id)) {
        None => "was revoked".to_owned(),
        Some(token) => match token.expires_at.filter(|at| *at <= now) {
            Some(at) => format!("expired at {}", utc(at)),
            None if token.used_at.is_some() && token.made_for.is_none() => {
                "let one machine in, and cannot be used again".to_owned()
            }
            None => return None,
        },
    };
    Some(Flag {
        kind: FlagKind::TokenExpired,
        severity: Severity::Warn,
        since: now,
        step: Some(build.to_owned()),
        limit: None,
        reason: format!("the token {id} in the boot files {build} {why}"),
        cause: "machines that start from these files are held; make them again with a token that is valid, or forget \
                them if nobody has them"
            .to_owned(),
        command: "slipway-server media list".to_owned(),
    })
}

async fn record(store: &Store, before: &[Flag], found: &[Flag], now: Millis) -> Result<(), Error> {
    let is_in = |flags: &[Flag], flag: &Flag| flags.iter().any(|other| other.is_same(flag));
    let begun: Vec<&Flag> = found.iter().filter(|flag| !is_in(before, flag)).collect();
    let over: Vec<&Flag> = before.iter().filter(|flag| !is_in(found, flag)).collect();
    if begun.is_empty() && over.is_empty() {
        return Ok(());
    }
    let mut transaction = store.write().await?;
    for flag in begun {
        if flags::insert(&mut transaction, flags::SITE, flag).await? {
            let event = NewEvent::new(flag.reason.clone()).report(store::to_json(flag));
            history::record(&mut transaction, SiteEventKind::Flagged, event, now).await?;
        }
    }
    for flag in over {
        if flags::remove(&mut transaction, flags::SITE, flag).await? {
            let event = NewEvent::new(format!("over: {}", flag.reason)).report(store::to_json(flag));
            history::record(&mut transaction, SiteEventKind::Unflagged, event, now).await?;
        }
    }
    store::commit(transaction).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(expires_at: Option<Millis>, used_at: Option<Millis>, made_for: Option<&str>) -> Token {
        Token {
            hash: format!("0123456789ab{}", "c".repeat(52)),
            created_at: 0,
            expires_at,
            used_at,
            used_by_address: None,
            node: None,
            made_for: made_for.map(str::to_owned),
        }
    }

    #[test]
    fn a_token_in_boot_files_is_useless_once_it_lets_nobody_in() {
        let said = |tokens: &[Token]| useless_token("b1", "0123456789ab", tokens, 1000).map(|flag| flag.reason);
        assert_eq!(said(&[token(None, None, None)]), None);
        assert_eq!(said(&[token(Some(1001), None, None)]), None);
        assert_eq!(said(&[token(None, Some(5), Some("n1"))]), None, "its machine uses it at each boot");
        let why = |tokens: &[Token], expect: &str| {
            let said = said(tokens).expect(expect);
            assert_eq!(said, format!("the token 0123456789ab in the boot files b1 {expect}"));
        };
        why(&[], "was revoked");
        why(&[token(Some(1000), None, None)], "expired at 1970-01-01 00:00:01 UTC");
        why(&[token(None, Some(5), None)], "let one machine in, and cannot be used again");
    }

    #[test]
    fn boot_files_fit_one_version_authority_and_key() {
        let manifest = |version: &str, ca: &str, signer: Option<&str>| {
            let signed_by = signer.map(|sha256| serde_json::json!({"subject": "CN=x", "certificate_sha256": sha256}));
            let mut json = serde_json::json!({
                "id": "b1", "version": version, "server": "https://a", "ca_sha256": ca, "has_token": false,
                "parts": [], "assets": [],
            });
            if let Some(signed_by) = signed_by {
                json["signed_by"] = signed_by;
            }
            serde_json::from_value::<Manifest>(json).expect("a manifest")
        };
        let url = Some("https://a".to_owned());
        let current = Current { version: "2", url, ca: "c2".to_owned(), signer: Some("s2".to_owned()) };
        let said = |manifest: &Manifest| outdated(manifest, &current, Some("/srv/boot"), 7);
        assert_eq!(said(&manifest("2", "c2", Some("s2"))), None);
        assert_eq!(said(&manifest("2", "c2", None)), None, "they were not to be signed");
        let flag = said(&manifest("1", "c1", Some("s1"))).expect("a flag");
        let expect = "the boot files in /srv/boot were made with version 1, and the server has 2; with another \
                      certificate authority than the server has now; with another key for Secure Boot than the \
                      site has now";
        assert_eq!((flag.reason.as_str(), flag.since), (expect, 7));
        assert_eq!(flag.command, "slipway-server media list");
        let published = outdated(&manifest("1", "c2", None), &current, None, 7).expect("a flag");
        let expect = "the boot files that are published were made with version 1, and the server has 2";
        assert_eq!(published.reason, expect);
        let elsewhere = Current { url: Some("https://b".to_owned()), ..current.clone() };
        assert_eq!(outdated(&manifest("2", "c1", Some("s2")), &elsewhere, Some("/srv/boot"), 7), None);
    }
}
