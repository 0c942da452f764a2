//! The ioctls rustix has no call for.
#![allow(unsafe_code, reason = "ioctls are not memory safe by type; everything unsafe of this crate is here")]

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{major, minor};
use rustix::io::{Errno, Result};
use rustix::ioctl::{self, Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, Updater};
use rustix::thread::UnshareFlags;

/// `_IO(0x12, 95)` of linux/fs.h.
const BLKRRPART: Opcode = ioctl::opcode::none(0x12, 95);
/// `_IO(0x12, 127)` of linux/fs.h.
const BLKZEROOUT: Opcode = ioctl::opcode::none(0x12, 127);
/// `_IO(0x12, 97)` of linux/fs.h.
const BLKFLSBUF: Opcode = ioctl::opcode::none(0x12, 97);
/// `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: Opcode = ioctl::opcode::none(0x12, 119);
/// `_IO(0x12, 125)` of linux/fs.h.
const BLKSECDISCARD: Opcode = ioctl::opcode::none(0x12, 125);
/// `_IO('N', 0x40)` of linux/nvme_ioctl.h.
const NVME_IOCTL_ID: Opcode = ioctl::opcode::none(b'N', 0x40);
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)` of linux/nvme_ioctl.h.
const NVME_IOCTL_ADMIN_CMD: Opcode = ioctl::opcode::read_write::<NvmePassthru>(b'N', 0x41);
/// scsi/sg.h.
const SG_IO: Opcode = 0x2285;
/// `_IOWR(0xfd, 4, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_DEV_REMOVE: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 4);
/// `_IOWR(0xfd, 3, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_DEV_CREATE: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 3);
/// `_IOWR(0xfd, 6, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_DEV_SUSPEND: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 6);
/// `_IOWR(0xfd, 9, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_TABLE_LOAD: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 9);
/// `_IOW(MD_MAJOR, 0x21, mdu_disk_info_t)` of linux/raid/md_u.h.
const ADD_NEW_DISK: Opcode = ioctl::opcode::write::<MdDisk>(9, 0x21);
/// `_IOW(MD_MAJOR, 0x23, mdu_array_info_t)` of linux/raid/md_u.h.
const SET_ARRAY_INFO: Opcode = ioctl::opcode::write::<MdArray>(9, 0x23);
/// `_IOW(MD_MAJOR, 0x30, mdu_param_t)` of linux/raid/md_u.h.
const RUN_ARRAY: Opcode = ioctl::opcode::write::<[c_int; 3]>(9, 0x30);
/// `_IO(MD_MAJOR, 0x32)` of linux/raid/md_u.h.
const STOP_ARRAY: Opcode = ioctl::opcode::none(9, 0x32);
/// linux/loop.h.
const LOOP_CLR_FD: Opcode = 0x4C01;
/// linux/loop.h.
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
/// linux/loop.h, Linux 5.8.
const LOOP_CONFIGURE: Opcode = 0x4C0A;
/// Free the device when its last user is gone (linux/loop.h).
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `_IOW('f', 16, __u64)` of the kernel's fs/ext4/ext4.h.
const EXT4_IOC_RESIZE_FS: Opcode = ioctl::opcode::write::<u64>(b'f', 16);
/// `_IOR('X', 100, struct xfs_fsop_geom_v1)` of the kernel's fs/xfs/libxfs/xfs_fs.h.
const XFS_IOC_FSGEOMETRY_V1: Opcode = ioctl::opcode::read::<XfsGeometry>(b'X', 100);
/// `_IOW('X', 110, struct xfs_growfs_data)` of the kernel's fs/xfs/libxfs/xfs_fs.h.
const XFS_IOC_FSGROWFSDATA: Opcode = ioctl::opcode::write::<XfsGrow>(b'X', 110);
/// `_IOW(0x94, 3, struct btrfs_ioctl_vol_args)` of linux/btrfs.h.
const BTRFS_IOC_RESIZE: Opcode = ioctl::opcode::write::<BtrfsVolume>(0x94, 3);

/// Has the kernel read the partition table again.
pub(crate) fn reread_partitions(disk: &File) -> Result<()> {
    // SAFETY: BLKRRPART takes no argument.
    unsafe { ioctl::ioctl(disk, NoArg::<BLKRRPART>::new()) }
}

/// Has the disk, or the kernel in its place, write zeros from `offset` on, both in bytes and multiples of 512.
pub(crate) fn zero_out(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKZEROOUT reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len])) }
}

/// The number of a loop device that is free now; another process may take it first.
pub(crate) fn free_loop_device(control: &File) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers with its return value.
    unsafe { ioctl::ioctl(control, GetFree) }
}

struct GetFree;

// SAFETY: no memory is passed, and the output is the return value.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32> {
        Ok(u32::try_from(out).unwrap_or_default())
    }
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Binds a loop device to `len` bytes of a file from `offset` on, until its last user is gone.
pub(crate) fn configure_loop(device: &File, backing: &File, offset: u64, len: u64) -> Result<()> {
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset,
        size_limit: len,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(backing.as_raw_fd()).unwrap_or(u32::MAX);
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config, which LoopConfig mirrors; both files outlive the call.
    unsafe { ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Writes what the kernel still has of the disk, and has it forget what it read.
pub(crate) fn flush_buffers(disk: &File) -> Result<()> {
    // SAFETY: BLKFLSBUF takes no argument.
    unsafe { ioctl::ioctl(disk, NoArg::<BLKFLSBUF>::new()) }
}

/// Tells the disk that it may forget `len` bytes from `offset` on, both multiples of its logical block.
pub(crate) fn discard(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKDISCARD reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// The same, and has it erase every copy of them it may have.
pub(crate) fn secure_discard(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKSECDISCARD reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKSECDISCARD, [u64; 2]>::new([offset, len])) }
}

/// An ioctl whose return value says more than that it worked.
struct Returning<T> {
    opcode: Opcode,
    argument: Option<T>,
}

// SAFETY: the callers below pass an opcode together with the type it reads and writes, or no argument where it takes none.
unsafe impl<T> Ioctl for Returning<T> {
    type Output = u32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut().map_or(std::ptr::null_mut(), |argument| std::ptr::from_mut(argument).cast())
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32> {
        Ok(u32::try_from(out).unwrap_or_default())
    }
}

/// The number of an NVMe namespace on its controller.
pub(crate) fn nvme_namespace(disk: &File) -> Result<u32> {
    // SAFETY: NVME_IOCTL_ID takes no argument and answers with its return value.
    unsafe { ioctl::ioctl(disk, Returning::<()> { opcode: NVME_IOCTL_ID, argument: None }) }
}

/// An NVMe admin command (NVM Express Base Specification 2.0, 3.3.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NvmeAdmin {
    pub(crate) opcode: u8,
    pub(crate) namespace: u32,
    /// Command dwords 10 and 11.
    pub(crate) words: [u32; 2],
    /// How long the kernel waits for the disk, in milliseconds; 0 for its own default.
    pub(crate) timeout: u32,
}

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct NvmePassthru {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    words: [u32; 6],
    timeout: u32,
    result: u32,
}

/// Has an NVMe controller run an admin command, which fills `data` if it is one that answers with data. Gives the status field of
/// the completion, 0 when it succeeded (NVM Express Base Specification 2.0, 3.3.3.2.1).
pub(crate) fn nvme_admin(disk: &File, command: NvmeAdmin, data: &mut [u8]) -> Result<u32> {
    let [word_10, word_11] = command.words;
    let argument = NvmePassthru {
        opcode: command.opcode,
        namespace: command.namespace,
        address: data.as_mut_ptr().expose_provenance() as u64,
        data_len: u32::try_from(data.len()).unwrap_or_default(),
        words: [word_10, word_11, 0, 0, 0, 0],
        timeout: command.timeout,
        ..NvmePassthru::default()
    };
    // SAFETY: NVME_IOCTL_ADMIN_CMD takes a struct nvme_admin_cmd, which NvmePassthru mirrors, and reads or writes at most
    // data_len bytes at its address, which is memory of ours that outlives the call and that nothing else looks at.
    unsafe { ioctl::ioctl(disk, Returning { opcode: NVME_IOCTL_ADMIN_CMD, argument: Some(argument) }) }
}

/// What goes with a SCSI command.
#[derive(Debug)]
pub(crate) enum ScsiData<'a> {
    None,
    /// Filled by the disk.
    In(&'a mut [u8]),
    /// Sent to it.
    Out(&'a [u8]),
}

/// How a SCSI command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScsiStatus {
    /// Of the disk (SAM-5, 5.3.1), 0 for GOOD.
    pub(crate) status: u8,
    /// Of the host adapter and its driver, 0 when nothing is wrong.
    pub(crate) transport: u16,
    /// Sense data (SPC-4, 4.5).
    pub(crate) sense: [u8; 32],
}

/// `struct sg_io_hdr` of scsi/sg.h.
#[repr(C)]
struct SgIo {
    interface: c_int,
    direction: c_int,
    command_len: u8,
    sense_room: u8,
    vectors: u16,
    data_len: u32,
    data: *mut c_void,
    command: *const u8,
    sense: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: c_int,
    user: *mut c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_len: u8,
    host_status: u16,
    driver_status: u16,
    residual: c_int,
    duration: u32,
    info: u32,
}

/// Has a SCSI disk run a command of 16 bytes; `timeout` in milliseconds.
pub(crate) fn scsi_command(disk: &File, command: &[u8; 16], data: ScsiData<'_>, timeout: u32) -> Result<ScsiStatus> {
    // `SG_DXFER_NONE`, `SG_DXFER_FROM_DEV` and `SG_DXFER_TO_DEV` of scsi/sg.h.
    let (direction, data, len) = match data {
        ScsiData::None => (-1, std::ptr::null_mut(), 0),
        ScsiData::In(buffer) => (-3, buffer.as_mut_ptr().cast(), buffer.len()),
        ScsiData::Out(buffer) => (-2, buffer.as_ptr().cast_mut().cast(), buffer.len()),
    };
    let mut sense = [0; 32];
    let mut header = SgIo {
        interface: c_int::from(b'S'),
        direction,
        command_len: 16,
        sense_room: 32,
        vectors: 0,
        data_len: u32::try_from(len).unwrap_or_default(),
        data,
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout,
        flags: 0,
        pack_id: 0,
        user: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_len: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: SG_IO takes a struct sg_io_hdr, which SgIo mirrors. Its pointers are to a command of command_len bytes, room for
    // sense_room bytes, and data_len bytes that are only written in the direction from the disk; all outlive the call.
    unsafe { ioctl::ioctl(disk, Updater::<SG_IO, SgIo>::new(&mut header))? };
    // The driver's "there is sense data" (0x08) is no error of its own.
    let transport = header.host_status | (header.driver_status & !0x08);
    Ok(ScsiStatus { status: header.status, transport, sense })
}

/// `struct dm_ioctl` of linux/dm-ioctl.h.
#[repr(C)]
struct DmIoctl {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event: u32,
    padding: u32,
    device: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

impl DmIoctl {
    /// About the mapping of a name. The last bytes of name and uuid stay zero, which ends them.
    fn of(name: &str, uuid: &str) -> Result<Self> {
        let mut argument = Self {
            // The oldest of this major version: every kernel since 2.6 takes it.
            version: [4, 0, 0],
            data_size: size_of::<Self>() as u32,
            data_start: size_of::<Self>() as u32,
            target_count: 0,
            open_count: 0,
            flags: 0,
            event: 0,
            padding: 0,
            device: 0,
            name: [0; 128],
            uuid: [0; 129],
            data: [0; 7],
        };
        copy_text(&mut argument.name, name)?;
        copy_text(&mut argument.uuid, uuid)?;
        Ok(argument)
    }
}

/// Copies a text to where a zero has to end it.
fn copy_text(room: &mut [u8], text: &str) -> Result<()> {
    let len = room.len() - 1;
    room[..len].get_mut(..text.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(text.as_bytes());
    Ok(())
}

/// Removes a mapping of the device mapper by its name. `control` is /dev/mapper/control.
pub(crate) fn remove_mapping(control: &File, name: &str) -> Result<()> {
    let mut argument = DmIoctl::of(name, "")?;
    // SAFETY: DM_DEV_REMOVE takes a struct dm_ioctl, which DmIoctl mirrors, and writes at most its data_size.
    unsafe { ioctl::ioctl(control, Updater::<DM_DEV_REMOVE, DmIoctl>::new(&mut argument)) }
}

/// A part of a mapping that is a part of a device, in sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinearTarget {
    /// In the mapping.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Major and minor number of the device.
    pub(crate) device: (u32, u32),
    /// On the device.
    pub(crate) offset: u64,
}

/// Room for targets: some 200.
const DM_TABLE_ROOM: usize = 16384;

/// `struct dm_ioctl` of linux/dm-ioctl.h with room for `struct dm_target_spec`.
#[repr(C)]
struct DmTable {
    header: DmIoctl,
    targets: [u8; DM_TABLE_ROOM],
}

/// Makes a mapping of the device mapper and has it work. `control` is /dev/mapper/control. Where it fails nothing is left of it.
pub(crate) fn start_mapping(control: &File, name: &str, uuid: &str, targets: &[LinearTarget]) -> Result<()> {
    let mut table = DmTable { header: DmIoctl::of(name, "")?, targets: [0; DM_TABLE_ROOM] };
    table.header.data_size = size_of::<DmTable>() as u32;
    table.header.target_count = u32::try_from(targets.len()).map_err(|_| Errno::TOOBIG)?;
    fill_table(&mut table.targets, targets)?;
    let mut create = DmIoctl::of(name, uuid)?;
    // SAFETY: DM_DEV_CREATE takes a struct dm_ioctl, which DmIoctl mirrors, and writes at most its data_size.
    unsafe { ioctl::ioctl(control, Updater::<DM_DEV_CREATE, DmIoctl>::new(&mut create))? };
    let mut resume = DmIoctl::of(name, "")?;
    // SAFETY: DM_TABLE_LOAD takes a struct dm_ioctl, with which DmTable begins, and reads targets and writes answers at most up
    // to its data_size, which is that of DmTable.
    let loaded = unsafe { ioctl::ioctl(control, Updater::<DM_TABLE_LOAD, DmTable>::new(&mut table)) };
    let started = loaded.and_then(|()| {
        // SAFETY: DM_DEV_SUSPEND, which resumes without the flag to suspend, takes a struct dm_ioctl, which DmIoctl mirrors, and
        // writes at most its data_size.
        unsafe { ioctl::ioctl(control, Updater::<DM_DEV_SUSPEND, DmIoctl>::new(&mut resume)) }
    });
    if started.is_err() {
        _ = remove_mapping(control, name);
    }
    started
}

/// `struct dm_target_spec` for each target, and its parameters as a text behind it, at multiples of 8 bytes.
fn fill_table(room: &mut [u8], targets: &[LinearTarget]) -> Result<()> {
    const SPEC: usize = 40;
    let mut rest = room;
    for target in targets {
        let parameters = format!("{}:{} {}\0", target.device.0, target.device.1, target.offset);
        let len = (SPEC + parameters.len()).next_multiple_of(8);
        let (spec, after) = rest.split_at_mut_checked(len).ok_or(Errno::TOOBIG)?;
        spec[..8].copy_from_slice(&target.start.to_ne_bytes());
        spec[8..16].copy_from_slice(&target.len.to_ne_bytes());
        spec[20..24].copy_from_slice(&(len as u32).to_ne_bytes());
        spec[24..30].copy_from_slice(b"linear");
        spec[SPEC..SPEC + parameters.len()].copy_from_slice(parameters.as_bytes());
        rest = after;
    }
    Ok(())
}

/// `mdu_array_info_t` of linux/raid/md_u.h.
#[repr(C)]
struct MdArray {
    major_version: c_int,
    minor_version: c_int,
    others: [c_int; 16],
}

/// `mdu_disk_info_t` of linux/raid/md_u.h.
#[repr(C)]
struct MdDisk {
    number: c_int,
    major: c_int,
    minor: c_int,
    role: c_int,
    state: c_int,
}

/// Tells a new array of the md driver that its members have superblocks of version 1 and of which minor one.
pub(crate) fn prepare_array(array: &File, minor_version: c_int) -> Result<()> {
    // No number of members: the superblocks say everything.
    let argument = MdArray { major_version: 1, minor_version, others: [0; 16] };
    // SAFETY: SET_ARRAY_INFO reads a mdu_array_info_t, which MdArray mirrors.
    unsafe { ioctl::ioctl(array, Setter::<SET_ARRAY_INFO, MdArray>::new(argument)) }
}

/// Adds a device, by its number, that has a superblock to an array.
pub(crate) fn add_to_array(array: &File, device: u64) -> Result<()> {
    let [major, minor] = [major(device), minor(device)].map(u32::cast_signed);
    let argument = MdDisk { number: 0, major, minor, role: 0, state: 0 };
    // SAFETY: ADD_NEW_DISK reads a mdu_disk_info_t, which MdDisk mirrors.
    unsafe { ioctl::ioctl(array, Setter::<ADD_NEW_DISK, MdDisk>::new(argument)) }
}

/// Starts an array whose members were added.
pub(crate) fn run_array(array: &File) -> Result<()> {
    // SAFETY: RUN_ARRAY reads at most a mdu_param_t, which has three ints.
    unsafe { ioctl::ioctl(array, Setter::<RUN_ARRAY, [c_int; 3]>::new([0; 3])) }
}

/// Stops a RAID array of the md driver.
pub(crate) fn stop_array(array: &File) -> Result<()> {
    // SAFETY: STOP_ARRAY takes no argument.
    unsafe { ioctl::ioctl(array, NoArg::<STOP_ARRAY>::new()) }
}

/// Takes the file from a loop device, at once or when its last user is gone.
pub(crate) fn clear_loop(device: &File) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl::ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

unsafe extern "C" {
    /// swapoff(2), which rustix has not.
    fn swapoff(path: *const c_char) -> c_int;
    /// syscall(2), for kexec_file_load(2), which neither rustix nor every C library has.
    fn syscall(number: c_long, ...) -> c_long;
}

/// `__NR_kexec_file_load` of asm/unistd_64.h, and of asm-generic/unistd.h.
const KEXEC_FILE_LOAD: c_long = if cfg!(target_arch = "x86_64") { 320 } else { 294 };
/// linux/kexec.h.
const KEXEC_FILE_NO_INITRAMFS: c_ulong = 4;

/// Puts a kernel into memory, which reboot(2) then starts when it is asked to.
pub(crate) fn load_kernel(kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
    let (initrd, flags) = match initrd {
        Some(initrd) => (initrd.as_raw_fd(), 0),
        None => (-1, KEXEC_FILE_NO_INITRAMFS),
    };
    let cmdline_len = cmdline.count_bytes() as c_ulong + 1;
    // SAFETY: kexec_file_load takes two descriptors, which outlive the call, and reads cmdline_len bytes, which is the string
    // with the zero that ends it; every argument is as wide as a register.
    let done = unsafe {
        syscall(
            KEXEC_FILE_LOAD,
            c_long::from(kernel.as_raw_fd()),
            c_long::from(initrd),
            cmdline_len,
            cmdline.as_ptr(),
            flags,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel swap no more to a device or file.
pub(crate) fn stop_swapping(path: &CStr) -> io::Result<()> {
    // SAFETY: swapoff reads a string that ends with a zero, which a CStr is.
    match unsafe { swapoff(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Grows a mounted ext2, ext3 or ext4 to this many blocks of its own. `root` is a directory of it.
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

/// Grows a mounted xfs to `len` bytes, in whole blocks of its own. `root` is a directory of it.
pub(crate) fn grow_xfs(root: &OwnedFd, len: u64) -> Result<()> {
    // SAFETY: XFS_IOC_FSGEOMETRY_V1 writes a struct xfs_fsop_geom_v1, which XfsGeometry mirrors and for which any bytes are valid.
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

/// Grows a mounted btrfs to the size of its first device. `root` is a directory of it.
pub(crate) fn grow_btrfs(root: &OwnedFd) -> Result<()> {
    let mut argument = BtrfsVolume { fd: 0, name: [0; 4088] };
    argument.name[..3].copy_from_slice(b"max");
    // SAFETY: BTRFS_IOC_RESIZE reads a struct btrfs_ioctl_vol_args, which BtrfsVolume mirrors; its name ends with a zero.
    unsafe { ioctl::ioctl(root, Setter::<BTRFS_IOC_RESIZE, BtrfsVolume>::new(argument)) }
}

/// Gives the calling thread, or what it starts, namespaces of its own (unshare(2)).
pub(crate) fn unshare(namespaces: UnshareFlags) -> Result<()> {
    // Without FILES, which would give the thread descriptors of its own, no other thread notices.
    let namespaces = namespaces & (UnshareFlags::NEWNS | UnshareFlags::NEWPID);
    // SAFETY: the flags are of namespaces alone, so that every descriptor stays shared by all threads.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}

const _: () = assert!(size_of::<NvmePassthru>() == 72 && size_of::<DmIoctl>() == 312);
const _: () = assert!(size_of::<MdArray>() == 72 && size_of::<MdDisk>() == 20);
const _: () =
    assert!(size_of::<XfsGeometry>() == 112 && size_of::<XfsGrow>() == 16 && size_of::<BtrfsVolume>() == 4096);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<SgIo>() == 88);
