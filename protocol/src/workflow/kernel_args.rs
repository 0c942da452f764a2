//! Inputs of `kernel-args`.

use serde::{Deserialize, Serialize};

use crate::DiskHints;

/// Why this cannot be one argument of a kernel command line; nothing if it can. The kernel splits its command line at white
/// space outside double quotes (lib/cmdline.c, next_arg).
pub fn kernel_argument_problem(argument: &str) -> Option<&'static str> {
    if argument.is_empty() {
        return Some("it is empty");
    }
    if argument.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    let mut quoted = false;
    for c in argument.chars() {
        quoted ^= c == '"';
        if c.is_whitespace() && !quoted {
            return Some("it has a space outside double quotes; give each argument by itself");
        }
    }
    quoted.then_some("it has a double quote without its partner")
}

/// Inputs of `kernel-args`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelArgs {
    /// The disk that carries the image.
    #[serde(default)]
    pub disk: DiskHints,
    /// Arguments to have at the end of the command line, each once.
    pub append: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;
    use crate::workflow::tests::check;

    #[test]
    fn a_kernel_argument_is_one_word() {
        let append = |arguments: &[&str]| {
            let append = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            Action::KernelArgs(KernelArgs { disk: DiskHints::default(), append })
        };
        check(append(&["quiet", "root=UUID=a=b", "dyndbg=\"file a.c +p\""]), &[]);
        let space = "it has a space outside double quotes; give each argument by itself";
        check(
            append(&["", "quiet splash", "a\nb", "a=\"b"]),
            &[
                "cannot add the kernel argument \"\": it is empty",
                &format!("cannot add the kernel argument \"quiet splash\": {space}"),
                "cannot add the kernel argument \"a\\nb\": it has a control character",
                "cannot add the kernel argument \"a=\\\"b\": it has a double quote without its partner",
            ],
        );
        for argument in [" quiet", "quiet ", "\"a b\" c"] {
            assert_eq!(kernel_argument_problem(argument), Some(space), "{argument:?}");
        }
    }
}
