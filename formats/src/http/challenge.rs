//! Authentication that a server demands with a 401: the `WWW-Authenticate` header (RFC 9110, 11.6.1).

/// A way to log in.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    /// With user and password (RFC 7617).
    Basic,
    /// With a token from the server at `realm`.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// Service that the token is for.
        service: Option<String>,
        /// Access that the token has to grant.
        scope: Option<String>,
    },
}

/// The first challenge of a header. None if its scheme is not known.
pub fn parse(header: &str) -> Option<Challenge> {
    let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    let mut rest = rest;
    while let Some((name, value, tail)) = parameter(rest) {
        match name.to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value),
            "service" => service = Some(value),
            "scope" => scope = Some(value),
            _ => {}
        }
        rest = tail;
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

/// Name and value of the first parameter, and the rest of the text.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.trim_start_matches([' ', '\t', ',']).split_once('=')?;
    let Some(quoted) = rest.strip_prefix('"') else {
        let (value, rest) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
        return Some((name, value.trim_end().to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((name, value, &quoted[at + 1..])),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &str, expect: Option<(&str, Option<&str>, Option<&str>)>) {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let expect = expect.map(|(realm, service, scope)| Challenge::Bearer {
            realm: realm.to_owned(),
            service: owned(service),
            scope: owned(scope),
        });
        assert_eq!(parse(header), expect, "{header}");
    }

    #[test]
    fn a_challenge_says_where_a_token_is_given_out_and_for_what() {
        check(
            r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#,
            Some(("https://auth.example/token", Some("registry.example"), Some("repository:a/b:pull,push"))),
        );
        check(
            r#"bearer  Scope="a" , realm=https://x/y , error="invalid_token""#,
            Some(("https://x/y", None, Some("a"))),
        );
        check(r#"Bearer realm="a\"b\\c""#, Some((r#"a"b\c"#, None, None)));
        check(r#"Bearer service="a""#, None);
        check(r#"Bearer realm="a"#, None);
        check("Bearer", None);
        check("Negotiate abc", None);
        check("", None);
        assert_eq!(parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(parse("BASIC"), Some(Challenge::Basic));
    }
}
