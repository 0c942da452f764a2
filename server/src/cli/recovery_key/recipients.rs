//! `slipway-server escrow`.

use clap::Subcommand;
use slipway_server::node::recovery_keys;
use slipway_server::store::Store;

use super::super::{erase, print, print_line, tell};

#[derive(Subcommand)]
pub enum EscrowCommand {
    /// Public keys to which the recovery keys of disks are encrypted. The server then cannot read them.
    #[command(subcommand)]
    Recipient(RecipientCommand),
}

#[derive(Subcommand)]
pub enum RecipientCommand {
    /// Encrypt recovery keys to this public key too. Those that are stored in clear are encrypted at once.
    #[command(after_help = "\
Examples:
  slipway-server escrow recipient add age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p")]
    Add {
        /// Public key of age, as `age-keygen` prints it.
        recipient: String,
    },
    /// List the public keys.
    List,
    /// Encrypt no further recovery keys to this public key. It still opens those that it opens now.
    Remove {
        /// The public key.
        recipient: String,
    },
}

pub async fn run(store: &Store, command: EscrowCommand) -> anyhow::Result<()> {
    let EscrowCommand::Recipient(command) = command;
    match command {
        RecipientCommand::Add { recipient } => {
            let added = recovery_keys::add_recipient(store, &recipient).await?;
            erase(store).await?;
            if added.older > 0 {
                tell(&format!(
                    "warning: {} recovery keys were encrypted before and cannot be opened with this key\n",
                    added.older
                ));
            }
            print_line(&format!("recovery keys are encrypted to {recipient}; {} were in clear until now", added.sealed))
        }
        RecipientCommand::List => {
            let recipients = recovery_keys::list_recipients(store).await?;
            print(&recipients.iter().map(|recipient| format!("{recipient}\n")).collect::<String>())
        }
        RecipientCommand::Remove { recipient } => {
            if !recovery_keys::remove_recipient(store, &recipient).await? {
                tell("warning: no recipient is left, so the server stores further recovery keys in clear\n");
            }
            print_line(&format!("no further recovery keys are encrypted to {recipient}"))
        }
    }
}
