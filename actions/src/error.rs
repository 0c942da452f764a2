//! What can go wrong in an action.

use std::io;
use std::ops::Range;

use slipway_protocol::{Digest, EraseMode};

use crate::fetch::FetchError;
use crate::{signature, sums};

/// Why an action failed. Messages name operation and object; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// sysfs or procfs could not be read.
    #[error("listing the disks of this machine")]
    ListDisks {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The hints do not lead to exactly one disk.
    #[error("choosing a disk: {reason}")]
    ChooseDisk {
        /// What was asked for, and each disk with what stands against it.
        reason: String,
    },
    /// The disk could not be opened.
    #[error("opening {disk}")]
    OpenDisk {
        /// Path of the disk.
        disk: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A read from the disk failed.
    #[error("reading {disk} at byte {offset}")]
    ReadDisk {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the read.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A write to the disk failed.
    #[error("writing {disk} at byte {offset}")]
    WriteDisk {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the write.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The disk did not confirm that it has everything.
    #[error("flushing {disk}")]
    FlushDisk {
        /// Path of the disk.
        disk: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The disk failed because it is not there any more.
    #[error(
        "using {disk}: the disk vanished: it was pulled out, or it lost power or its connection; check slot, cable and controller"
    )]
    Vanished {
        /// Path the disk had.
        disk: String,
        /// What was done to it, and what the kernel said.
        #[source]
        source: Box<Error>,
    },
    /// What was read from the disk is not what was written to it.
    #[error(
        "reading {disk} back: the {len} bytes from byte {offset} on are not those that were written; the disk or its cable is \
         bad, or it has less room than it says: replace it"
    )]
    ReadBack {
        /// Path of the disk.
        disk: String,
        /// Where what was read begins, in bytes.
        offset: u64,
        /// How many bytes were read at once.
        len: u64,
    },
    /// An erased place does not read as zeros.
    #[error("verifying that {disk} is erased: byte {offset} is not zero")]
    NotErased {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the first byte that is not zero.
        offset: u64,
    },
    /// The partition table is of a kind that cannot be read, or the image's cannot be made to fit the disk.
    #[error("{operation} the partition table of {disk}: {reason}")]
    PartitionTable {
        /// What was done: "reading", "fitting", "making".
        operation: &'static str,
        /// Path of the disk.
        disk: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The partitions asked for are not to be had on this disk.
    #[error("laying out partitions on {disk}: {reason}")]
    Layout {
        /// Path of the disk.
        disk: String,
        /// What stands in the way.
        reason: String,
    },
    /// An array or a volume group cannot be had.
    #[error("making {what}: {reason}")]
    Layer {
        /// Which.
        what: String,
        /// What stands in the way, and what to do.
        reason: String,
    },
    /// An array or a volume group is on its disks, and the kernel does not start it.
    #[error("{what}")]
    StartLayer {
        /// What was done.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Not exactly one partition is meant.
    #[error("looking for {choice} on {disk}: found {found} of it; there is {there}")]
    ChoosePartition {
        /// Path of the disk.
        disk: String,
        /// What was asked for.
        choice: String,
        /// How many there are.
        found: usize,
        /// All partitions of the disk.
        there: String,
    },
    /// A file system could not be made.
    #[error("making {kind} in {partition}: {reason}")]
    MakeFileSystem {
        /// File system type.
        kind: &'static str,
        /// The partition.
        partition: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The kernel gives no random numbers.
    #[error("asking the kernel for random numbers")]
    Random,
    /// The image's partition table is not where firmware and kernel look for it on this disk.
    #[error(
        "checking the partition table of the image: it is made for blocks of {found} bytes, and {disk} has blocks of \
         {expected} bytes; use an image made for {expected} bytes, or another disk"
    )]
    BlockSize {
        /// Path of the disk.
        disk: String,
        /// Logical block size of the disk in bytes.
        expected: u64,
        /// Block size in bytes the table was made for.
        found: u64,
    },
    /// The image would be written over itself while it is read.
    #[error(
        "writing {url} to {disk}: it is this disk or lies on it; take the image from elsewhere, or choose another disk"
    )]
    SourceOnTarget {
        /// The local source.
        url: String,
        /// Path of the disk.
        disk: String,
    },
    /// The source could not be fetched.
    #[error("fetching {url}")]
    Fetch {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: FetchError,
    },
    /// Too many failures in a row without a byte received.
    #[error("fetching {url}: stopped at byte {offset} after {failures} failures in a row")]
    FetchGaveUp {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        /// Bytes received until then.
        offset: u64,
        /// How many failures.
        failures: u32,
        /// The last of them.
        #[source]
        source: FetchError,
    },
    /// None of several places has the source.
    #[error("fetching the image: all of {} places failed: {}", failed.len(), failed.join("; "))]
    NoMirror {
        /// Each, without user, password and query, which may be secrets, and why it failed last.
        failed: Vec<String>,
        /// One of them may yet answer.
        may_pass: bool,
    },
    /// What is said of the source does not go together.
    #[error("checking where the image comes from: the step {problem}")]
    Source {
        /// What does not, and what would.
        problem: String,
    },
    /// The list of sums gives no digest for the image.
    #[error("looking up the digest of the image in {url}")]
    Sums {
        /// The URL of the list without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: sums::Error,
    },
    /// The block map of the image cannot be used.
    #[error("looking up in {url} what of the image holds data")]
    Bmap {
        /// The URL of the map without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: crate::stream::bmap::Error,
    },
    /// An artifact has no image for this machine, or its registry cannot be logged in at.
    #[error("looking for the image in {url}: {reason}")]
    Artifact {
        /// The artifact.
        url: String,
        /// What is there, or what is missing.
        reason: String,
    },
    /// A signature does not hold, or cannot be checked.
    #[error("verifying {what} by its signature {url}")]
    Signature {
        /// The list of sums, or the stream as delivered.
        what: &'static str,
        /// The URL of the signature without user, password and query, which may be secrets.
        url: String,
        /// The cause.
        #[source]
        source: signature::Error,
    },
    /// The source is empty, or decompresses to nothing.
    #[error("reading the image from {url}: it is empty")]
    EmptyImage {
        /// The URL without user, password and query, which may be secrets.
        url: String,
    },
    /// The source is something that must not be written to a disk as it is.
    #[error(
        "reading the image from {url}: it is {format}; raw images, plain or in zstd, gzip, xz or bzip2, and qcow2 images can be written"
    )]
    Format {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        /// What its first bytes say it is.
        format: &'static str,
    },
    /// A qcow2 image cannot be read.
    #[error("decoding the qcow2 image")]
    Qcow2 {
        /// The cause.
        #[source]
        source: crate::stream::qcow2::Error,
    },
    /// The blocks of a qcow2 image are not in the order of the raw image, of which the digest was to be taken.
    #[error(
        "checking the digest of the raw image while {url} is read once: the blocks of a qcow2 image are in another order; \
         leave `digest` out, so that it is read by ranges, or `raw_digest` and `bmap`"
    )]
    Qcow2Order {
        /// The URL without user, password and query, which may be secrets.
        url: String,
    },
    /// The source is damaged or ends too early.
    #[error("decoding the {format} image after {raw_bytes} bytes of raw data")]
    Decode {
        /// Compression found.
        format: &'static str,
        /// Raw bytes decoded until then.
        raw_bytes: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The image does not fit the disk.
    #[error("writing the image to {disk}: the disk has {size} bytes, the image needs {needed}")]
    ImageTooLarge {
        /// Path of the disk.
        disk: String,
        /// Size of the disk in bytes.
        size: u64,
        /// What the image needs: its size where known, else how far it got.
        needed: String,
    },
    /// The raw image is not as long as the workflow or its block map says.
    #[error("checking the size of the raw image: expected {expected} bytes, got {found}")]
    RawSize {
        /// Size in the workflow or the block map, in bytes.
        expected: u64,
        /// Size found, in bytes; when larger than expected, where the writer stopped.
        found: String,
    },
    /// The bytes are not those the workflow names.
    #[error("checking the digest of {what}: expected {expected}, got {}:{found} over {bytes} bytes", expected.algorithm().name())]
    Digest {
        /// The stream as delivered, the raw image, or the manifest that names it.
        what: &'static str,
        /// Digest in the workflow.
        expected: Digest,
        /// Hexadecimal digits found.
        found: String,
        /// Bytes hashed.
        bytes: u64,
    },
    /// A part of the raw image is not what its block map says.
    #[error(
        "checking {blocks} of the raw image (from byte {} to {}) by its block map: expected {algorithm}:{expected}, got \
         {algorithm}:{found}; the image is damaged, or the map was made of another one: fetch or make both again",
        bytes.start, bytes.end
    )]
    MappedDigest {
        /// As the map has them: "blocks 3-4".
        blocks: String,
        /// The part in bytes.
        bytes: Range<u64>,
        /// Name of the hash function.
        algorithm: &'static str,
        /// Hexadecimal digits in the map.
        expected: String,
        /// Hexadecimal digits found.
        found: String,
    },
    /// No partition holds what the action works on.
    #[error("looking for {what} on {disk}: {looked_at}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Path of the disk.
        disk: String,
        /// Every place looked at, with what was there.
        looked_at: String,
        /// A partition had no device node, which may yet appear.
        may_pass: bool,
    },
    /// A file of the installed system could not be read or written.
    #[error("{operation} /{path} of the installed system")]
    TargetFile {
        /// What was done: "reading", "writing", "removing".
        operation: &'static str,
        /// Path relative to the root of its file system.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A boot loader's configuration cannot be edited.
    #[error("editing /{path} of the installed system: {reason}")]
    BootConfig {
        /// Path relative to the root of its file system.
        path: String,
        /// What is there, on which line, and what would be right.
        reason: String,
    },
    /// A kernel argument cannot be replaced.
    #[error("replacing kernel argument {argument:?}: {reason}")]
    KernelArgument {
        /// The argument as given.
        argument: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// The user-data cannot take what was to be put in.
    #[error("putting phone_home into the user-data")]
    UserData {
        /// The cause, with line and column.
        #[source]
        source: slipway_user_data::Refusal,
    },
    /// The Ignition config cannot be used.
    #[error("reading the Ignition config")]
    Ignition {
        /// The cause, with line and column.
        #[source]
        source: slipway_user_data::Refusal,
    },
    /// There is no place for a seed where the installed system would find it.
    #[error("seeding the system on {disk}: {reason}")]
    Seed {
        /// Path of the disk.
        disk: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The installed system cannot have a boot reporter.
    #[error("putting the boot reporter into {partition}: {reason}")]
    BootReporter {
        /// The root file system, in words.
        partition: String,
        /// What stands in the way, and what to do.
        reason: &'static str,
    },
    /// Something that sits on the disk did not go.
    #[error("taking down what sits on {disk}: {what}")]
    TakeDown {
        /// Path of the disk.
        disk: String,
        /// What was done: "unmounting /mnt".
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Something that sits on the disk cannot be taken down.
    #[error("taking down what sits on {disk}: {holder} cannot be taken down; end it by hand, or choose another disk")]
    Held {
        /// Path of the disk.
        disk: String,
        /// What it is.
        holder: String,
    },
    /// The disk cannot be erased in the way asked for.
    #[error("erasing {disk} by {mode}: {reason}")]
    CannotErase {
        /// Path of the disk.
        disk: String,
        /// The way asked for.
        mode: EraseMode,
        /// Why not, and what to do.
        reason: String,
    },
    /// What was on the disk before its secure erase is still there.
    #[error("verifying that {disk} is erased: what is at byte {offset} is what was there before")]
    Unchanged {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the place.
        offset: u64,
    },
    /// The root file system cannot become an encrypted one.
    #[error("encrypting {what}: {reason}")]
    CannotEncrypt {
        /// The partition.
        what: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The TPM does not keep the key.
    #[error("sealing the key of the root file system")]
    Tpm {
        /// The cause.
        #[source]
        source: crate::TpmError,
    },
    /// The header of an encrypted volume has no room for all that it is to hold.
    #[error("making the LUKS2 header: it would have {needed} bytes of text, more than there is room for")]
    LuksHeader {
        /// Bytes of text.
        needed: usize,
    },
    /// Nobody took the recovery key.
    #[error("storing the recovery key; the disk was not changed")]
    Escrow {
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether the same may succeed if it is tried again.
        may_pass: bool,
    },
    /// A partition sealed by dm-verity is not what it was sealed as.
    #[error("checking {what}, which dm-verity seals: {reason}; write the image again")]
    Sealed {
        /// The partition.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// Some of several disks were not erased.
    #[error("erasing {count} disks: {}", failed.join("; "))]
    SomeNotErased {
        /// How many there were.
        count: usize,
        /// Each that failed, with its reason and causes.
        failed: Vec<String>,
    },
    /// The inputs of an action cannot be right.
    #[error("reading the inputs of {action}: it {}", problems.join("; it "))]
    Inputs {
        /// Name of the action.
        action: &'static str,
        /// What is wrong with them.
        problems: Vec<String>,
    },
    /// The partition named is not one partition, or is none that can be mounted.
    #[error("choosing partition {wanted} of {disk}: {reason}")]
    Partition {
        /// Path of the disk.
        disk: String,
        /// Its number or name as given.
        wanted: String,
        /// Why not, and which there are.
        reason: String,
    },
    /// The installed system does not know a user or group.
    #[error("looking up {name:?} in /{file} of the installed system: {reason}; give the number")]
    Owner {
        /// The name given.
        name: String,
        /// Where it was looked up.
        file: &'static str,
        /// Why it was not found.
        reason: &'static str,
    },
    /// An archive is damaged, or has something that is not unpacked.
    #[error("unpacking {place} of the archive from {url}: {reason}")]
    Archive {
        /// The URL without user, password and query, which may be secrets.
        url: String,
        /// Which entry, or where.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An entry of an archive could not be written.
    #[error("unpacking {entry} of the archive")]
    UnpackEntry {
        /// Its path.
        entry: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The process a command was to run in could not be started.
    #[error("starting {what} in the installed system")]
    StartInTarget {
        /// What was to run.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The installed system could not be made ready for a command.
    #[error("running {what} in the installed system: {reason}")]
    PrepareTarget {
        /// What was to run.
        what: String,
        /// What was done, and why it failed.
        reason: String,
    },
    /// A command in the installed system did not succeed.
    #[error("running {what} in the installed system: it ended with {how}{}", last_lines(output))]
    InTarget {
        /// What ran.
        what: String,
        /// Exit status or signal.
        how: String,
        /// The last lines it printed.
        output: Vec<String>,
    },
    /// Data of a disk could not be compressed.
    #[error("compressing {disk} at byte {offset}")]
    Compress {
        /// Path of the disk.
        disk: String,
        /// Byte offset of the data.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A captured disk could not be stored.
    #[error("storing the image {name}")]
    Upload {
        /// Name of the image.
        name: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether the same may succeed if it is tried again.
        may_pass: bool,
    },
    /// Too many failures in a row without a byte stored.
    #[error("storing the image {name}: stopped at byte {offset} after {failures} failures in a row")]
    UploadGaveUp {
        /// Name of the image.
        name: String,
        /// Bytes stored until then.
        offset: u64,
        /// How many failures.
        failures: u32,
        /// The last of them.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was stored of an image is not there any more.
    #[error(
        "storing the image {name}: {sent} bytes of it were stored, and {stored} are there; it has to be captured anew"
    )]
    UploadLost {
        /// Name of the image.
        name: String,
        /// Bytes that were stored, as far as anybody said.
        sent: u64,
        /// Bytes there are.
        stored: u64,
    },
    /// The machine has no EFI variables to say what it starts from.
    #[error(
        "changing the order in which the machine starts: it was not started by UEFI firmware ({folder} is not there); \
         start it by UEFI, or leave the step out"
    )]
    NotUefi {
        /// Where Linux would show them.
        folder: String,
    },
    /// The firmware's variables could not be read or changed.
    #[error("{operation} the EFI variable {variable}")]
    EfiVariable {
        /// What was done: "reading", "writing", "removing".
        operation: &'static str,
        /// Its name, or the folder of all.
        variable: String,
        /// The cause, and what to do.
        #[source]
        source: io::Error,
    },
    /// Nothing says which program starts the installed system.
    #[error("looking for the boot loader on {disk}: {reason}")]
    BootLoader {
        /// Path of the disk.
        disk: String,
        /// What is there, and what to do.
        reason: String,
    },
    /// Nothing says which kernel is to be started, or it is not there.
    #[error("looking for the kernel of the installed system on {disk}: {reason}")]
    InstalledKernel {
        /// Path of the disk.
        disk: String,
        /// What is there, and what to do.
        reason: String,
    },
    /// The kernel could not be put into memory.
    #[error("loading the kernel {kernel}: {reason}")]
    LoadKernel {
        /// Its path.
        kernel: String,
        /// Why not, and what to do.
        reason: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Something asked the action to stop, such as the end of its time.
    #[error("stopping on request")]
    Cancelled,
}

fn last_lines(output: &[String]) -> String {
    if output.is_empty() { String::new() } else { format!("; the last it printed: {}", output.join(" / ")) }
}

/// Whether the same action may succeed if it is run again: true for faults of the network and for a disk in use, false
/// for a wrong digest, a missing disk, a damaged image or a disk that fails or vanishes.
pub fn is_retryable(error: &Error) -> bool {
    match error {
        Error::Fetch { source, .. } | Error::FetchGaveUp { source, .. } => source.may_pass(),
        Error::OpenDisk { source, .. } | Error::TakeDown { source, .. } => {
            source.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
        }
        Error::UploadGaveUp { .. } | Error::UploadLost { .. } => true,
        Error::Upload { may_pass, .. }
        | Error::Escrow { may_pass, .. }
        | Error::NotFound { may_pass, .. }
        | Error::NoMirror { may_pass, .. } => *may_pass,
        _ => false,
    }
}
