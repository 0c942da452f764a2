//! Finds the program on an EFI system partition that starts the installed system.

use slipway_formats::boot_entry::version;

use crate::target::os_release::OsRelease;

/// Folders below EFI that do not belong to a vendor.
const NO_VENDORS: &[&str] = &["boot", "linux", "systemd", "tools", "microsoft"];

/// Returns the architecture in file names of the firmware (UEFI specification 2.10, table 3-2), by the word size that
/// Linux reports for the firmware (`fw_platform_size`). On some machines it differs from that of the processor.
pub(crate) fn architecture(width: &str) -> &'static str {
    match (std::env::consts::ARCH, width.trim()) {
        ("aarch64", _) => "aa64",
        (_, "32") => "ia32",
        _ => "x64",
    }
}

/// Path of the program that firmware starts from a disk without a boot entry (UEFI specification 2.10, 3.5.1.1).
pub(crate) fn removable_path(architecture: &str) -> String {
    format!("EFI/BOOT/BOOT{}.EFI", architecture.to_ascii_uppercase())
}

/// Chooses the program to start from the paths of all programs below EFI: the system's own boot loader, preferring the
/// one for Secure Boot; else the newest kernel that is an EFI program; else the program on the removable path. Fails
/// with the candidates if several are equally good.
pub(crate) fn choose<'a>(
    files: &'a [String],
    architecture: &str,
    system: &OsRelease,
) -> Result<Option<&'a str>, Vec<&'a str>> {
    let named = |name: &str| vendors_with(files, &format!("{name}{architecture}.efi"));
    let grub = named("grub");
    // shim starts the loader beside it, and is useless without one.
    let has_second = |shim: &&str| grub.iter().any(|grub| folder(grub) == folder(shim));
    let shim: Vec<&str> = named("shim").into_iter().filter(has_second).collect();
    for found in [shim, grub] {
        match found.as_slice() {
            [] => {}
            [only] => return Ok(Some(only)),
            several => return own(several, system).map(Some).ok_or(found),
        }
    }
    let at = |wanted: &str| files.iter().find(|path| path.eq_ignore_ascii_case(wanted)).map(String::as_str);
    let kernels = files.iter().filter(|path| folder(path).is_some_and(|folder| folder.eq_ignore_ascii_case("linux")));
    let newest = kernels.map(String::as_str).max_by(|a, b| version::compare(a, b));
    Ok(at(&format!("EFI/systemd/systemd-boot{architecture}.efi")).or(newest).or(at(&removable_path(architecture))))
}

/// Returns the program in the vendor folder of this system, or of a system it is similar to.
fn own<'a>(programs: &[&'a str], system: &OsRelease) -> Option<&'a str> {
    let of = |id: &String| programs.iter().copied().find(|path| folder(path).is_some_and(|name| is_vendor(id, name)));
    system.ids.iter().find_map(of)
}

/// Whether a folder belongs to the system with this ID: for example `opensuse` to `opensuse-leap`, and `redhat` to
/// `rhel`.
fn is_vendor(id: &str, folder: &str) -> bool {
    let name = if id == "rhel" { Some("redhat") } else { id.split('-').next() };
    name.is_some_and(|name| folder.eq_ignore_ascii_case(name))
}

/// Returns the programs of this name in vendor folders.
fn vendors_with<'a>(files: &'a [String], name: &str) -> Vec<&'a str> {
    let is_vendors = |path: &&str| {
        let is_vendor = folder(path).is_some_and(|folder| !NO_VENDORS.contains(&folder.to_ascii_lowercase().as_str()));
        is_vendor && path.rsplit('/').next().is_some_and(|found| found.eq_ignore_ascii_case(name))
    };
    files.iter().map(String::as_str).filter(is_vendors).collect()
}

/// The folder below EFI that a program is in.
fn folder(path: &str) -> Option<&str> {
    path.split('/').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[&str], os_release: &str, expect: Result<Option<&str>, &[&str]>) {
        let files: Vec<String> = files.iter().map(|file| format!("EFI/{file}")).collect();
        let found = choose(&files, "x64", &OsRelease::parse(os_release));
        let expect = expect.map(|path| path.map(|path| format!("EFI/{path}")));
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect.as_deref(), "{files:?}"),
            (Err(found), Err(expect)) => {
                assert_eq!(found, expect.iter().map(|path| format!("EFI/{path}")).collect::<Vec<_>>(), "{files:?}");
            }
            (found, expect) => panic!("{files:?} gave {found:?} and not {expect:?}"),
        }
    }

    #[test]
    fn the_systems_own_loader_is_preferred_to_the_removable_path() {
        check(&[], "", Ok(None));
        check(&["BOOT/BOOTX64.EFI"], "", Ok(Some("BOOT/BOOTX64.EFI")));
        check(&["BOOT/BOOTX64.EFI", "BOOT/grubx64.efi"], "", Ok(Some("BOOT/BOOTX64.EFI")));
        check(&["BOOT/BOOTAA64.EFI", "debian/grubaa64.efi"], "", Ok(None));
        let systemd = ["BOOT/BOOTX64.EFI", "Linux/a.efi", "systemd/systemd-bootx64.efi"];
        check(&systemd, "", Ok(Some("systemd/systemd-bootx64.efi")));
        check(&["Linux/a-6.9.efi", "Linux/a-6.10.efi", "BOOT/BOOTX64.EFI"], "", Ok(Some("Linux/a-6.10.efi")));
        let debian = ["systemd/systemd-bootx64.efi", "debian/shimx64.efi", "debian/grubx64.efi", "debian/fbx64.efi"];
        check(&debian, "ID=debian", Ok(Some("debian/shimx64.efi")));
        check(&["debian/shimx64.efi", "systemd/systemd-bootx64.efi"], "", Ok(Some("systemd/systemd-bootx64.efi")));
        check(&["Debian/GRUBX64.EFI"], "", Ok(Some("Debian/GRUBX64.EFI")));
    }

    #[test]
    fn of_several_vendors_the_systems_own_is_meant() {
        let two = ["fedora/shimx64.efi", "fedora/grubx64.efi", "redhat/shimx64.efi", "redhat/grubx64.efi"];
        check(&two, "ID=\"rhel\"\nID_LIKE=\"fedora\"", Ok(Some("redhat/shimx64.efi")));
        check(&two, "ID=rocky\nID_LIKE=\"rocky fedora\"", Ok(Some("fedora/shimx64.efi")));
        check(&two, "ID=fedora", Ok(Some("fedora/shimx64.efi")));
        check(&two, "ID=rhel", Ok(Some("redhat/shimx64.efi")));
        check(&two, "", Err(&["fedora/shimx64.efi", "redhat/shimx64.efi"]));
        check(&["opensuse/grubx64.efi", "x/grubx64.efi"], "ID='opensuse-leap'", Ok(Some("opensuse/grubx64.efi")));
    }

    #[test]
    fn the_architecture_is_the_firmwares() {
        let expect = if cfg!(target_arch = "aarch64") { ["aa64", "aa64"] } else { ["x64", "ia32"] };
        assert_eq!([architecture("64\n"), architecture("32\n")], expect);
        assert_eq!(removable_path("x64"), "EFI/BOOT/BOOTX64.EFI");
    }
}
