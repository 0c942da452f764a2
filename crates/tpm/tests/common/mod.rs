//! A TPM in software behind a UNIX socket, the programs that judge what ours says of it, and TPMs that do not behave.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use slipway_tpm::device::Attester;
use tempfile::TempDir;

/// How long a command may take, and how long a TPM may take to start. Far above what is needed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A swtpm, and a folder for what the programs around it read and write.
pub struct Swtpm {
    pub folder: TempDir,
    child: Option<Child>,
}

impl Swtpm {
    pub fn start() -> Self {
        let mut swtpm = Self::off();
        swtpm.power_cycle();
        swtpm
    }

    /// A TPM without state, until it is switched on.
    pub fn off() -> Self {
        let swtpm = Self { folder: TempDir::new().unwrap(), child: None };
        fs::create_dir(swtpm.path("state")).unwrap();
        swtpm
    }

    /// A TPM with certificates, as its manufacturer hands it out.
    pub fn manufacture() -> Self {
        let mut swtpm = Self::off();
        let path = |name: &str| swtpm.path(name).display().to_string();
        fs::create_dir(path("ca")).unwrap();
        let (tool, options) = ("/usr/bin/swtpm_localca", "/etc/swtpm-localca.options");
        let certificates = format!("create_certs_tool={tool}\ncreate_certs_tool_options={options}\n");
        fs::write(path("setup.conf"), format!("{certificates}create_certs_tool_config={}\n", path("ca.conf"))).unwrap();
        let ca = path("ca");
        let files = format!("statedir={ca}\nsigningkey={ca}/key.pem\nissuercert={ca}/ca.pem\ncertserial={ca}/serial\n");
        fs::write(path("ca.conf"), files).unwrap();
        let (state, config) = (format!("dir://{}", path("state")), path("setup.conf"));
        let arguments =
            ["--tpm2", "--create-ek-cert", "--tpmstate", &state, "--config", &config, "--write-ek-cert-files"];
        run(Command::new("swtpm_setup").args(arguments).arg(swtpm.folder.path()));
        swtpm.power_cycle();
        swtpm
    }

    /// Switches the TPM off and on.
    pub fn power_cycle(&mut self) {
        self.power_off();
        let socket = |name: &str| format!("type=unixio,path={}", self.path(name).display());
        let mut swtpm = Command::new("swtpm");
        swtpm.args(["socket", "--tpm2", "--server", &socket("tpm"), "--ctrl", &socket("tpm.ctrl"), "--tpmstate"]);
        swtpm.arg(format!("dir={}", self.path("state").display())).args(["--flags", "not-need-init,startup-clear"]);
        let child = swtpm.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("swtpm starts; it is in the package swtpm"));
        let deadline = Instant::now() + PATIENCE;
        let listens = |name: &str| UnixStream::connect(self.path(name)).is_ok();
        while !listens("tpm") || !listens("tpm.ctrl") {
            assert!(Instant::now() < deadline, "swtpm does not listen");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn power_off(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may have ended.
            drop(child.kill());
            drop(child.wait());
            drop(fs::remove_file(self.path("tpm")));
            drop(fs::remove_file(self.path("tpm.ctrl")));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn attester(&self) -> Attester {
        Attester::open(&self.path("tpm"), PATIENCE).unwrap()
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path("tpm")).unwrap()
    }

    /// This TPM behind a socket, where some commands get another answer. A later call replaces the socket.
    pub fn proxied(&self, mut instead: impl FnMut(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> PathBuf {
        let mut stream = self.connect();
        drop(fs::remove_file(self.path("fake")));
        fake(self.folder.path(), move |command| instead(command).unwrap_or_else(|| ask(&mut stream, command)))
    }

    /// Checks that neither an object nor a session is in the TPM.
    pub fn assert_nothing_is_loaded(&self) {
        for kind in ["handles-transient", "handles-loaded-session", "handles-saved-session"] {
            assert_eq!(self.run("tpm2_getcap", &[kind]), "", "{kind}");
        }
    }

    /// A program of tpm2-tools for this TPM, in the folder. The TPM must not be in use.
    pub fn tool(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).args(arguments);
        command.env("TPM2TOOLS_TCTI", format!("swtpm:path={}", self.path("tpm").display()));
        command
    }

    /// Runs a program of tpm2-tools, which must succeed. Returns what it prints.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        String::from_utf8(run(&mut self.tool(program, arguments)).stdout).unwrap()
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// Runs a program, which must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output();
    let output = output.unwrap_or_else(|error| {
        panic!("{command:?}: {error}; this test needs the packages swtpm, swtpm-tools, tpm2-tools and openssl")
    });
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A TPM that answers as it is told, at a socket in the folder.
pub fn fake(folder: &Path, mut answer: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static) -> PathBuf {
    let path = folder.join("fake");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some(command) = read_message(&mut stream) {
            if stream.write_all(&answer(&command)).is_err() {
                break;
            }
        }
    });
    path
}

/// An answer with its response code.
pub fn answer(code: u32, body: &[u8]) -> Vec<u8> {
    let size = 10 + body.len() as u32;
    [&[0x80, 1], &size.to_be_bytes()[..], &code.to_be_bytes(), body].concat()
}

/// What a TPM answers to a command.
pub fn ask(tpm: &mut UnixStream, command: &[u8]) -> Vec<u8> {
    tpm.write_all(command).unwrap();
    read_message(tpm).expect("the TPM answers")
}

/// The command code of a command.
pub fn code(command: &[u8]) -> u32 {
    u32::from_be_bytes(command[6..10].try_into().unwrap())
}

fn read_message(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut message = vec![0; 6];
    stream.read_exact(&mut message).ok()?;
    message.resize(u32::from_be_bytes(message[2..6].try_into().unwrap()) as usize, 0);
    stream.read_exact(&mut message[6..]).ok()?;
    Some(message)
}
