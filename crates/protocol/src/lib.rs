//! The protocol between slipway's node and server.
//!
//! It is JSON over HTTPS under `/v1`. The OpenAPI document that the server serves describes the exchange. This crate
//! holds the types of the messages, and the few pure functions that both sides must agree on (which serial number
//! counts as missing, what counts as a value, how a digest is spelled, how the text of others is shown). It does no I/O
//! and depends on no other crate of slipway.
//!
//! Enums are externally tagged. Requests and workflows reject unknown fields. So a misspelt key is an error, and
//! slipway never ignores it silently.

pub mod admission;
pub mod attestation;
pub mod boot_fetch;
pub mod boot_report;
pub mod boot_settings;
pub mod capture;
pub mod digest;
pub mod disk;
pub mod duration;
pub mod enrolment;
pub mod error;
pub mod event;
pub mod external_step;
pub mod given;
pub mod hint;
pub mod identity;
pub mod inventory;
pub mod journal;
pub mod medium;
pub mod network;
pub mod oci;
pub mod partition;
pub mod partition_types;
pub mod printable;
pub mod raid_lvm;
pub mod rare_drivers;
pub mod secret;
pub mod ssh_key;
pub mod status;
pub mod workflow;

pub use admission::{Claim, ClaimReason, ClaimedTpm, EkCertificate, KeyOrigin, NodeKey, NodeTpm, Proof, TpmOrigin};
pub use attestation::{Blob, Tpm, TpmChallenge, TpmKeys, TpmProof};
pub use boot_fetch::{BootFetch, BootFilesFetched, BootWay};
pub use boot_report::{BootKnown, BootReport, BootReporterConfig, BootStage, BootStatus, HOST_BOOT_LOG};
pub use boot_settings::Proxy;
pub use capture::{CaptureDisk, CapturedImage};
pub use digest::{Algorithm, Digest};
pub use disk::{DiskChoice, DiskHints};
pub use enrolment::{BootTiming, EnrolRequest, Enrolment, RenewRequest, Wait};
pub use error::{ErrorBody, ErrorCode};
pub use event::{
    DiskErasure, Erasure, Event, EventAck, EventBatch, EventKind, Failure, MAX_EVENT_BYTES, MAX_EVENT_TEXT_BYTES,
    MAX_SEQ_GAP, Outcome, Progress, Stage,
};
pub use external_step::{ExternalStep, ExternalStepAck, ExternalStepReport, ExternalStepStatus};
pub use hint::{HintError, SizeHint, TextHint};
pub use identity::Identity;
pub use inventory::{Cpu, DeviceKind, Disk, Firmware, Inventory, Nic, System, UnservedDevice};
pub use medium::{MEDIUM, MOST_CONFIG_BYTES, Medium};
pub use network::{Bond, BondMode, Interface, Network, Vlan};
pub use oci::{OciReference, OciReferenceError, OciVersion};
pub use partition::{NewPartition, PartitionChoice, PartitionSize};
pub use raid_lvm::{NewRaid, NewVolume, NewVolumeGroup, RaidLevel};
pub use secret::Secret;
pub use status::{NodeState, NodeStatus, RunState, RunStatus, StepState, StepStatus};
pub use workflow::{
    Action, BootPosition, BootReporter, DetachedSignature, EfiBootOrder, EncryptRoot, EnrolSecureBoot, EraseDisk,
    EraseMode, FileSystemKind, KernelArgReplacement, KernelArgs, Kexec, MakeFileSystem, NumberOrName, Origin,
    Partition, PhoneHome, Reboot, RecoveryKey, RegistryAuth, RunInTarget, SecureBootUpdate, SecureBootVariable,
    SeedCloudInit, SeedPlace, Step, StreamImage, UnpackArchive, Verify, Workflow, WriteFile, signed_lists,
};

/// The largest request body that the server reads from a node, in bytes, after decompression.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;
/// The largest answer that a node reads from the server, in bytes. No other answer is as large as a [`Workflow`] in
/// JSON.
pub const MAX_WORKFLOW_BYTES: usize = 8 << 20;
/// The most events in one batch.
pub const MAX_EVENTS_PER_BATCH: usize = 256;
/// The seconds between two signs of life of a node that has nothing else to report.
pub const HEARTBEAT_SECONDS: u64 = 5;
/// The seconds that the server holds a poll for a workflow open before it answers 204.
pub const POLL_SECONDS: u64 = 30;
