#!/bin/sh
# Brings the config of the boot partition to where Ignition looks for it.
set -eu
mkdir -p /run/boot /usr/lib/ignition
mount -o ro /dev/disk/by-label/boot /run/boot
if [ -e /run/boot/ignition/config.ign ]; then
    cp /run/boot/ignition/config.ign /usr/lib/ignition/user.ign
fi
umount /run/boot
