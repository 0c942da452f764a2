//! Records which boot files a machine that must be attested may have started.

use serde::Serialize;
use slipway_media::Manifest;
use slipway_protocol::{ErrorCode, Secret, SiteEventKind};
use slipway_secure_boot::authenticode;

use crate::base::error::Error;
use crate::base::random::token_hash;
use crate::base::time::now;
use crate::store;
use crate::store::boot_builds::{self, Build, Program};
use crate::store::history::{self, NewEvent};
use crate::store::published::{self, Published};
use crate::store::{Store, Transaction, settings, tokens};

/// What is said in place of a server that boot files do not name.
pub const SAID_BY_METADATA: &str = "the server that metadata names";

/// What a machine that must be attested may have started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnownBootFiles {
    /// Whether a machine that must be attested is let in only if it started one of the builds.
    pub required: bool,
    /// The builds, the newest first.
    pub builds: Vec<Build>,
    /// Programs that may start before boot files, such as boot loaders.
    pub programs: Vec<Program>,
    /// The builds that servers take from the bucket, the newest first. Servers hand out that one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

/// Records a build, so that machines that started its files are known. `token` is the bootstrap token in it.
pub async fn record(store: &Store, manifest: &Manifest, token: Option<&Secret>) -> Result<(), Error> {
    let token = token.map(|token| tokens::id(&token_hash(token.reveal())).to_owned());
    let build = Build { id: manifest.id.clone(), at: now(), token, measurements: manifest.measurements.clone() };
    let mut transaction = store.write().await?;
    boot_builds::save(&mut transaction, &build).await?;
    did(&mut transaction, made(manifest)).await?;
    store::commit(transaction).await
}

/// Records in the history alone that boot files were made, which nobody vouches for.
pub async fn tell(store: &Store, manifest: &Manifest) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    did(&mut transaction, made(manifest)).await?;
    store::commit(transaction).await
}

fn made(manifest: &Manifest) -> String {
    let server = manifest.server.as_deref().unwrap_or(SAID_BY_METADATA);
    format!("the boot files {} were made, for {server}", manifest.id)
}

async fn did(transaction: &mut Transaction, what: impl Into<String>) -> Result<(), Error> {
    history::did(transaction, SiteEventKind::Operator, NewEvent::new(what), now()).await
}

/// Returns all recorded builds and programs, and whether machines must have started them.
pub async fn known(store: &Store) -> Result<KnownBootFiles, Error> {
    let mut connection = store.read().await?;
    Ok(KnownBootFiles {
        required: settings::read(&mut connection, settings::ATTESTED_BOOT).await?.is_none(),
        builds: boot_builds::all(&mut connection).await?,
        programs: boot_builds::programs(&mut connection).await?,
        published: published::all(&mut connection).await?,
    })
}

/// Sets whether machines that must be attested are let in only if they started recorded boot files.
pub async fn require(store: &Store, required: bool) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    match required {
        true => settings::remove(&mut transaction, settings::ATTESTED_BOOT).await?,
        false => settings::write(&mut transaction, settings::ATTESTED_BOOT, "any").await?,
    }
    let what = if required { "only known boot files" } else { "anything" };
    did(&mut transaction, format!("machines that must be attested may have started {what}")).await?;
    store::commit(transaction).await
}

/// Lets a program start before boot files, such as a boot loader. Returns its Authenticode digest.
pub async fn allow(store: &Store, name: &str, program: &[u8]) -> Result<String, Error> {
    let digest = authenticode::digest(program)
        .map_err(|error| Error::refused(ErrorCode::InvalidRequest, format!("{name:?} cannot be allowed: {error}")))?;
    let program = Program { digest: base16ct::lower::encode_string(&digest), name: name.to_owned(), at: now() };
    let mut transaction = store.write().await?;
    boot_builds::save_program(&mut transaction, &program).await?;
    did(&mut transaction, format!("the program {name} ({}) may start before boot files", program.digest)).await?;
    store::commit(transaction).await?;
    Ok(program.digest)
}

/// Forgets a build by its id, or a program by its digest. Machines that must be attested are then held if they started
/// it.
pub async fn forget(store: &Store, reference: &str) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    if !boot_builds::remove(&mut transaction, reference).await? {
        let message = format!(
            "no boot files have the id {reference:?}, and no program that is allowed has this digest; \
             `slipway-server media list` shows both"
        );
        return Err(Error::refused(ErrorCode::NotFound, message));
    }
    did(&mut transaction, format!("the boot files or the program {reference} were forgotten")).await?;
    store::commit(transaction).await
}
