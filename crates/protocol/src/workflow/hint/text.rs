//! A hint about a text: a model, a serial number, an address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Comparison, HintError, alternatives, split_operator};

const OPERATORS: &str = "s==, s!=, s>=, s<=, s>, s<, <in>, <all-in> and <or>";

/// A condition on a text. Without an operator, the text must equal the hint. Case and surrounding white space do not
/// matter.
///
/// `s==`, `s!=`, `s>=`, `s<=`, `s>` and `s<` compare; the last four compare Unicode code points. `<in> a` matches if
/// `a` is somewhere in the text. `<all-in> a b` matches if each of the words is in the text. `<or> a <or> b` matches if
/// the text equals one of the values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TextHint {
    given: String,
    condition: Condition,
}

/// All values are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Compare(Comparison, String),
    In(String),
    AllIn(Vec<String>),
    Or(Vec<String>),
}

impl TextHint {
    /// Returns whether a text in `found` matches. For `s!=`, returns whether no text in `found` is the unwanted text.
    /// `bare` removes the parts of a text in lower case that do not count, such as a prefix. It is applied to the texts
    /// in `found` and to the hint's values. If `found` is empty, the hint does not match.
    pub fn matches(&self, found: &[&str], bare: fn(&str) -> &str) -> bool {
        let found: Vec<String> = found.iter().map(|text| text.trim().to_lowercase()).collect();
        let mut found = found.iter().map(|text| bare(text)).filter(|text| !text.is_empty()).peekable();
        // A value that is only a prefix must not match every disk.
        if found.peek().is_none() || self.values().iter().any(|wanted| bare(wanted).is_empty()) {
            return false;
        }
        match &self.condition {
            Condition::Compare(Comparison::NotEqual, wanted) => found.all(|text| text != bare(wanted)),
            Condition::Compare(comparison, wanted) => found.any(|text| comparison.holds(text.cmp(bare(wanted)))),
            Condition::In(wanted) => found.any(|text| text.contains(bare(wanted))),
            Condition::AllIn(wanted) => found.any(|text| wanted.iter().all(|part| text.contains(bare(part)))),
            Condition::Or(wanted) => found.any(|text| wanted.iter().any(|wanted| text == bare(wanted))),
        }
    }

    /// Returns whether the hint gives the whole text, and not only a part or a comparison.
    pub fn is_exact(&self) -> bool {
        matches!(self.condition, Condition::Compare(Comparison::Equal, _) | Condition::Or(_))
    }

    /// Returns the values that the hint compares with, in lower case.
    pub fn values(&self) -> &[String] {
        match &self.condition {
            Condition::Compare(_, wanted) | Condition::In(wanted) => std::slice::from_ref(wanted),
            Condition::AllIn(wanted) | Condition::Or(wanted) => wanted,
        }
    }
}

fn condition(hint: &str) -> Result<Condition, HintError> {
    let empty = || HintError::Empty { hint: hint.to_owned() };
    let lower = hint.trim().to_lowercase();
    let (operator, rest) = split_operator(&lower);
    if rest.is_empty() {
        return Err(empty());
    }
    let compare = |comparison| Ok(Condition::Compare(comparison, rest.to_owned()));
    let owned = |values: Vec<&str>| values.into_iter().map(str::to_owned).collect();
    match operator {
        "" | "s==" => compare(Comparison::Equal),
        "s!=" => compare(Comparison::NotEqual),
        "s>=" => compare(Comparison::AtLeast),
        "s<=" => compare(Comparison::AtMost),
        "s>" => compare(Comparison::Above),
        "s<" => compare(Comparison::Below),
        "<in>" => Ok(Condition::In(rest.to_owned())),
        "<all-in>" => Ok(Condition::AllIn(owned(rest.split_whitespace().collect()))),
        "<or>" => alternatives(rest).map(|values| Condition::Or(owned(values))).ok_or_else(empty),
        unknown => Err(HintError::Operator { hint: hint.to_owned(), operator: unknown.to_owned(), known: OPERATORS }),
    }
}

impl FromStr for TextHint {
    type Err = HintError;

    fn from_str(hint: &str) -> Result<Self, HintError> {
        Ok(Self { given: hint.trim().to_owned(), condition: condition(hint)? })
    }
}

impl TryFrom<String> for TextHint {
    type Error = HintError;

    fn try_from(hint: String) -> Result<Self, HintError> {
        hint.parse()
    }
}

impl From<TextHint> for String {
    fn from(hint: TextHint) -> Self {
        hint.given
    }
}

impl fmt::Display for TextHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for TextHint {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = utoipa::openapi::schema::ObjectBuilder::new().schema_type(utoipa::openapi::schema::Type::String);
        // With and without an operator, a value must have a visible character. A sign alone is not an operator.
        let visible = crate::shared::given::VISIBLE;
        let first = visible.replace(']', "=!<>");
        let operator = format!(r"s(==|[!<>]=|[<>])(\s+{visible}|{first}])|<(in|all-in|or)>\s*{visible}");
        text.pattern(Some(format!(r"^\s*({operator}|{first}s]|s([^=!<>]|$))"))).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for TextHint {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(hint: &str, found: &[&str], expect: bool) {
        let hint: TextHint = hint.parse().expect(hint);
        assert_eq!(hint.matches(found, |text| text), expect, "{hint} of {found:?}");
    }

    #[test]
    fn a_text_is_compared_as_the_operator_says() {
        for (hint, matching, other) in [
            ("Fast Disk", "fast disk", "fast disk 2"),
            ("  Fast  ", "FAST", "fas"),
            ("s== fast", "Fast", "faster"),
            ("s==fast", "Fast", "faster"),
            ("S== FAST", "fast", "faster"),
            ("s!= fast", "slow", "Fast"),
            ("s>= b", "b", "a"),
            ("s> b", "c", "B"),
            ("s<= b", "B", "c"),
            ("s< b", "a", "b"),
            ("<in> ast d", "Fast Disk", "FastDisk"),
            ("<IN>disk", "Fast Disk", "fast"),
            ("<all-in> 960 samsung", "SAMSUNG MZ 960", "SAMSUNG MZ 480"),
            ("<or> foo bar <or> baz", "Foo Bar", "foo"),
            ("<or> foo bar <or> baz", "baz", "foo bar baz"),
            ("<or> only", "only", "on"),
            ("s== <in> x", "<in> x", "x"),
            ("sda", "sda", "da"),
            ("a <or> b", "a <or> b", "a"),
        ] {
            check(hint, &[matching], true);
            check(hint, &[other], false);
        }
    }

    #[test]
    fn of_several_texts_one_must_match_and_none_be_unwanted() {
        check("b", &["a", "b"], true);
        check("s!= b", &["a", "b"], false);
        check("s!= c", &["a", "b"], true);
        check("s!= b", &[], false);
        check("<in> a", &[" "], false);
        let prefixed: TextHint = "0xAB".parse().expect("a hint");
        let only_prefix: TextHint = "<in> 0x".parse().expect("a hint");
        assert!(!only_prefix.matches(&["0xab"], |text| text.trim_start_matches("0x")));
        assert!(prefixed.matches(&["naa.ab"], |text| text.trim_start_matches("0x").trim_start_matches("naa.")));
    }

    #[test]
    fn a_hint_that_is_none_says_what_would_be() {
        let error = |hint: &str| hint.parse::<TextHint>().expect_err(hint).to_string();
        for empty in ["", "  ", "s==", "<in> ", "<or>", "<or> a <or>", "<or> <or> a", "<all-in>"] {
            assert_eq!(error(empty), format!("hint {empty:?} has no value"));
        }
        for (hint, operator) in [
            ("<range-in> [ 1 2 ]", "<range-in>"),
            (">= 5", ">="),
            ("== a", "=="),
            ("s=a", "s="),
            ("=> a", "=>"),
            ("<not> a", "<not>"),
            ("s==> a", "s==>"),
            ("<ä> a", "<"),
        ] {
            let expect = format!(
                "hint {hint:?} starts with {operator:?}, which is not an operator here; the operators are {OPERATORS}"
            );
            assert_eq!(error(hint), expect);
        }
    }

    #[test]
    fn a_hint_is_given_back_as_it_was_written() {
        let hint: TextHint = serde_json::from_str("\" <in> Fast \"").expect("a hint");
        assert_eq!(serde_json::to_string(&hint).expect("JSON"), "\"<in> Fast\"");
        assert!(!hint.is_exact());
        let either: TextHint = "<or> A <or> b".parse().expect("a hint");
        assert!(either.is_exact());
        assert_eq!(either.values(), ["a", "b"]);
        let error = serde_json::from_str::<TextHint>("\"<on> x\"").expect_err("no operator");
        assert!(error.to_string().contains("which is not an operator here"), "{error}");
    }
}
