//! DHCP options: a code, a length, and that many bytes of value (RFC 2132, section 2).

/// Option codes that are read or written here (RFC 2132, RFC 3004, RFC 4578; 175 is iPXE's own).
pub mod code {
    /// Vendor options. For the class `PXEClient` they are PXE's.
    pub const VENDOR: u8 = 43;
    /// Requested IP address.
    pub const ADDRESS: u8 = 50;
    /// Message type.
    pub const MESSAGE_TYPE: u8 = 53;
    /// Server identifier: the server addressed by a request, or the sender of an answer.
    pub const SERVER: u8 = 54;
    /// Parameter request list: the options that the client asks for.
    pub const WANTED: u8 = 55;
    /// Maximum message size in bytes.
    pub const LARGEST: u8 = 57;
    /// Class identifier, such as `PXEClient`.
    pub const CLASS: u8 = 60;
    /// TFTP server name.
    pub const TFTP_SERVER: u8 = 66;
    /// Boot file name.
    pub const BOOT_FILE: u8 = 67;
    /// User class, such as `iPXE`.
    pub const USER_CLASS: u8 = 77;
    /// Client system architecture.
    pub const ARCHITECTURE: u8 = 93;
    /// Version of the client's network interface (UNDI).
    pub const INTERFACE: u8 = 94;
    /// Machine UUID.
    pub const UUID: u8 = 97;
    /// iPXE's encapsulated options.
    pub const IPXE: u8 = 175;
    /// Padding: a single byte without length or value.
    pub const PAD: u8 = 0;
    /// End of the options: a single byte without length or value.
    pub const END: u8 = 255;
}

/// Returns codes and values, up to the end or the first truncated option.
pub fn each(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let (&code, rest) = bytes.split_first()?;
            match code {
                code::PAD => bytes = rest,
                code::END => return None,
                _ => {
                    let (&length, rest) = rest.split_first()?;
                    let (value, rest) = rest.split_at_checked(usize::from(length))?;
                    bytes = rest;
                    return Some((code, value));
                }
            }
        }
    })
}

/// Returns the value of an option. If the option is repeated, the first value wins: firmware has no values so long that
/// they must be split (RFC 3396).
pub fn find(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    each(bytes).find_map(|(code, value)| (code == wanted).then_some(value))
}

/// Appends an option. Returns `None`, and appends nothing, if its value is longer than 255 bytes.
pub fn push(bytes: &mut Vec<u8>, code: u8, value: &[u8]) -> Option<()> {
    let length = u8::try_from(value.len()).ok()?;
    bytes.extend([code, length]);
    bytes.extend(value);
    Some(())
}
