//! `slipway-server keys`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use base16ct::lower::encode_string as hex;
use clap::{Args, Subcommand};
use slipway_secure_boot::authenticode;
use slipway_server::base::data::DataDir;
use slipway_server::base::error::Error;
use slipway_server::keys::pkcs11;
use slipway_server::keys::secure_boot::{Beginning, Imported, Revoked, SecureBoot, Update, no_keys};
use slipway_server::operate::site_keys;
use slipway_server::site::signing;
use slipway_server::store::Store;
use time::OffsetDateTime;

use super::{print, print_line, tell};

#[derive(Subcommand)]
pub enum KeysCommand {
    /// Make the site's keys for UEFI Secure Boot, or import them. From then on, boot files are signed.
    #[command(after_help = "\
Examples:
  slipway-server keys init
  slipway-server keys init --db-key db.key --db-cert db.pem
  slipway-server keys init \
--db-key 'pkcs11:token=site;object=db?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/slipway/pin' \
--db-cert db.pem")]
    Init(InitOptions),
    /// Show the certificates and what is revoked.
    Show,
    /// Write the certificates and lists for firmware to files: for its menus (.cer), for programs that write its
    /// variables (.auth, signed), and for other programs (.esl).
    Export {
        /// Folder for the files; it is created.
        folder: PathBuf,
    },
    /// Begin to replace the key that signs programs, or end that with --finish or --cancel.
    Rotate {
        /// Replace the old key by the new one. What the old key signed no longer boots.
        #[arg(long, conflicts_with_all = ["cancel", "key"])]
        finish: bool,
        /// Discard the new key.
        #[arg(long, conflicts_with = "key")]
        cancel: bool,
        /// File with the new private key in PEM, or the PKCS #11 URI of a key in a token. By default a key is made.
        #[arg(long, value_name = "FILE|URI", requires = "cert")]
        key: Option<PathBuf>,
        /// File with the new key's certificate, in PEM.
        #[arg(long, value_name = "FILE", requires = "key")]
        cert: Option<PathBuf>,
    },
    /// Revoke a program: it no longer boots on machines with these keys, once they have the new lists.
    Revoke {
        /// EFI program, such as the slipway.efi of an older build.
        file: PathBuf,
    },
}

#[derive(Args)]
pub struct InitOptions {
    /// File with the platform key (PK) in PEM, or the PKCS #11 URI of a key in a token. By default a key is made.
    #[arg(long, value_name = "FILE|URI", requires = "pk_cert")]
    pk_key: Option<PathBuf>,
    /// File with the platform key's certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "pk_key")]
    pk_cert: Option<PathBuf>,
    /// File with the key exchange key (KEK) in PEM, or the PKCS #11 URI of a key in a token. By default a key is made.
    #[arg(long, value_name = "FILE|URI", requires = "kek_cert")]
    kek_key: Option<PathBuf>,
    /// File with the key exchange key's certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "kek_key")]
    kek_cert: Option<PathBuf>,
    /// File with the key that signs programs (db) in PEM, or the PKCS #11 URI of a key in a token. By default a key is
    /// made.
    #[arg(long, value_name = "FILE|URI", requires = "db_cert")]
    db_key: Option<PathBuf>,
    /// File with the certificate of the key that signs programs, in PEM.
    #[arg(long, value_name = "FILE", requires = "db_key")]
    db_cert: Option<PathBuf>,
    /// Leave out Microsoft's certificates. The firmware of many network and graphics cards is signed with them, so such
    /// cards do not work then, and a screen may stay dark.
    #[arg(long)]
    without_microsoft: bool,
}

pub async fn run(store: &Store, data: &DataDir, command: KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::Init(options) => {
            let beginning = Beginning {
                pk: imported(options.pk_key, options.pk_cert)?,
                kek: imported(options.kek_key, options.kek_cert)?,
                db: imported(options.db_key, options.db_cert)?,
                without_microsoft: options.without_microsoft,
            };
            let keys = [&beginning.pk, &beginning.kek, &beginning.db];
            let is_in_token = keys.into_iter().flatten().any(|imported| pkcs11::is_uri(&imported.key));
            let begin = |data: &DataDir| SecureBoot::begin(data, beginning, OffsetDateTime::now_utc());
            let changing = site_keys::change(store, data, "keys for Secure Boot were made or imported", begin);
            print(&shown(&with_tokens_if(is_in_token, store, data, changing).await?)?)?;
            tell("back up the data folder now: without these keys, every machine must be enrolled again by hand\n");
            Ok(())
        }
        KeysCommand::Show => print(&shown(&open(data)?)?),
        KeysCommand::Export { folder } => {
            let keys = open(data)?;
            export(&keys, &signing::updates(store, data, open(data)?).await?, &folder)
        }
        KeysCommand::Rotate { finish: true, .. } => {
            site_keys::change(store, data, "the new key for Secure Boot is in use", SecureBoot::finish_rotation)
                .await?;
            print_line("the new key is in use, and what the old one signed no longer boots; make the boot files again")
        }
        KeysCommand::Rotate { cancel: true, .. } => {
            site_keys::change(store, data, "the new key for Secure Boot was removed", SecureBoot::cancel_rotation)
                .await?;
            print_line("the new key is discarded")
        }
        KeysCommand::Rotate { key, cert, .. } => {
            let key = imported(key, cert)?;
            let is_in_token = key.as_ref().is_some_and(|imported| pkcs11::is_uri(&imported.key));
            let begin = |data: &DataDir| SecureBoot::begin_rotation(data, key, OffsetDateTime::now_utc());
            let changing = site_keys::change(store, data, "a new key for Secure Boot was made or imported", begin);
            with_tokens_if(is_in_token, store, data, changing).await?;
            print_line(
                "a new key is made; enrol its certificate on every machine, then run `slipway-server keys rotate \
                 --finish`",
            )
        }
        KeysCommand::Revoke { file } => {
            let image = fs::read(&file).with_context(|| format!("reading {file:?}"))?;
            let digest = authenticode::digest(&image).with_context(|| format!("reading {file:?}"))?;
            let what = format!("the program {} was revoked for Secure Boot", hex(&digest));
            site_keys::change(store, data, &what, |data| SecureBoot::revoke(data, digest)).await?;
            print_line(&format!("{} no longer boots on machines that get these keys from now on", hex(&digest)))
        }
    }
}

/// Changes keys, with regard to other processes that use tokens if a new key is in one.
async fn with_tokens_if<T>(
    is_in_token: bool,
    store: &Store,
    data: &DataDir,
    changing: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match is_in_token {
        true => signing::with_tokens(store, data, changing).await?,
        false => changing.await,
    }
}

fn open(data: &DataDir) -> anyhow::Result<SecureBoot> {
    Ok(SecureBoot::open(data)?.ok_or_else(no_keys)?)
}

fn imported(key: Option<PathBuf>, certificate: Option<PathBuf>) -> anyhow::Result<Option<Imported>> {
    let (Some(key), Some(certificate)) = (key, certificate) else { return Ok(None) };
    let key = match key.to_str().filter(|text| pkcs11::is_uri(text)) {
        Some(uri) => uri.to_owned(),
        None => super::read(&key)?,
    };
    Ok(Some(Imported { key, certificate: super::read(&certificate)? }))
}

fn shown(keys: &SecureBoot) -> anyhow::Result<String> {
    let mut text = String::new();
    for (name, certificate) in keys.certificates() {
        text.push_str(&format!("{name}: {}\n  SHA-256 {}\n", certificate.subject(), hex(&certificate.sha256())));
    }
    for (name, uri) in keys.in_tokens() {
        text.push_str(&format!("the key of {name} is in a token: {uri}\n"));
    }
    text.push_str(match keys.has_microsoft() {
        true => "Microsoft's certificates: in KEK and db\n",
        false => "Microsoft's certificates: excluded\n",
    });
    for revoked in keys.revoked() {
        let line = match revoked {
            Revoked::Program(digest) => format!("revoked: the program {digest}\n"),
            Revoked::Certificate(_) => "revoked: everything signed with a replaced key\n".to_owned(),
        };
        text.push_str(&line);
    }
    text.push_str(&format!("TPM register 7, if nothing else is booted or revoked: {}\n", keys.register_7()?));
    Ok(text)
}

fn export(keys: &SecureBoot, updates: &[Update], folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {folder:?}"))?;
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("writing {path:?}"))?;
        print_line(&path.display().to_string())
    };
    for (name, certificate) in keys.certificates() {
        write(&format!("{}.cer", name.replace(' ', "-")), certificate.der())?;
    }
    for update in updates {
        write(&format!("{}.esl", update.variable), &update.lists)?;
        write(&format!("{}.auth", update.variable), &update.signed)?;
    }
    Ok(())
}
