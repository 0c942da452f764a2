//! Disks with special behaviour, as arguments for [`crate::MachineConfig::extra`].

use std::path::Path;

use crate::config::Disk;
use crate::escape;

/// Returns the arguments for a disk with a volatile cache. Its requests are recorded in a log file, which must exist
/// and be empty, in the format of dm-log-writes (drivers/md/dm-log-writes.c in the Linux kernel).
pub fn logged(disk: &Disk, log: &Path) -> Vec<String> {
    let (name, log) = (&disk.serial, escape::commas(log));
    let log = format!("driver=file,node-name={name}-log,filename={log}");
    let layer = format!("driver=blklogwrites,file={name}-content,log={name}-log,log-sector-size=512");
    attach(disk, &[&log], &layer, "write-cache=on")
}

/// Returns the arguments for a disk that answers requests with EIO according to `rules` (`inject-error` of blkdebug in
/// QEMU's QAPI reference). Each rule is a list of options such as `event=none,iotype=write,sector=2048`.
pub fn faulty(disk: &Disk, rules: &[&str]) -> Vec<String> {
    let rules = rules.iter().enumerate().flat_map(|(index, rule)| {
        rule.split(',').map(move |rule_option| format!(",inject-error.{index}.{rule_option}"))
    });
    let layer = format!("driver=blkdebug,image={}-content{}", disk.serial, rules.collect::<String>());
    attach(disk, &[], &layer, "rerror=report,werror=report")
}

/// Returns the arguments for a disk below another block driver, whose options are `layer`.
fn attach(disk: &Disk, nodes: &[&str], layer: &str, options: &str) -> Vec<String> {
    let name = &disk.serial;
    let content = format!("driver=file,node-name={name}-content,discard=unmap,filename={}", escape::commas(&disk.path));
    let layer = format!("{layer},node-name={name}-layer");
    let device = format!("virtio-blk-pci,id={name},serial={name},drive={name}-layer,{options}");
    let nodes = std::iter::once(content.as_str()).chain(nodes.iter().copied()).chain([layer.as_str()]);
    nodes.flat_map(|node| ["-blockdev", node]).chain(["-device", &device]).map(str::to_owned).collect()
}
