#!/bin/sh
# Runs inside the new root file system, after the one that sets up the boot loader.
set -eu

# What would only cost time at the first boot, or would be the same on every machine made from the image.
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
systemctl enable systemd-networkd.service systemd-resolved.service
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id /etc/hostname
: > /etc/machine-id
ln -sf /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
