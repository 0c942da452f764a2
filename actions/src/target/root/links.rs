//! Exchanges and replaces names in the root, and finds the symbolic links to a name.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fsync, linkat, openat, readlinkat, renameat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

use super::{MAX_LINKS, TargetRoot, is_missing, kind_of, split, target_file};
use crate::error::Error;

/// How many folders deep symbolic links are searched for.
const DEPTH: usize = 16;

impl TargetRoot {
    /// Resolves all links of a path. The result is relative to the root, and nothing need exist there.
    pub(crate) fn resolved(&self, path: &str) -> Result<String, Error> {
        let resolve = || -> io::Result<String> {
            let (mut done, mut links) = (Vec::new(), 0);
            let mut rest: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
            while let Some(name) = rest.pop() {
                match name.as_str() {
                    "" | "." => continue,
                    ".." => {
                        done.pop();
                        continue;
                    }
                    _ => done.push(name),
                }
                let target = match self.link_at(&done.join("/")) {
                    Err(error) if is_missing(&error) => None,
                    other => other?,
                };
                if let Some(target) = target {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    done.clear();
                    rest.extend(target.rsplit('/').map(str::to_owned));
                }
            }
            Ok(done.join("/"))
        };
        resolve().map_err(|source| target_file("following", path, source))
    }

    /// Exchanges two names in one step. Both must exist.
    pub(crate) fn exchange(&self, one: &str, other: &str) -> Result<(), Error> {
        let exchange = || -> io::Result<()> {
            let [(one_parent, one), (other_parent, other)] = [split(one), split(other)];
            let [one_parent, other_parent] =
                [one_parent, other_parent].map(|parent| self.open_directory(parent.as_bytes()));
            let (one_parent, other_parent) = (one_parent?, other_parent?);
            renameat_with(&one_parent, one, &other_parent, other, RenameFlags::EXCHANGE)?;
            fsync(&one_parent)?;
            Ok(fsync(&other_parent)?)
        };
        exchange().map_err(|source| target_file("replacing", one, source))
    }

    /// Makes a hard link to a file or symbolic link, in place of whatever has the new name.
    pub(crate) fn name_again(&self, path: &str, name: &str) -> Result<(), Error> {
        let name_again = || -> io::Result<()> {
            let [(from, old), (to, new)] = [split(path), split(name)];
            let (from, to) = (self.open_directory(from.as_bytes())?, self.open_directory(to.as_bytes())?);
            let temporary = format!(".{new}.slipway");
            _ = unlinkat(&to, &*temporary, AtFlags::empty());
            linkat(from, old, &to, &*temporary, AtFlags::empty())?;
            renameat(&to, &*temporary, &to, new)?;
            Ok(fsync(to)?)
        };
        name_again().map_err(|source| target_file("replacing", name, source))
    }

    /// Finds the symbolic links with exactly this target, in a folder and the folders below it. Returns their paths.
    pub(crate) fn links_to(&self, folder: &str, text: &str) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        let walk = self
            .open_directory(folder.as_bytes())
            .map_err(io::Error::from)
            .and_then(|dir| collect(dir.as_fd(), folder, text, DEPTH, &mut found));
        match walk {
            Err(error) if !is_missing(&error) => Err(target_file("reading", folder, error)),
            _ => Ok(found),
        }
    }
}

fn collect(dir: BorrowedFd<'_>, path: &str, text: &str, depth: usize, found: &mut Vec<String>) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        // slipway never creates a name that is not text.
        let Ok(place) = name.to_str() else { continue };
        let place = if path.is_empty() { place.to_owned() } else { format!("{path}/{place}") };
        match kind_of(dir, &entry)? {
            FileType::Symlink if readlinkat(dir, name, Vec::new())?.to_bytes() == text.as_bytes() => found.push(place),
            FileType::Directory if depth > 0 && !matches!(name.to_bytes(), b"." | b"..") => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                collect(openat(dir, name, flags, Mode::empty())?.as_fd(), &place, text, depth - 1, found)?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    fn root(links: &[(&str, &str)]) -> (tempfile::TempDir, TargetRoot) {
        let dir = tempfile::tempdir().unwrap();
        for (path, target) in links {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }
        let root = TargetRoot::new(File::open(dir.path()).unwrap().into());
        (dir, root)
    }

    #[test]
    fn a_path_is_resolved_whether_or_not_something_is_there() {
        let links = [
            ("etc/relative", "../run/a/b"),
            ("etc/absolute", "/run/a"),
            ("etc/above", "../../../../run/x"),
            ("etc/chain", "folder/run/c"),
            ("etc/folder", "/var"),
            ("var/run", "../run"),
            ("etc/loop", "loop"),
        ];
        let (_dir, root) = root(&links);
        for (path, expect) in [
            ("etc/relative", "run/a/b"),
            ("etc/absolute", "run/a"),
            ("etc/above", "run/x"),
            ("etc/chain", "run/c"),
            ("etc/none/at/all", "etc/none/at/all"),
        ] {
            assert_eq!(root.resolved(path).unwrap(), expect, "{path}");
        }
        assert!(root.resolved("etc/loop").is_err());
    }

    #[test]
    fn links_are_found_by_their_text_and_take_the_place_of_what_they_lead_to() {
        let links = [("etc/a", "/etc/.x"), ("etc/deep/er/.b", "/etc/.x"), ("etc/other", ".x"), ("etc/c", "/etc")];
        let (dir, root) = root(&links);
        fs::write(dir.path().join("etc/.x"), "x").unwrap();
        let mut found = root.links_to("etc", "/etc/.x").unwrap();
        found.sort();
        assert_eq!(found, ["etc/a", "etc/deep/er/.b"]);
        assert_eq!(root.links_to("none", "x").unwrap(), [""; 0]);
        for name in &found {
            root.name_again("etc/.x", name).unwrap();
            let file = dir.path().join(name);
            assert!(file.is_file() && !file.is_symlink(), "{name}");
        }
        root.exchange("etc/.x", "etc/other").unwrap();
        assert!(dir.path().join("etc/.x").is_symlink() && !dir.path().join("etc/other").is_symlink());
        assert!(root.exchange("etc/.x", "etc/none").is_err());
    }
}
