//! Reads grub.cfg as far as needed to find the default entry. Commands are read in order, and variables are expanded.
//! Every condition counts as true (GRUB manual, "Shell-like scripting"). The assignment of an empty value is ignored:
//! on the machines that GRUB is made for, the branch with a value is taken.

mod script;

use std::collections::BTreeMap;

use super::{BootEntry, plain_path};
use script::{Command, Script};

pub use script::expand;

/// Most entries, and most nesting, that are read. No real menu has more.
const MAX_ITEMS: usize = 512;
const MAX_DEPTH: usize = 32;
/// Most variables, and most bytes of each.
const MAX_VARIABLES: usize = 512;
const MAX_VALUE: usize = 4096;

/// Variable that holds the arguments of entries in some versions of Fedora.
pub const KERNELOPTS: &str = "kernelopts";

/// An entry or a submenu.
#[derive(Debug, Default)]
struct Item {
    /// Index of the submenu that contains the item; none at the top level.
    parent: Option<usize>,
    id: Option<String>,
    entry: BootEntry,
}

/// An open brace.
enum Block {
    Menu(usize),
    Other,
}

/// The variables of an environment block (GRUB manual, "Environment block").
pub fn environment(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.replace('\\', ""))).take(MAX_VARIABLES).collect()
}

/// The arguments for entries that use `$kernelopts`, as the menu sets them if the environment block does not.
pub fn kernelopts(menu: &str) -> Option<String> {
    let mut lines = menu.lines().map(|line| Script::new(line).next(&BTreeMap::new()));
    lines.find_map(|command| match command {
        Some(Command::Words { words, .. }) if words.first().is_some_and(|word| word == "set") => {
            words.get(1)?.strip_prefix(KERNELOPTS)?.strip_prefix('=').map(str::to_owned)
        }
        _ => None,
    })
}

/// The entry that is started when nobody chooses. `variables` are those of the environment block.
pub fn default(text: &str, mut variables: BTreeMap<String, String>) -> Option<BootEntry> {
    let mut items: Vec<Item> = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    let mut file_system = None;
    let mut script = Script::new(text);
    while let Some(command) = script.next(&variables).filter(|_| items.len() < MAX_ITEMS && blocks.len() < MAX_DEPTH) {
        let inside = blocks.iter().rev().find_map(|block| match block {
            Block::Menu(index) => Some(*index),
            Block::Other => None,
        });
        match command {
            Command::Close => drop(blocks.pop()),
            Command::Words { words, opens } => {
                let is_menu = matches!(words.first().map(String::as_str), Some("menuentry" | "submenu"));
                if is_menu && opens {
                    items.push(item(&words, inside, &file_system));
                    blocks.push(Block::Menu(items.len() - 1));
                    continue;
                }
                if opens {
                    blocks.push(Block::Other);
                }
                match searched(&words) {
                    Some(uuid) => match inside.and_then(|index| items.get_mut(index)) {
                        Some(item) => item.entry.file_system = Some(uuid),
                        None => file_system = Some(uuid),
                    },
                    None => run(&words, inside.and_then(|index| items.get_mut(index)), &mut variables),
                }
            }
        }
    }
    chosen(&items, variables.get("default").map_or("0", String::as_str))
}

/// The item that a `menuentry` or `submenu` command begins.
fn item(words: &[String], parent: Option<usize>, file_system: &Option<String>) -> Item {
    let after = |option: &str| words.iter().position(|word| word == option).and_then(|at| words.get(at + 1)).cloned();
    let title = words.get(1).cloned().unwrap_or_default();
    let entry = BootEntry { title, file_system: file_system.clone(), ..BootEntry::default() };
    Item { parent, id: after("--id"), entry }
}

/// The UUID in a `search --fs-uuid` command.
fn searched(words: &[String]) -> Option<String> {
    let is_search = words.first().is_some_and(|word| word == "search");
    let by_uuid = is_search && words.iter().any(|word| matches!(word.as_str(), "--fs-uuid" | "-u"));
    let uuid = words.last().filter(|word| by_uuid && !word.starts_with('-'))?;
    Some(uuid.to_ascii_lowercase())
}

/// Runs a command that names a kernel or initrds, or sets a variable.
fn run(words: &[String], item: Option<&mut Item>, variables: &mut BTreeMap<String, String>) {
    let Some((command, arguments)) = words.split_first() else { return };
    let assignment = match command.as_str() {
        "set" => arguments.first().map(String::as_str),
        other => Some(other),
    };
    match (command.as_str(), item) {
        ("linux" | "linux16" | "linuxefi", Some(item)) if item.entry.kernel.is_empty() => {
            let Some((kernel, options)) = arguments.split_first() else { return };
            item.entry.kernel = plain_path(kernel);
            item.entry.cmdline = options.iter().map(|word| kernel_word(word)).collect::<Vec<String>>().join(" ");
        }
        ("initrd" | "initrd16" | "initrdefi", Some(item)) if item.entry.initrds.is_empty() => {
            item.entry.initrds = arguments.iter().map(|path| plain_path(path)).collect();
        }
        _ => {
            let Some((name, value)) = assignment.and_then(|word| word.split_once('=')) else { return };
            let fits = variables.len() < MAX_VARIABLES || variables.contains_key(name);
            if !value.is_empty() && value.len() <= MAX_VALUE && fits {
                variables.insert(name.to_owned(), value.to_owned());
            }
        }
    }
}

/// A word for the kernel's command line, in double quotes if it contains a space.
fn kernel_word(word: &str) -> String {
    if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() }
}

/// Finds the entry that `default` names by number, title or id, after those of its submenus, each followed by `>`. If
/// there is no such entry or it starts no kernel, returns the first entry that starts a kernel.
fn chosen(items: &[Item], default: &str) -> Option<BootEntry> {
    let mut place = None;
    for wanted in default.split('>') {
        let children = || items.iter().enumerate().filter(|(_, item)| item.parent == place);
        let named = |item: &Item| item.id.as_deref() == Some(wanted) || item.entry.title == wanted;
        let found = match wanted.parse::<usize>() {
            Ok(number) => children().nth(number),
            Err(_) => children().find(|(_, item)| named(item)),
        };
        place = found.map(|(index, _)| index);
        if place.is_none() {
            break;
        }
    }
    let starts = |item: &&Item| !item.entry.kernel.is_empty();
    let meant = place.and_then(|index| items.get(index)).filter(starts);
    meant.or_else(|| items.iter().find(starts)).map(|item| item.entry.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of grub-mkconfig of Debian 12, shortened.
    const DEBIAN: &str = r#"
# DO NOT EDIT THIS FILE
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
  fi
}
insmod part_gpt
search --no-floppy --fs-uuid --set=root 11111111-aaaa-4444-8888-000000000001
function gfxmode {
	set gfxpayload="${1}"
}
set linux_gfx_mode=
export linux_gfx_mode
menuentry 'Debian GNU/Linux' --class debian --class gnu-linux $menuentry_id_option 'gnulinux-simple-1' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	set root='hd0,gpt2'
	if [ x$feature_platform_search_hint = xy ]; then
	  search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt2 --hint-efi=hd0,gpt2  1A2B
	else
	  search --no-floppy --fs-uuid --set=root 1A2B
	fi
	echo	'Loading Linux 6.1.0-18-amd64 ...'
	linux	/boot/vmlinuz-6.1.0-18-amd64 root=UUID=1a2b ro  quiet dyndbg="file a +p"
	echo	'Loading initial ramdisk ...'
	initrd	/boot/initrd.img-6.1.0-18-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-18-amd64' $menuentry_id_option 'gnulinux-18' {
		linux	/boot/vmlinuz-6.1.0-18-amd64 root=UUID=1a2b ro
	}
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-17-amd64' $menuentry_id_option 'gnulinux-17' {
		linux	($root)/boot/vmlinuz-6.1.0-17-amd64 root=UUID=1a2b ro
		initrd	/boot/early.img /boot/initrd.img-6.1.0-17-amd64
	}
}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' { fwsetup; }
"#;

    fn find(text: &str) -> Option<BootEntry> {
        default(text, BTreeMap::new())
    }

    #[test]
    fn debians_default_is_its_first_entry() {
        let entry = find(DEBIAN).unwrap();
        assert_eq!((entry.title.as_str(), entry.kernel.as_str()), ("Debian GNU/Linux", "boot/vmlinuz-6.1.0-18-amd64"));
        assert_eq!(entry.cmdline, "root=UUID=1a2b ro quiet \"dyndbg=file a +p\"");
        assert_eq!(entry.initrds, ["boot/initrd.img-6.1.0-18-amd64"]);
        assert_eq!(entry.file_system.as_deref(), Some("1a2b"));
    }

    #[test]
    fn the_default_is_a_number_a_title_or_an_id_and_may_be_in_a_submenu() {
        let older = "gnulinux-advanced-1>gnulinux-17";
        for default in [older, "1>1", "Advanced options for Debian GNU/Linux>gnulinux-17"] {
            let entry = find(&DEBIAN.replace("default=\"0\"", &format!("default=\"{default}\""))).unwrap();
            assert_eq!(entry.kernel, "boot/vmlinuz-6.1.0-17-amd64", "{default}");
            assert_eq!(entry.initrds, ["boot/early.img", "boot/initrd.img-6.1.0-17-amd64"]);
            assert_eq!(entry.file_system.as_deref(), Some("11111111-aaaa-4444-8888-000000000001"));
        }
        for default in ["none", "7", "2", "1", "1>9", ""] {
            let entry = find(&DEBIAN.replace("default=\"0\"", &format!("default=\"{default}\""))).unwrap();
            assert_eq!(entry.title, "Debian GNU/Linux", "{default}");
        }
        let saved = DEBIAN.replace("default=\"0\"", "default=\"${saved_entry}\"");
        let block = format!("# GRUB Environment Block\nsaved_entry={older}\n########");
        assert_eq!(super::default(&saved, environment(&block)).unwrap().kernel, "boot/vmlinuz-6.1.0-17-amd64");
    }

    #[test]
    fn a_menu_of_fedora_has_arguments_to_fall_back_to() {
        let menu = "if [ -z \"${kernelopts}\" ]; then\n  set kernelopts=\"root=x ro k=\\\"v w\\\" \"\nfi\nblscfg\n";
        assert_eq!(kernelopts(menu).as_deref(), Some("root=x ro k=\"v w\" "));
        for menu in ["", "set kernelopts\n", "set kernelopts2=a\n", "# set kernelopts=a\n"] {
            assert_eq!(kernelopts(menu), None, "{menu:?}");
        }
    }

    #[test]
    fn a_menu_without_a_kernel_has_no_default() {
        for text in ["", "}}}}", "menuentry x {", "linux /v", "menuentry x { chainloader /x.efi\n}", "menuentry 'x"] {
            assert_eq!(find(text), None, "{text:?}");
        }
    }

    #[test]
    fn variables_that_grow_have_an_end() {
        let doubling: String = (0..64).map(|n| format!("set a{}=$a{n}$a{n}\n", n + 1)).collect();
        let text = format!("set a0=xxxxxxxx\n{doubling}menuentry x {{\nlinux /v $a9 {}\n}}\n", "$a9 ".repeat(10_000));
        assert!(find(&text).unwrap().cmdline.len() < 1 << 20);
    }
}
