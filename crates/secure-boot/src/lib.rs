//! What UEFI Secure Boot is made of: keys and certificates, signed EFI programs, lists of what firmware may start, and signed
//! updates of the variables that hold these lists. Bytes in, bytes or a judgement out: no input or output.
//!
//! Firmware has one owner, whose certificate is the variable [`Variable::Pk`]. The owner signs changes of
//! [`Variable::Kek`], whose keys sign changes of [`Variable::Db`] and [`Variable::Dbx`]. A program starts if `db` has a
//! certificate that leads to its signature, or its digest, and `dbx` has neither. While there is no PK, the firmware is in
//! Setup Mode and takes any lists.

pub mod authenticode;
mod certificate;
mod detached;
mod key_error;
mod keys;
pub mod lists;
mod measured;
pub mod microsoft;
mod pe;
mod pkcs7;
mod private_key;
mod variable;

pub use certificate::{Certificate, CertificateError};
pub use detached::sign as sign_detached;
pub use key_error::KeyError;
pub use keys::{SignElsewhere, SigningKey};
pub use measured::register_7;
pub use pe::ImageError;
pub use private_key::{KeySize, generate_rsa_key};
pub use uuid::Uuid;
pub use variable::{UpdateError, Variable, Write, update};
