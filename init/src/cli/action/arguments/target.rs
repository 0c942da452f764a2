//! Arguments of actions that change the installed system.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use slipway_protocol::{BootPosition, Digest, SeedPlace};

use super::source::{SourceArguments, place};

#[derive(Args)]
pub(crate) struct SeedArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// instance-id of the meta-data; a new one makes cloud-init run again
    #[arg(long)]
    pub(crate) instance_id: String,
    /// local-hostname of the meta-data
    #[arg(long)]
    pub(crate) hostname: Option<String>,
    /// File with user-data
    #[arg(long)]
    pub(crate) user_data: Option<PathBuf>,
    /// File with vendor-data
    #[arg(long)]
    pub(crate) vendor_data: Option<PathBuf>,
    /// File with a network configuration
    #[arg(long)]
    pub(crate) network_config: Option<PathBuf>,
    /// Where it is put
    #[arg(long, value_enum, default_value_t = SeedPlaceArgument::Auto)]
    pub(crate) seed: SeedPlaceArgument,
    /// Line with an SSH public key that may log in; may be given several times
    #[arg(long, value_name = "LINE")]
    pub(crate) ssh_key: Vec<String>,
    /// URL to which the installed system reports that it is up
    #[arg(long)]
    pub(crate) phone_home_url: Option<String>,
    /// File with CA certificates that a system set up by Ignition trusts for this URL
    #[arg(long, requires = "phone_home_url")]
    pub(crate) ca: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum SeedPlaceArgument {
    /// Where the installed system looks for it
    Auto,
    /// In the root file system
    Root,
    /// In a partition with the label CIDATA, made in free space if there is none
    Cidata,
    /// Where Ignition looks for its config
    Ignition,
}

impl From<SeedPlaceArgument> for SeedPlace {
    fn from(place: SeedPlaceArgument) -> Self {
        match place {
            SeedPlaceArgument::Auto => Self::Auto,
            SeedPlaceArgument::Root => Self::Root,
            SeedPlaceArgument::Cidata => Self::Cidata,
            SeedPlaceArgument::Ignition => Self::Ignition,
        }
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["delete", "replace", "append_if_missing", "append"])))]
pub(crate) struct KernelArgsArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// An argument to delete, or a key to delete with any value; may be given several times, like the other options
    #[arg(long, value_name = "ARG|KEY", allow_hyphen_values = true)]
    pub(crate) delete: Vec<String>,
    /// An argument, or a key with any value, and its replacement
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], allow_hyphen_values = true)]
    pub(crate) replace: Vec<String>,
    /// An argument to add at the end of the command line, unless it is there already
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) append_if_missing: Vec<String>,
    /// An argument to put at the end of the command line; an existing one is moved
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) append: Vec<String>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("source").required(true).args(["content", "from"])))]
pub(crate) struct WriteArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// Number, name or label of the partition instead of the root file system
    #[arg(long)]
    pub(crate) partition: Option<String>,
    /// Path of the file in the file system
    #[arg(long)]
    pub(crate) path: String,
    /// Content of the file, as text
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) content: Option<String>,
    /// Source of the content: https://, file:// or a path; http:// only with a digest; or oci://REGISTRY/REPOSITORY:TAG
    #[arg(long, value_parser = place)]
    pub(crate) from: Option<String>,
    /// Digest of the source, such as sha256:HEX
    #[arg(long, requires = "from", group = "delivered")]
    pub(crate) digest: Option<Digest>,
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// File with CA certificates to trust instead of the system's
    #[arg(long, requires = "from")]
    pub(crate) ca: Option<PathBuf>,
    /// Owner of the file, by number or by a name in the installed system
    #[arg(long)]
    pub(crate) owner: Option<String>,
    /// Group of the file, by number or by a name in the installed system
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Mode of the file in octal digits
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// Mode of newly created directories, in octal digits
    #[arg(long)]
    pub(crate) dir_mode: Option<String>,
}

#[derive(Args)]
pub(crate) struct UnpackArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// Number, name or label of the partition instead of the root file system
    #[arg(long)]
    pub(crate) partition: Option<String>,
    /// Directory in the file system
    #[arg(long, default_value = "/")]
    pub(crate) directory: String,
    /// https://, file:// or a path; http:// only with a digest; or oci://REGISTRY/REPOSITORY:TAG
    #[arg(long, value_parser = place)]
    pub(crate) url: String,
    /// Digest of the archive as delivered, such as sha256:HEX
    #[arg(long, group = "delivered")]
    pub(crate) digest: Option<Digest>,
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// File with CA certificates to trust instead of the system's
    #[arg(long)]
    pub(crate) ca: Option<PathBuf>,
    /// Create the device nodes in the archive
    #[arg(long)]
    pub(crate) devices: bool,
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["script", "command"])))]
pub(crate) struct RunArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// An environment variable; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// File with a script for the installed system's /bin/sh -e
    #[arg(long)]
    pub(crate) script: Option<PathBuf>,
    /// Program and arguments, after --
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("there is no \"=\" in it")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Args)]
pub(crate) struct BootReporterArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// Base URL of the server
    #[arg(long)]
    pub(crate) server: String,
    /// File with a token for the boot reporter of a run
    #[arg(long)]
    pub(crate) token_file: PathBuf,
    /// File with the CA certificate that signed the server's
    #[arg(long)]
    pub(crate) ca: PathBuf,
    /// Hours of a boot after which it gives up
    #[arg(long, default_value_t = 1)]
    pub(crate) hours: u32,
    /// Seconds between two logs
    #[arg(long, default_value_t = 600)]
    pub(crate) every: u32,
}

#[derive(Args)]
pub(crate) struct EncryptArguments {
    /// The disk that carries the image
    #[arg(long)]
    pub(crate) disk: String,
    /// File for the recovery key, readable only by root; it must not exist yet
    #[arg(long, value_name = "FILE")]
    pub(crate) recovery_key: PathBuf,
    /// PCRs that must have their current values for the TPM to release the key
    #[arg(long, value_delimiter = ',', default_value = "7")]
    pub(crate) pcrs: Vec<u32>,
    /// Leave the root partition as large as it is
    #[arg(long)]
    pub(crate) no_grow: bool,
    /// TPM device
    #[arg(long, value_name = "DEVICE", default_value = "/dev/tpmrm0")]
    pub(crate) tpm: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Position {
    /// Before all other entries, permanently
    First,
    /// Before all other entries, at the next boot only
    Next,
}

impl From<Position> for BootPosition {
    fn from(position: Position) -> Self {
        match position {
            Position::First => Self::First,
            Position::Next => Self::Next,
        }
    }
}
