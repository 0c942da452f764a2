//! Disks that do more than keep bytes, as arguments for [`super::MachineConfig::extra`].

use super::{Disk, option};

/// A disk that answers requests with EIO as the rules say (`inject-error` of blkdebug in QEMU's QAPI reference): of each the options,
/// such as `event=none,iotype=write,sector=2048`. The guest is told.
pub fn faulty(disk: &Disk, rules: &[&str]) -> Vec<String> {
    let rules = rules.iter().enumerate().flat_map(|(index, rule)| {
        rule.split(',').map(move |rule_option| format!(",inject-error.{index}.{rule_option}"))
    });
    let layer = format!("driver=blkdebug,image={}-content{}", disk.serial, rules.collect::<String>());
    attach(disk, &layer, "rerror=report,werror=report")
}

/// A disk behind a layer.
fn attach(disk: &Disk, layer: &str, options: &str) -> Vec<String> {
    let name = &disk.serial;
    let content = format!("driver=file,node-name={name}-content,discard=unmap,filename={}", option(&disk.path));
    let layer = format!("{layer},node-name={name}-layer");
    let device = format!("virtio-blk-pci,id={name},serial={name},drive={name}-layer,{options}");
    ["-blockdev", &content, "-blockdev", &layer, "-device", &device].map(str::to_owned).to_vec()
}
