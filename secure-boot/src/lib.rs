//! What UEFI Secure Boot is made of. Bytes in, bytes or a judgement out: no input or output.

mod certificate;
mod keys;
pub use certificate::{Certificate, CertificateError};
pub use keys::{KeyError, KeySize, SigningKey, generate_rsa_key};
