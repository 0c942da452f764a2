//! Decides from a machine's measurements whether it started boot files of this site.
//!
//! Only the register and the digest of an event count. The type and description of an event are not proved.

use base16ct::lower::encode_string as hex;

use crate::measurements::{MEASURED, Measurements, NO_PROGRAMS, SectionDigest, name_digest, sha256};

/// Register of the programs that firmware loads.
const PROGRAMS: u8 = 4;
/// Registers of the stub: sections of the image, input from outside the image, and system extensions.
const SECTIONS: u8 = 11;
const OUTSIDE: u8 = 12;
const EXTENSIONS: u8 = 13;

/// The site's boot files, and the programs that may run before them. Digests are SHA-256.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Recorded builds.
    pub builds: Vec<Measurements>,
    /// Authenticode digests of programs that may run first, such as a boot loader, in hexadecimal.
    pub programs: Vec<String>,
}

/// Why the measurements do not match the site's boot files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Mismatch {
    /// Nothing was measured.
    #[error("its firmware measured no program")]
    NoProgram,
    /// No build is recorded.
    #[error("no build of boot files is recorded: make one with `slipway-server media build`")]
    NoBuilds,
    /// An unknown program ran first.
    #[error("it was started by a boot loader that is not allowed (Authenticode digest {digest})")]
    Loader { digest: String },
    /// The kernel was started without the unified image.
    #[error(
        "its kernel was started without the unified kernel image, so its command line is not measured; boot slipway.efi"
    )]
    KernelAlone,
    /// Some sections of the image differ.
    #[error(
        "{} of its unified kernel image {} no recorded build", parts.join(" and "),
        if parts.len() == 1 { "matches" } else { "match" }
    )]
    Parts { parts: Vec<&'static str> },
    /// All sections match a build, but the program does not.
    #[error("the stub of its unified kernel image matches no recorded build (Authenticode digest {digest})")]
    Stub { digest: String },
    /// Unknown program.
    #[error("it started an unknown program (Authenticode digest {digest})")]
    Program { digest: String },
    /// Something ran after the image.
    #[error("it started another program after the unified kernel image (Authenticode digest {digest})")]
    Later { digest: String },
    /// The image is known, but the measured sections differ from it.
    #[error("register 11 does not match the sections of the unified kernel image that it started")]
    Sections,
    /// A command line or a file from outside the image.
    #[error(
        "something outside the unified kernel image was added, such as a command line or another machine's settings \
         (register {register}, digest {digest})"
    )]
    Outside { register: u8, digest: String },
}

/// Finds the build that a machine started. `events` are the register and SHA-256 digest of each event in the log that
/// its TPM confirmed, in order. `settings` are the digests that its medium's settings may add to register 12
/// ([`crate::measured`]).
///
/// The first program, apart from [`Known::programs`], must be the unified image of a build, and no program may follow
/// it. Registers 11 to 13 must hold the events of the image and the settings, and no others.
///
/// # Errors
/// The first mismatch.
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
    // A medium has one place for settings, so they are measured once.
    outside.next_if(|digest| settings.contains(digest));
    let outside = outside.map(|digest| (OUTSIDE, digest)).chain(of(EXTENSIONS).map(|digest| (EXTENSIONS, digest)));
    match { outside }.next() {
        Some((register, digest)) => Err(Mismatch::Outside { register, digest: hex(&digest) }),
        None => Ok(build),
    }
}

/// Returns the digests of the events of these sections.
fn expected(sections: &[SectionDigest]) -> impl Iterator<Item = String> {
    sections.iter().flat_map(|section| [hex(&name_digest(&section.name)), section.sha256.clone()])
}

/// Returns the mismatch of a machine whose first program belongs to no build.
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
        // At least one section must match. Otherwise, the machine started an unrelated program.
        Some(parts) if parts.len() < MEASURED.len().min(measured.len() / 2) => Mismatch::Parts { parts },
        _ => Mismatch::Program { digest: first },
    }
}

/// Returns the sections that differ from a build, in words.
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
