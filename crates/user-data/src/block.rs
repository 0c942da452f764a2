//! The `phone_home` block (cloud-init documentation, module "Phone Home").

use std::fmt;
use std::str::FromStr;

use slipway_protocol::PhoneHome;

/// Keys that can be posted, as named by cloud-init.
const KEYS: &[&str] =
    &["pub_key_dsa", "pub_key_rsa", "pub_key_ecdsa", "pub_key_ed25519", "instance_id", "hostname", "fqdn"];

/// Where and how the installed system reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// URL that cloud-init posts to.
    pub url: String,
    /// Keys to post.
    pub post: Post,
    /// Number of tries, 3 s apart; cloud-init's default is 10.
    pub tries: Option<u32>,
}

/// Keys to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Post {
    /// All keys that cloud-init knows.
    All,
    /// These keys.
    Keys(Vec<String>),
}

impl Post {
    /// A regular expression of the texts that are read as this type.
    pub fn pattern() -> String {
        let key = format!("({})", KEYS.join("|"));
        format!(r"^(all|\s*{key}\s*(,\s*{key}\s*)*)$")
    }
}

/// A text that is neither `all` nor a list of known keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cloud-init cannot post {key:?}{}; give \"all\" alone, or some of {}, separated by commas",
    if key == "all" { " beside other keys" } else { "" },
    KEYS.join(", ")
)]
pub struct UnknownKey {
    /// The unknown key.
    pub key: String,
}

impl FromStr for Post {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        if text == "all" {
            return Ok(Self::All);
        }
        let keys = text.split(',').map(str::trim).map(|key| {
            let known = KEYS.contains(&key);
            known.then(|| key.to_owned()).ok_or_else(|| UnknownKey { key: key.to_owned() })
        });
        keys.collect::<Result<_, _>>().map(Self::Keys)
    }
}

impl fmt::Display for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Keys(keys) => f.write_str(&keys.join(",")),
        }
    }
}

impl From<&PhoneHome> for Block {
    fn from(phone_home: &PhoneHome) -> Self {
        Self { url: phone_home.url.clone(), post: Post::All, tries: phone_home.tries }
    }
}

/// Why cloud-init could not post to a URL. cloud-init replaces `$INSTANCE_ID` and fails on any other name after a `$`.
pub fn url_problem(url: &str) -> Option<&'static str> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    if !matches!(scheme.as_deref(), Some("http" | "https")) {
        return Some("it does not begin with https:// or http://");
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("it contains white space");
    }
    let names = url.split('$').skip(1).map(|rest| rest.strip_prefix('{').unwrap_or(rest));
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let mut names = names.map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]);
    let unknown = names.any(|name| !matches!(name, "" | "INSTANCE_ID"));
    unknown.then_some("cloud-init replaces a name after a $, but knows only $INSTANCE_ID; write %24 for a $")
}

impl Block {
    /// The block as lines of YAML, indented to a column, from 0.
    pub(crate) fn lines(&self, column: usize, newline: &str) -> String {
        let mut lines = vec!["phone_home:".to_owned(), format!("  url: {}", self.quoted_url())];
        lines.push(match &self.post {
            Post::All => "  post: all".to_owned(),
            Post::Keys(keys) => format!("  post: [{}]", keys.join(", ")),
        });
        lines.extend(self.tries.map(|tries| format!("  tries: {tries}")));
        let margin = " ".repeat(column);
        lines.into_iter().map(|line| format!("{margin}{line}{newline}")).collect()
    }

    /// The block as an entry of a flow mapping, in the subset of YAML that is JSON.
    pub(crate) fn json(&self) -> String {
        let post = match &self.post {
            Post::All => quoted("all"),
            Post::Keys(keys) => format!("[{}]", keys.iter().map(|key| quoted(key)).collect::<Vec<_>>().join(", ")),
        };
        let tries = self.tries.map(|tries| format!(", \"tries\": {tries}")).unwrap_or_default();
        format!("\"phone_home\": {{\"url\": {}, \"post\": {post}{tries}}}", self.quoted_url())
    }

    /// A cloud-config with only the block.
    pub(crate) fn document(&self, newline: &str) -> String {
        format!("#cloud-config{newline}{}", self.lines(0, newline))
    }

    /// The URL in ASCII, because parts of a MIME message are read as ASCII. Without braces, which jinja would
    /// interpret.
    fn quoted_url(&self) -> String {
        let mut ascii = String::new();
        for c in quoted(&self.url).chars() {
            match c {
                c if c.is_ascii() && c != '{' => ascii.push(c),
                c if u32::from(c) <= 0xffff => ascii.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => ascii.push_str(&format!("\\U{:08x}", u32::from(c))),
            }
        }
        ascii
    }
}

/// The text as a double-quoted scalar, valid in YAML 1.2 (YAML 1.2.2, 7.3.1) and YAML 1.1.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
