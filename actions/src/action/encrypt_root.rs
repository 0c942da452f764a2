//! `encrypt-root`: turns the root partition of the installed system into a LUKS2 volume. The TPM releases one key to
//! that system; a recovery key is stored elsewhere.
//!
//! All checks come before any change. The recovery key is stored before the disk is changed. The files that the system
//! needs to open its root are written first, while its root can still be mounted.

mod boot_files;
mod extent;
mod images;
#[allow(clippy::indexing_slicing, reason = "it fills a header of its own making")]
mod luks2;
#[allow(clippy::indexing_slicing, reason = "half a byte is one of 16 digits")]
mod recovery;
mod reencrypt;
mod shim;
mod table;
mod target_files;
mod token;
#[allow(clippy::indexing_slicing, reason = "it halves a key")]
mod xts;

use std::time::Duration;

use slipway_formats::boot_config::EntryScope;
use slipway_protocol::{DiskHints, EncryptRoot, KernelArgs, RecoveryKey, RunInTarget};

use crate::action::{Done, kernel_args, run_in_target};
use crate::disk::choose;
use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::{self, Partition};
use crate::error::{EncryptError, Error};
use crate::machine::Machine;
use crate::report::{Report, Tell};
use crate::target::mount::SearchLog;
use crate::target::sealed::{self, SealedRoots};
use crate::target::volumes::mount_all;
use crate::target::{self, Target};
use crate::{random, text};
use extent::Extent;
use luks2::{DATA_OFFSET, Volume};
use reencrypt::Work;
use table::{State, Table};

/// The boot entries that get the arguments: all, because without them rescue entries would not start either.
const ENTRIES: EntryScope = EntryScope::All;
/// Placeholder for a volume that has no UUID yet.
const ANY_VOLUME: &str = "00000000-0000-0000-0000-000000000000";
/// How long the TPM may take for a command. A slow TPM needs half a minute to make an RSA key.
const TPM_PATIENCE: Duration = Duration::from_secs(120);

/// What to encrypt, and where.
struct Plan {
    /// The partition after it has grown.
    partition: Partition,
    extent: Extent,
    table: Table,
}

/// The keys of the encryption.
struct Keys {
    volume: Volume,
    header: Vec<u8>,
    recovery_key: RecoveryKey,
    warnings: Vec<String>,
}

pub(crate) fn run(inputs: &EncryptRoot, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    if let Some(SealedRoots { names, warnings }) = sealed::check(&disk, machine.cancel(), report)? {
        let summary = format!("left {} as it is: sealed by dm-verity, not encrypted", names.join(" and "));
        return Ok(Done::go_on(summary, warnings));
    }
    // A file system must not be mounted twice.
    let (volumes, looked_at) = mount_all(&disk, machine.cancel())?;
    let is_by_shim = shim::is_installed(&volumes)?;
    let mut for_rescue = Vec::new();
    let obstacle = obstacle(&disk, &volumes, looked_at, &mut for_rescue);
    drop(volumes);
    let Target { root, partition, name, kind, mut warnings, .. } = target::find_root(&disk, report)?;
    warnings.extend(for_rescue);
    let refused = |reason: String| Error::Encrypt(EncryptError::Refused { what: name.clone(), reason });
    target_files::check(&root).map_err(refused)?;
    let plan = plan(&disk, &partition, kind, inputs.grow)?;
    let contradiction =
        || inputs.pcrs.contains(&shim::PCR).then(|| shim::contradiction(is_by_shim, &machine.setup().efi)).flatten();
    obstacle?.or_else(contradiction).map_or(Ok(()), |reason| Err(refused(reason)))?;
    let keys = make_keys(inputs, &plan, machine)?;
    warnings.extend_from_slice(&keys.warnings);
    machine.cancel().check()?;
    let volume = &keys.recovery_key.volume;
    machine
        .store_recovery_key(&keys.recovery_key)
        .map_err(|error| EncryptError::NotStored { source: error.source, is_transient: error.is_transient })?;
    report(Report::Note(format!("the recovery key of volume {volume} is stored")));

    target_files::write(&root, volume)?;
    root.sync()?;
    drop(root);
    let path = disk.path().to_owned();
    // A partition cannot be mounted while the disk is held open.
    drop(disk);
    let hints = DiskHints { device: Some(path), ..DiskHints::default() };
    // Another attempt would start from a disk that is already changed.
    let half_done = |error: Error| match error {
        Error::Cancelled => error,
        error => refused(format!("{}; install it again", text::chain(&error))),
    };
    warnings.extend(prepare_boot(&hints, volume, machine, report).map_err(half_done)?);
    let disk = choose::open(&hints, Access::Write, machine, report).map_err(half_done)?;
    let summary = format!(
        "encrypted {} of {kind} in {name} as LUKS2 volume {volume}; the TPM opens it as long as the values of PCR {} \
         do not change",
        text::size(plan.extent.size),
        inputs.pcrs.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    );
    encrypt(&disk, plan, &keys, machine, report)?;
    if let Err(errno) = disk.reread_partitions() {
        warnings.push(format!("the kernel does not know the new partitions of {} yet: {errno}", disk.path()));
    }
    Ok(Done::go_on(summary, warnings))
}

/// Returns the reason in the boot files, if there is one, why the encrypted system would not start or why its kernel
/// arguments cannot be changed. Problems that affect only a rescue entry are added to `warnings`.
fn obstacle(
    disk: &OpenDisk,
    volumes: &[crate::target::volume::Volume],
    looked_at: SearchLog,
    warnings: &mut Vec<String>,
) -> Result<Option<String>, Error> {
    let unseen = boot_files::unseen(volumes, &looked_at)?;
    if let Some(reason) = unseen.map_or_else(|| boot_files::unreached(volumes, warnings), |reason| Ok(Some(reason)))? {
        return Ok(Some(reason));
    }
    let wanted = boot_arguments(DiskHints::default(), ANY_VOLUME);
    kernel_args::check(ENTRIES, &wanted, disk, volumes, looked_at).map(|()| None)
}

/// Plans the encryption. Fails if the partition has no room for the LUKS2 header besides the file system.
fn plan(disk: &OpenDisk, root: &Partition, kind: &str, grow: bool) -> Result<Plan, Error> {
    let refused = |reason: String| Err(EncryptError::Refused { what: root.describe(disk), reason }.into());
    if root.number == 0 {
        return refused("it is a whole disk, an array or a volume; only a partition can be encrypted".to_owned());
    }
    let (table, partition) = Table::read(disk, root, grow)?;
    let overlaps = |other: &Partition| {
        let (one, other_bytes) = (&partition.bytes, &other.bytes);
        other.number != root.number && other_bytes.start < one.end && one.start < other_bytes.end
    };
    if let Some(other) = partitions::read(disk)?.iter().find(|other| overlaps(other)) {
        return refused(format!("{} overlaps it; make the image again", other.describe(disk)));
    }
    let Some(extent) = Extent::of(disk, root, kind)? else {
        return refused(format!("its {kind} file system does not say how large it is, or is on several devices"));
    };
    let room = partition.bytes.end - partition.bytes.start;
    if extent.size + DATA_OFFSET > room {
        let left = table.left.map_or(String::new(), |left| format!(" ({left})"));
        return refused(format!(
            "its {kind} file system takes up {} of {}, but {} must be free after it{left}; write the image with `grow: \
             false`, so that the partition can grow without its file system, or make the partition larger than the \
             file system",
            text::size(extent.size),
            text::size(room),
            text::size(DATA_OFFSET)
        ));
    }
    Ok(Plan { partition, extent, table })
}

/// Makes the volume key and the two key slots.
fn make_keys(inputs: &EncryptRoot, plan: &Plan, machine: &dyn Machine) -> Result<Keys, Error> {
    let secret = random::bytes()?;
    let sealed = slipway_tpm::device::seal(&machine.setup().tpm, TPM_PATIENCE, &inputs.pcrs, &secret)
        .map_err(|source| EncryptError::Tpm { source })?;
    let unmeasured =
        |pcr| format!("the firmware measured nothing into PCR {pcr}, so this PCR does not protect the key");
    let warnings = sealed.unmeasured.iter().map(unmeasured).collect();
    let sector = plan.extent.sector(&plan.partition.bytes);
    let volume = Volume { uuid: random::uuid()?, key: random::bytes()?, sector };
    let key = recovery::new()?;
    let header = luks2::header(&volume, vec![token::slot(&secret, &sealed, &inputs.pcrs), recovery::slot(&key)])?;
    let recovery_key = RecoveryKey { volume: random::uuid_text(&volume.uuid), key };
    Ok(Keys { volume, header, recovery_key, warnings })
}

fn encrypt(disk: &OpenDisk, mut plan: Plan, keys: &Keys, machine: &dyn Machine, report: Tell) -> Result<(), Error> {
    let (start, size) = (plan.partition.bytes.start, plan.extent.size);
    let work = Work { disk, start, size, volume: &keys.volume, header: &keys.header };
    let done = work.run(&mut plan.table, machine.cancel(), report);
    done.inspect_err(|_| {
        let left = match plan.table.state {
            State::Untouched => "may still have its old partition table, with a system that expects an encrypted root",
            State::Gone => "has no partition table now",
            State::Back => "has its new partition table, which may be incomplete",
        };
        report(Report::Note(format!("{} {left}: install it again", disk.path())));
    })
}

/// Has the installed system open its root at boot: adds kernel arguments, then rebuilds its initramfs images. The order
/// matters: if the system has no kernel command line of its own, kernel-install makes entries with that of the running
/// kernel. Adding the arguments first prevents that.
fn prepare_boot(disk: &DiskHints, uuid: &str, machine: &dyn Machine, report: Tell) -> Result<Vec<String>, Error> {
    let added = kernel_args::run_for(ENTRIES, &boot_arguments(disk.clone(), uuid), machine, report)?;
    let script = Some(target_files::INITRAMFS.to_owned());
    let make = RunInTarget { disk: disk.clone(), script, ..RunInTarget::default() };
    let made = run_in_target::run(&make, machine, report)?;
    Ok([added.outcome.warnings, made.outcome.warnings].concat())
}

/// Returns the kernel arguments to add.
fn boot_arguments(disk: DiskHints, uuid: &str) -> KernelArgs {
    KernelArgs { disk, append: target_files::kernel_arguments(uuid), ..KernelArgs::default() }
}
