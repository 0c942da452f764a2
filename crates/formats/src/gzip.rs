//! gzip files (RFC 1952): one member or several. Zeros may follow the last, which the gzip program ignores as the
//! padding of tapes (GNU Gzip manual, "Using gzip on tapes").

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// First byte of a member (RFC 1952, 2.3.1).
const MEMBER: u8 = 0x1F;

/// The content of all members. Reading fails if a member is damaged or ends too early, and if anything but zeros
/// follows the last.
pub struct Members<R> {
    /// The current member. None after the last one, and after an error between members.
    member: Option<GzDecoder<R>>,
    /// The error between members, if there was one. Each further read also fails, because the end was not reached.
    failed: Option<io::ErrorKind>,
}

impl<R: BufRead> Members<R> {
    /// Decodes a file from its beginning.
    pub fn new(input: R) -> Self {
        Self { member: Some(GzDecoder::new(input)), failed: None }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(mut member) = self.member.take() {
            let n = member.read(buffer);
            if buffer.is_empty() || !matches!(n, Ok(0)) {
                self.member = Some(member);
                return n;
            }
            let mut input = member.into_inner();
            match goes_on(&mut input) {
                Ok(false) => {}
                Ok(true) => self.member = Some(GzDecoder::new(input)),
                Err(error) => {
                    self.failed = Some(error.kind());
                    return Err(error);
                }
            }
        }
        self.failed.map_or(Ok(0), |kind| Err(kind.into()))
    }
}

/// Whether another member follows. If none does, reads the zeros after the last. Repeats a read that a signal
/// interrupts, because a caller that tried again would find no member to continue with.
fn goes_on(input: &mut impl BufRead) -> io::Result<bool> {
    if next(input, |rest| rest.first() == Some(&MEMBER))? {
        return Ok(true);
    }
    loop {
        let (len, is_zero) = next(input, |rest| (rest.len(), rest.iter().all(|byte| *byte == 0)))?;
        if !is_zero {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the last member is followed by other data"));
        }
        if len == 0 {
            return Ok(false);
        }
        input.consume(len);
    }
}

fn next<T>(input: &mut impl BufRead, see: impl Fn(&[u8]) -> T) -> io::Result<T> {
    loop {
        match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(see),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn member(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, content).unwrap();
        encoder.finish().unwrap()
    }

    fn decoded(file: &[u8], piece: usize) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        let mut members = Members::new(io::BufReader::with_capacity(piece, file));
        members.read_to_end(&mut content).map(|_| content).map_err(|error| error.to_string())
    }

    #[test]
    fn members_and_zeros_after_them_are_read_as_by_gzip() {
        let (one, two) = (member(b"one"), member(b"two"));
        for (name, file) in [
            ("one", one.clone()),
            ("two", [&one[..], &two].concat()),
            ("empty", member(b"")),
            ("an empty one between", [&one[..], &member(b""), &two].concat()),
            ("zeros", [&one[..], &[0; 5000]].concat()),
            ("one zero", [&two[..], &[0]].concat()),
            ("garbage", [&one[..], b"garbage"].concat()),
            ("garbage after zeros", [&one[..], &[0; 512], b"x"].concat()),
            ("a member after zeros", [&one[..], &[0; 512], &two].concat()),
            ("cut short", one[..one.len() - 1].to_vec()),
            ("the second is cut short", [&one[..], &two[..12]].concat()),
            ("a wrong checksum", [&one[..one.len() - 8], &[1; 8]].concat()),
        ] {
            let mut gzip = Command::new("gzip");
            let gzip = gzip.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut gzip = gzip.spawn().unwrap();
            std::io::Write::write_all(&mut gzip.stdin.take().unwrap(), &file).unwrap();
            let output = gzip.wait_with_output().unwrap();
            // gzip leaves out garbage after the last member, and exits with 2.
            let expect = output.status.success().then_some(output.stdout);
            for piece in [1, 7, 8192] {
                assert_eq!(decoded(&file, piece).ok(), expect, "{name}");
            }
        }
        let error = decoded(&[&one[..], b"garbage"].concat(), 8192).unwrap_err();
        assert_eq!(error, "the last member is followed by other data");
    }

    /// Yields one byte at a time, and fails once when this many bytes are left.
    struct Failing<'a>(&'a [u8], usize, Option<io::ErrorKind>);

    impl Read for Failing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.2.take_if(|_| self.0.len() == self.1) {
                Some(kind) => Err(kind.into()),
                None => (&mut self.0).take(1).read(buffer),
            }
        }
    }

    #[test]
    fn an_error_between_members_is_not_the_end() {
        let two = member(b"two");
        let zeros = [&member(b"one")[..], &[0; 9]].concat();
        for (file, left, expect) in
            [([&member(b"one")[..], &two].concat(), two.len(), "onetwo"), (zeros.clone(), 9, "one"), (zeros, 5, "one")]
        {
            let input = |kind| Members::new(io::BufReader::with_capacity(1, Failing(&file, left, Some(kind))));
            let mut content = String::new();
            input(io::ErrorKind::Interrupted).read_to_string(&mut content).unwrap();
            assert_eq!(content, expect);
            let mut members = input(io::ErrorKind::TimedOut);
            let first = members.read_to_end(&mut Vec::new());
            let again = members.read(&mut [0; 9]);
            assert!(first.is_err() && again.is_err(), "{left}: {first:?} {again:?}");
        }
    }
}
