//! Arrays and volume groups of `partition`: planned before anything is written, written before the partition tables,
//! and started by the kernel afterwards.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use slipway_protocol::Partition as Inputs;
use slipway_protocol::workflow::raid_lvm::{chosen, is_read_by_firmware};
use slipway_protocol::{NewRaid, NewVolumeGroup};

use super::lvm::{self, Group, Physical, Volume};
use super::raid::{self, Array};
use super::{Planned, start};
use crate::disk::open::{Access, OpenDisk};
use crate::disk::{node, partitions};
use crate::error::{Error, PartitionError};
use crate::machine::Machine;
use crate::{random, text};

/// This many bytes are cleared at both ends of each array and volume.
const ENDS: u64 = 1 << 20;

/// Everything that is built on partitions.
#[derive(Debug, Default)]
pub(super) struct Layers {
    arrays: Vec<(Array, usize)>,
    groups: Vec<(Group, Base)>,
}

/// What a volume group is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// An array, by index.
    Array(usize),
    /// One partition of each disk, by index.
    Partition(usize),
}

impl Layers {
    /// Plans everything, or says why it is not possible, before anything is written.
    pub(super) fn plan(inputs: &Inputs, disks: &[Planned], machine: &dyn Machine) -> Result<Self, Error> {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut layers = Self::default();
        for new in &inputs.raids {
            layers.arrays.push(array(new, inputs, disks, created)?);
        }
        for new in &inputs.volume_groups {
            let group = layers.group(new, inputs, disks, created)?;
            layers.groups.push(group);
        }
        if machine.setup().is_operating_system {
            layers.arrays.iter().try_for_each(|(array, _)| start::prepare_array(array))?;
            layers.groups.iter().try_for_each(|(group, _)| start::prepare_volumes(group))?;
        } else if let Some((group, _)) = layers.groups.iter().find(|(_, base)| matches!(base, Base::Array(_))) {
            let reason = "it is on an array, which is started only if slipway is the operating system";
            return Err(PartitionError::Layer {
                what: format!("volume group {}", group.name),
                reason: reason.to_owned(),
            }
            .into());
        }
        Ok(layers)
    }

    fn group(
        &self,
        new: &NewVolumeGroup,
        inputs: &Inputs,
        disks: &[Planned],
        created: u64,
    ) -> Result<(Group, Base), Error> {
        let refused =
            |reason| Error::Partitions(PartitionError::Layer { what: format!("volume group {}", new.name), reason });
        let by_name = |name: &String| self.arrays.iter().position(|(array, _)| array.name == *name);
        let base = match (new.raid.as_ref().and_then(by_name), &new.partition) {
            (Some(array), _) => Base::Array(array),
            (None, Some(choice)) => Base::Partition(chosen(&inputs.partitions, choice).map_err(refused)?),
            (None, None) => return Err(refused("it has neither a partition nor an array".to_owned())),
        };
        let places: Vec<u64> = match base {
            Base::Array(array) => vec![self.arrays[array].0.capacity()],
            Base::Partition(index) => disks.iter().map(|disk| len(&disk.places[index])).collect(),
        };
        let sizes = new.volumes.iter().map(|volume| volume.size.bytes()).collect::<Result<Vec<_>, _>>();
        let segments = lvm::allocate(&sizes.map_err(refused)?, &places).map_err(refused)?;
        let identity = || random::bytes().map(lvm::id);
        let physical = |size: &u64| Ok(Physical { id: identity()?, size: *size });
        let volumes = new.volumes.iter().zip(segments);
        let group = Group {
            name: new.name.clone(),
            id: identity()?,
            created,
            physical: places.iter().map(physical).collect::<Result<_, Error>>()?,
            volumes: volumes
                .map(|(new, segments)| Ok(Volume { name: new.name.clone(), id: identity()?, segments }))
                .collect::<Result<_, Error>>()?,
        };
        // Fails now if the metadata of the group would be too long.
        group.head(0).map_err(refused)?;
        Ok((group, base))
    }

    /// Returns one description per array and volume.
    pub(super) fn describe(&self) -> Vec<String> {
        let arrays = self.arrays.iter().map(|(array, index)| {
            let (size, level) = (text::size(array.capacity()), array.level.name());
            format!("array {}: {size}, {level} of partition {} of {} disks", array.name, index + 1, array.members)
        });
        let volumes = self.groups.iter().flat_map(|(group, _)| {
            group.volumes.iter().map(|volume| {
                let size = volume.segments.iter().map(|segment| len(&segment.bytes())).sum();
                format!("volume {}/{}: {}", group.name, volume.name, text::size(size))
            })
        });
        arrays.chain(volumes).collect()
    }

    /// Writes what is directly on partitions. The disks have no new tables yet.
    pub(super) fn write(&self, disks: &[Planned]) -> Result<(), Error> {
        for (array, index) in &self.arrays {
            let uuids = disks.iter().map(|_| random::uuid()).collect::<Result<Vec<_>, _>>()?;
            for (role, (disk, uuid)) in disks.iter().zip(&uuids).enumerate() {
                let place = &disk.places[*index];
                let data = place.start + array.data.start..place.start + array.data.end;
                clear_ends(&disk.disk, &data)?;
                let superblock = array.superblock(role, len(place), uuid);
                disk.disk.write_at(&superblock, place.start + array.superblock_at(len(place)))?;
            }
        }
        for (group, base) in &self.groups {
            if let Base::Partition(index) = base {
                let places: Vec<(&OpenDisk, u64)> =
                    disks.iter().map(|disk| (&disk.disk, disk.places[*index].start)).collect();
                write_group(group, &places)?;
            }
        }
        Ok(())
    }

    /// Has the kernel start everything, and writes what is on arrays. The kernel must know the tables of `disks`, which
    /// are paths.
    pub(super) fn start(&self, disks: &[String]) -> Result<(), Error> {
        let mut nodes = Vec::new();
        for (array, index) in &self.arrays {
            nodes.push(start::start_array(array, &partition_nodes(disks, *index)?)?);
        }
        for (group, base) in &self.groups {
            let physical = match base {
                Base::Array(array) => {
                    let node = &nodes[*array];
                    let device = OpenDisk::open(&node.to_string_lossy(), Access::Write)?;
                    let size = device.size();
                    if group.physical.iter().any(|physical| physical.size > size) {
                        let reason = format!("its array has {size} bytes, which is less than expected");
                        return Err(
                            PartitionError::Layer { what: format!("volume group {}", group.name), reason }.into()
                        );
                    }
                    write_group(group, &[(&device, 0)])?;
                    vec![node.clone()]
                }
                Base::Partition(index) => partition_nodes(disks, *index)?,
            };
            start::start_volumes(group, &physical)?;
        }
        Ok(())
    }
}

fn array(new: &NewRaid, inputs: &Inputs, disks: &[Planned], created: u64) -> Result<(Array, usize), Error> {
    let refused = |reason| Error::Partitions(PartitionError::Layer { what: format!("array {}", new.name), reason });
    let index = chosen(&inputs.partitions, &new.partition).map_err(refused)?;
    let at_end = is_read_by_firmware(&inputs.partitions[index].r#type);
    let least = disks.iter().map(|disk| len(&disk.places[index])).min().unwrap_or_default();
    let data = raid::data(new.level, least, at_end, disks.len()).map_err(refused)?;
    let (name, level, uuid, members) = (new.name.clone(), new.level, random::uuid()?, disks.len());
    Ok((Array { name, level, uuid, created, members, at_end, data }, index))
}

/// Clears old signatures where the volumes of a group will be, and writes the group to its physical volumes.
fn write_group(group: &Group, places: &[(&OpenDisk, u64)]) -> Result<(), Error> {
    let refused =
        |reason| Error::Partitions(PartitionError::Layer { what: format!("volume group {}", group.name), reason });
    for segment in group.volumes.iter().flat_map(|volume| &volume.segments) {
        let (disk, start) = places[segment.physical];
        let bytes = segment.bytes();
        clear_ends(disk, &(start + bytes.start..start + bytes.end))?;
    }
    for (index, (disk, start)) in places.iter().enumerate() {
        disk.write_at(&group.head(index).map_err(refused)?, *start)?;
    }
    places.iter().try_for_each(|(disk, _)| disk.flush())
}

fn clear_ends(disk: &OpenDisk, bytes: &Range<u64>) -> Result<(), Error> {
    disk.zero(bytes.start..bytes.start + ENDS)?;
    disk.zero(bytes.end - ENDS..bytes.end)
}

/// Returns the device nodes of the partition with this index on each disk.
fn partition_nodes(disks: &[String], index: usize) -> Result<Vec<PathBuf>, Error> {
    let node = |path: &String| {
        let disk = OpenDisk::open(path, Access::Read)?;
        let partition = partitions::read(&disk)?.into_iter().find(|found| found.number as usize == index + 1);
        let node = partition.and_then(|partition| node::of_partition(&disk, &partition));
        let reason = "the kernel did not make its device node".to_owned();
        node.ok_or_else(|| {
            Error::Partitions(PartitionError::Layer { what: format!("partition {} of {path}", index + 1), reason })
        })
    };
    disks.iter().map(node).collect()
}

fn len(bytes: &Range<u64>) -> u64 {
    bytes.end - bytes.start
}
