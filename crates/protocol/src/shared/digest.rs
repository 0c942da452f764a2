//! Digests as workflows write them: `sha256:HEX`, `sha384:HEX` or `sha512:HEX`. This is the spelling of the OCI image
//! specification (descriptor.md, "Digests").

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A hash function that slipway computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// SHA-256, 64 hexadecimal digits.
    Sha256,
    /// SHA-384, 96 hexadecimal digits.
    Sha384,
    /// SHA-512, 128 hexadecimal digits.
    Sha512,
}

impl Algorithm {
    /// Returns the name in front of the colon.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha384 => "sha384",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// Returns the number of hexadecimal digits of the value.
    pub fn hex_len(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha384 => 96,
            Algorithm::Sha512 => 128,
        }
    }
}

/// A digest: an algorithm and a hexadecimal value in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

/// The reason why a text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum DigestError {
    /// The text has no `algorithm:` prefix, or slipway does not compute this algorithm.
    #[error("digest {text:?} does not start with \"sha256:\", \"sha384:\" or \"sha512:\"")]
    Algorithm { text: String },
    /// The value has the wrong number of digits.
    #[error("digest {text:?} has {found} digits after the colon, but {algorithm} has {expected}")]
    Length { text: String, algorithm: &'static str, found: usize, expected: usize },
    /// The value has a character other than 0-9, a-f and A-F.
    #[error("digest {text:?} has {found:?} at position {position}, which is not a hexadecimal digit")]
    Digit {
        text: String,
        found: char,
        /// The position of `found` in the text, counted in characters from 1.
        position: usize,
    },
}

impl Digest {
    /// Makes a digest from its algorithm and its hexadecimal value. Upper and lower case are allowed.
    pub fn new(algorithm: Algorithm, hex: &str) -> Result<Self, DigestError> {
        let text = format!("{}:{hex}", algorithm.name());
        let prefix = algorithm.name().len() + 1;
        if let Some(at) = hex.chars().position(|c| !c.is_ascii_hexdigit()) {
            let found = hex.chars().nth(at).unwrap_or_default();
            return Err(DigestError::Digit { text, found, position: prefix + at + 1 });
        }
        if hex.len() != algorithm.hex_len() {
            let (found, expected) = (hex.len(), algorithm.hex_len());
            return Err(DigestError::Length { text, algorithm: algorithm.name(), found, expected });
        }
        Ok(Self { algorithm, hex: hex.to_ascii_lowercase() })
    }

    /// Returns the hash function.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the value as hexadecimal digits in lower case.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        match text.split_once(':') {
            Some(("sha256", hex)) => Self::new(Algorithm::Sha256, hex),
            Some(("sha384", hex)) => Self::new(Algorithm::Sha384, hex),
            Some(("sha512", hex)) => Self::new(Algorithm::Sha512, hex),
            _ => Err(DigestError::Algorithm { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Digest {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = utoipa::openapi::schema::ObjectBuilder::new().schema_type(utoipa::openapi::schema::Type::String);
        text.pattern(Some(r"^(sha256:[0-9a-fA-F]{64}|sha384:[0-9a-fA-F]{96}|sha512:[0-9a-fA-F]{128})$")).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Digest {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<String, &str>) {
        match (text.parse::<Digest>(), expect) {
            (Ok(digest), Ok(expect)) => assert_eq!(digest.to_string(), expect),
            (Err(error), Err(expect)) => assert_eq!(error.to_string(), expect),
            (found, expect) => panic!("{text:?} gave {found:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn a_digest_is_an_algorithm_and_its_hexadecimal_value() {
        let hex = "0123456789ABCDEF".repeat(4);
        check(&format!("sha256:{hex}"), Ok(format!("sha256:{}", hex.to_lowercase())));
        check(
            &format!("sha384:{}", &hex.repeat(2)[..96]),
            Ok(format!("sha384:{}", &hex.to_lowercase().repeat(2)[..96])),
        );
        check(&format!("sha512:{hex}{hex}"), Ok(format!("sha512:{}", hex.to_lowercase().repeat(2))));
        check("md5:00", Err("digest \"md5:00\" does not start with \"sha256:\", \"sha384:\" or \"sha512:\""));
        check("sha256:00", Err("digest \"sha256:00\" has 2 digits after the colon, but sha256 has 64"));
        check("sha256:0g", Err("digest \"sha256:0g\" has 'g' at position 9, which is not a hexadecimal digit"));
    }
}
