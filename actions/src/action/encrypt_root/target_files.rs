//! What an installed system needs to open its root at boot: dracut, systemd and the TPM's libraries in the initramfs,
//! and the configuration of what to open.

use crate::error::Error;
use crate::target::root::TargetRoot;

/// Name of the device-mapper mapping.
const NAME: &str = "root";
const DEVICE: &str = "/dev/mapper/root";
const CRYPTTAB: &str = "etc/crypttab";
const FSTAB: &str = "etc/fstab";
/// Configuration file that makes dracut add these modules for later kernels too: path and content.
const DRACUT: (&str, &str) =
    ("etc/dracut.conf.d/50-slipway-encrypt-root.conf", "add_dracutmodules+=\" crypt tpm2-tss \"\n");
/// Programs that make the initramfs or go into it: alternative paths, and the Debian package that has them.
const NEEDED: &[(&[&str], &str)] = &[
    (&["usr/bin/dracut", "usr/sbin/dracut", "bin/dracut", "sbin/dracut"], "dracut"),
    (&["usr/bin/lsinitrd", "bin/lsinitrd"], "dracut"),
    (&["usr/bin/tpm2", "bin/tpm2"], "tpm2-tools"),
    (
        &["usr/lib/systemd/systemd-cryptsetup", "lib/systemd/systemd-cryptsetup", "usr/bin/systemd-cryptsetup"],
        "systemd",
    ),
    (&["usr/sbin/cryptsetup", "sbin/cryptsetup", "usr/bin/cryptsetup"], "cryptsetup-bin"),
];
/// Paths where a boot loader would have to read from the encrypted file system.
const LOADERS: &[&str] = &[
    "boot/grub/grub.cfg",
    "boot/grub2/grub.cfg",
    "boot/loader/entries",
    "boot/extlinux/extlinux.conf",
    "boot/syslinux",
];

/// Rebuilds each existing initramfs, and fails if one lacks what opens the root (dracut(8), lsinitrd(1)). Includes all
/// drivers, because the modules loaded on this machine do not show what a later kernel needs. Updates the boot loader's
/// own copies too.
pub(super) const INITRAMFS: &str = r#"made=
for modules in /lib/modules/*/modules.dep; do
    version=${modules%/modules.dep}
    version=${version##*/}
    for image in "/boot/initrd.img-$version" "/boot/initramfs-$version.img" "/boot/initrd-$version"; do
        [ -e "$image" ] || continue
        dracut --force --no-hostonly --add "crypt tpm2-tss" "$image" "$version"
        contents=$(lsinitrd "$image")
        for part in systemd-cryptsetup libtss2-esys libtss2-tcti-device; do
            case $contents in
                *"$part"*) ;;
                *) echo "$image has no $part: install libtss2-esys and libtss2-tcti-device in the image"; exit 1 ;;
            esac
        done
        if [ -x /etc/kernel/postinst.d/zz-systemd-boot ] && [ -e "/boot/vmlinuz-$version" ]; then
            kernel-install add "$version" "/boot/vmlinuz-$version" "$image"
        fi
        made=1
    done
done
[ "$made" ] || { echo "there is no /boot/initrd.img-VERSION, initramfs-VERSION.img or initrd-VERSION"; exit 1; }
"#;

/// Checks that a system can start from an encrypted root. The error says why not, and what to do.
pub(super) fn check(root: &TargetRoot) -> Result<(), String> {
    let is_there = |paths: &[&str]| paths.iter().any(|path| root.exists(path));
    if let Some((paths, package)) = NEEDED.iter().find(|(paths, _)| !is_there(paths)) {
        return Err(format!(
            "its system has no /{} (Debian's package {package}) and could not open it with the TPM; in the image, make \
             the initramfs with dracut, with tpm2-tools and libtss2-tcti-device: initramfs-tools cannot do it",
            paths.first().copied().unwrap_or_default()
        ));
    }
    match LOADERS.iter().find(|path| root.exists(path)) {
        Some(path) => Err(format!(
            "its boot loader reads /{path} from it, which is impossible once it is encrypted; in the image, put /boot \
             on a partition of its own, or put the kernels on the EFI system partition"
        )),
        None => Ok(()),
    }
}

/// Writes to the installed system what to open and what to mount.
pub(super) fn write(root: &TargetRoot, uuid: &str) -> Result<(), Error> {
    match root.read(CRYPTTAB)? {
        Some(crypttab) => root.rewrite(CRYPTTAB, with_volume(&crypttab, uuid).as_bytes())?,
        None => root.write(CRYPTTAB, with_volume("", uuid).as_bytes(), 0o644)?,
    }
    if let Some(fstab) = root.read(FSTAB)? {
        root.rewrite(FSTAB, from_mapping(&fstab).as_bytes())?;
    }
    root.write(DRACUT.0, DRACUT.1.as_bytes(), 0o644)
}

/// Returns the arguments for systemd-cryptsetup-generator(8) in the initramfs. The last of several `root=` wins.
pub(super) fn kernel_arguments(uuid: &str) -> Vec<String> {
    let options = format!("rd.luks.options={uuid}=tpm2-device=auto");
    vec![format!("rd.luks.name={uuid}={NAME}"), options, format!("root={DEVICE}")]
}

/// Returns the crypttab(5) with this volume as the root, in place of any line with the same name.
fn with_volume(crypttab: &str, uuid: &str) -> String {
    let is_other = |line: &&str| line.split_whitespace().next() != Some(NAME);
    let mut text: String = crypttab.lines().filter(is_other).map(|line| format!("{line}\n")).collect();
    text.push_str(&format!("{NAME} UUID={uuid} none tpm2-device=auto,x-initrd.attach\n"));
    text
}

/// Returns the fstab(5) with the root mounted from the mapping. The file system grows to the size of its partition at
/// the first start.
fn from_mapping(fstab: &str) -> String {
    const GROW: &str = "x-systemd.growfs";
    let edit = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(source), Some(&"/")) = (fields.first(), fields.get(1)) else { return line.to_owned() };
        if source.starts_with('#') {
            return line.to_owned();
        }
        let options = match fields.get(3) {
            Some(options) if options.split(',').any(|option| option == GROW) => (*options).to_owned(),
            Some(options) => format!("{options},{GROW}"),
            None => GROW.to_owned(),
        };
        let kind = fields.get(2).copied().unwrap_or("auto");
        let rest = fields.iter().skip(4).copied();
        [DEVICE, "/", kind, &options].into_iter().chain(rest).collect::<Vec<&str>>().join(" ")
    };
    fstab.lines().map(|line| edit(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_only_volume_of_its_name() {
        let line = "root UUID=u none tpm2-device=auto,x-initrd.attach\n";
        let check = |crypttab: &str, expect: &str| assert_eq!(with_volume(crypttab, "u"), expect, "{crypttab:?}");
        check("", line);
        check("# root\nswap /dev/x /dev/urandom", &format!("# root\nswap /dev/x /dev/urandom\n{line}"));
        check("root UUID=old none\nroots UUID=x none\n", &format!("roots UUID=x none\n{line}"));
    }

    #[test]
    fn the_root_is_mounted_from_the_mapping_and_nothing_else_is() {
        let check = |fstab: &str, expect: &str| assert_eq!(from_mapping(fstab), expect, "{fstab:?}");
        check("", "");
        check(
            "LABEL=root /         ext4 errors=remount-ro 0 1\nLABEL=ESP  /boot/efi vfat umask=0077 0 2",
            "/dev/mapper/root / ext4 errors=remount-ro,x-systemd.growfs 0 1\n\
             LABEL=ESP  /boot/efi vfat umask=0077 0 2\n",
        );
        check("#UUID=x / ext4 defaults 0 1\n\n", "#UUID=x / ext4 defaults 0 1\n\n");
        check("/dev/vda1 /", "/dev/mapper/root / auto x-systemd.growfs\n");
        let done = "/dev/mapper/root / ext4 x-systemd.growfs,ro 0 1\n";
        check(done, done);
    }
}
