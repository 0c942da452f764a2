//! Runs one action by hand: `slipway action NAME ...`, with a progress bar on a terminal and plain lines elsewhere.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use slipway_actions::{Done, Host, HostOptions, Next};
use slipway_protocol::{
    Action, Algorithm, BootReporter, CaptureDisk, DetachedSignature, Digest, DiskHints, EfiBootOrder, EncryptRoot,
    EraseDisk, EraseMode, Failure, KernelArgReplacement, KernelArgs, Kexec, MakeFileSystem, NumberOrName, Partition,
    PartitionChoice, PhoneHome, RegistryAuth, RunInTarget, Secret, SeedCloudInit, StreamImage, UnpackArchive, Verify,
    WriteFile,
};

pub use arguments::ActionArguments;
use arguments::{ActionCommand, VerifyMode};
pub use confirm::confirmed;
use display::Display;

mod arguments;
mod confirm;
mod display;

/// Runs the action and prints the result. Exit status 0 only if it succeeded.
pub fn run(arguments: ActionArguments) -> Result<ExitCode> {
    super::log::start(None);
    let json = arguments.json;
    match act(arguments) {
        Err(error) if json => {
            display::print_json(&serde_json::json!({ "failed": Failure::of(&*error) }));
            Ok(ExitCode::FAILURE)
        }
        result => result,
    }
}

fn act(arguments: ActionArguments) -> Result<ExitCode> {
    let overwritten = overwritten(&arguments.action);
    let capture_to = match &arguments.action {
        ActionCommand::CaptureDisk { to, .. } => Some(to.clone()),
        _ => None,
    };
    let (recovery_key_to, tpm) = match &arguments.action {
        ActionCommand::EncryptRoot(a) => (Some(a.recovery_key.clone()), Some(a.tpm.clone())),
        _ => (None, None),
    };
    let (action, disk, trust) = action(arguments.action)?;
    let machine = Host::new(HostOptions { trust, capture_to, recovery_key_to, tpm, ..HostOptions::default() });
    if let Some(what) = overwritten
        && !confirmed(&machine, &disk, &what)?
    {
        bail!("{disk} was left as it is");
    }
    let mut display = Display::new(arguments.json);
    let result = slipway_actions::run(&action, &machine, &mut |report| display.report(&report));
    display.finish();
    let Done { outcome, next } = result?;
    if arguments.json {
        display::print_json(&serde_json::json!({ "succeeded": outcome }));
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &outcome.warnings {
        super::tell(&format!("warning: {warning}"));
    }
    super::print(&format!("{}\n", super::shown(&outcome.summary)))?;
    match next {
        Next::Continue => {}
        Next::Reboot => super::print("restart the machine to go on\n")?,
        Next::Kexec => super::print("start it by systemctl kexec, or kexec -e after a sync\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What an action overwrites, in words, if the user has to confirm it.
fn overwritten(action: &ActionCommand) -> Option<String> {
    let (what, overwriting) = match action {
        ActionCommand::EraseDisk { disk, overwriting, .. } | ActionCommand::Partition { disk, overwriting, .. } => {
            (disk.clone(), overwriting)
        }
        ActionCommand::StreamImage(arguments) => (arguments.disk.clone(), &arguments.overwriting),
        ActionCommand::MakeFilesystem(make) => match &make.partition {
            Some(partition) => (format!("partition {partition} of {}", make.disk), &make.overwriting),
            None => (make.disk.clone(), &make.overwriting),
        },
        ActionCommand::SeedCloudInit(_)
        | ActionCommand::KernelArgs(_)
        | ActionCommand::WriteFile(_)
        | ActionCommand::UnpackArchive(_)
        | ActionCommand::RunInTarget(_)
        | ActionCommand::BootReporter(_)
        | ActionCommand::EncryptRoot(_)
        | ActionCommand::CaptureDisk { .. }
        | ActionCommand::EfiBootOrder { .. }
        | ActionCommand::Kexec { .. } => return None,
    };
    (!overwriting.yes).then_some(what)
}

/// The action, the disk it works on, and the CA certificates to trust.
fn action(command: ActionCommand) -> Result<(Action, String, Vec<String>)> {
    let hints = |disk: &str| DiskHints { device: Some(disk.to_owned()), ..DiskHints::default() };
    let named = |text: &Option<String>| text.as_deref().map(NumberOrName::from);
    let optional = |path: &Option<PathBuf>| path.as_ref().map(super::read_file).transpose();
    Ok(match command {
        ActionCommand::EraseDisk { disk, mode, fallback, .. } => {
            let fallback = fallback.into_iter().map(EraseMode::from).collect();
            let erase = EraseDisk { disk: hints(&disk), mode: mode.into(), fallback };
            (Action::EraseDisk(erase), disk, Vec::new())
        }
        ActionCommand::StreamImage(a) => {
            let image = StreamImage {
                url: a.url,
                registry_auth: a.source.registry_auth.as_ref().map(registry_auth).transpose()?,
                mirrors: a.source.mirror,
                digest: digest("--sha", [a.sha256, a.sha384, a.sha512])?,
                sums: a.source.sums,
                signature: a.source.signature.zip(a.source.public_key).map(detached_signature).transpose()?,
                raw_digest: digest("--raw-sha", [a.raw_sha256, a.raw_sha384, a.raw_sha512])?,
                bmap: a.bmap,
                raw_size: a.raw_size,
                verify: match a.verify {
                    VerifyMode::None => Verify::None,
                    VerifyMode::Readback => Verify::Readback,
                },
                ca: None,
                disk: hints(&a.disk),
                grow: !a.no_grow,
            };
            (Action::StreamImage(image), a.disk, optional(&a.ca)?.into_iter().collect())
        }
        ActionCommand::Partition { disk, new, .. } => {
            let partition = Partition { disk: hints(&disk), partitions: new, ..Partition::default() };
            (Action::Partition(partition), disk, Vec::new())
        }
        ActionCommand::MakeFilesystem(a) => {
            let choice = |text: String| text.parse().map_or(PartitionChoice::Label(text), PartitionChoice::Number);
            let partition = a.partition.map(choice);
            let (kind, label, uuid) = (a.kind.into(), a.label, a.uuid);
            let make = MakeFileSystem { disk: hints(&a.disk), partition, kind, label, uuid };
            (Action::MakeFileSystem(make), a.disk, Vec::new())
        }
        ActionCommand::SeedCloudInit(a) => {
            let seed = SeedCloudInit {
                disk: hints(&a.disk),
                seed: a.seed.into(),
                instance_id: a.instance_id,
                hostname: a.hostname,
                user_data: optional(&a.user_data)?.unwrap_or_default(),
                vendor_data: optional(&a.vendor_data)?,
                network_config: optional(&a.network_config)?,
                ssh_keys: a.ssh_key,
                phone_home: a.phone_home_url.map(|url| PhoneHome { url, tries: None }),
                ca: optional(&a.ca)?,
            };
            (Action::SeedCloudInit(seed), a.disk, Vec::new())
        }
        ActionCommand::KernelArgs(a) => {
            let replacement = |[old, new]: &[String; 2]| KernelArgReplacement { old: old.clone(), new: new.clone() };
            let arguments = KernelArgs {
                disk: hints(&a.disk),
                delete: a.delete,
                replace: a.replace.as_chunks().0.iter().map(replacement).collect(),
                append_if_missing: a.append_if_missing,
                append: a.append,
            };
            (Action::KernelArgs(arguments), a.disk, Vec::new())
        }
        ActionCommand::WriteFile(a) => {
            let trust = optional(&a.ca)?.into_iter().collect();
            let file = WriteFile {
                disk: hints(&a.disk),
                partition: named(&a.partition),
                path: a.path,
                content: a.content,
                url: a.from,
                registry_auth: a.source.registry_auth.as_ref().map(registry_auth).transpose()?,
                mirrors: a.source.mirror,
                digest: a.digest,
                sums: a.source.sums,
                signature: a.source.signature.zip(a.source.public_key).map(detached_signature).transpose()?,
                owner: named(&a.owner),
                group: named(&a.group),
                mode: a.mode,
                dir_mode: a.dir_mode,
                ..WriteFile::default()
            };
            (Action::WriteFile(file), a.disk, trust)
        }
        ActionCommand::UnpackArchive(a) => {
            let trust = optional(&a.ca)?.into_iter().collect();
            let archive = UnpackArchive {
                disk: hints(&a.disk),
                partition: named(&a.partition),
                directory: a.directory,
                url: a.url,
                registry_auth: a.source.registry_auth.as_ref().map(registry_auth).transpose()?,
                mirrors: a.source.mirror,
                digest: a.digest,
                sums: a.source.sums,
                signature: a.source.signature.zip(a.source.public_key).map(detached_signature).transpose()?,
                ca: None,
                devices: a.devices,
            };
            (Action::UnpackArchive(archive), a.disk, trust)
        }
        ActionCommand::RunInTarget(a) => {
            let run = RunInTarget {
                disk: hints(&a.disk),
                command: a.command,
                script: optional(&a.script)?,
                environment: a.env.into_iter().collect(),
            };
            (Action::RunInTarget(run), a.disk, Vec::new())
        }
        ActionCommand::BootReporter(a) => {
            let reporter = BootReporter {
                disk: hints(&a.disk),
                url: a.server,
                token: super::read_file(&a.token_file)?.trim().to_owned().into(),
                ca: super::read_file(&a.ca)?,
                hours: a.hours,
                every: a.every,
            };
            (Action::BootReporter(reporter), a.disk, Vec::new())
        }
        ActionCommand::EncryptRoot(a) => {
            let encrypt = EncryptRoot { disk: hints(&a.disk), pcrs: a.pcrs, grow: !a.no_grow };
            (Action::EncryptRoot(encrypt), a.disk, Vec::new())
        }
        ActionCommand::CaptureDisk { disk, to } => {
            let name = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (Action::CaptureDisk(CaptureDisk { disk: hints(&disk), name }), disk, Vec::new())
        }
        ActionCommand::EfiBootOrder { disk, position, loader, label } => {
            let order = EfiBootOrder { disk: hints(&disk), position: position.into(), loader, label, optional: false };
            (Action::EfiBootOrder(order), disk, Vec::new())
        }
        ActionCommand::Kexec { disk, kernel, initrd, cmdline } => {
            let kexec = Kexec { disk: hints(&disk), kernel, initrd, cmdline };
            (Action::Kexec(kexec), disk, Vec::new())
        }
    })
}

/// The digest given by one of three options. At most one is set.
fn digest(option: &str, given: [Option<String>; 3]) -> Result<Option<Digest>> {
    let algorithms = [(Algorithm::Sha256, 256), (Algorithm::Sha384, 384), (Algorithm::Sha512, 512)];
    let found = algorithms.into_iter().zip(given).find_map(|(algorithm, hex)| Some((algorithm, hex?)));
    let Some(((algorithm, bits), hex)) = found else { return Ok(None) };
    Digest::new(algorithm, &hex).map(Some).with_context(|| format!("reading {option}{bits}"))
}

/// Reads the login from a file. Arguments would be visible to other users.
fn registry_auth(path: &PathBuf) -> Result<RegistryAuth> {
    let text = super::read_file(path)?;
    let login = text.trim_end_matches(['\r', '\n']).split_once(':');
    let (username, password) = login.with_context(|| format!("{} is not USERNAME:PASSWORD", path.display()))?;
    Ok(RegistryAuth { username: username.to_owned(), password: Secret::from(password.to_owned()) })
}

/// The signature from its URL and a key, or a file with the key.
fn detached_signature((url, key): (String, String)) -> Result<DetachedSignature> {
    let path = PathBuf::from(&key);
    let public_key = if path.exists() { super::read_file(&path)? } else { key };
    Ok(DetachedSignature { url, public_key })
}
