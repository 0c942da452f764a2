//! `slipway-server escrow`.

use clap::Subcommand;
use slipway_server::node::recovery_keys;
use slipway_server::store::Store;

use super::super::{erase, print, print_line, tell};

#[derive(Subcommand)]
pub enum EscrowCommand {
    /// Public keys to which disks' recovery keys are encrypted. The server then cannot read recovery keys.
    #[command(subcommand)]
    Recipient(RecipientCommand),
}

#[derive(Subcommand)]
pub enum RecipientCommand {
    /// Encrypt recovery keys to this public key too. Unencrypted keys in the database are encrypted immediately.
    #[command(after_help = "\
Examples:
  slipway-server escrow recipient add age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p")]
    Add {
        /// Age public key, as `age-keygen` prints it.
        recipient: String,
    },
    /// List the public keys.
    List,
    /// Stop encrypting new recovery keys to this public key. It still opens existing ones.
    Remove {
        /// Public key to remove.
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
                    "warning: {} existing recovery keys were already encrypted and cannot be opened with this key\n",
                    added.older
                ));
            }
            print_line(&format!(
                "recovery keys are encrypted to {recipient}; {} were unencrypted until now",
                added.sealed
            ))
        }
        RecipientCommand::List => {
            let recipients = recovery_keys::list_recipients(store).await?;
            print(&recipients.iter().map(|recipient| format!("{recipient}\n")).collect::<String>())
        }
        RecipientCommand::Remove { recipient } => {
            if !recovery_keys::remove_recipient(store, &recipient).await? {
                tell("warning: no recipient is left, so the server stores new recovery keys unencrypted\n");
            }
            print_line(&format!("new recovery keys are no longer encrypted to {recipient}"))
        }
    }
}
