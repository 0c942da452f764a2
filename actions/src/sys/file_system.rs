//! Grows mounted file systems.

use std::os::fd::OwnedFd;

use rustix::io::Result;
use rustix::ioctl::{self, Getter, Opcode, Setter};

/// `_IOW('f', 16, __u64)` of the kernel's fs/ext4/ext4.h.
const EXT4_IOC_RESIZE_FS: Opcode = ioctl::opcode::write::<u64>(b'f', 16);
/// `_IOR('X', 100, struct xfs_fsop_geom_v1)` of the kernel's fs/xfs/libxfs/xfs_fs.h.
const XFS_IOC_FSGEOMETRY_V1: Opcode = ioctl::opcode::read::<XfsGeometry>(b'X', 100);
/// `_IOW('X', 110, struct xfs_growfs_data)` of the kernel's fs/xfs/libxfs/xfs_fs.h.
const XFS_IOC_FSGROWFSDATA: Opcode = ioctl::opcode::write::<XfsGrow>(b'X', 110);
/// `_IOW(0x94, 3, struct btrfs_ioctl_vol_args)` of linux/btrfs.h.
const BTRFS_IOC_RESIZE: Opcode = ioctl::opcode::write::<BtrfsVolume>(0x94, 3);

/// Grows a mounted ext2, ext3 or ext4 to this many file system blocks. `root` is a directory in it.
pub(crate) fn grow_ext4(root: &OwnedFd, blocks: u64) -> Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads a u64.
    unsafe { ioctl::ioctl(root, Setter::<EXT4_IOC_RESIZE_FS, u64>::new(blocks)) }
}

/// `struct xfs_fsop_geom_v1` of the kernel's fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
struct XfsGeometry {
    block_size: u32,
    others: [u32; 6],
    max_inode_percent: u32,
    sizes: [u64; 4],
    uuid: [u8; 16],
    rest: [u32; 7],
}

/// `struct xfs_growfs_data` of the kernel's fs/xfs/libxfs/xfs_fs.h.
#[repr(C)]
struct XfsGrow {
    blocks: u64,
    max_inode_percent: u32,
    padding: u32,
}

/// Grows a mounted xfs to `len` bytes, rounded down to file system blocks. `root` is a directory in it.
pub(crate) fn grow_xfs(root: &OwnedFd, len: u64) -> Result<()> {
    // SAFETY: XFS_IOC_FSGEOMETRY_V1 writes a struct xfs_fsop_geom_v1, which XfsGeometry mirrors and for which any bytes
    // are valid.
    let geometry = unsafe { ioctl::ioctl(root, Getter::<XFS_IOC_FSGEOMETRY_V1, XfsGeometry>::new())? };
    let blocks = len.checked_div(u64::from(geometry.block_size)).unwrap_or_default();
    let argument = XfsGrow { blocks, max_inode_percent: geometry.max_inode_percent, padding: 0 };
    // SAFETY: XFS_IOC_FSGROWFSDATA reads a struct xfs_growfs_data, which XfsGrow mirrors.
    unsafe { ioctl::ioctl(root, Setter::<XFS_IOC_FSGROWFSDATA, XfsGrow>::new(argument)) }
}

/// `struct btrfs_ioctl_vol_args` of linux/btrfs.h.
#[repr(C)]
struct BtrfsVolume {
    fd: i64,
    name: [u8; 4088],
}

/// Grows a mounted btrfs to the size of its device with this number. `root` is a directory in the file system.
pub(crate) fn grow_btrfs(root: &OwnedFd, device: u64) -> Result<()> {
    let mut argument = BtrfsVolume { fd: 0, name: [0; 4088] };
    let name = format!("{device}:max");
    argument.name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    // SAFETY: BTRFS_IOC_RESIZE reads a struct btrfs_ioctl_vol_args, which BtrfsVolume mirrors; its name ends with a
    // zero.
    unsafe { ioctl::ioctl(root, Setter::<BTRFS_IOC_RESIZE, BtrfsVolume>::new(argument)) }
}

const _: () =
    assert!(size_of::<XfsGeometry>() == 112 && size_of::<XfsGrow>() == 16 && size_of::<BtrfsVolume>() == 4096);
