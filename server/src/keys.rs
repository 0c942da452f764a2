//! Keys and certificates of the site: the CA, tokens, Secure Boot, and what is encrypted to operators.

pub mod ca;
pub mod certificate;
pub mod jwt;
pub mod pkcs11;
pub mod seal;
pub mod secure_boot;
