//! The protocol between slipway's node and server.
//!
//! It is JSON over HTTPS under `/v1`. The OpenAPI document that the server serves describes the exchange. This crate
//! holds the types of the messages, and the few pure functions that both sides must agree on (which serial number
//! counts as missing, what counts as a value, how a digest is spelled, how text from outside is escaped). It does no
//! I/O and depends on no other crate of slipway.
//!
//! Enums are externally tagged. Requests and workflows reject unknown fields. So a misspelt key is an error, and
//! slipway never ignores it silently.

pub mod node;
pub mod operator;
pub mod shared;
pub mod workflow;

pub use node::agent::{
    AgentBoot, AgentCredentials, Heartbeat, HeartbeatAnswer, Task, TaskOptions, TaskProgress, TaskReport,
};
pub use node::attestation::{Blob, Tpm, TpmChallenge, TpmKeys, TpmProof};
pub use node::boot_report::{BootKnown, BootReport, BootReporterConfig, BootStage, BootStatus, HOST_BOOT_LOG};
pub use node::boot_settings::{BootSettings, MachineSettings, MetadataSource, Proxy, SettingError};
pub use node::enrolment::{BootTiming, EnrolRequest, Enrolment, Proof, RenewRequest, Wait};
pub use node::event::{
    DiskErasure, Erasure, Event, EventAck, EventBatch, EventKind, Failure, MAX_EVENT_TEXT_BYTES, MAX_SEQ_GAP, Outcome,
    Progress, Stage,
};
pub use node::external_step::{ExternalStep, ExternalStepAck, ExternalStepReport, ExternalStepStatus};
pub use node::medium::{MEDIUM, MOST_CONFIG_BYTES, Medium};
pub use node::state::NodeState;
pub use operator::admission::{Claim, ClaimReason, ClaimedTpm, EkCertificate, KeyOrigin, NodeKey, NodeTpm, TpmOrigin};
pub use operator::agent::{AgentStatus, TaskState, TaskStatus};
pub use operator::boot_fetch::{BootFetch, BootFilesFetched, BootWay};
pub use operator::comparison::{Chosen, ComparedFact, ComparedRun, Comparison};
pub use operator::flag::{Flag, FlagKind, Severity, SiteStatus};
pub use operator::history::{SiteEvent, SiteEventKind};
pub use operator::node_class::NodeClass;
pub use operator::power::{
    NodePower, PowerAct, PowerActState, PowerActStatus, PowerBoot, PowerMode, PowerProvider, PowerState, Redfish,
};
pub use operator::status::{Afterwards, Installed, NodeStatus, RunState, RunStatus, StepState, StepStatus, UsualStep};
pub use shared::digest::{Algorithm, Digest};
pub use shared::error::{ErrorBody, ErrorCode};
pub use shared::identity::Identity;
pub use shared::inventory::{Cpu, DeviceKind, Disk, Firmware, Inventory, Nic, System, UnservedDevice};
pub use shared::network::{Bond, BondMode, Interface, Network, Vlan};
pub use shared::oci::{OciReference, OciReferenceError, OciVersion};
pub use shared::secret::Secret;
pub use workflow::agent::{Agent, AgentAct};
pub use workflow::capture::{CaptureDisk, CapturedImage};
pub use workflow::disk::{DiskChoice, DiskHints};
pub use workflow::hint::{SizeHint, TextHint};
pub use workflow::new_partition::{NewPartition, PartitionChoice, PartitionSize};
pub use workflow::raid_lvm::{NewRaid, NewVolume, NewVolumeGroup, RaidLevel};
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
/// The seconds between two heartbeats of a node that works on a run.
pub const HEARTBEAT_SECONDS: u64 = 5;
/// The seconds that the server holds a poll for a workflow open before it answers 204.
pub const POLL_SECONDS: u64 = 30;
