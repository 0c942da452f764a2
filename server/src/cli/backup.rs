//! `slipway-server backup` and `slipway-server restore`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use age::x25519::Identity;
use anyhow::{Context, bail, ensure};
use clap::Args;
use slipway_server::base::data::{DataDir, Place};
use slipway_server::base::error::chain;
use slipway_server::base::objects::Objects;
use slipway_server::image::stored;
use slipway_server::keys::seal;
use slipway_server::operate::backup;
use slipway_server::store::Store;

use super::{print_line, tell};

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server backup /var/backups/slipway.tar.age \
--recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p")]
pub struct BackupOptions {
    /// File to create.
    file: PathBuf,
    /// Include the images.
    #[arg(long)]
    images: bool,
    /// Encrypt the backup to this age public key; may be given several times.
    #[arg(long = "recipient", value_name = "RECIPIENT")]
    recipients: Vec<String>,
}

#[derive(Args)]
pub struct RestoreOptions {
    /// File with the backup.
    file: PathBuf,
    /// File with an age private key, as `age-keygen` writes it, if the backup is encrypted.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

pub async fn back_up(store: &Store, data: &DataDir, options: BackupOptions) -> anyhow::Result<()> {
    if let Objects::Bucket(bucket, _) = data.objects() {
        ensure!(
            !options.images,
            "the images are in the bucket {}, not in the data folder: leave out --images, and copy the bucket with its \
             own programs",
            bucket.name()
        );
    }
    let recipients = options.recipients.iter().map(|text| seal::recipient(text)).collect::<Result<Vec<_>, _>>()?;
    backup::back_up(store, data, &options.file, options.images, &recipients).await?;
    // The backup is there, also if the database takes no more, which may be why it was made.
    if let Err(error) = backup::tell(store, !recipients.is_empty()).await {
        tell(&format!("the history does not have that a backup was made: {}\n", chain(&error)));
    }
    if recipients.is_empty() {
        tell("the backup is not encrypted: it contains the keys and secrets of this server\n");
    }
    print_line(&options.file.display().to_string())
}

pub async fn restore(place: &Place, options: RestoreOptions) -> anyhow::Result<()> {
    ensure!(
        place.postgres.is_none(),
        "a backup has an SQLite database, which cannot be restored to a PostgreSQL server: restore a dump with \
         `pg_restore`, or leave out --database and unset SLIPWAY_DATABASE"
    );
    let data = &place.root;
    let identities = options.identity.as_deref().map(identities).transpose()?.unwrap_or_default();
    let held = backup::restore(&options.file, data, &identities).await?;
    print_line(&format!("the backup is restored to {}", data.display()))?;
    if held > 0 {
        let runs = if held == 1 { "1 unfinished run is" } else { &format!("{held} unfinished runs are") };
        tell(&format!(
            "{runs} held: `run list` shows them as restored; `run confirm` lets the machine continue, `run cancel` \
             ends the run\n"
        ));
    }
    match unusable_images(place).await? {
        0 => {}
        1 => tell(
            "the file of 1 image is missing or has changed: `image list` shows it; add it again with `image add`\n",
        ),
        many => tell(&format!(
            "the files of {many} images are missing or have changed: `image list` shows them; add them again \
             with `image add`\n"
        )),
    }
    Ok(())
}

async fn unusable_images(place: &Place) -> anyhow::Result<usize> {
    let store = Store::of(&DataDir::open(place)?).await?;
    let images = stored::list(&store).await?;
    store.close().await;
    Ok(images.iter().filter(|image| image.problem.is_some()).count())
}

fn identities(file: &Path) -> anyhow::Result<Vec<Identity>> {
    let text = super::read(file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    // The error does not include the line, which is a private key.
    let read = |(number, line)| Identity::from_str(line).map_err(|reason| anyhow::anyhow!("key {number}: {reason}"));
    let found = (1..).zip(lines).map(read).collect::<Result<Vec<_>, _>>();
    match found.with_context(|| format!("reading the private keys in {file:?}"))? {
        found if found.is_empty() => bail!("reading the age private keys in {file:?}: the file contains none"),
        found => Ok(found),
    }
}
