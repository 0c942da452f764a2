#!/bin/sh
# Runs inside the new root file system once all packages and the files of root/ are in place.
set -eu

version=$(ls /lib/modules)
esp=/boot/efi

# The boot loader: by the removable-media path, which firmware finds without a boot entry, and by its own.
mkdir -p "$esp/EFI/BOOT" "$esp/EFI/systemd" "$esp/loader/entries"
cp /usr/lib/systemd/boot/efi/systemd-bootx64.efi "$esp/EFI/BOOT/BOOTX64.EFI"
cp /usr/lib/systemd/boot/efi/systemd-bootx64.efi "$esp/EFI/systemd/systemd-bootx64.efi"
printf 'timeout 0\n' > "$esp/loader/loader.conf"

# The kernel goes to the ESP the same way every later kernel will: by kernel-install, with /etc/kernel/cmdline.
kernel-install add "$version" "/boot/vmlinuz-$version" "/boot/initrd.img-$version"
# Paths in an entry start at the root of the ESP, which is not mounted yet.
sed -i "s,$esp/,/," "$esp"/loader/entries/*.conf

# What would only cost time at the first boot, or would be the same on every machine made from the image.
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
systemctl enable systemd-networkd.service systemd-resolved.service
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id /etc/hostname
: > /etc/machine-id
ln -sf /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
