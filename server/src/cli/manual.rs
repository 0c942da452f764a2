//! `slipway-server manual`: writes man pages and shell completions for packages.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Arguments;

const PROGRAM: &str = "slipway-server";
/// Start of the first function's body in the scripts for bash and zsh. The first function is the one that completes.
const BODY: &str = "() {\n";
/// Start of the completing function: asks the program for names. Files are left to `-o default` in its registration.
const IN_BASH: &str = r#"    local names before=("${COMP_WORDS[@]:1:COMP_CWORD-1}") word="${COMP_WORDS[COMP_CWORD]}"
    [[ $word == = ]] && word=""
    names=$("${COMP_WORDS[0]}" names -- "${before[@]}" 2>/dev/null)
    if [[ -n $names && $word != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$names" -- "$word")
        return 0
    fi
"#;
const IN_ZSH: &str = r#"    local -a names
    names=(${(f)"$(${words[1]} names -- ${words[2,CURRENT-1]} 2>/dev/null)"})
    if (( $#names )) && [[ $PREFIX != -* ]]; then
        compadd -a names
        return
    fi
"#;
const IN_FISH: &str = r"
function __slipway_server_names
    slipway-server names -- (commandline -opc)[2..] 2>/dev/null
end
";
/// Arguments of fish's `complete` that offer names. Where names are possible, files are not offered (`-x`).
const IF_NAMES: &str =
    r#"-n 'set -l names (__slipway_server_names); test -n "$names"' -x -a '(__slipway_server_names)'"#;

/// Extends a script that completes commands and options, so that it also completes names of nodes, images and operating
/// systems. The names come from the data folder.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.replacen(BODY, &format!("{BODY}{IN_BASH}"), 1),
        Shell::Zsh => script.replacen(BODY, &format!("{BODY}{IN_ZSH}"), 1),
        _ => {
            let places = ["", "-l node", "-l image", "-l os"];
            let places = places.map(|place| format!("complete -c {PROGRAM} {place} {IF_NAMES}\n"));
            format!("{script}{IN_FISH}{}", places.concat())
        }
    }
}

/// Writes a man page for each command, and the completions for the shells that have a system folder for them.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    let written = || {
        clap_mangen::generate_to(Arguments::command(), folder)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let file = clap_complete::generate_to(shell, &mut Arguments::command(), PROGRAM, folder)?;
            let script = fs::read_to_string(&file)?;
            fs::write(file, with_names(shell, &script))?;
        }
        std::io::Result::Ok(())
    };
    written().with_context(|| format!("writing man pages and completions into {}", folder.display()))
}
