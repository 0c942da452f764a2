#!/bin/bash
# What Fedora CoreOS adds to Ignition and OSTree in its initramfs, and Debian has not.

depends() {
    echo systemd ostree ignition
}

install() {
    inst_multiple cat cp mkdir mount umount
    inst_script "$moddir/coreos-ignition-setup-user.sh" /usr/sbin/coreos-ignition-setup-user
    inst_script "$moddir/setfiles.sh" /usr/sbin/setfiles
    local unit requires="$initdir/$systemdsystemunitdir/ignition-complete.target.requires"
    mkdir -p "$requires"
    for unit in coreos-ignition-setup-user.service ignition-ostree-mount-var.service; do
        inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
        ln -s "../$unit" "$requires/$unit"
    done
}
