//! A hint about the size of a disk.

use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Comparison, HintError, alternatives, split_operator};

const OPERATORS: &str = "=, ==, !=, >=, <=, >, <, <or> and <range-in>";
const GIB: u64 = 1 << 30;

/// A condition on the size of a disk in whole GiB, rounded down. Without an operator, the size must equal this number.
///
/// `==`, `!=`, `>=`, `<=`, `>` and `<` compare. `=` means `>=`, as in Ironic. `<or> a <or> b` matches one of the
/// numbers. `<range-in> [ a b ]` matches from `a` to `b`; a round bracket excludes its end. In YAML and JSON the hint
/// is a number or a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeHint {
    given: String,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Compare(Comparison, u64),
    Or(Vec<u64>),
    Range(Bound<u64>, Bound<u64>),
}

impl SizeHint {
    /// Returns whether a disk of this many bytes matches.
    pub fn matches(&self, bytes: u64) -> bool {
        let found = bytes / GIB;
        match &self.condition {
            Condition::Compare(comparison, wanted) => comparison.holds(found.cmp(wanted)),
            Condition::Or(wanted) => wanted.contains(&found),
            Condition::Range(low, high) => std::ops::RangeBounds::contains(&(*low, *high), &found),
        }
    }
}

fn condition(hint: &str) -> Result<Condition, HintError> {
    let lower = hint.trim().to_lowercase();
    let (operator, rest) = split_operator(&lower);
    let empty = || HintError::Empty { hint: hint.to_owned() };
    if rest.is_empty() {
        return Err(empty());
    }
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| HintError::Number { hint: hint.to_owned(), value: text.to_owned() })
    };
    let compare = |comparison| Ok(Condition::Compare(comparison, number(rest)?));
    match operator {
        "" | "==" => compare(Comparison::Equal),
        "!=" => compare(Comparison::NotEqual),
        "=" | ">=" => compare(Comparison::AtLeast),
        "<=" => compare(Comparison::AtMost),
        ">" => compare(Comparison::Above),
        "<" => compare(Comparison::Below),
        "<or>" => {
            let values = alternatives(rest).ok_or_else(empty)?;
            values.into_iter().map(number).collect::<Result<_, _>>().map(Condition::Or)
        }
        "<range-in>" => range(rest).ok_or_else(|| HintError::Range { hint: hint.to_owned() }),
        unknown => Err(HintError::Operator { hint: hint.to_owned(), operator: unknown.to_owned(), known: OPERATORS }),
    }
}

/// Reads a range such as `[ 10 20 )`. The brackets may touch the numbers.
fn range(text: &str) -> Option<Condition> {
    let (open, close) = (text.chars().next()?, text.chars().next_back()?);
    let inner = text.strip_prefix(open)?.strip_suffix(close)?;
    let mut numbers = inner.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (low, high) = (numbers.next()??, numbers.next()??);
    let bound = |bracket, included, value| match bracket == included {
        true => Bound::Included(value),
        false => Bound::Excluded(value),
    };
    let is_range = "[(".contains(open) && "])".contains(close) && numbers.next().is_none() && low <= high;
    is_range.then(|| Condition::Range(bound(open, '[', low), bound(close, ']', high)))
}

impl FromStr for SizeHint {
    type Err = HintError;

    fn from_str(hint: &str) -> Result<Self, HintError> {
        Ok(Self { given: hint.trim().to_owned(), condition: condition(hint)? })
    }
}

impl fmt::Display for SizeHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

impl Serialize for SizeHint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SizeHint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = SizeHint;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("whole GiB, or an operator and a number")
            }

            fn visit_u64<E: serde::de::Error>(self, gib: u64) -> Result<SizeHint, E> {
                self.visit_str(&gib.to_string())
            }

            // A YAML reader may pass any number this way.
            fn visit_i64<E: serde::de::Error>(self, gib: i64) -> Result<SizeHint, E> {
                self.visit_str(&gib.to_string())
            }

            fn visit_str<E: serde::de::Error>(self, hint: &str) -> Result<SizeHint, E> {
                hint.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for SizeHint {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = utoipa::openapi::schema::ObjectBuilder::new().schema_type(utoipa::openapi::schema::Type::String);
        let number = "[0-9]{1,18}";
        let compared = format!(r"(==|!=|[<>]?=|[<>])?\s*{number}");
        let one_of = format!(r"<or>\s+{number}(\s+<or>\s+{number})*");
        let between = format!(r"<range-in>\s*[\[(]\s*{number}\s+{number}\s*[\])]");
        let text = text.pattern(Some(format!(r"^\s*({compared}|{one_of}|{between})\s*$")));
        let either = utoipa::openapi::schema::OneOfBuilder::new().item(u64::schema()).item(text);
        utoipa::openapi::schema::Schema::from(either).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for SizeHint {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_compared_in_whole_gib_as_the_operator_says() {
        for (hint, matching, other) in [
            ("10", 10, 11),
            (" 10 ", 10, 9),
            ("== 10", 10, 11),
            ("==10", 10, 11),
            ("!= 10", 11, 10),
            ("= 10", 11, 9),
            (">= 10", 10, 9),
            ("> 10", 11, 10),
            ("<= 10", 10, 11),
            ("< 10", 9, 10),
            ("<or> 10 <or> 20", 20, 15),
            ("<range-in> [ 10 20 ]", 20, 21),
            ("<range-in> [10 20)", 10, 20),
            ("<range-in> ( 10 20 ]", 11, 10),
        ] {
            let hint: SizeHint = hint.parse().expect(hint);
            assert!(hint.matches(matching * GIB) && hint.matches(matching * GIB + GIB - 1), "{hint} of {matching}");
            assert!(!hint.matches(other * GIB), "{hint} of {other}");
        }
    }

    #[test]
    fn a_hint_that_is_none_says_what_would_be() {
        let error = |hint: &str| hint.parse::<SizeHint>().expect_err(hint).to_string();
        for empty in ["", ">=", "<or> 10 <or>", "<range-in>"] {
            assert_eq!(error(empty), format!("hint {empty:?} has no value"));
        }
        for (hint, value) in [
            ("big", "big"),
            ("-5", "-5"),
            ("1.5", "1.5"),
            ("10 GB", "10 gb"),
            (">= 10 <= 20", "10 <= 20"),
            ("<or> 10 <or> x", "x"),
            ("99999999999999999999", "99999999999999999999"),
        ] {
            assert_eq!(error(hint), format!("hint {hint:?} has {value:?} where a number of whole GiB is needed"));
        }
        for (hint, operator) in [("s== 10", "s=="), ("<in> 10", "<in>"), ("=> 10", "=>"), ("=== 10", "===")] {
            let expect = format!(
                "hint {hint:?} starts with {operator:?}, which is not an operator here; the operators are {OPERATORS}"
            );
            assert_eq!(error(hint), expect);
        }
        for range in ["[ 20 10 ]", "10 20", "[ 10 ]", "[ 10 20 30 ]", "[ a 20 ]", "[", "ä 1 2 ä", "] 1 2 ["] {
            let hint = format!("<range-in> {range}");
            assert!(error(&hint).starts_with(&format!("hint {hint:?} is not a range: write")), "{}", error(&hint));
        }
    }

    #[test]
    fn a_number_needs_no_quotes() {
        let read = |json: &str| serde_json::from_str::<SizeHint>(json);
        assert_eq!(read("120").expect("a number"), read("\"120\"").expect("a text"));
        assert_eq!(serde_json::to_string(&read("\">= 120\"").expect("a text")).expect("JSON"), "\">= 120\"");
        for bad in ["-1", "1.5", "true", "\"s== 1\""] {
            read(bad).expect_err(bad);
        }
    }
}
