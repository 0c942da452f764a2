//! The words of the kernel's command line, and its options for kernel modules. The kernel applies these options only to
//! built-in drivers (Linux, admin-guide/kernel-parameters). For modules, that is the task of modprobe(8), and here of
//! slipway.

use crate::drivers::module_tables::canonical;

/// Prefix of words with modules that are not loaded for any device (modprobe.d(5), "blacklist").
const REFUSED: &str = "modprobe.blacklist=";

/// Splits a command line into words and keeps their quotes. Double quotes may enclose blanks, as in the kernel's own
/// parser (lib/cmdline.c, `next_arg`).
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let is_between = move |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    };
    text.split(is_between).filter(|word| !word.is_empty())
}

/// Returns the words for the kernel. Words after `--` are for PID 1.
fn of_kernel(text: &str) -> impl Iterator<Item = &str> {
    words(text).take_while(|word| *word != "--")
}

/// Returns the options of a module as finit_module(2) takes them, from words `MODULE.OPTION=VALUE`.
pub fn options(text: &str, module: &str) -> String {
    let module = canonical(module);
    let option = |word| {
        let (name, option) = str::split_once(word, '.')?;
        (canonical(name) == module && !option.is_empty()).then_some(option)
    };
    of_kernel(text).filter_map(option).collect::<Vec<_>>().join(" ")
}

/// Whether the command line forbids to load a module for devices: `modprobe.blacklist=MODULE,MODULE`.
pub fn is_refused(text: &str, module: &str) -> bool {
    let lists = of_kernel(text).filter_map(|word| word.strip_prefix(REFUSED));
    lists.flat_map(|list| list.split(',')).any(|name| canonical(name) == canonical(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = " quiet usb-storage.delay_use=15 usb_storage.quirks=1:2:u nvme.a=\"x  y\" a.b.c=d usb_storage. \
                        modprobe.blacklist=mlx5-core,foo modprobe.blacklist=bar root=\"a b\" -- usb_storage.later=1\n";

    #[test]
    fn options_are_those_of_the_module_in_either_spelling() {
        for (module, expect) in [
            ("usb_storage", "delay_use=15 quirks=1:2:u"),
            ("usb-storage", "delay_use=15 quirks=1:2:u"),
            ("nvme", "a=\"x  y\""),
            ("a", "b.c=d"),
            ("usb", ""),
            ("quiet", ""),
        ] {
            assert_eq!(options(LINE, module), expect, "{module}");
        }
    }

    #[test]
    fn each_list_of_refused_modules_counts() {
        let refused = |module| is_refused(LINE, module);
        assert!(["mlx5_core", "mlx5-core", "foo", "bar"].into_iter().all(refused));
        assert!(!["mlx5", "modprobe", ""].into_iter().any(refused));
    }

    #[test]
    fn blanks_in_quotes_belong_to_a_word() {
        let found: Vec<&str> = words("\ta=\"b c\"d  \"e f\" g\n").collect();
        assert_eq!(found, ["a=\"b c\"d", "\"e f\"", "g"]);
        assert_eq!(words(" \n").count(), 0);
    }
}
