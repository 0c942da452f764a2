//! The site's keys and certificates: the CA, JWTs, Secure Boot, PKCS #11 tokens, and encryption to operators' keys.

pub mod ca;
pub mod certificate;
pub mod in_use;
pub mod jwt;
pub mod pkcs11;
pub mod seal;
pub mod secure_boot;
pub mod vault;
