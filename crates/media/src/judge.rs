//! Whether what a machine measured shows that it started boot files of this site.
//!
//! Events are judged by register and digest alone, because nothing proves their types and descriptions.

use base16ct::lower::encode_string as hex;

use crate::measurements::{MEASURED, Measurements, NO_PROGRAMS, SectionDigest, name_digest, sha256};

/// The register with the programs that firmware loaded.
const PROGRAMS: u8 = 4;
/// Those in which the stub measures: sections of the image, what came from outside of it, and extensions of the system.
const SECTIONS: u8 = 11;
const OUTSIDE: u8 = 12;
const EXTENSIONS: u8 = 13;

/// What boot files of the site leave, and what may be beside them. Digests are SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The boot files.
    pub builds: Vec<Measurements>,
    /// Authenticode digests of programs that may start before them, such as a boot loader, in hexadecimal.
    pub programs: Vec<String>,
}

/// Why a machine did not start boot files of the site, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Nothing was measured.
    #[error("its firmware measured no program that it started")]
    NoProgram,
    /// There is nothing to compare with.
    #[error("no boot files are recorded: make them with `slipway-server media build`")]
    NoBuilds,
    /// Another program came first.
    #[error("it was started by a loader that the site did not name (Authenticode digest {digest})")]
    Loader {
        /// Of the loader.
        digest: String,
    },
    /// A kernel was started by itself.
    #[error(
        "its kernel was started without the unified image, so nothing tells its command line: let it start slipway.efi"
    )]
    KernelAlone,
    /// Parts of the image are others.
    #[error(
        "{} of its unified image {} of no boot files that are recorded", parts.join(" and "),
        if parts.len() == 1 { "is that" } else { "are those" }
    )]
    Parts {
        /// Their names.
        parts: Vec<&'static str>,
    },
    /// The sections are those of a build, and the program is not.
    #[error("the stub of its unified image is that of no boot files that are recorded (Authenticode digest {digest})")]
    Stub {
        /// Of the image.
        digest: String,
    },
    /// It is none of ours at all.
    #[error("it started a program that is not known (Authenticode digest {digest})")]
    Program {
        /// Of the program.
        digest: String,
    },
    /// Something ran after the image.
    #[error("after the unified image it started another program (Authenticode digest {digest})")]
    Later {
        /// Of the program.
        digest: String,
    },
    /// The image is known, and its sections are not what it measured.
    #[error("register 11 does not have the sections of the unified image that it started")]
    Sections,
    /// A command line or a file that is not part of the image.
    #[error(
        "something from outside of the unified image was added, such as a command line or settings of another machine \
         (register {register}, digest {digest})"
    )]
    Outside {
        /// 12 or 13.
        register: u8,
        /// Of what was measured.
        digest: String,
    },
}

/// Looks for the boot files that a machine started. `events` are those of the log that its TPM confirmed, as register and
/// SHA-256 digest, in order. `settings` are what the settings of its medium may have left in register 12
/// ([`crate::MachineSettings::measured`]).
///
/// The first program must be the unified image of a build, after none but [`Known::programs`]; after it, nothing may be loaded.
/// Registers 11 to 13 must have what the image and the settings leave there, and nothing else.
///
/// # Errors
/// What does not match.
pub fn judge<'a>(
    events: &[(u8, [u8; 32])],
    known: &'a Known,
    settings: &[[u8; 32]],
) -> Result<&'a Measurements, Mismatch> {
    let of = |register: u8| events.iter().filter(move |(pcr, _)| *pcr == register).map(|(_, digest)| *digest);
    let no_program = NO_PROGRAMS.map(sha256);
    let mut programs = of(PROGRAMS).filter(|digest| !no_program.contains(digest)).map(|digest| hex(&digest)).peekable();
    if known.builds.is_empty() {
        return Err(Mismatch::NoBuilds);
    }
    while programs.next_if(|digest| known.programs.contains(digest)).is_some() {}
    let first = programs.next().ok_or(Mismatch::NoProgram)?;
    let measured: Vec<[u8; 32]> = of(SECTIONS).collect();
    let Some(build) = known.builds.iter().find(|build| build.program == first) else {
        let later: Vec<String> = programs.collect();
        return Err(explain(first, &later, &measured, &known.builds));
    };
    if let Some(digest) = programs.next() {
        return Err(Mismatch::Later { digest });
    }
    if measured.iter().map(|digest| hex(digest)).ne(expected(&build.sections)) {
        return Err(Mismatch::Sections);
    }
    let mut outside = of(OUTSIDE).peekable();
    // There is one place for settings, so they are measured once.
    outside.next_if(|digest| settings.contains(digest));
    let outside = outside.map(|digest| (OUTSIDE, digest)).chain(of(EXTENSIONS).map(|digest| (EXTENSIONS, digest)));
    match { outside }.next() {
        Some((register, digest)) => Err(Mismatch::Outside { register, digest: hex(&digest) }),
        None => Ok(build),
    }
}

/// The events of sections.
fn expected(sections: &[SectionDigest]) -> impl Iterator<Item = String> {
    sections.iter().flat_map(|section| [hex(&name_digest(&section.name)), section.sha256.clone()])
}

/// What is different about a machine whose first program is that of no build.
fn explain(first: String, later: &[String], measured: &[[u8; 32]], builds: &[Measurements]) -> Mismatch {
    let is_kernel = |digest: &String| builds.iter().any(|build| build.kernel.as_ref() == Some(digest));
    if builds.iter().any(|build| later.contains(&build.program)) || (later.iter().any(is_kernel) && measured.is_empty())
    {
        return Mismatch::Loader { digest: first };
    }
    if is_kernel(&first) {
        return Mismatch::KernelAlone;
    }
    if measured.is_empty() {
        return Mismatch::Program { digest: first };
    }
    let differences = |build: &Measurements| different(measured, &build.sections);
    match builds.iter().map(differences).min_by_key(Vec::len) {
        Some(parts) if parts.is_empty() => Mismatch::Stub { digest: first },
        // Not even one part is the same.
        Some(parts) if parts.len() < MEASURED.len().min(measured.len() / 2) => Mismatch::Parts { parts },
        _ => Mismatch::Program { digest: first },
    }
}

/// The sections that are not those of a build, in words.
fn different(measured: &[[u8; 32]], sections: &[SectionDigest]) -> Vec<&'static str> {
    let (pairs, _) = measured.as_chunks::<2>();
    let is_different = |name: &&str| {
        let named = name_digest(name);
        let mut found = pairs.iter().filter(|[name, _]| *name == named).map(|[_, content]| hex(content));
        let mut wanted = sections.iter().filter(|section| section.name == **name).map(|section| section.sha256.clone());
        found.next() != wanted.next() || found.next().is_some()
    };
    MEASURED.into_iter().filter(is_different).map(in_words).collect()
}

fn in_words(section: &'static str) -> &'static str {
    match section {
        ".linux" => "the kernel",
        ".initrd" => "the initramfs",
        ".cmdline" => "the command line",
        ".uname" => "the release of the kernel",
        ".osrel" => "the name",
        other => other,
    }
}
