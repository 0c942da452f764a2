#!/bin/sh
# Runs inside the new root file system once all packages and the files of the recipes are in place.
set -eu

version=$(ls /lib/modules)
esp=/boot/efi

# The boot loader: by the removable-media path, which firmware finds without a boot entry, and by its own.
mkdir -p "$esp/EFI/BOOT" "$esp/EFI/systemd" "$esp/loader/entries"
cp /usr/lib/systemd/boot/efi/systemd-bootaa64.efi "$esp/EFI/BOOT/BOOTAA64.EFI"
cp /usr/lib/systemd/boot/efi/systemd-bootaa64.efi "$esp/EFI/systemd/systemd-bootaa64.efi"
printf 'timeout 0\n' > "$esp/loader/loader.conf"

# The kernel goes to the ESP the same way every later kernel will: by kernel-install, with /etc/kernel/cmdline.
kernel-install add "$version" "/boot/vmlinuz-$version" "/boot/initrd.img-$version"
# Paths in an entry start at the root of the ESP, which is not mounted yet.
sed -i "s,$esp/,/," "$esp"/loader/entries/*.conf
