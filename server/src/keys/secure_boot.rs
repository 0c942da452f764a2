//! The site's keys for UEFI Secure Boot. A machine that has them boots what is signed with them and, unless the
//! operator excluded it, what Microsoft has signed.
//!
//! Everything is in one file of the data folder, so that each change is atomic.

mod stored;

use base16ct::lower::encode_string as hex;
use base16ct::mixed;
use slipway_protocol::ErrorCode;
use slipway_secure_boot::lists::{self, Content, Entry};
use slipway_secure_boot::{Certificate, SigningKey, Uuid, Variable, Write, microsoft, register_7, update};
use time::OffsetDateTime;

pub use self::stored::{Imported, Revoked};
use self::stored::{Stored, StoredKey, key, read_key, save, signer_name};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::keys::pkcs11;

/// Name of the file in the data folder.
pub const FILE: &str = "secure-boot.json";

/// The keys of a site.
pub struct SecureBoot {
    stored: Stored,
    owner: Uuid,
    pk: SigningKey,
    kek: SigningKey,
    db: SigningKey,
    next_db: Option<SigningKey>,
}

/// The initial keys of a site. Keys that are not imported are made.
#[derive(Default)]
pub struct Beginning {
    /// Platform key.
    pub pk: Option<Imported>,
    /// Key exchange key, which signs changes of the signature lists.
    pub kek: Option<Imported>,
    /// Signature key, which signs programs.
    pub db: Option<Imported>,
    /// Whether to exclude Microsoft's certificates.
    pub without_microsoft: bool,
}

/// A signed update of a firmware variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The variable to write.
    pub variable: Variable,
    /// Whether the update replaces the variable's content or adds to it.
    pub write: Write,
    /// The content without a signature: EFI_SIGNATURE_LIST structures.
    pub lists: Vec<u8>,
    /// Time stamp, signature and content: what follows the attributes in efivarfs.
    pub signed: Vec<u8>,
}

impl SecureBoot {
    /// Reads the keys of this data folder. `None` if it has none.
    pub fn open(data: &DataDir) -> Result<Option<Self>, Error> {
        let Some(text) = data.read(FILE)? else { return Ok(None) };
        // Without the parser's message, which may contain part of a key.
        let stored: Stored = serde_json::from_str(&text).map_err(|error| {
            let message = format!(
                "{:?} does not have slipway's format of Secure Boot keys (line {}, column {}): restore it \
                 from a backup",
                data.path(FILE),
                error.line(),
                error.column()
            );
            Error::refused(ErrorCode::Conflict, message)
        })?;
        Self::new(stored).map(Some)
    }

    /// Makes or imports the keys of a site. Fails if the site already has keys.
    pub fn begin(data: &DataDir, beginning: Beginning, now: OffsetDateTime) -> Result<Self, Error> {
        let has_none = || match data.read(FILE)? {
            None => Ok(()),
            Some(_) => {
                let message = "this data folder already has Secure Boot keys; `slipway-server keys show` shows them, \
                               and `slipway-server keys rotate` replaces the one that signs programs";
                Err(Error::refused(ErrorCode::Conflict, message))
            }
        };
        has_none()?;
        // Done before the folder is locked: a token may be slow, and the lock would keep the server from starting.
        let pk = key(beginning.pk, "slipway Secure Boot platform key (PK)", now)?;
        let kek = key(beginning.kek, "slipway Secure Boot key exchange key (KEK)", now)?;
        let db = key(beginning.db, &signer_name(now), now)?;
        let stored = Stored {
            owner: new_owner().to_string(),
            microsoft: !beginning.without_microsoft,
            pk,
            kek,
            db,
            next_db: None,
            revoked: Vec::new(),
        };
        let _lock = data.lock()?;
        has_none()?;
        save(data, &stored)?;
        Self::new(stored)
    }

    fn new(stored: Stored) -> Result<Self, Error> {
        let open = |key: &StoredKey| read_key(key.key.reveal(), &key.certificate).map_err(failed("reading"));
        let (pk, kek, db) = (open(&stored.pk)?, open(&stored.kek)?, open(&stored.db)?);
        let next_db = stored.next_db.as_ref().map(open).transpose()?;
        let owner = stored.owner.parse().map_err(failed("reading the owner of lists"))?;
        Ok(Self { stored, owner, pk, kek, db, next_db })
    }

    /// The key that signs boot files.
    pub fn signer(&self) -> &SigningKey {
        &self.db
    }

    /// The site's certificates, each with its use.
    pub fn certificates(&self) -> Vec<(&'static str, &Certificate)> {
        let own = [("PK", &self.pk), ("KEK", &self.kek), ("db", &self.db)];
        let next = self.next_db.iter().map(|key| ("next db", key));
        own.into_iter().chain(next).map(|(name, key)| (name, key.certificate())).collect()
    }

    /// The PKCS #11 URIs of keys that are in tokens, each with the key's use.
    pub fn in_tokens(&self) -> Vec<(&'static str, &str)> {
        let own = [("PK", &self.stored.pk), ("KEK", &self.stored.kek), ("db", &self.stored.db)];
        let next = self.stored.next_db.iter().map(|key| ("next db", key));
        let uris = own.into_iter().chain(next).map(|(name, key)| (name, key.key.reveal()));
        uris.filter(|(_, key)| pkcs11::is_uri(key)).collect()
    }

    /// SHA-256 of the platform key's certificate, in hexadecimal, which identifies machines with these keys.
    pub fn platform_key(&self) -> String {
        hex(&self.pk.certificate().sha256())
    }

    /// Whether the signature lists include Microsoft's certificates.
    pub fn has_microsoft(&self) -> bool {
        self.stored.microsoft
    }

    /// Certificates and programs that must no longer boot.
    pub fn revoked(&self) -> &[Revoked] {
        &self.stored.revoked
    }

    /// Begins to replace the signature key: machines get both keys, and the old one continues to sign.
    pub fn begin_rotation(data: &DataDir, imported: Option<Imported>, now: OffsetDateTime) -> Result<Self, Error> {
        let has_none = |keys: &Self| match keys.next_db {
            None => Ok(()),
            Some(_) => {
                let message = "a rotation is already in progress; end it with `slipway-server keys rotate --finish` or \
                               --cancel";
                Err(Error::refused(ErrorCode::Conflict, message))
            }
        };
        has_none(&Self::open(data)?.ok_or_else(no_keys)?)?;
        // Done before the folder is locked, for the same reason as in `begin`.
        let key = key(imported, &signer_name(now), now)?;
        Self::change(data, |keys| {
            has_none(keys)?;
            if key.certificate == keys.db.certificate().to_pem() {
                // The end of the rotation would revoke the current key, and nothing would boot any more.
                let message = "the new key is the current one; give another with --key, or leave --key out to make one";
                return Err(Error::refused(ErrorCode::Conflict, message));
            }
            keys.stored.next_db = Some(key);
            Ok(())
        })
    }

    /// Ends the rotation: the new key signs, and what the old one signed no longer boots.
    pub fn finish_rotation(data: &DataDir) -> Result<Self, Error> {
        Self::change(data, |keys| {
            let next = keys.stored.next_db.take().ok_or_else(no_rotation)?;
            let old = std::mem::replace(&mut keys.stored.db, next);
            keys.stored.revoked.push(Revoked::Certificate(old.certificate));
            Ok(())
        })
    }

    /// Cancels the rotation and removes the new key.
    pub fn cancel_rotation(data: &DataDir) -> Result<Self, Error> {
        Self::change(data, |keys| keys.stored.next_db.take().map(drop).ok_or_else(no_rotation))
    }

    /// Revokes a program by its digest (Authenticode, SHA-256).
    pub fn revoke(data: &DataDir, digest: [u8; 32]) -> Result<Self, Error> {
        Self::change(data, |keys| {
            let program = Revoked::Program(hex(&digest));
            if !keys.stored.revoked.contains(&program) {
                keys.stored.revoked.push(program);
            }
            Ok(())
        })
    }

    fn change(data: &DataDir, change: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<Self, Error> {
        let _lock = data.lock()?;
        let mut keys = Self::open(data)?.ok_or_else(no_keys)?;
        change(&mut keys)?;
        save(data, &keys.stored)?;
        Self::new(keys.stored)
    }

    /// Signs updates of all variables, in the order in which a machine in Setup Mode accepts them. A machine that
    /// already has the site's keys accepts them too, because these keys sign the updates. `now` is their time stamp:
    /// firmware accepts only updates with a later time stamp than the previous ones.
    pub fn updates(&self, now: OffsetDateTime) -> Result<Vec<Update>, Error> {
        let signed = |variable: Variable| {
            let signer = match variable {
                Variable::Pk | Variable::Kek => &self.pk,
                Variable::Db | Variable::Dbx => &self.kek,
            };
            // Other revocations, such as Microsoft's, are kept.
            let write = if variable == Variable::Dbx { Write::Append } else { Write::Replace };
            let lists = lists::build(&self.entries(variable)?);
            let signed = update(variable, write, &lists, now, signer).map_err(failed("signing"))?;
            Ok(Update { variable, write, lists, signed })
        };
        let wanted = |variable: &Variable| *variable != Variable::Dbx || !self.stored.revoked.is_empty();
        Variable::ENROLMENT.into_iter().filter(wanted).map(signed).collect()
    }

    /// Computes the value of TPM register 7, in hexadecimal, on a machine that has these keys, enforces them and boots
    /// the site's boot files. The value differs on a machine that had a dbx before, or has cards whose option ROMs are
    /// started.
    pub fn register_7(&self) -> Result<String, Error> {
        let lists = [Variable::Pk, Variable::Kek, Variable::Db, Variable::Dbx];
        let entries = lists.map(|variable| self.entries(variable).map(|entries| (variable, entries)));
        let [pk, kek, db, dbx] = entries;
        let lists = [pk?, kek?, db?, dbx?];
        let variables = lists.each_ref().map(|(variable, entries)| (*variable, &entries[..]));
        let own = Entry::certificate(self.owner, self.db.certificate());
        Ok(hex(&register_7(variables, &own)))
    }

    fn entries(&self, variable: Variable) -> Result<Vec<Entry>, Error> {
        let own = |key: &SigningKey| Entry::certificate(self.owner, key.certificate());
        let mut entries = match variable {
            Variable::Pk => vec![own(&self.pk)],
            Variable::Kek => vec![own(&self.kek)],
            Variable::Db => [Some(&self.db), self.next_db.as_ref()].into_iter().flatten().map(own).collect(),
            Variable::Dbx => self.stored.revoked.iter().map(|revoked| self.entry(revoked)).collect::<Result<_, _>>()?,
        };
        if self.stored.microsoft {
            entries.extend(microsoft::entries(variable).map_err(failed("making lists"))?);
        }
        Ok(entries)
    }

    fn entry(&self, revoked: &Revoked) -> Result<Entry, Error> {
        let owner = self.owner;
        match revoked {
            Revoked::Certificate(pem) => {
                Ok(Entry::certificate(owner, &Certificate::from_pem(pem).map_err(failed("making lists"))?))
            }
            Revoked::Program(digits) => {
                let digest = mixed::decode_vec(digits).ok().and_then(|digest| digest.try_into().ok());
                let digest = digest.ok_or("a digest is not SHA-256 in hexadecimal").map_err(failed("reading"))?;
                Ok(Entry { owner, content: Content::Sha256(digest) })
            }
        }
    }
}

/// Makes a random GUID (RFC 9562, section 5.4).
fn new_owner() -> Uuid {
    let mut bytes = crate::base::random::bytes::<16>();
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Uuid::from_bytes(bytes)
}

/// Returns the error that there are no keys in the data folder.
pub fn no_keys() -> Error {
    let message = "this data folder has no Secure Boot keys: make them with `slipway-server keys init`";
    Error::refused(ErrorCode::NotFound, message)
}

fn no_rotation() -> Error {
    Error::refused(ErrorCode::NotFound, "no rotation is in progress: begin one with `slipway-server keys rotate`")
}

/// Returns a function that makes errors with the name of the operation, for faults in [`FILE`].
fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(doing: &'static str) -> impl Fn(E) -> Error {
    move |source| Error::SecureBoot { doing, source: source.into() }
}
