//! What UEFI Secure Boot is made of. Bytes in, bytes or a judgement out: no input or output.

pub mod authenticode;
mod certificate;
mod keys;
pub mod lists;
mod pe;
pub use certificate::{Certificate, CertificateError};
pub use keys::{KeyError, KeySize, SigningKey, generate_rsa_key};
pub use pe::ImageError;
pub use uuid::Uuid;
