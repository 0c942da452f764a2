#!/bin/sh
# Runs inside the new root file system once all packages and the files of the recipes are in place.
set -eu

esp=/boot/efi
mkdir -p "$esp/EFI/BOOT" "$esp/EFI/debian" /boot/grub

# By the distribution's own path and, because firmware finds it without a boot entry, by the removable-media path.
for folder in BOOT debian; do
    cp /usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed "$esp/EFI/$folder/grubx64.efi"
done
cp /usr/lib/shim/shimx64.efi.signed "$esp/EFI/BOOT/BOOTX64.EFI"
cp /usr/lib/shim/shimx64.efi.signed "$esp/EFI/debian/shimx64.efi"

# As grub-install writes it. The menu itself cannot be made without a disk: the machine makes it, before its first
# start.
cat > "$esp/EFI/debian/grub.cfg" <<'GRUB'
search --no-floppy --label root --set=root
set prefix=($root)'/boot/grub'
configfile $prefix/grub.cfg
GRUB
