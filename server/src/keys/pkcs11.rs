//! Private keys in PKCS #11 tokens (OASIS, "PKCS #11 Specification Version 3.1"), such as a hardware security module, a
//! smart card or SoftHSM. The key stays in the token; a library, the *module*, talks to it.

mod fault;
mod pin;
mod uri;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use age::secrecy::ExposeSecret;
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error as ModuleError, RvError};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use hmac::{Hmac, Mac};
use sha2::{Digest as _, Sha256};

pub use self::fault::{Fault, KeyFault};
use self::pin::Pin;
pub use self::uri::{KeyUri, UriError, is_uri};
use crate::base::time::{Millis, now};

/// DER encoding of a DigestInfo for SHA-256, without the digest that follows (RFC 8017, section 9.2, note 1).
const DIGEST_INFO: [u8; 19] = *b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20";
/// Number of bytes passed to a token at a time.
const PIECE: usize = 32 << 10;
/// Maximum number of tokens or keys named in an error, and of keys whose names are read.
const NAMED: usize = 8;
const READ: usize = 100;

/// Loaded modules and refused PINs of this process. One signature is made at a time: few tokens can do more, and a
/// login applies to all of a process's sessions with a token.
static KNOWN: Mutex<Known> = Mutex::new(Known { modules: BTreeMap::new(), refused: Refused::new() });

struct Known {
    /// Loaded modules by path. Each is loaded and initialised once.
    modules: BTreeMap<PathBuf, Pkcs11>,
    refused: Refused,
}

/// PINs that tokens refused.
struct Refused {
    /// PIN files: the token's serial number, the file's path and modification time.
    files: BTreeSet<(String, PathBuf, SystemTime)>,
    /// What all processes of the site know.
    of_site: Option<OfSite>,
}

/// PINs that tokens refused to any process of the site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfSite {
    /// Key of the digests, because somebody could find out a PIN by its digest alone.
    pub secret: [u8; 32],
    /// Digests of the PINs, and when each was refused, in milliseconds since 1970.
    pub refused: BTreeMap<String, Millis>,
}

/// Sets which PINs other processes of the site know to be refused.
pub fn set_refused(of_site: OfSite) {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).refused.of_site = Some(of_site);
}

/// Returns the PINs that are known to be refused, with those that were set.
pub fn refused() -> BTreeMap<String, Millis> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.refused.of_site.as_ref().map(|of_site| of_site.refused.clone()).unwrap_or_default()
}

impl Refused {
    const fn new() -> Self {
        Self { files: BTreeSet::new(), of_site: None }
    }

    fn has(&self, attempt: &(String, PathBuf, SystemTime), pin: &Pin) -> bool {
        let is_known = |of_site: &OfSite| {
            // A file that was written since then is meant to be tried, also if it has the same PIN.
            let refused = of_site.refused.get(&of_site.digest(&attempt.0, pin));
            refused.is_some_and(|at| millis(pin.written) <= *at)
        };
        self.files.contains(attempt) || self.of_site.as_ref().is_some_and(is_known)
    }

    fn add(&mut self, attempt: (String, PathBuf, SystemTime), pin: &Pin) {
        if let Some(of_site) = &mut self.of_site {
            of_site.refused.insert(of_site.digest(&attempt.0, pin), now());
        }
        self.files.insert(attempt);
    }
}

impl OfSite {
    /// HMAC with SHA-256 of a token's serial number and a PIN, in hexadecimal.
    fn digest(&self, token: &str, pin: &Pin) -> String {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        let mac = mac.chain_update(token).chain_update([0]).chain_update(pin.text.expose_secret());
        base16ct::lower::encode_string(&mac.finalize().into_bytes())
    }
}

fn millis(time: SystemTime) -> Millis {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Signs a message in a token: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, section 8.2). Logs in, and out again
/// afterwards. May take seconds, or longer if the token does not answer.
///
/// # Errors
/// Fails if the module, token, PIN or key cannot be used, or the token does not sign.
pub fn sign(key: &KeyUri, message: &[u8]) -> Result<Vec<u8>, KeyFault> {
    sign_in_turn(key, message).map_err(|source| KeyFault { key: key.to_string(), source })
}

fn sign_in_turn(key: &KeyUri, message: &[u8]) -> Result<Vec<u8>, Fault> {
    let Known { modules, refused } = &mut *KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let module = loaded(modules, &key.module)?;
    let (slot, token) = find_token(module, key)?;
    let pin = key.pin.as_deref().map(Pin::read).transpose()?;
    let session = module.open_ro_session(slot).map_err(Fault::call("opening a session with the token"))?;
    log_in(&session, &token, pin.as_ref(), refused)?;
    let object = find_key(&session, key)?;
    // Closing the last session ends the login (section 5.6.2).
    signature(module, slot, &session, object, pin.as_ref(), message)
}

fn loaded<'a>(modules: &'a mut BTreeMap<PathBuf, Pkcs11>, path: &Path) -> Result<&'a Pkcs11, Fault> {
    let place = match modules.entry(path.to_owned()) {
        Entry::Occupied(module) => return Ok(module.into_mut()),
        Entry::Vacant(place) => place,
    };
    // Root must not load a library named in the data folder if others could have changed it, because the folder is not
    // root's.
    let unreadable = |source: io::Error| Fault::Load { path: path.to_owned(), source: source.into() };
    if rustix::process::geteuid().is_root() && !is_of_root(path).map_err(unreadable)? {
        return Err(Fault::NotOfRoot { path: path.to_owned() });
    }
    let module = Pkcs11::new(path).map_err(|error| {
        let source = match error {
            ModuleError::LibraryLoading(source) => source.into(),
            other => other.into(),
        };
        Fault::Load { path: path.to_owned(), source }
    })?;
    match module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        // The same library was already initialised under another path.
        Ok(()) | Err(ModuleError::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(place.insert(module)),
        Err(error) => Err(Fault::call("starting the module")(error)),
    }
}

/// Whether only root can change or replace a file.
fn is_of_root(path: &Path) -> io::Result<bool> {
    let path = path.canonicalize()?;
    for place in path.ancestors() {
        let about = place.metadata()?;
        if about.uid() != 0 || about.mode() & 0o022 != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Finds the only token that matches the URI. Fails if none or several match.
fn find_token(module: &Pkcs11, key: &KeyUri) -> Result<(Slot, TokenInfo), Fault> {
    let slots = module.get_slots_with_token().map_err(Fault::call("looking for tokens"))?;
    // If the token in another slot cannot be read, it is skipped.
    let tokens = slots.into_iter().filter_map(|slot| Some((slot, module.get_token_info(slot).ok()?)));
    let tokens: Vec<_> = tokens.filter(|(_, token)| token.token_initialized()).collect();
    let named = |tokens: &[(Slot, TokenInfo)]| -> Vec<String> {
        let name = |token: &TokenInfo| format!("{:?} (serial {:?})", token.label(), token.serial_number());
        some(tokens.iter().map(|(_, token)| name(token)).collect())
    };
    let is_wanted = |token: &TokenInfo| {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        fits(&key.token, token.label())
            && fits(&key.serial, token.serial_number())
            && fits(&key.manufacturer, token.manufacturer_id())
            && fits(&key.model, token.model())
    };
    let found = named(&tokens);
    let mut wanted: Vec<_> = tokens.into_iter().filter(|(_, token)| is_wanted(token)).collect();
    match (wanted.pop(), wanted.is_empty()) {
        (Some(token), true) => Ok(token),
        (None, _) => Err(Fault::NoToken { found }),
        (Some(last), false) => {
            wanted.push(last);
            Err(Fault::ManyTokens { found: named(&wanted) })
        }
    }
}

/// Logs in, if the token requires it. A PIN that the token refused is not tried again until its file changes.
fn log_in(session: &Session, token: &TokenInfo, pin: Option<&Pin>, refused: &mut Refused) -> Result<(), Fault> {
    let Some(pin) = pin else {
        return if token.login_required() { Err(Fault::NoPin) } else { Ok(()) };
    };
    let attempt = (token.serial_number().to_owned(), pin.path.clone(), pin.written);
    if refused.has(&attempt, pin) {
        return Err(Fault::WrongPin { path: pin.path.clone() });
    }
    if token.user_pin_locked() {
        return Err(Fault::Locked);
    }
    if token.user_pin_final_try() {
        return Err(Fault::LastTry);
    }
    let done = login(session, UserType::User, pin);
    if let Err(Fault::WrongPin { .. }) = done {
        refused.add(attempt, pin);
    }
    done
}

fn login(session: &Session, user: UserType, pin: &Pin) -> Result<(), Fault> {
    match session.login(user, Some(&pin.text)) {
        Ok(()) | Err(ModuleError::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
        Err(ModuleError::Pkcs11(RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange, _)) => {
            Err(Fault::WrongPin { path: pin.path.clone() })
        }
        Err(ModuleError::Pkcs11(RvError::PinLocked, _)) => Err(Fault::Locked),
        Err(error) => Err(Fault::call("logging in")(error)),
    }
}

/// Finds the only private key that matches the URI. Fails if none or several match, or if the key is not RSA.
fn find_key(session: &Session, key: &KeyUri) -> Result<ObjectHandle, Fault> {
    let looking = Fault::call("looking for the key");
    let any = vec![Attribute::Class(ObjectClass::PRIVATE_KEY)];
    let mut wanted = any.clone();
    wanted.extend(key.object.as_ref().map(|label| Attribute::Label(label.clone().into_bytes())));
    wanted.extend(key.id.as_ref().map(|id| Attribute::Id(id.clone())));
    let found = session.find_objects(&wanted).map_err(&looking)?;
    match found[..] {
        [object] => {
            let kind = session.get_attributes(object, &[AttributeType::KeyType]).map_err(&looking)?;
            let is_rsa = kind.iter().any(|attribute| matches!(attribute, Attribute::KeyType(KeyType::RSA)));
            if is_rsa { Ok(object) } else { Err(Fault::NotRsa) }
        }
        [] => Err(Fault::NoKey { found: named(session, &session.find_objects(&any).map_err(&looking)?) }),
        _ => Err(Fault::ManyKeys { found: named(session, &found) }),
    }
}

/// Reads the labels and ids of keys, and encodes them as in a URI.
fn named(session: &Session, objects: &[ObjectHandle]) -> Vec<String> {
    let name = |object: &ObjectHandle| {
        let attributes =
            session.get_attributes(*object, &[AttributeType::Label, AttributeType::Id]).unwrap_or_default();
        let part = |attribute: &Attribute| match attribute {
            Attribute::Label(label) => Some(format!("object={}", encoded(label, |byte| byte.is_ascii_alphanumeric()))),
            Attribute::Id(id) => Some(format!("id={}", encoded(id, |_| false))),
            _ => None,
        };
        attributes.iter().filter_map(part).collect::<Vec<_>>().join(";")
    };
    some(objects.iter().take(READ).map(name).collect())
}

/// Sorts names alphabetically and keeps the first [`NAMED`]. A module lists them in any order.
fn some(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.truncate(NAMED);
    names
}

fn encoded(bytes: &[u8], is_plain: fn(u8) -> bool) -> String {
    let letter = |byte: &u8| match is_plain(*byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    bytes.iter().map(letter).collect()
}

/// Makes the token sign. Usually the token gets only the digest, as most programs do it and so that the message can
/// have any length. A key that requires the PIN for each signature, such as a PIV card's signature key, gets the PIN
/// between the start and the message, which must then be passed in pieces.
fn signature(
    module: &Pkcs11,
    slot: Slot,
    session: &Session,
    key: ObjectHandle,
    pin: Option<&Pin>,
    message: &[u8],
) -> Result<Vec<u8>, Fault> {
    let signing = Fault::call("signing");
    let offered = module.get_mechanism_list(slot).map_err(&signing)?;
    let signs = |kind| offered.contains(&kind) && module.get_mechanism_info(slot, kind).is_ok_and(|it| it.sign());
    let always = session.get_attributes(key, &[AttributeType::AlwaysAuthenticate]).unwrap_or_default();
    let wants_pin = always.contains(&Attribute::AlwaysAuthenticate(true));
    if !wants_pin && signs(MechanismType::RSA_PKCS) {
        let info = [&DIGEST_INFO[..], &Sha256::digest(message)].concat();
        return session.sign(&Mechanism::RsaPkcs, key, &info).map_err(signing);
    }
    if !signs(MechanismType::SHA256_RSA_PKCS) {
        return Err(Fault::NoMechanism);
    }
    session.sign_init(&Mechanism::Sha256RsaPkcs, key).map_err(&signing)?;
    if wants_pin {
        login(session, UserType::ContextSpecific, pin.ok_or(Fault::NoPin)?)?;
    }
    for piece in message.chunks(PIECE) {
        session.sign_update(piece).map_err(&signing)?;
    }
    session.sign_final().map_err(signing)
}
