//! `slipway-server names -- WORD...`, called by shell completions: prints the names that can follow these words of a
//! command line. Prints nothing if there are none or they cannot be read, because an error message would appear in the
//! line being typed.

use std::sync::mpsc;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};
use slipway_protocol::shared::given::options::name_of;
use slipway_server::base::data::{DataDir, Place};
use slipway_server::store::{Store, images, nodes, systems};

use super::{Arguments, print};

/// Time limit for reading the names, short because somebody is typing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Kind of name, which follows from the name of the argument's value in the usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Image,
    Os,
}

impl Kind {
    fn of(argument: &Arg) -> Option<Self> {
        match name_of(argument).as_str() {
            "NODE" | "NODE|RUN" => Some(Self::Node),
            "IMAGE" => Some(Self::Image),
            "OS" => Some(Self::Os),
            _ => None,
        }
    }
}

/// Prints the names, one per line.
pub fn run(usual: Place, words: &[String]) -> anyhow::Result<()> {
    let (given, kind) = place(&mut Arguments::command(), words);
    let Some(kind) = kind else { return Ok(()) };
    let place = match given {
        Some(root) => Place { root: root.into(), ..usual },
        None => usual,
    };
    let (sender, found) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let names = runtime.ok().and_then(|runtime| runtime.block_on(names(&place, kind)).ok());
        sender.send(names.unwrap_or_default())
    });
    let names = found.recv_timeout(PATIENCE).unwrap_or_default();
    // Names that a shell would split or expand are left out, because they would need quotes.
    let is_plain = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.,+@%".contains(c));
    print(&names.iter().filter(is_plain).map(|name| format!("{name}\n")).collect::<String>())
}

async fn names(place: &Place, kind: Kind) -> anyhow::Result<Vec<String>> {
    // Read-only, because completion must not change the schema while a server of an older version runs.
    let store = Store::read_only_of(&DataDir::open(place)?);
    let mut connection = store.read().await?;
    Ok(match kind {
        Kind::Node => nodes::all(&mut connection).await?.iter().map(|node| node.label().to_owned()).collect(),
        Kind::Image => images::all(&mut connection).await?.into_iter().map(|image| image.file_name).collect(),
        Kind::Os => systems::all(&mut connection).await?.into_iter().map(|system| system.name).collect(),
    })
}

/// Returns the data folder that these words name, and the kind of name that can follow them.
fn place(command: &mut Command, words: &[String]) -> (Option<String>, Option<Kind>) {
    command.build();
    let (mut command, mut data, mut behind, mut position) = (&*command, None, None, 0);
    for word in words {
        // bash splits `--os=NAME` into words.
        if word == "=" {
            continue;
        }
        if let Some(option) = behind.take() {
            data = if Arg::get_id(option) == "data" { Some(word.clone()) } else { data };
        } else if let Some(option) = word.strip_prefix("--") {
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            let is_named = |argument: &&Arg| {
                let aliases = argument.get_all_aliases().unwrap_or_default();
                argument.get_long() == Some(name) || aliases.contains(&name)
            };
            let found = command.get_arguments().find(is_named);
            behind = found.filter(|found| value.is_none() && found.get_action().takes_values());
            data = value.filter(|_| name == "data").map(str::to_owned).or(data);
        } else if let Some(below) = command.find_subcommand(word) {
            (command, position) = (below, 0);
        } else {
            position += 1;
        }
    }
    let next = || command.get_positionals().nth(position);
    (data, behind.or_else(next).and_then(Kind::of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_says_what_is_named_there() {
        let check = |line: &str, expect: Option<Kind>| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(place(&mut Arguments::command(), &words).1, expect, "{line}");
        };
        for line in
            ["node show", "run start", "run cancel", "status", "node set --name x", "snippet --for shell --node"]
        {
            check(line, Some(Kind::Node));
        }
        for line in ["run start web1 --os", "run start --os =", "os remove"] {
            check(line, Some(Kind::Os));
        }
        for line in ["os add debian --image", "image remove", "--data /srv image show", "image show --json"] {
            check(line, Some(Kind::Image));
        }
        for line in ["", "image add", "os add", "run start web1", "media write --image", "node show web1", "nonsense"] {
            check(line, None);
        }
        let words = ["--data", "/srv", "node", "show"].map(str::to_owned);
        assert_eq!(place(&mut Arguments::command(), &words), (Some("/srv".to_owned()), Some(Kind::Node)));
    }
}
