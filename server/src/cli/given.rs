//! Options and arguments that were given without a value, such as an empty variable of a script.

use std::ffi::OsStr;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use slipway_protocol::given::is_blank;

/// The arguments of this program. If one is wrong or has no value, says so and ends the program.
pub fn parse<T: CommandFactory + FromArgMatches>() -> T {
    let mut command = T::command();
    let matches = command.get_matches_mut();
    if let Some(reason) = problem(&command, &matches) {
        command.error(ErrorKind::InvalidValue, reason).exit();
    }
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// What is wrong with the first argument that has no value.
fn problem(command: &Command, matches: &ArgMatches) -> Option<String> {
    let own = command.get_arguments().find_map(|argument| problem_of(argument, matches));
    own.or_else(|| {
        let (name, below) = matches.subcommand()?;
        problem(command.find_subcommand(name)?, below)
    })
}

fn problem_of(argument: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = argument.get_id().as_str();
    let mut values = matches.try_get_raw(id).ok().flatten()?;
    values.find(|value| value.to_str().is_some_and(is_blank))?;
    let variable = argument.get_env().and_then(OsStr::to_str);
    Some(match (matches.value_source(id)?, variable) {
        (ValueSource::DefaultValue, _) => return None,
        (ValueSource::EnvVariable, Some(name)) => format!("{name} is set but has no value: unset it, or give it one"),
        _ => match argument.get_long() {
            Some(name) => format!("--{name} has no value: leave the option out, or give it one"),
            None => format!("<{}> has no value", name_of(argument)),
        },
    })
}

/// The name of an argument's value, as the usage has it.
pub(super) fn name_of(argument: &Arg) -> String {
    let name = argument.get_value_names().and_then(<[_]>::first);
    name.map_or_else(|| argument.get_id().as_str().to_uppercase(), ToString::to_string)
}
