//! The options of `kernel-args`.

use serde::{Deserialize, Serialize};

use crate::workflow::disk::DiskHints;

/// The options of `kernel-args`. The action changes the installed system's kernel command lines in this order:
/// `delete`, `replace`, `append_if_missing`, `append`. A second run of the step changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelArgs {
    /// Selects the disk that carries the image.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
    /// Deletes arguments. `key=value` deletes that argument. `key` deletes the key with any value or none. Default:
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delete: Vec<String>,
    /// Replaces arguments by others. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<KernelArgReplacement>,
    /// Adds arguments at the end, unless the command line has exactly the same argument. The same key with another
    /// value is another argument. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub append_if_missing: Vec<String>,
    /// Puts arguments at the end of the command line, each once. An argument that is already there moves to the end.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<String>,
}

/// The replacement of one argument. It has two fields, because values have equals signs of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelArgReplacement {
    /// The argument to replace. `key=value` is that argument. `key` is the key with any value or none. If several
    /// arguments match, the first is replaced and the others are deleted.
    pub old: String,
    /// The whole new argument.
    pub new: String,
}

impl KernelArgs {
    /// Returns the arguments that may be put into a command line.
    pub fn added(&self) -> impl Iterator<Item = &String> {
        self.replace.iter().map(|replacement| &replacement.new).chain(self.appended())
    }

    /// Returns the problems of these options. Each completes a sentence that begins with the name of the step.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = self.disk.validate(false);
        if self.added().next().is_none() && self.delete.is_empty() {
            problems.push("changes no kernel arguments: give append, append_if_missing, replace or delete".to_owned());
        }
        for argument in self.added() {
            if let Some(problem) = kernel_argument_problem(argument) {
                problems.push(format!("cannot add the kernel argument {argument:?}: {problem}"));
            }
        }
        for argument in self.delete.iter().chain(self.replace.iter().map(|replacement| &replacement.old)) {
            if let Some(problem) = kernel_argument_problem(argument) {
                problems.push(format!("cannot look for the kernel argument {argument:?}: {problem}"));
            }
        }
        self.contradictions(&mut problems);
        problems
    }

    /// Finds options whose result would be different each time the step runs.
    fn contradictions(&self, problems: &mut Vec<String>) {
        for argument in &self.append_if_missing {
            if let Some(taker) = self.delete.iter().find(|taker| is_kernel_argument(argument, taker)) {
                problems.push(format!(
                    "adds {argument:?} if it is missing, but also deletes it with {taker:?}: use append"
                ));
            }
        }
        for (index, KernelArgReplacement { old, new }) in self.replace.iter().enumerate() {
            let others =
                self.replace.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| &other.old);
            if let Some(taker) = self.delete.iter().chain(others).find(|taker| is_kernel_argument(new, taker)) {
                problems.push(format!("replaces {old:?} with {new:?}, but removes that again with {taker:?}"));
            }
            let is_taken = |argument: &&String| *argument != new && is_kernel_argument(argument, old);
            if let Some(argument) = self.appended().find(is_taken) {
                problems.push(format!("adds {argument:?}, which it replaces with {new:?} the next time"));
            }
        }
    }

    fn appended(&self) -> impl Iterator<Item = &String> {
        self.append_if_missing.iter().chain(&self.append)
    }
}

/// Returns whether `meant` selects this argument, by the whole argument or by its key alone. The places of double
/// quotes make no difference, as in the kernel.
pub fn is_kernel_argument(argument: &str, meant: &str) -> bool {
    let (argument, meant) = (argument.replace('"', ""), meant.replace('"', ""));
    match argument.strip_prefix(&meant) {
        Some(rest) => rest.is_empty() || !meant.contains('=') && rest.starts_with('='),
        None => false,
    }
}

/// Returns why this cannot be one argument of a kernel command line, or nothing if it can. The kernel splits its
/// command line at white space outside double quotes (lib/cmdline.c, next_arg). The arguments after `--` are not for
/// the kernel (kernel/params.c, parse_args).
pub fn kernel_argument_problem(argument: &str) -> Option<&'static str> {
    // The comparison ignores all quotes, wherever they are in the argument.
    match argument.replace('"', "").as_str() {
        "" => return Some("it is empty"),
        "--" => return Some("it ends the kernel's arguments; what follows it is for init"),
        _ if argument.starts_with('#') => return Some("it begins with #, as comments do"),
        _ => {}
    }
    if argument.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    // The code that edits command lines marks the parts that a boot loader fills in. The marks are characters that no
    // text has.
    if argument.contains(|c| ('\u{FDD0}'..='\u{FDEF}').contains(&c)) {
        return Some("it has a character that Unicode does not allow in texts (U+FDD0 to U+FDEF)");
    }
    let mut quoted = false;
    for c in argument.chars() {
        quoted ^= c == '"';
        if c.is_whitespace() && !quoted {
            return Some("it has a space outside double quotes; give each argument separately");
        }
    }
    quoted.then_some("it has a double quote that is not closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    fn words(arguments: &[&str]) -> Vec<String> {
        arguments.iter().map(|argument| (*argument).to_owned()).collect()
    }

    fn replace(pairs: &[(&str, &str)]) -> Vec<KernelArgReplacement> {
        let replacement = |(old, new): &(&str, &str)| KernelArgReplacement { old: (*old).into(), new: (*new).into() };
        pairs.iter().map(replacement).collect()
    }

    fn check_inputs(inputs: KernelArgs, expect: &[&str]) {
        check(Action::KernelArgs(inputs), expect);
    }

    #[test]
    fn a_kernel_argument_is_one_word() {
        let append = |arguments: &[&str]| KernelArgs { append: words(arguments), ..KernelArgs::default() };
        check_inputs(append(&["quiet", "root=UUID=a=b", "dyndbg=\"file a.c +p\"", "---"]), &[]);
        let space = "it has a space outside double quotes; give each argument separately";
        check_inputs(
            append(&["", "\"\"", "quiet splash", "a\nb", "a\u{FDD1}", "a=\"b", "--", "-\"\"-", "#a"]),
            &[
                "cannot add the kernel argument \"\": it is empty",
                "cannot add the kernel argument \"\\\"\\\"\": it is empty",
                &format!("cannot add the kernel argument \"quiet splash\": {space}"),
                "cannot add the kernel argument \"a\\nb\": it has a control character",
                "cannot add the kernel argument \"a\\u{fdd1}\": it has a character that Unicode does not allow in \
                 texts (U+FDD0 to U+FDEF)",
                "cannot add the kernel argument \"a=\\\"b\": it has a double quote that is not closed",
                "cannot add the kernel argument \"--\": it ends the kernel's arguments; what follows it is for init",
                "cannot add the kernel argument \"-\\\"\\\"-\": it ends the kernel's arguments; what follows it is for \
                 init",
                "cannot add the kernel argument \"#a\": it begins with #, as comments do",
            ],
        );
        for argument in [" quiet", "quiet ", "\"a b\" c"] {
            assert_eq!(kernel_argument_problem(argument), Some(space), "{argument:?}");
        }
        check_inputs(
            KernelArgs::default(),
            &["changes no kernel arguments: give append, append_if_missing, replace or delete"],
        );
        let looked_for = KernelArgs { delete: words(&[""]), replace: replace(&[("", "a")]), ..KernelArgs::default() };
        let empty = "cannot look for the kernel argument \"\": it is empty";
        check_inputs(looked_for, &[empty, empty]);
    }

    #[test]
    fn an_argument_is_meant_by_itself_or_by_its_key() {
        for (argument, meant, expect) in [
            ("console=ttyS0", "console", true),
            ("console=ttyS0", "console=ttyS0", true),
            ("console=ttyS0,115200", "console=ttyS0", false),
            ("console", "console", true),
            ("consoleblank=0", "console", false),
            ("root=UUID=a", "root=UUID", false),
            ("\"a=b c\"", "a=\"b c\"", true),
            ("\"a=b c\"", "a", true),
        ] {
            assert_eq!(is_kernel_argument(argument, meant), expect, "{argument:?} as {meant:?}");
        }
    }

    #[test]
    fn what_would_be_different_each_time_is_told() {
        let inputs = |delete: &[&str], pairs: &[(&str, &str)], append: &[&str]| KernelArgs {
            delete: words(delete),
            replace: replace(pairs),
            append: words(append),
            ..KernelArgs::default()
        };
        check_inputs(inputs(&["console"], &[("quiet", "loglevel=7")], &["console=tty0", "console=ttyS0"]), &[]);
        check_inputs(inputs(&[], &[("console", "console=tty0")], &["console=tty0"]), &[]);
        let again = |taker: &str| format!("replaces \"a\" with \"b=1\", but removes that again with {taker:?}");
        check_inputs(inputs(&["b"], &[("a", "b=1")], &[]), &[&again("b")]);
        check_inputs(inputs(&[], &[("a", "b=1"), ("b=1", "c")], &[]), &[&again("b=1")]);
        let missing = KernelArgs { append_if_missing: words(&["b=1"]), ..inputs(&["b"], &[], &[]) };
        check_inputs(missing, &["adds \"b=1\" if it is missing, but also deletes it with \"b\": use append"]);
        let next = "adds \"a=2\", which it replaces with \"a=1\" the next time";
        check_inputs(inputs(&[], &[("a", "a=1")], &["a=2"]), &[next]);
        check_inputs(KernelArgs { append_if_missing: words(&["a=2"]), ..inputs(&[], &[("a", "a=1")], &[]) }, &[next]);
    }

    #[test]
    fn a_workflow_names_what_is_done() {
        let text = r#"{"kernel-args": {"append": ["a"], "append_if_missing": ["b"], "delete": ["c"],
                       "replace": [{"old": "d", "new": "e=f=g"}]}}"#;
        let read: Action = serde_json::from_str(text).expect("an action");
        let expect = KernelArgs {
            delete: words(&["c"]),
            replace: replace(&[("d", "e=f=g")]),
            append_if_missing: words(&["b"]),
            append: words(&["a"]),
            ..KernelArgs::default()
        };
        assert_eq!(read, Action::KernelArgs(expect));
    }
}
