//! TFTP packets (RFC 1350, section 5) and their options (RFC 2347).

const READ: u16 = 1;
const DATA: u16 = 3;
const ACKNOWLEDGE: u16 = 4;
const ERROR: u16 = 5;
const OPTIONS: u16 = 6;

/// Permitted block sizes in bytes. More than 1468 bytes does not fit into one Ethernet frame with the IP, UDP and TFTP
/// headers, and firmware reassembles fragments badly.
const BLOCK_SIZES: std::ops::RangeInclusive<u16> = 8..=1468;
/// Largest block size that a client may ask for, in bytes (RFC 2348).
const LARGEST_BLOCK_ASKED: u16 = 65464;
/// Largest number of blocks sent before an acknowledgement. More would overrun the buffers of small clients.
const LARGEST_WINDOW: u16 = 64;
/// Block size in bytes without options (RFC 1350).
const BLOCK_SIZE: u16 = 512;
/// Default time in seconds before a packet is repeated.
const TIMEOUT: u8 = 1;

/// A packet from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Asks to read a file.
    Read(ReadRequest),
    /// Acknowledges this block and all blocks before it.
    Acknowledge(u16),
    /// Ends the transfer.
    Error,
}

/// A request to read a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The file's name as the client sent it.
    pub name: String,
    /// Whether the mode is "octet": bytes are sent unchanged.
    pub octet: bool,
    /// The negotiated options.
    pub options: Options,
}

/// The options that a client asks for, limited to what is permitted. Absent and invalid options are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    block_size: Option<u16>,
    timeout: Option<u8>,
    window: Option<u16>,
    /// Whether the client asks for the file's size.
    size: bool,
}

impl Options {
    /// Block size in bytes. Only the last block is shorter.
    pub fn block_size(&self) -> u16 {
        self.block_size.unwrap_or(BLOCK_SIZE)
    }

    /// Seconds before a packet is repeated.
    pub fn timeout(&self) -> u8 {
        self.timeout.unwrap_or(TIMEOUT)
    }

    /// Number of blocks sent before an acknowledgement.
    pub fn window(&self) -> u16 {
        self.window.unwrap_or(1)
    }

    /// Returns the packet that confirms the options. `None` if the client asked for none.
    pub fn acknowledgement(&self, file_size: u64) -> Option<Vec<u8>> {
        let values = [
            ("blksize", self.block_size.map(u64::from)),
            ("timeout", self.timeout.map(u64::from)),
            ("tsize", self.size.then_some(file_size)),
            ("windowsize", self.window.map(u64::from)),
        ];
        let mut packet = OPTIONS.to_be_bytes().to_vec();
        for (name, value) in values {
            if let Some(value) = value {
                packet.extend(format!("{name}\0{value}\0").into_bytes());
            }
        }
        (packet.len() > 2).then_some(packet)
    }

    fn set(&mut self, name: &[u8], value: &[u8]) {
        let Some(value) = std::str::from_utf8(value).ok().and_then(|value| value.parse::<u64>().ok()) else { return };
        let number = u16::try_from(value).ok();
        if name.eq_ignore_ascii_case(b"blksize") {
            let valid = number.filter(|size| (*BLOCK_SIZES.start()..=LARGEST_BLOCK_ASKED).contains(size));
            self.block_size = valid.map(|size| size.min(*BLOCK_SIZES.end()));
        } else if name.eq_ignore_ascii_case(b"timeout") {
            self.timeout = u8::try_from(value).ok().filter(|seconds| *seconds > 0);
        } else if name.eq_ignore_ascii_case(b"windowsize") {
            self.window = number.filter(|blocks| *blocks > 0).map(|blocks| blocks.min(LARGEST_WINDOW));
        } else if name.eq_ignore_ascii_case(b"tsize") {
            self.size = true;
        }
    }
}

/// Parses a client's packet. `None` if it is malformed or of another type, such as a request to write a file.
pub fn parse(packet: &[u8]) -> Option<Packet> {
    let (code, rest) = packet.split_first_chunk()?;
    match u16::from_be_bytes(*code) {
        READ if packet.len() <= 512 => read_request(rest).map(Packet::Read),
        ACKNOWLEDGE => rest.try_into().ok().map(|block| Packet::Acknowledge(u16::from_be_bytes(block))),
        ERROR => Some(Packet::Error),
        _ => None,
    }
}

/// Parses a name, a mode, and pairs of option and value, each with a terminating zero.
fn read_request(bytes: &[u8]) -> Option<ReadRequest> {
    let mut texts = bytes.strip_suffix(&[0])?.split(|&byte| byte == 0);
    let name = texts.next().filter(|name| !name.is_empty())?;
    let mode = texts.next()?;
    let mut options = Options::default();
    while let Some(name) = texts.next() {
        // Some firmware pads its request with zeros.
        if name.is_empty() {
            break;
        }
        options.set(name, texts.next()?);
    }
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some(ReadRequest { name, octet: mode.eq_ignore_ascii_case(b"octet"), options })
}

/// Header of a data packet. The block's content follows it.
pub fn data_header(block: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (DATA.to_be_bytes(), block.to_be_bytes());
    [a, b, c, d]
}

/// Why a read request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file does not exist or is not served.
    NoSuchFile,
    /// The client asked for a mode other than "octet".
    Mode,
    /// The file could not be read to its end.
    NotRead,
}

/// Returns the error packet for a refusal.
pub fn error(refusal: Refusal) -> Vec<u8> {
    let (code, message) = match refusal {
        Refusal::NoSuchFile => (1_u16, "there is no boot file with this name"),
        Refusal::Mode => (0, "files are sent in mode octet only"),
        Refusal::NotRead => (0, "the file could not be read"),
    };
    [&ERROR.to_be_bytes()[..], &code.to_be_bytes(), message.as_bytes(), &[0]].concat()
}
