#!/bin/sh
# Runs inside the new root file system once all packages and the files of the recipes are in place.
set -eu

version=$(ls /lib/modules)
esp=/boot/efi
# The architecture's name in UEFI, and its first serial port.
case $(dpkg --print-architecture) in
    amd64) efi=x64 serial=ttyS0 ;;
    arm64) efi=aa64 serial=ttyAMA0 ;;
esac

# The boot loader: by the removable-media path, which firmware finds without a boot entry, and by its own.
loader=/usr/lib/systemd/boot/efi/systemd-boot$efi.efi
mkdir -p "$esp/EFI/BOOT" "$esp/EFI/systemd" "$esp/loader/entries"
cp "$loader" "$esp/EFI/BOOT/BOOT$(echo $efi | tr a-z A-Z).EFI"
cp "$loader" "$esp/EFI/systemd/"
printf 'timeout 0\n' > "$esp/loader/loader.conf"

# The kernel goes to the ESP the same way every later kernel will: by kernel-install, with /etc/kernel/cmdline.
sed -i "s/ttyS0/$serial/" /etc/kernel/cmdline
kernel-install add "$version" "/boot/vmlinuz-$version" "/boot/initrd.img-$version"
# Paths in an entry start at the root of the ESP, which is not mounted yet.
sed -i "s,$esp/,/," "$esp"/loader/entries/*.conf
