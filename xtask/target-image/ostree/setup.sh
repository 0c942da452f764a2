#!/bin/sh
# Runs inside the new root file system once all packages and the files of the recipes are in place. It makes an OSTree
# commit of the system, and deploys it below /sysroot. Of the whole root file system, only that is in the image.
set -eu

version=$(ls /lib/modules)
tree=/tree new=/sysroot

touch /etc/cloud/cloud-init.disabled
systemctl disable ssh.service
systemctl enable coreos-ignition-firstboot-complete.service
# It shall be a first boot, in which presets count.
rm /etc/machine-id

# The tree (OSTree documentation, "Adapting existing mainstream distributions").
mkdir -p "$tree" "$new"
cp -a /usr "$tree/usr"
cp -a /bin /sbin /lib /lib64 "$tree/"
cp -a /etc "$tree/usr/etc"
for folder in boot dev proc run sys sysroot tmp var; do
    mkdir "$tree/$folder"
done
rm -r "$tree/usr/local"
ln -s ../var/usrlocal "$tree/usr/local"
for folder in home opt srv; do
    ln -s "var/$folder" "$tree/$folder"
done
ln -s var/roothome "$tree/root"
ln -s sysroot/ostree "$tree/ostree"
cp "/boot/vmlinuz-$version" "$tree/usr/lib/modules/$version/vmlinuz"
dracut --quiet --force --no-hostonly --no-hostonly-cmdline --add coreos --kver "$version" \
    "$tree/usr/lib/modules/$version/initramfs.img"

# The deployment, and a menu. What is made of the entry is what GRUB of Fedora does with it by itself.
ostree admin init-fs --modern "$new"
ostree --repo="$new/ostree/repo" config set sysroot.bootloader none
ostree --repo="$new/ostree/repo" commit --branch=debian --tree=dir="$tree" --consume
ostree admin --sysroot="$new" os-init debian
ostree admin --sysroot="$new" deploy --os=debian --karg=root=LABEL=root --karg=rw --karg-append=console=tty0 \
    --karg-append=console=ttyS0,115200 --karg='$ignition_firstboot' --karg=ignition.platform.id=metal debian
boot=$new/boot esp=$new/boot/efi
part() { sed -n "s/^$1 //p" "$boot"/loader/entries/*.conf; }
mkdir -p "$boot/grub" "$esp/EFI/BOOT" "$esp/EFI/debian"
touch "$boot/ignition.firstboot"
cat > "$boot/grub/grub.cfg" <<GRUB
set timeout=0
if [ -f /ignition.firstboot ]; then
    set ignition_firstboot=ignition.firstboot
fi
menuentry Debian {
    linux $(part linux) $(part options)
    initrd $(part initrd)
}
GRUB
cp /usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed "$esp/EFI/BOOT/BOOTX64.EFI"
cat > "$esp/EFI/debian/grub.cfg" <<'GRUB'
search --no-floppy --label boot --set=root
configfile ($root)/grub/grub.cfg
GRUB
# Nobody could remove or pack it otherwise.
chattr -i "$new"/ostree/deploy/debian/deploy/*.0
