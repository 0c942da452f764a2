//! Finds the kernel that the installed system would start by itself: the default entry of its boot loader.

use std::collections::BTreeMap;
use std::fs::File;

use slipway_formats::boot_config::places::{ADDONS, BootFiles, IMAGES, KERNEL_CMDLINE, MAX_ENTRY, MAX_MENU};
use slipway_formats::boot_entry::bls::{self, MenuEntry, Start};
use slipway_formats::boot_entry::{BootEntry, extlinux, grub};
use slipway_formats::pe::{self, Section, Sections};
use slipway_protocol::Kexec;

use super::image::{Part, join};
use super::located::{Located, System};
use crate::disk::open::OpenDisk;
use crate::error::{BootError, Error};
use crate::machine::Cancel;
use crate::target::mount::Unmounted;
use crate::target::os_release::OsRelease;
use crate::target::root::TargetRoot;
use crate::target::volume::Volume;
use crate::target::volumes::mount_all;
use crate::text;

const LOADER_CONF: &str = "loader/loader.conf";
/// Links that distributions keep to the newest kernel and its initramfs.
const LINKS: &[(&str, &str)] = &[("vmlinuz", "initrd.img"), ("boot/vmlinuz", "boot/initrd.img")];
/// Maximum bytes of a text section, and of a command line.
const MAX_TEXT: u64 = 64 << 10;
/// Maximum bytes of all menu entries.
const MAX_HELD: usize = 4 << 20;

/// A kernel with its initrd and command line.
#[derive(Debug)]
pub(super) struct Startable {
    pub(super) title: String,
    /// Path and partition of the kernel, in words.
    pub(super) path: String,
    pub(super) kernel: File,
    pub(super) initrd: Option<File>,
    pub(super) cmdline: String,
}

/// Finds what to start: the given kernel, else the boot loader's default.
pub(super) fn find(disk: &OpenDisk, inputs: &Kexec, cancel: &Cancel) -> Result<Startable, Error> {
    let (places, looked_at) = mount_all(disk, cancel)?;
    let search = Search { disk, places: &places, unmounted: &looked_at.unmounted };
    let found = match &inputs.kernel {
        Some(kernel) => Some(search.given(kernel, inputs.initrd.as_deref())?),
        None => search.default()?,
    };
    let Some(mut found) = found else {
        return Err(looked_at.not_found("a kernel that a boot loader starts", disk));
    };
    if let Some(cmdline) = &inputs.cmdline {
        found.cmdline.clone_from(cmdline);
    }
    if found.cmdline.is_empty() {
        let reason = format!("no command line was found for {}; give cmdline", found.path);
        return Err(search.refused(reason));
    }
    Ok(found)
}

struct Search<'a> {
    disk: &'a OpenDisk,
    places: &'a [Volume],
    unmounted: &'a [Unmounted],
}

impl<'a> Search<'a> {
    /// Finds a given kernel and initrd by their paths in the installed system, which may have them on different
    /// volumes.
    fn given(&self, kernel: &str, initrd: Option<&str>) -> Result<Startable, Error> {
        let find = |what: &str, path: &str| {
            let path = path.trim_start_matches('/');
            let places = self.located(path)?;
            let not_there = || self.refused(format!("there is no {what} /{path}: looked for {}", names(&places)));
            places.iter().find(|place| place.exists()).cloned().ok_or_else(not_there)
        };
        let kernel = find("kernel", kernel)?;
        let initrds = initrd.map(|initrd| find("initrd", initrd)).transpose()?;
        self.start("as given", "", &kernel, initrds.as_slice())
    }

    /// Finds the default of the first boot loader that has a default whose kernel exists.
    fn default(&self) -> Result<Option<Startable>, Error> {
        let environment = self.environment()?;
        if let Some(found) = self.menu(&environment)? {
            return Ok(Some(found));
        }
        let grub = |text: &str, _: &str| grub::default(text, environment.clone());
        if let Some(found) = self.configured(&grub_menus, &grub)? {
            return Ok(Some(found));
        }
        if let Some(found) = self.configured(&|volume| Ok(volume.menus()), &extlinux::default)? {
            return Ok(Some(found));
        }
        self.newest()
    }

    /// Returns the variables that GRUB has when it reads entries. They are in the environment block beside the menu
    /// that loads such a block, which may be on the ESP. Adds the arguments that this menu falls back to.
    fn environment(&self) -> Result<BTreeMap<String, String>, Error> {
        let (mut loaded, mut other, mut fallback) = (None, None, None);
        for place in self.places {
            for folder in place.grub_folders()? {
                let block = place
                    .root
                    .read_up_to(&format!("{folder}/grubenv"), MAX_ENTRY)?
                    .map(|text| grub::environment(&text));
                // A menu that only loads another menu does not load an environment block.
                let menu = place.root.read_up_to(&format!("{folder}/grub.cfg"), MAX_MENU)?;
                match menu.filter(|menu| menu.contains("load_env")) {
                    Some(menu) => {
                        loaded = loaded.or(block);
                        fallback = fallback.or_else(|| grub::kernelopts(&menu));
                    }
                    None => other = other.or(block),
                }
            }
        }
        let mut variables = loaded.or(other).unwrap_or_default();
        if let Some(arguments) = fallback {
            variables.entry(grub::KERNELOPTS.to_owned()).or_insert(arguments);
        }
        Ok(variables)
    }

    /// Finds the default of systemd-boot, or of a GRUB with entries in the same format.
    fn menu(&self, environment: &BTreeMap<String, String>) -> Result<Option<Startable>, Error> {
        let (mut entries, mut patterns, mut held) = (Vec::new(), Vec::new(), 0);
        for (place, at) in self.places.iter().zip(0..) {
            patterns
                .extend(place.root.read_up_to(LOADER_CONF, MAX_ENTRY)?.and_then(|text| bls::default_pattern(&text)));
            for dir in place.entry_folders() {
                for name in place.files(&dir, ".conf")? {
                    let text = place.root.read_up_to(&format!("{dir}/{name}"), MAX_ENTRY)?;
                    let entry = text.and_then(|text| bls::parse(&name, &text, environment));
                    held += entry.as_ref().map_or(0, MenuEntry::size);
                    entries.extend(entry.map(|entry| MenuEntry { place: at, ..entry }));
                    self.check_held(held)?;
                }
            }
            for name in &place.files(IMAGES, ".efi")? {
                let entry = unified_entry(&place.root, name);
                held += entry.as_ref().map_or(0, MenuEntry::size);
                entries.extend(entry.map(|entry| MenuEntry { place: at, ..entry }));
                self.check_held(held)?;
            }
        }
        patterns.extend(environment.get("saved_entry").cloned());
        // Like systemd-boot, leaves out entries whose files do not exist.
        entries.retain(|entry| match &entry.start {
            Start::Kernel(boot) => self.holder(entry.place, boot).is_some(),
            Start::Unified(path) => self.places.get(entry.place).is_some_and(|place| place.root.exists(path)),
            Start::Program(_) => false,
        });
        let Some(entry) = bls::default(&mut entries, &patterns) else { return Ok(None) };
        match &entry.start {
            Start::Kernel(boot) => {
                let title = if boot.title.is_empty() { entry.id.clone() } else { boot.title.clone() };
                self.open(entry.place, &BootEntry { title, ..boot.clone() })
            }
            Start::Unified(path) => self.open_unified(entry, path).map(Some),
            Start::Program(_) => Ok(None),
        }
    }

    fn check_held(&self, held: usize) -> Result<(), Error> {
        if held <= MAX_HELD {
            return Ok(());
        }
        Err(self.refused(format!("its boot entries take up more than {}", text::size(MAX_HELD as u64))))
    }

    /// Finds the default of the first configuration file whose default kernel exists. `read` gets the text and the
    /// folder of the file.
    fn configured(
        &self,
        paths: &dyn Fn(&Volume) -> Result<Vec<String>, Error>,
        read: &dyn Fn(&str, &str) -> Option<BootEntry>,
    ) -> Result<Option<Startable>, Error> {
        for (place, at) in self.places.iter().zip(0..) {
            for path in paths(place)? {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let entry = place.root.read_up_to(&path, MAX_MENU)?.and_then(|text| read(&text, folder));
                if let Some(found) = entry.map(|entry| self.open(at, &entry)).transpose()?.flatten() {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Finds the links to the newest kernel, and takes the command line for later kernels.
    fn newest(&self) -> Result<Option<Startable>, Error> {
        let mut cmdline = None;
        for place in self.places {
            cmdline = cmdline.or(place.root.read_up_to(KERNEL_CMDLINE, MAX_ENTRY)?);
        }
        let cmdline = cmdline.unwrap_or_default().trim().replace(char::is_control, " ");
        // A dangling link also means that the kernel needs an initrd.
        let has_initrd = |volume: &Volume| LINKS.iter().any(|(_, initrd)| volume.root.has(initrd));
        for (kernel, initrd) in LINKS {
            let kernels = self.located(kernel)?;
            let Some(kernel) = kernels.into_iter().find(Located::exists) else { continue };
            let initrds = self.located(initrd)?;
            let beside = initrds.into_iter().find(|initrd| initrd.is_beside(&kernel));
            let initrd = beside.unwrap_or_else(|| Located { path: (*initrd).to_owned(), ..kernel.clone() });
            // If there is no initrd at all, the kernel has all it needs built in.
            let initrds = if initrd.exists() || self.places.iter().any(has_initrd) { vec![initrd] } else { Vec::new() };
            return self.start("the newest", &cmdline, &kernel, &initrds).map(Some);
        }
        Ok(None)
    }

    /// Finds the file system with an entry's kernel: the file system that the entry names, else that of its
    /// configuration, else one that, mounted at /boot, has the kernel. Also returns the prefix of the entry's paths
    /// that does not exist on the file system that was found.
    fn holder(&self, at: usize, entry: &BootEntry) -> Option<(&'a Volume, &'static str)> {
        let is_named = |place: &&Volume, uuid: &str| {
            place.file_system.uuid.as_ref().is_some_and(|found| found.eq_ignore_ascii_case(uuid))
        };
        let named = |uuid: &String| self.places.iter().find(|place| is_named(place, uuid));
        let own = match &entry.file_system {
            Some(uuid) => named(uuid),
            None => self.places.get(at),
        };
        if let Some(own) = own.filter(|own| own.root.exists(&entry.kernel)) {
            return Some((own, ""));
        }
        let below = entry.kernel.strip_prefix("boot/").filter(|_| entry.file_system.is_none())?;
        self.places.iter().find(|place| place.root.exists(below)).map(|place| (place, "boot/"))
    }

    /// Opens the files of an entry; `None` if its kernel does not exist. The initrds are on the same file system as the
    /// kernel.
    fn open(&self, at: usize, entry: &BootEntry) -> Result<Option<Startable>, Error> {
        let Some((volume, prefix)) = self.holder(at, entry) else { return Ok(None) };
        let own = |path: &String| Located { volume, path: path.strip_prefix(prefix).unwrap_or(path).to_owned() };
        let initrds: Vec<Located> = entry.initrds.iter().map(own).collect();
        self.start(&entry.title, &entry.cmdline, &own(&entry.kernel), &initrds).map(Some)
    }

    /// Opens a kernel and its initrds. None may be missing.
    fn start(&self, title: &str, cmdline: &str, kernel: &Located, initrds: &[Located]) -> Result<Startable, Error> {
        if let Some(missing) = initrds.iter().find(|initrd| !initrd.exists()) {
            return Err(self.refused(format!(
                "an initrd for {kernel} does not exist: looked for {missing}; give kernel, initrd and cmdline"
            )));
        }
        let open = |file: &Located| file.volume.root.open_file(&file.path);
        let (path, kernel) = (kernel.to_string(), open(kernel)?);
        let mut initrds = initrds.iter().map(open).collect::<Result<Vec<File>, Error>>()?;
        let initrd = match initrds.len() {
            0 | 1 => initrds.pop(),
            _ => {
                let parts: Result<Vec<Part>, _> = initrds.into_iter().map(Part::whole).collect();
                let joined = parts.and_then(join);
                Some(joined.map_err(|source| self.refused(format!("its initrds cannot be joined: {source}")))?)
            }
        };
        Ok(Startable { title: title.to_owned(), path, kernel, initrd, cmdline: cmdline.to_owned() })
    }

    /// Takes a unified kernel image apart.
    fn open_unified(&self, entry: &MenuEntry, path: &str) -> Result<Startable, Error> {
        let Some(place) = self.places.get(entry.place) else {
            return Err(self.refused(format!("there is no /{path}")));
        };
        let shown = format!("/{path} of {}", place.name);
        let failed = |what: &str| self.refused(format!("{shown} {what}"));
        let cut_off = |source| failed(&format!("cannot be read: {source}"));
        let sections = read_sections(&place.root, path).ok_or_else(|| failed("is not a unified kernel image"))?;
        let part = |name: &str| sections.first(name).map(|section| part_of(&place.root, path, section)).transpose();
        let kernel = part(".linux")?.ok_or_else(|| failed("contains no kernel"))?;
        let initrds: Vec<Part> = [part(".ucode")?, part(".initrd")?].into_iter().flatten().collect();
        let mut cmdline = part(".cmdline")?.map(|mut part| part.read(MAX_TEXT)).transpose().map_err(cut_off)?;
        let mut words = vec![pe::line(cmdline.get_or_insert_default())];
        for dir in [ADDONS, &format!("{path}.extra.d")] {
            for name in place.files(dir, ".addon.efi")? {
                words.push(addition(&place.root, &format!("{dir}/{name}")).unwrap_or_default());
            }
        }
        words.retain(|words| !words.is_empty());
        if words.iter().map(String::len).sum::<usize>() as u64 > MAX_TEXT {
            return Err(failed("has a command line that is too long for any kernel, including its addons"));
        }
        let initrd = if initrds.is_empty() { None } else { Some(join(initrds).map_err(cut_off)?) };
        let kernel = join(vec![kernel]).map_err(cut_off)?;
        Ok(Startable { title: entry.id.clone(), path: shown, kernel, initrd, cmdline: words.join(" ") })
    }

    /// Returns the places where the installed system may have a file.
    fn located(&self, path: &str) -> Result<Vec<Located<'a>>, Error> {
        System::new(self.places, self.unmounted)?.places(path).map_err(|reason| self.refused(reason))
    }

    fn refused(&self, reason: String) -> Error {
        Error::Boot(BootError::InstalledKernel { disk: self.disk.path().to_owned(), reason })
    }
}

fn names(places: &[Located]) -> String {
    let names: Vec<String> = places.iter().map(Located::to_string).collect();
    if names.is_empty() { "it nowhere, because the disk has no file system".to_owned() } else { names.join(", ") }
}

fn grub_menus(volume: &Volume) -> Result<Vec<String>, Error> {
    Ok(volume.grub_folders()?.iter().map(|folder| format!("{folder}/grub.cfg")).collect())
}

/// Makes the menu entry of a unified kernel image (UAPI.1, "Type #2").
fn unified_entry(root: &TargetRoot, name: &str) -> Option<MenuEntry> {
    let path = format!("{IMAGES}/{name}");
    let sections = read_sections(root, &path)?;
    sections.has_kernel().then_some(())?;
    let os_release = sections.first(".osrel").and_then(|section| {
        let bytes = part_of(root, &path, section).ok()?.read(MAX_TEXT).ok()?;
        Some(OsRelease::parse(&String::from_utf8_lossy(&bytes)))
    });
    let OsRelease { sort_key, version, .. } = os_release.unwrap_or_default();
    let (id, is_bad) = bls::counted(name);
    let version = version.unwrap_or_default();
    Some(MenuEntry { id, sort_key, version, is_bad, start: Start::Unified(path), ..MenuEntry::default() })
}

/// Returns the command line that an addon adds.
fn addition(root: &TargetRoot, path: &str) -> Option<String> {
    let section = read_sections(root, path)?.first(".cmdline")?;
    Some(pe::line(&part_of(root, path, section).ok()?.read(MAX_TEXT).ok()?))
}

fn read_sections(root: &TargetRoot, path: &str) -> Option<Sections> {
    let mut head = Part::whole(root.open_file(path).ok()?).ok()?;
    head.len = head.len.min(pe::HEAD);
    Sections::read(&head.read(pe::HEAD).ok()?)
}

fn part_of(root: &TargetRoot, path: &str, section: Section) -> Result<Part, Error> {
    Ok(Part { file: root.open_file(path)?, offset: section.offset, len: section.len })
}
