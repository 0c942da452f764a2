//! UEFI Secure Boot: keys and certificates, signed EFI programs, lists of allowed and forbidden programs, and signed
//! updates of the variables that hold these lists. Pure: no input or output.
//!
//! The certificate of a machine's owner is the variable [`Variable::Pk`]. Its key signs changes of [`Variable::Kek`],
//! whose keys sign changes of [`Variable::Db`] and [`Variable::Dbx`]. A program starts if `db` contains its digest or a
//! certificate that verifies its signature, and `dbx` contains neither. Without a PK, the firmware is in Setup Mode and
//! accepts any lists.

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
