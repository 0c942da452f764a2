//! Phone-home settings of an operating system, a workflow or a run.

use serde::{Deserialize, Serialize};
use slipway_protocol::ErrorCode;
use slipway_user_data::{Block, Post, UnknownKey};

use crate::base::error::Error;

/// Number of attempts, cloud-init's own default. The number is written explicitly, because cloud-init 22.4 logs a
/// traceback without it (cloudinit/config/cc_phone_home.py).
const TRIES: u32 = 10;

/// The keys that a system posts, written as `all` or as key names separated by commas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PostKeys(pub Post);

impl TryFrom<String> for PostKeys {
    type Error = UnknownKey;

    fn try_from(text: String) -> Result<Self, UnknownKey> {
        text.parse().map(Self)
    }
}

impl From<PostKeys> for String {
    fn from(keys: PostKeys) -> Self {
        keys.0.to_string()
    }
}

impl utoipa::PartialSchema for PostKeys {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
        text.pattern(Some(Post::pattern())).into()
    }
}

impl utoipa::ToSchema for PostKeys {}

/// The settings of an operating system, a workflow or a run. `None` leaves the decision to the more general one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhoneHomeSettings {
    /// Whether the installed system reports that it is up.
    pub on: Option<bool>,
    /// Which keys the system posts.
    pub post: Option<PostKeys>,
    /// How often the system tries to report.
    pub tries: Option<u32>,
}

impl PhoneHomeSettings {
    /// Returns these settings, with those of `other` where they are `None`.
    pub fn or(self, other: PhoneHomeSettings) -> Self {
        Self { on: self.on.or(other.on), post: self.post.or(other.post), tries: self.tries.or(other.tries) }
    }

    /// Refuses settings that no system could follow, such as 0 attempts.
    pub fn check(&self) -> Result<(), Error> {
        if self.tries == Some(0) {
            let message = "phone_home_tries must not be 0: leave it out for 10 tries, or set phone_home to false";
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        Ok(())
    }

    /// Returns the cloud-config block that makes a system report to this URL.
    pub fn block(self, url: String) -> Block {
        let post = self.post.map_or(Post::All, |keys| keys.0);
        Block { url, post, tries: Some(self.tries.unwrap_or(TRIES)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_left_to_the_next() {
        let settings = |on, post: Option<&str>, tries| PhoneHomeSettings {
            on,
            post: post.map(|post| PostKeys(post.parse().expect("keys"))),
            tries,
        };
        let system = settings(Some(true), Some("hostname"), Some(3));
        assert_eq!(PhoneHomeSettings::default().or(system.clone()), system);
        let run = settings(Some(false), None, Some(4));
        assert_eq!(run.or(system), settings(Some(false), Some("hostname"), Some(4)));
        let block = PhoneHomeSettings::default().block("u".to_owned());
        assert_eq!((block.post, block.tries), (Post::All, Some(10)));
        settings(None, None, Some(0)).check().expect_err("no tries");
    }
}
