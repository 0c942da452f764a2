//! What a person has to know after stopping an action.

use slipway_protocol::Action;

/// Says what a stopped action leaves behind, and what to do. A note of the action may say more, for example that a disk
/// has no partition table.
pub fn if_stopped(action: &Action) -> &'static str {
    match action {
        Action::EraseDisk(_) => {
            "a disk whose erasing had begun has no partition table, and may still have data: erase it again"
        }
        Action::StreamImage(_) => {
            "once writing has begun, the disk has no partition table and does not start: write the image again"
        }
        Action::Partition(_) => "once writing has begun, the disk may have no partitions: partition it again",
        Action::MakeFileSystem(_) => "the partition may have no complete file system: make it again",
        Action::SeedCloudInit(_)
        | Action::KernelArgs(_)
        | Action::WriteFile(_)
        | Action::BootReporter(_)
        | Action::EfiBootOrder(_)
        | Action::EnrolSecureBoot(_) => "what was written is complete, the rest is as it was: run it again",
        Action::UnpackArchive(_) => "some files of the archive may be in place, each of them complete: unpack it again",
        Action::RunInTarget(_) => "everything that was started has ended, and what it changed stays",
        Action::EncryptRoot(_) => {
            "once the recovery key is stored, the root file system may be encrypted in part: install the system again"
        }
        Action::CaptureDisk(_) => "the disk was only read, and there is no image",
        Action::Kexec(_) => "no new kernel is loaded: run it again",
        Action::Reboot(_) => "the machine was not restarted",
    }
}
