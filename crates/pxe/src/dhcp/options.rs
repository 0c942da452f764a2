//! Options of DHCP: a code, a length, that many bytes (RFC 2132, section 2).

/// Codes that are read or written here (RFC 2132, RFC 3004, RFC 4578; 175 is iPXE's own).
pub mod code {
    /// Vendor options, of PXE for the class `PXEClient`.
    pub const VENDOR: u8 = 43;
    /// The address that the client wants.
    pub const ADDRESS: u8 = 50;
    /// The type of the message.
    pub const MESSAGE_TYPE: u8 = 53;
    /// The server that is meant, or that answers.
    pub const SERVER: u8 = 54;
    /// The options that the client asks for.
    pub const WANTED: u8 = 55;
    /// The largest message that the client takes.
    pub const LARGEST: u8 = 57;
    /// The class of the client.
    pub const CLASS: u8 = 60;
    /// Name of the TFTP server.
    pub const TFTP_SERVER: u8 = 66;
    /// Name of the boot file.
    pub const BOOT_FILE: u8 = 67;
    /// What the user says of the client.
    pub const USER_CLASS: u8 = 77;
    /// The architecture of the client.
    pub const ARCHITECTURE: u8 = 93;
    /// The version of the client's network interface.
    pub const INTERFACE: u8 = 94;
    /// The UUID of the machine.
    pub const UUID: u8 = 97;
    /// Options of iPXE.
    pub const IPXE: u8 = 175;
    /// Without a length and without a meaning.
    pub const PAD: u8 = 0;
    /// Without a length: nothing follows.
    pub const END: u8 = 255;
}

/// Codes and values, up to the end or the first that is cut off.
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

/// The value of an option. Firmware has no long ones that it would have to split (RFC 3396), so the first counts.
pub fn find(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    each(bytes).find_map(|(code, value)| (code == wanted).then_some(value))
}

/// Appends an option, unless its value is too long for one.
pub fn push(bytes: &mut Vec<u8>, code: u8, value: &[u8]) -> Option<()> {
    let length = u8::try_from(value.len()).ok()?;
    bytes.extend([code, length]);
    bytes.extend(value);
    Some(())
}
