//! YAML that operators write: one document, in which every key has a value.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter, options};
use slipway_protocol::shared::given::{self, Rule};
use slipway_user_data::check_numbers;

/// Reads a document. Error messages end with line and column.
pub(super) fn read<T: DeserializeOwned>(yaml: &str) -> Result<T, String> {
    // A tag such as !vault says that the text is not the value itself, so tags are refused.
    let options = options! { reject_unsupported_tags: true };
    let value = serde_saphyr::with_deserializer_from_str_with_options(yaml, options, |reader| {
        given::read(Rule::Settings, reader)
    });
    let value = value.map_err(|error| error.without_snippet().render_with_formatter(&Plain))?;
    check_numbers(yaml).map_err(|refusal| refusal.with_place_behind())?;
    match line_after_end(yaml) {
        Some(line) => {
            Err(format!("the document ended with \"...\"; the rest is not read: remove it at line {line}, column 1"))
        }
        None => Ok(value),
    }
}

/// Formats the parser's errors without the parser's own terms. Line and column follow the message.
struct Plain;

impl MessageFormatter for Plain {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::Eof { .. } => "nothing is given, or the text ends too early".into(),
            Error::MultipleDocuments { .. } => "only one document is read, but a second one begins".into(),
            Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key {key:?} is given twice").into(),
            Error::DuplicateMappingKey { key: None, .. } => "a key is given twice".into(),
            Error::Unexpected { expected, .. } => match &**expected {
                "sequence start" => "a list is needed here, such as [a, b]".into(),
                "mapping start" => "a mapping is needed here, such as {key: value}".into(),
                "string scalar" => "a text is needed here".into(),
                other => format!("{other} is needed here").into(),
            },
            Error::InvalidScalar { ty: "boolean", .. } => "true or false is needed here".into(),
            Error::InvalidScalar { ty, .. } if ty.starts_with(['i', 'u']) => "a whole number is needed here".into(),
            Error::InvalidScalar { .. } => "a number is needed here".into(),
            Error::SerdeUnknownField { field, expected, .. } if expected.is_empty() => {
                format!("unknown field `{field}`: there are none here, so write {{}}").into()
            }
            Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
            | Error::ExpectedStringKeyForExternallyTaggedEnum { .. } => {
                "a name and its inputs are needed here, such as {reboot: {}}".into()
            }
            Error::ExpectedMappingEndAfterEnumVariantValue { .. } => {
                "only one name is allowed here, with its inputs below it".into()
            }
            _ => UserMessageFormatter.format_message(error),
        }
    }
}

/// Returns the number of the first line with content after the end of the document. The parser ignores such lines
/// unless they are YAML.
fn line_after_end(yaml: &str) -> Option<usize> {
    let is_end =
        |line: &str| line.strip_prefix("...").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
    let mut rest = (1..).zip(yaml.lines()).skip_while(|(_, line)| !is_end(line));
    let is_something = |line: &str| !is_end(line) && !line.trim().is_empty() && !line.trim_start().starts_with('#');
    rest.find(|(_, line)| is_something(line)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use slipway_protocol::shared::given::NO_VALUE;
    use slipway_protocol::{DiskHints, Network};

    use super::*;

    #[test]
    fn a_key_has_a_value_however_yaml_writes_none() {
        for none in
            ["", " ~", " null", " NULL", " \"\"", " ''", " \"  \"", " \"\u{a0}\"", " !!null x", " # none", " |", " >-"]
        {
            for key in ["serial", "size", "device", "min_size", "rotational", "skip", "choose"] {
                let error = read::<DiskHints>(&format!("model: a\n{key}:{none}\n")).expect_err(none);
                assert!(
                    error.contains(" at line 2, column ") || error.contains(" at line 3, column"),
                    "{key}:{none}: {error}"
                );
                let is_text = !none.starts_with([' ']) || none.trim_start().starts_with(['~', 'n', 'N', '#', '!']);
                let is_named = error.starts_with(&format!("{key}{NO_VALUE}"));
                assert!(is_named || !is_text, "{key}:{none}: {error}");
            }
        }
        for (yaml, path) in [
            ("{serial: , model: a}", "serial"),
            ("skip: []", "skip"),
            ("skip: [{}, ~]", "skip[1]"),
            ("skip:\n- tran:\n", "skip[0].tran"),
            ("a: &x\n", "unknown field"),
        ] {
            let error = read::<DiskHints>(yaml).expect_err(yaml);
            assert!(error.starts_with(path) && error.contains(" at line "), "{yaml}: {error}");
        }
        for nothing in ["", "---\n", "~", "# none\n"] {
            let error = read::<Network>(nothing).expect_err(nothing);
            let is_told = error.starts_with(given::NOTHING) || error.starts_with("nothing is given, or ");
            assert!(is_told, "{nothing:?}: {error}");
        }
        let network = "interfaces:\n- {name: lan0, mac: \"52:54:00:12:34:56\", addresses: }\n";
        let error = read::<Network>(network).expect_err("no addresses");
        assert!(error.starts_with(&format!("interfaces[0].addresses{NO_VALUE} at line 2, column ")), "{error}");
    }

    #[test]
    fn nothing_is_passed_over_or_changed() {
        let found = read::<DiskHints>("serial: 0012\nmodel: 1e5\nvendor: no\nwwn: 0x5000C500\nhctl: 1:0:0:0\n");
        let found = serde_json::to_value(found.expect("hints")).expect("JSON");
        let expect = serde_json::json!({
            "serial": "0012", "model": "1e5", "vendor": "no", "wwn": "0x5000C500", "hctl": "1:0:0:0",
        });
        assert_eq!(found, expect);
        for ok in
            ["\u{feff}serial: a\n", "serial: a\n...\n", "--- \n{serial: a}\n... # end\n\n# end\n", "serial: !!str 0\n"]
        {
            read::<DiskHints>(ok).expect(ok);
        }
        for (yaml, expect) in [
            ("serial: a\nserial: b\n", "line 2"),
            ("serial: a\n---\nserial: b\n", "line "),
            ("serial: a\n...\nserial: [\n", "line 3"),
            ("serial: a\n...\nserial: b\n", "line "),
            ("serial: !vault x\n", "line 1"),
            ("Serial: a\n", "unknown field `Serial`"),
            ("size: 1.5\n", "line 1"),
            ("min_size: 1e9\n", "line 1"),
            ("min_size: -1\n", "line 1"),
            ("min_size: 10GB\n", "line 1"),
            ("serial: a\0b\n", "line 1"),
            ("serial: [a]\n", "line 1"),
            ("serial: {{ serial }}\n", "line 1"),
            ("size: 1_0\n", "put a text in quotes, and write a number in decimal digits at line 1, column 7"),
            ("model: a\nserial: 0o17\n", "line 2, column 9"),
        ] {
            let error = read::<DiskHints>(yaml).expect_err(yaml);
            assert!(error.contains(expect), "{yaml:?}: {error}");
        }
    }
}
