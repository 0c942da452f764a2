//! Ready recipes for the drain command of an operating system: what takes the work of a machine away, and gives it
//! back.

use std::str::FromStr;

use slipway_protocol::Agent;
use slipway_protocol::workflow::agent::DRAIN;

/// Name, arguments for people, least number of arguments, and text of each recipe. Its arguments are `$1` and so on.
const RECIPES: [(&str, &str, usize, &str); 4] = [
    ("systemd", "UNIT,UNIT", 1, include_str!("drain/systemd.sh")),
    ("podman", "CONTAINER,CONTAINER", 0, include_str!("drain/containers.sh")),
    ("docker", "CONTAINER,CONTAINER", 0, include_str!("drain/containers.sh")),
    ("kubectl", "NODE,KUBECONFIG", 0, include_str!("drain/kubectl.sh")),
];

/// A recipe with its arguments: `systemd=app.service,db.service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    name: &'static str,
    text: &'static str,
    arguments: Vec<String>,
}

impl FromStr for Recipe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, arguments) = text.split_once('=').unwrap_or((text, ""));
        let known = RECIPES.iter().find(|(recipe, ..)| *recipe == name);
        let Some((name, usage, least, text)) = known else {
            let names: Vec<String> = RECIPES.iter().map(|(name, usage, ..)| format!("{name}={usage}")).collect();
            return Err(format!("{name:?} is not a recipe; there are {}", names.join(", ")));
        };
        let arguments: Vec<String> = arguments.split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@._:/\\-".contains(&byte);
        let wrong = |text: &&String| text.starts_with('-') || !text.bytes().all(is_plain);
        if let Some(wrong) = arguments.iter().find(wrong) {
            return Err(format!("{wrong:?} is not an argument of {name}: use letters, digits and @ . _ : / - \\"));
        }
        if arguments.len() < *least {
            return Err(format!("{name} needs an argument: {name}={usage}"));
        }
        Ok(Self { name, text, arguments })
    }
}

/// Leaves a recipe the time that those before it have left of the limit.
const LEFT: &str = "SLIPWAY_SECONDS=$((last - $(date +%s)))\n[ \"$SLIPWAY_SECONDS\" -gt 0 ] || SLIPWAY_SECONDS=1\n";

/// Returns the command that does recipes one after the other. With `force`, a recipe is done also if one before it
/// failed.
pub fn command(recipes: &[Recipe]) -> String {
    let one = |recipe: &Recipe| {
        // Single quotes, because a unit may have a backslash in its name.
        let program = (recipe.name == "podman" || recipe.name == "docker").then(|| recipe.name.to_owned());
        let arguments: Vec<String> =
            program.iter().chain(&recipe.arguments).map(|argument| format!("'{argument}'")).collect();
        let (set, text) = (arguments.join(" "), recipe.text);
        format!("(\n{LEFT}set -- {set}\n{text}) || {{ failed=1; [ \"$SLIPWAY_FORCE\" = 1 ] || exit 1; }}\n")
    };
    let recipes: String = recipes.iter().map(one).collect();
    format!("failed=0\nlast=$(($(date +%s) + SLIPWAY_SECONDS))\n{recipes}exit \"$failed\"\n")
}

/// Gives an agent the drain command that does these recipes. Does nothing without any.
pub fn add(agent: &mut Agent, recipes: &[Recipe]) {
    if !recipes.is_empty() {
        agent.tasks.insert(DRAIN.to_owned(), command(recipes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that knows two containers, as files: `stays` does not stop before it is killed.
    const PROGRAM: &str = "#!/bin/sh\ncd FOLDER\ncase $1 in\n\
        ps) [ -e broken ] && exit 1; ls running ;;\n\
        inspect) echo always ;;\n\
        kill) shift; case $1 in --signal=TERM) rm -f running/goes ;; *) cd running && rm -f \"$@\" ;; esac ;;\n\
        start) touch running/$2 ;;\nesac\n";

    #[test]
    fn containers_are_drained_only_if_none_runs() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let (at, bin) = (folder.path().display().to_string(), folder.path().join("docker"));
        std::fs::create_dir(folder.path().join("running"))?;
        // A shell writes it, so that no process that is forked meanwhile holds it open.
        let write = "printf '%s' \"$1\" >\"$0\"; chmod 755 \"$0\"";
        std::process::Command::new("sh").args(["-c", write]).arg(&bin).arg(PROGRAM.replace("FOLDER", &at)).status()?;
        let script = command(&["docker".parse()?]).replace("/var/lib/", &format!("{at}/"));
        let drain = |variables: &[(&str, &str)]| -> Result<(bool, String), std::io::Error> {
            let mut sh = std::process::Command::new("sh");
            sh.args(["-c", &script]).env("PATH", format!("{at}:/usr/bin:/bin")).env("SLIPWAY_SECONDS", "1");
            let done = sh.envs(variables.iter().copied()).output()?;
            Ok((done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned()))
        };
        let running = || std::fs::read_dir(folder.path().join("running")).map(Iterator::count);
        for container in ["goes", "stays"] {
            std::fs::write(folder.path().join("running").join(container), "")?;
        }
        let (is_done, said) = drain(&[])?;
        assert!(!is_done && said.ends_with("still runs: stays\n") && running()? == 1, "{said}");
        std::fs::write(folder.path().join("broken"), "")?;
        assert!(!drain(&[("SLIPWAY_FORCE", "1")])?.0, "nobody can tell what runs");
        std::fs::remove_file(folder.path().join("broken"))?;
        let (is_done, said) = drain(&[("SLIPWAY_FORCE", "1")])?;
        assert!(is_done && said.ends_with("all containers are stopped\n") && running()? == 0, "{said}");
        let (is_done, said) = drain(&[("SLIPWAY_UNDO", "1")])?;
        assert!(is_done && running()? == 2, "{said}");
        Ok(())
    }

    #[test]
    fn recipes_have_plain_arguments() {
        let recipe: Recipe = "systemd=app.service,srv-my\\x2ddata.mount".parse().expect("a recipe");
        assert_eq!(recipe.arguments, ["app.service", "srv-my\\x2ddata.mount"]);
        assert!(command(&[recipe]).contains("\nset -- 'app.service' 'srv-my\\x2ddata.mount'\n"));
        assert!(command(&["podman".parse().expect("a recipe")]).contains("\nset -- 'podman'\n"));
        for wrong in ["", "systemd", "systemd=", "systemd=a b", "systemd=$(id)", "systemd=-x", "docker=a'b", "k8s"] {
            wrong.parse::<Recipe>().expect_err(wrong);
        }
    }
}
