#!/bin/sh
# Runs inside the new root file system once all packages and the files of the recipes are in place.
set -eu

version=$(ls /lib/modules)
esp=/boot/efi
boot=/boot/xbootldr

# The boot loader, by the removable-media path.
mkdir -p "$esp/EFI/BOOT" "$esp/loader" "$boot/loader/entries"
cp /usr/lib/systemd/boot/efi/systemd-bootx64.efi "$esp/EFI/BOOT/BOOTX64.EFI"
printf 'timeout 0\n' > "$esp/loader/loader.conf"

# Kernels and their entries are on a partition of their own.
kernel-install add "$version" "/boot/vmlinuz-$version" "/boot/initrd.img-$version"
# Paths in an entry start at the root of that partition, which is not mounted yet.
sed -i "s,$boot/,/," "$boot"/loader/entries/*.conf
