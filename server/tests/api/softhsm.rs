//! A token of SoftHSM, what other programs put there, and a server whose keys are in it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use slipway_parts::Arch;
use tempfile::TempDir;

use crate::media::write_parts;
use crate::program::{command, made};

const MODULES: [&str; 2] = ["/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so"];
pub const PIN: &str = "sesame-7351";

/// A folder with tokens, files, and a server's data.
pub struct Bench {
    folder: TempDir,
    pub module: &'static str,
}

impl Bench {
    /// A bench with the token `site`. None, with a message, if this host lacks a program.
    pub fn new() -> Option<Self> {
        let module = MODULES.into_iter().find(|module| Path::new(module).exists());
        let programs = ["softhsm2-util", "pkcs11-tool", "certtool", "openssl", "sbverify"];
        let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
        let (Some(module), None) = (module, missing) else {
            eprintln!("not checked: there is no {}", missing.unwrap_or(&"libsofthsm2.so"));
            return None;
        };
        let bench = Self { folder: tempfile::tempdir().unwrap(), module };
        fs::create_dir(bench.path("tokens")).unwrap();
        bench.configure("");
        bench.add_token("site");
        bench.write("pin", PIN);
        bench.set_mode("pin", 0o600);
        made(&bench.path("data"));
        write_parts(&bench.path("parts"), Arch::X86_64, 1);
        Some(bench)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn named(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    /// Writes SoftHSM's configuration.
    pub fn configure(&self, more: &str) {
        let tokens = self.named("tokens");
        self.write("softhsm2.conf", format!("directories.tokendir = {tokens}\nobjectstore.backend = file\n{more}"));
    }

    /// Gives a program SoftHSM's configuration.
    pub fn with_tokens(&self, mut command: Command) -> Command {
        command.env("SOFTHSM2_CONF", self.path("softhsm2.conf")).current_dir(self.folder.path());
        command
    }

    pub fn output(&self, command: Command) -> (bool, String) {
        let Output { status, stdout, stderr } = self.with_tokens(command).output().unwrap();
        (status.success(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    /// Runs a program that must succeed. Its arguments are separated by spaces.
    pub fn run(&self, line: &str) -> String {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).env("GNUTLS_PIN", PIN);
        let (is_success, said) = self.output(command);
        assert!(is_success, "{line}: {said}");
        said
    }

    pub fn pkcs11_tool(&self, line: &str) {
        self.run(&format!("pkcs11-tool --module {} --token-label site --login --pin {PIN} {line}", self.module));
    }

    pub fn add_token(&self, label: &str) {
        self.run(&format!("softhsm2-util --init-token --free --label {label} --so-pin 12345678 --pin {PIN}"));
    }

    /// Makes a key in the token, and its certificate. The key is nowhere else.
    pub fn make_in_token(&self, label: &str, id: &str) {
        self.pkcs11_tool(&format!("--keypairgen --key-type rsa:2048 --label {label} --id {id} --usage-sign"));
        self.write("template", format!("cn = {label}\nexpiration_days = 30\nca\nsigning_key\ncert_signing_key\n"));
        let key = format!("pkcs11:token=site;object={label}");
        self.run(&format!(
            "certtool --provider {} --generate-self-signed --template template --outfile {label}.pem \
             --load-privkey {key};type=private --load-pubkey {key};type=public",
            self.module
        ));
    }

    /// Makes a key and its certificate in files.
    pub fn make_in_files(&self, label: &str, kind: &str) {
        self.run(&format!(
            "openssl req -x509 -newkey {kind} -nodes -keyout {label}.key -out {label}.pem -subj /CN={label}"
        ));
    }

    /// The same, and puts a copy of the key into the token.
    pub fn copy_into_token(&self, label: &str, id: &str) {
        self.make_in_files(label, "rsa:2048");
        self.run(&format!("softhsm2-util --import {label}.key --token site --label {label} --id {id} --pin {PIN}"));
    }

    pub fn uri(&self, path: &str) -> String {
        format!("pkcs11:{path}?module-path={}&pin-source=file:{}", self.module, self.named("pin"))
    }

    pub fn uri_of(&self, label: &str) -> String {
        self.uri(&format!("token=site;object={label};type=private"))
    }

    pub fn slipway(&self, arguments: &[&str]) -> (bool, String) {
        let (is_success, said) = self.output(command(&self.path("data"), arguments));
        assert!(!said.contains(PIN), "{arguments:?}: {said}");
        (is_success, said)
    }

    pub fn succeed(&self, arguments: &[&str]) -> String {
        let (is_success, said) = self.slipway(arguments);
        assert!(is_success, "{arguments:?}: {said}");
        said
    }

    pub fn fail(&self, arguments: &[&str]) -> String {
        let (is_success, said) = self.slipway(arguments);
        assert!(!is_success && said.lines().count() == 1, "{arguments:?}: {said}");
        said
    }

    /// Makes boot files, whose program and signatures are those of this certificate's key.
    pub fn build_signed_by(&self, certificate: &str) {
        self.succeed(&["media", "build", "--parts", &self.named("parts"), "--out", &self.named("boot")]);
        self.judge(certificate);
    }

    pub fn judge(&self, certificate: &str) {
        self.run(&format!("sbverify --cert {certificate} boot/x86_64/slipway.efi"));
        let cms = "openssl cms -verify -binary -inform DER -purpose any -out /dev/null -content boot/x86_64/vmlinuz";
        self.run(&format!("{cms} -in boot/x86_64/vmlinuz.sig -CAfile {certificate}"));
    }
}
