//! gzip files (RFC 1952): one member or several. Zeros may follow the last, which the gzip program ignores as the
//! padding of tapes (GNU Gzip manual, "Using gzip on tapes").

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// First byte of a member (RFC 1952, 2.3.1).
const MEMBER: u8 = 0x1F;

/// The content of all members. Reading fails if a member is damaged or ends too early, and if anything but zeros
/// follows the last.
pub struct Members<R> {
    /// None after the last.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    /// Decodes a file from its beginning.
    pub fn new(input: R) -> Self {
        Self { member: Some(GzDecoder::new(input)) }
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
            if goes_on(&mut input)? {
                self.member = Some(GzDecoder::new(input));
            }
        }
        Ok(0)
    }
}

/// Whether another member follows. Reads the zeros after the last.
fn goes_on(input: &mut impl BufRead) -> io::Result<bool> {
    if input.fill_buf()?.first() == Some(&MEMBER) {
        return Ok(true);
    }
    loop {
        let rest = input.fill_buf()?;
        let len = rest.len();
        if rest.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the data after the last member is not a member"));
        }
        if len == 0 {
            return Ok(false);
        }
        input.consume(len);
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
            // It exits with 2 for garbage, which it leaves out.
            let expect = output.status.success().then_some(output.stdout);
            for piece in [1, 7, 8192] {
                assert_eq!(decoded(&file, piece).ok(), expect, "{name}");
            }
        }
        let error = decoded(&[&one[..], b"garbage"].concat(), 8192).unwrap_err();
        assert_eq!(error, "the data after the last member is not a member");
    }
}
