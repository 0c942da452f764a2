//! Mount units of systemd (systemd.mount(5), "Options").

use super::Entry;

/// What a mount unit mounts; `None` if the text is not a mount unit.
pub fn of_unit(text: &str) -> Option<Entry> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "[Mount]").skip(1);
    let (mut source, mut place, mut kind, mut options) = (None, None, "", "");
    for (key, value) in lines.by_ref().take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='))
    {
        match (key.trim(), value.trim()) {
            ("What", value) => source = Some(value),
            ("Where", value) => place = Some(value),
            ("Type", value) => kind = value,
            ("Options", value) => options = value,
            _ => {}
        }
    }
    Some(Entry::new(source?, place?, kind, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_unit_says_what_a_line_of_fstab_says() {
        let unit = "[Unit]\nDescription=x\nWhat=no\n[Mount]\nWhat=/dev/disk/by-uuid/0a\nWhere=/var\nType = btrfs\n\
                    Options=subvol=@var,noatime\n\n[Install]\nWantedBy=local-fs.target\n";
        let line = super::super::entries("UUID=0a /var btrfs subvol=@var,noatime").remove(0);
        assert_eq!(of_unit(unit), Some(line));
        for none in ["", "[Unit]\nWhat=a\nWhere=/var\n", "[Mount]\nWhat=a\n"] {
            assert_eq!(of_unit(none), None, "{none}");
        }
    }
}
