//! Options and arguments of a command line. An option without a value, such as an empty variable of a script, is
//! refused.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::net::AddrParseError;
use std::num::ParseIntError;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Error, FromArgMatches};

use super::{is_blank, may_be_blank};

/// Reads a command line. Its first word is the name of the program.
pub fn read<T: CommandFactory + FromArgMatches>(words: impl IntoIterator<Item = OsString>) -> Result<T, Error> {
    let mut command = T::command();
    let words: Vec<OsString> = words.into_iter().collect();
    let matches = command.try_get_matches_from_mut(&words);
    let matches = matches.map_err(|error| in_plain_words(&mut command, &words, error))?;
    if let Some(reason) = problem(&command, &matches) {
        return Err(command.error(ErrorKind::InvalidValue, reason));
    }
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns the name of an argument's value, as in the usage.
pub fn name_of(argument: &Arg) -> String {
    let name = argument.get_value_names().and_then(<[_]>::first);
    name.map_or_else(|| argument.get_id().as_str().to_uppercase(), ToString::to_string)
}

/// Returns what is wrong with the first argument that has no value. None if each argument has one.
fn problem(command: &Command, matches: &ArgMatches) -> Option<String> {
    let own = command.get_arguments().find_map(|argument| problem_of(argument, matches));
    own.or_else(|| {
        let (name, below) = matches.subcommand()?;
        problem(command.find_subcommand(name)?, below)
    })
}

fn problem_of(argument: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = argument.get_id().as_str();
    if may_be_blank(id) {
        return None;
    }
    let mut values = matches.try_get_raw(id).ok().flatten()?;
    values.find(|value| value.to_str().is_some_and(is_blank))?;
    let variable = argument.get_env().and_then(OsStr::to_str);
    Some(match (matches.value_source(id)?, variable, argument.get_long()) {
        (ValueSource::DefaultValue, ..) => return None,
        (ValueSource::EnvVariable, Some(name), _) => variable_without_value(name),
        (_, _, Some(name)) => without_value(&format!("--{name}")),
        _ => without_value(&format!("<{}>", name_of(argument))),
    })
}

/// Returns the message for an option or argument that has no value. `name` is written as in the usage.
fn without_value(name: &str) -> String {
    let advice = if name.starts_with("--") { ": leave the option out, or give it one" } else { "" };
    format!("{name} has no value{advice}")
}

fn variable_without_value(name: &str) -> String {
    format!("{name} is set but has no value: unset it, or give it one")
}

/// Returns the environment variable that gave an option its value. None if the command line, which takes precedence,
/// has the option. A clap error does not say where a value came from.
fn variable_of(command: &Command, option: &str, words: &[OsString]) -> Option<String> {
    let is_word = |word: &OsString| {
        let rest = word.to_str().and_then(|word| word.strip_prefix(option));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if words.iter().any(is_word) {
        return None;
    }
    let argument = command.get_arguments().find(|argument| argument.get_long() == option.strip_prefix("--"));
    let own = argument.and_then(|argument| argument.get_env()?.to_str().map(str::to_owned));
    own.or_else(|| command.get_subcommands().find_map(|below| variable_of(below, option, words)))
}

/// Returns what a refused value should have been, if clap's own error is not plain enough.
fn needed(error: &Error) -> Option<String> {
    let reason = error.source()?;
    if reason.is::<ParseIntError>() {
        return Some("a whole number is needed, in decimal digits".to_owned());
    }
    let text = reason.to_string();
    if reason.is::<AddrParseError>() {
        // `AddrParseError` does not say which kind of address was asked for, but its text does.
        let needed = match text.contains("socket") {
            true => "an IP address and a port are needed, such as 192.0.2.1:8443 or [2001:db8::1]:8443",
            false => "an IP address is needed",
        };
        return Some(needed.to_owned());
    }
    let (least, most) = text.split_once(" is not in ")?.1.split_once("..=")?;
    Some(format!("a number from {least} to {most} is needed"))
}

/// Returns the error for a refused value in slipway's words. Returns any other error unchanged.
fn in_plain_words(command: &mut Command, words: &[OsString], error: Error) -> Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (Some(argument), Some(value)) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue)) else {
        return error;
    };
    if is_blank(value) {
        let name = argument.split(' ').next().unwrap_or(argument);
        let reason = match variable_of(command, name, words) {
            Some(variable) => variable_without_value(&variable),
            None => without_value(name),
        };
        return command.error(ErrorKind::InvalidValue, reason);
    }
    match needed(&error) {
        Some(needed) => {
            let reason = format!("invalid value '{value}' for '{argument}': {needed}");
            command.error(ErrorKind::ValueValidation, reason)
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[arg(long, default_value = "")]
        by_default: String,
        #[arg(long)]
        size: Option<u64>,
        #[arg(long, value_parser = |text: &str| text.parse::<std::net::IpAddr>())]
        at: Option<std::net::IpAddr>,
        #[arg(long)]
        content: Option<String>,
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        tries: Option<u32>,
        #[arg(long)]
        listen: Option<std::net::SocketAddr>,
        name: Option<String>,
    }

    #[test]
    fn an_argument_has_a_value() {
        for (words, expect) in [
            ("", None),
            ("--content=", None),
            ("--size 5 --at ::1 name", None),
            ("--size=", Some("--size has no value: leave the option out, or give it one")),
            ("--at=", Some("--at has no value: leave the option out, or give it one")),
            ("--by-default=", Some("--by-default has no value: leave the option out, or give it one")),
            ("\u{a0}", Some("<NAME> has no value")),
            (
                "--size 5GiB",
                Some("invalid value '5GiB' for '--size <SIZE>': a whole number is needed, in decimal digits"),
            ),
            ("--at here", Some("invalid value 'here' for '--at <AT>': an IP address is needed")),
            ("--tries 0", Some("invalid value '0' for '--tries <TRIES>': a number from 1 to 4294967295 is needed")),
            (
                "--listen localhost:8443",
                Some(
                    "invalid value 'localhost:8443' for '--listen <LISTEN>': an IP address and a port are needed, such \
                     as 192.0.2.1:8443 or [2001:db8::1]:8443",
                ),
            ),
        ] {
            let given = ["program"].into_iter().chain(words.split(' ').filter(|word| !word.is_empty()));
            let found = read::<Arguments>(given.map(OsString::from)).map_err(|error| error.to_string());
            match expect {
                None => assert!(found.is_ok(), "{words:?}: {found:?}"),
                Some(expect) => {
                    let found = found.expect_err(words);
                    assert!(found.starts_with(&format!("error: {expect}\n")), "{words:?}: {found}");
                }
            }
        }
    }
}
