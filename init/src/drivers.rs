//! Loads kernel modules by modalias, using depmod(8)'s tables modules.alias and modules.dep.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use slipway_installer::drivers::module_tables::{self, Modules};
use slipway_installer::drivers::{command_line, modalias};

/// The modules of one kernel.
pub struct Drivers {
    folder: PathBuf,
    /// Pattern and module name, in the order of modules.alias.
    aliases: Vec<(String, String)>,
    modules: Modules,
    command_line: String,
}

impl Drivers {
    /// Reads the modules of the running kernel, from `/lib/modules/RELEASE`.
    pub fn of_running_kernel() -> io::Result<Self> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self::read(&Path::new("/lib/modules").join(release))
    }

    fn read(folder: &Path) -> io::Result<Self> {
        let table = |name: &str| {
            std::fs::read_to_string(folder.join(name))
                .map_err(|e| io::Error::new(e.kind(), format!("reading {}: {e}", folder.join(name).display())))
        };
        Ok(Self {
            folder: folder.to_owned(),
            aliases: module_tables::aliases(&table("modules.alias")?),
            modules: module_tables::dependencies(&table("modules.dep")?),
            command_line: kernel_command_line(),
        })
    }

    /// Loads every module whose pattern matches the alias and that the kernel's command line does not refuse, and the
    /// module whose name is the alias. Dependencies are loaded first. Each result is true if the module was loaded now,
    /// false if it already was.
    pub fn load(&self, alias: &str) -> Vec<(String, io::Result<bool>)> {
        let name = module_tables::canonical(alias);
        let named = self.modules.contains_key(&name).then_some(name);
        let by_alias =
            self.aliases.iter().filter(|(pattern, _)| modalias::fits(pattern, alias)).map(|(_, module)| module);
        let by_alias = by_alias.filter(|module| !command_line::is_refused(&self.command_line, module)).cloned();
        let wanted: BTreeSet<String> = named.into_iter().chain(by_alias).collect();
        wanted.into_iter().map(|module| (module.clone(), self.load_module(&module))).collect()
    }

    /// Removes the files of unloaded modules below the folder `below`, a path as in modules.dep. `loaded` is
    /// /sys/module. Returns the number of bytes freed.
    pub fn remove_unused(&self, below: &str, loaded: &Path) -> u64 {
        let mut freed = 0;
        for (name, (path, _)) in &self.modules {
            if path.starts_with(below) && !loaded.join(name).exists() {
                let path = self.folder.join(path);
                let size = std::fs::metadata(&path).map_or(0, |file| file.len());
                freed += if std::fs::remove_file(&path).is_ok() { size } else { 0 };
            }
        }
        freed
    }

    fn load_module(&self, name: &str) -> io::Result<bool> {
        let Some((path, needed)) = self.modules.get(name) else { return Ok(false) };
        for other in needed {
            if let Some((path, _)) = self.modules.get(other) {
                self.insert(path)?;
            }
        }
        self.insert(path)
    }

    fn insert(&self, path: &str) -> io::Result<bool> {
        insert_with(&self.folder.join(path), &self.command_line)
    }
}

/// Loads the module in a file with its options from the kernel's command line. The file must not be open for writing.
/// Returns false if the module was already loaded.
pub fn insert(path: &Path) -> io::Result<bool> {
    insert_with(path, &kernel_command_line())
}

fn insert_with(path: &Path, command_line: &str) -> io::Result<bool> {
    let options = command_line::options(command_line, &module_tables::module_of(&path.to_string_lossy()));
    // A command line cannot contain NUL.
    match rustix::system::finit_module(File::open(path)?, &CString::new(&*options).unwrap_or_default(), 0) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(error) if options.is_empty() => Err(error.into()),
        Err(error) => {
            let error = io::Error::from(error);
            Err(io::Error::new(
                error.kind(),
                format!("with the options {options:?} of the kernel's command line: {error}"),
            ))
        }
    }
}

fn kernel_command_line() -> String {
    std::fs::read_to_string("/proc/cmdline").unwrap_or_default()
}

/// Acts as `/sbin/modprobe`, which the kernel calls for a file system or a cipher: `modprobe -q -- NAME`.
pub fn modprobe(arguments: impl Iterator<Item = String>) -> ExitCode {
    let wanted: Vec<String> = arguments.filter(|a| !a.starts_with('-')).collect();
    let Ok(drivers) = Drivers::of_running_kernel() else { return ExitCode::FAILURE };
    let results: Vec<_> = wanted.iter().flat_map(|alias| drivers.load(alias)).collect();
    let found = !results.is_empty() && results.iter().all(|(_, result)| result.is_ok());
    if found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modules_of_a_folder_that_are_not_loaded_are_removed() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        for path in ["net/a-b.ko", "net/c.ko", "scsi/d.ko", "sys/module/a_b"] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(path, "12345")?;
        }
        let modules = module_tables::dependencies("net/a-b.ko: \nnet/c.ko: net/a-b.ko\nnet/absent.ko:\nscsi/d.ko:\n");
        let drivers =
            Drivers { folder: folder.path().to_owned(), aliases: Vec::new(), modules, command_line: String::new() };
        assert_eq!(drivers.remove_unused("net/", &folder.path().join("sys/module")), 5);
        let left = ["net/a-b.ko", "net/c.ko", "scsi/d.ko"].map(|path| folder.path().join(path).exists());
        assert_eq!(left, [true, false, true]);
        Ok(())
    }
}
