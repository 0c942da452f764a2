//! Authentication that a server demands with a 401: the `WWW-Authenticate` header (RFC 9110, 11.6.1).

use std::borrow::Cow;

/// Most characters of the name of an unknown scheme that are kept.
const LONGEST_NAME: usize = 32;

/// A way to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// With user and password (RFC 7617).
    Basic,
    /// With a token from the server at `realm`.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// Service that the token is for.
        service: Option<String>,
        /// Each access that the token has to grant.
        scopes: Vec<String>,
    },
    /// With something that is not supported: its name, for messages.
    Other(String),
}

/// All challenges of a header, in its order. What cannot be understood is left out.
pub fn parse(header: &str) -> Vec<Challenge> {
    let mut offers: Vec<Offer> = Vec::new();
    for element in elements(header) {
        let (scheme, after) = token(element);
        let rest = match after.trim_start().starts_with('=') {
            // A further parameter of the challenge before it.
            true => element,
            false if scheme.is_empty() => continue,
            false => {
                offers.push(Offer { scheme, parameters: Vec::new() });
                after
            }
        };
        if let Some(offer) = offers.last_mut() {
            offer.parameters.extend(parameters(rest));
        }
    }
    offers.into_iter().map(Offer::into_challenge).collect()
}

/// A challenge as it is in the header.
struct Offer<'a> {
    scheme: &'a str,
    /// Names and values. A token68 gives no parameter, or one with a meaningless name.
    parameters: Vec<(&'a str, Cow<'a, str>)>,
}

impl Offer<'_> {
    fn into_challenge(self) -> Challenge {
        if self.scheme.eq_ignore_ascii_case("basic") {
            return Challenge::Basic;
        }
        if !self.scheme.eq_ignore_ascii_case("bearer") {
            return Challenge::Other(self.scheme.chars().take(LONGEST_NAME).collect());
        }
        let (mut realm, mut service, mut scopes) = (None, None, Vec::new());
        for (name, value) in self.parameters {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.into_owned()),
                "service" => service = Some(value.into_owned()),
                "scope" => scopes.extend(value.split_ascii_whitespace().map(str::to_owned)),
                _ => {}
            }
        }
        match realm {
            Some(realm) => Challenge::Bearer { realm, service, scopes },
            None => Challenge::Other("Bearer without a realm".to_owned()),
        }
    }
}

/// The elements of a list: what is between commas that are not in a quoted string (RFC 9110, 5.6.1 and 5.6.4).
fn elements(header: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_end = move |c: char| {
        let is_end = c == ',' && !is_quoted;
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
        is_end
    };
    header.split(is_end).map(|element| element.trim_matches([' ', '\t']))
}

/// The token at the start (RFC 9110, 5.6.2), and the rest.
fn token(text: &str) -> (&str, &str) {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    text.split_at(text.find(|c| !is_token(c)).unwrap_or(text.len()))
}

/// Names and values of parameters, which some servers separate by spaces instead of commas.
fn parameters(mut text: &str) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    std::iter::from_fn(move || {
        let (name, after) = token(text.trim_start());
        let value = after.trim_start().strip_prefix('=')?.trim_start();
        let (value, rest) = match value.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            // A URL is not a token, but a value without quotes may be a URL.
            None => value.split_at_checked(value.find([' ', '\t']).unwrap_or(value.len())).map(borrowed)?,
        };
        text = rest;
        Some((name, value))
    })
}

fn borrowed<'a>((value, rest): (&'a str, &'a str)) -> (Cow<'a, str>, &'a str) {
    (Cow::Borrowed(value), rest)
}

/// The value of a quoted string after its first quote, and the rest. None if the closing quote is missing.
fn unquoted(quoted: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut value = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return Some((Cow::Owned(value), chars.as_str())),
            '\\' => value.push(chars.next()?),
            c => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scopes: &[&str]) -> Challenge {
        let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned), scopes }
    }

    fn other(name: &str) -> Challenge {
        Challenge::Other(name.to_owned())
    }

    fn check(header: &str, expect: &[Challenge]) {
        assert_eq!(parse(header), expect, "{header}");
    }

    #[test]
    fn a_challenge_says_where_a_token_is_given_out_and_for_what() {
        check(
            r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#,
            &[bearer("https://auth.example/token", Some("registry.example"), &["repository:a/b:pull,push"])],
        );
        check(r#"bearer  Scope="a" , realm=https://x/y , error="t""#, &[bearer("https://x/y", None, &["a"])]);
        check(r#"Bearer realm="a\"b\\c, Basic""#, &[bearer(r#"a"b\c, Basic"#, None, &[])]);
        check("Bearer\trealm = \"a\" , scope\t=\t\"b c\"", &[bearer("a", None, &["b", "c"])]);
        check(r#"Bearer realm="a" service="b",scope="c",scope="d""#, &[bearer("a", Some("b"), &["c", "d"])]);
        check(r#"BEARER ,, realm="größer",service="""#, &[bearer("größer", Some(""), &[])]);
    }

    #[test]
    fn every_challenge_of_a_header_counts() {
        check(r#"Negotiate, Basic realm="r""#, &[other("Negotiate"), Challenge::Basic]);
        check(r#"Negotiate abc==, Basic realm="r""#, &[other("Negotiate"), Challenge::Basic]);
        check("Negotiate a/b+c=,BASIC", &[other("Negotiate"), Challenge::Basic]);
        check(
            r#"Digest realm="a, Basic", qop="auth,auth-int", nonce=x, Basic realm="b", NTLM"#,
            &[other("Digest"), Challenge::Basic, other("NTLM")],
        );
        check(
            r#"Newauth realm="apps", type=1, title="Login to \"apps\"", Basic realm="simple""#,
            &[other("Newauth"), Challenge::Basic],
        );
        check(
            r#", Basic realm="x, y" ,, Bearer realm="t", service="s",Bearer realm="u","#,
            &[Challenge::Basic, bearer("t", Some("s"), &[]), bearer("u", None, &[])],
        );
    }

    #[test]
    fn what_is_incomplete_is_no_way_to_log_in() {
        for header in [r#"Bearer service="a""#, r#"Bearer realm="a"#, "Bearer", "Bearer realm", r#"Bearer realm="a\"#] {
            check(header, &[other("Bearer without a realm")]);
        }
        for header in ["", " , ", r#"realm="x""#, r#"="x""#, "\"Basic\"", "(Basic)"] {
            check(header, &[]);
        }
        check(&"x".repeat(100), &[other(&"x".repeat(LONGEST_NAME))]);
    }
}
