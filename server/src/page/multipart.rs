//! Reads forms with files while they arrive (RFC 7578), so that a file need not fit into memory.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use slipway_protocol::ErrorCode;
use tokio::time::Duration;

use crate::api::body::Unread;
use crate::base::error::Error;

/// Most bytes of the headers of a part.
const MOST_HEAD: usize = 8 << 10;
/// Most bytes of a boundary (RFC 2046, section 5.1.1).
const MOST_BOUNDARY: usize = 70;

/// A form that is being read.
pub struct Multipart {
    body: Unread,
    stall: Duration,
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    /// Whether all of the part was read, so that the next one follows.
    is_over: bool,
}

/// The head of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the field.
    pub name: String,
    /// Name of the file, if the field is one for files. Empty if none was chosen.
    pub file_name: Option<String>,
}

impl Multipart {
    /// Begins to read a form. Each piece of it must arrive within `stall`.
    pub fn new(headers: &HeaderMap, body: Unread, stall: Duration) -> Result<Self, Error> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let boundary = kind.starts_with("multipart/form-data").then(|| boundary(kind)).flatten();
        let boundary = boundary.ok_or_else(|| malformed("it is not multipart/form-data with a boundary"))?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // As if a line had ended before the first delimiter.
        Ok(Self { body, stall, delimiter, buffer: b"\r\n".to_vec(), is_over: false })
    }

    /// Goes to the next part. `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Part>, Error> {
        while self.piece().await?.is_some() {}
        while self.buffer.len() < 2 {
            self.more().await?;
        }
        if self.buffer.starts_with(b"--") {
            return Ok(None);
        }
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.buffer.len() > MOST_HEAD {
                return Err(malformed("the headers of a part are too long"));
            }
            self.more().await?;
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        self.is_over = false;
        part(&String::from_utf8_lossy(&head)).map(Some).ok_or_else(|| malformed("a part has no name"))
    }

    /// The next bytes of the part. `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, Error> {
        while !self.is_over {
            if let Some(at) = find(&self.buffer, &self.delimiter) {
                if at == 0 {
                    self.buffer.drain(..self.delimiter.len());
                    self.is_over = true;
                    break;
                }
                return Ok(Some(self.buffer.drain(..at).collect()));
            }
            // The rest may be the beginning of a delimiter.
            let certain = (self.buffer.len() + 1).saturating_sub(self.delimiter.len());
            if certain > 0 {
                return Ok(Some(self.buffer.drain(..certain).collect()));
            }
            self.more().await?;
        }
        Ok(None)
    }

    /// The rest of the part, which must be a text of at most `most` bytes.
    pub async fn text(&mut self, most: usize) -> Result<String, Error> {
        let mut text = Vec::new();
        while let Some(piece) = self.piece().await? {
            text.extend(piece);
            if text.len() > most {
                return Err(malformed("a field is too long"));
            }
        }
        String::from_utf8(text).map_err(|_| malformed("a field is not UTF-8"))
    }

    /// Reads and drops all that comes, so that the browser sees why its form was refused: it reads the answer when it
    /// has sent the form.
    pub async fn drain(&mut self) {
        while matches!(self.body.piece(self.stall).await, Ok(Some(_))) {}
    }

    async fn more(&mut self) -> Result<(), Error> {
        let piece = self.body.piece(self.stall).await?;
        self.buffer.extend_from_slice(&piece.ok_or_else(|| malformed("it ends in the middle of a part"))?);
        Ok(())
    }
}

fn malformed(why: &str) -> Error {
    Error::refused(ErrorCode::InvalidRequest, format!("the form cannot be read: {why}; send it again"))
}

fn boundary(kind: &str) -> Option<&str> {
    let (_, rest) = kind.split_once("boundary=")?;
    let boundary = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => rest.split(';').next()?.trim(),
    };
    (1..=MOST_BOUNDARY).contains(&boundary.len()).then_some(boundary)
}

/// Where a text begins that begins with CR.
fn find(buffer: &[u8], text: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = buffer.get(from..)?.iter().position(|byte| *byte == b'\r') {
        from += at;
        if buffer.get(from..)?.starts_with(text) {
            return Some(from);
        }
        from += 1;
    }
    None
}

/// Reads the headers of a part. Browsers write `"` in names as `%22` (HTML, 4.10.22.8).
fn part(head: &str) -> Option<Part> {
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let (mut name, mut file_name) = (None, None);
    let mut rest = disposition.strip_prefix(" form-data")?;
    while let Some((key, value)) = rest.split_once("=\"") {
        let (value, after) = value.split_once('"')?;
        match key.trim_start_matches([';', ' ']) {
            "name" => name = Some(value.to_owned()),
            "filename" => file_name = Some(value.replace("%22", "\"")),
            _ => {}
        }
        rest = after;
    }
    Some(Part { name: name?, file_name })
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::http::HeaderValue;
    use futures_util::stream;

    use super::*;

    const FORM: &[u8] = b"--xx\r\nContent-Disposition: form-data; name=\"proof\"\r\n\r\np\r\n--xx\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"a;\xc3\xa4%22.raw\"\r\nContent-Type: x/y\r\n\r\n\
        one\r\n--x\r\n\r--xx\r\ntwo\r\n--xx--\r\n";

    async fn read(body: Body) -> Result<Vec<(Part, Vec<u8>)>, Error> {
        let kind = HeaderValue::from_static("multipart/form-data; boundary=xx");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind)]);
        let mut form = Multipart::new(&headers, Unread::from_anywhere(body), Duration::from_secs(1))?;
        let mut parts = Vec::new();
        while let Some(part) = form.next().await? {
            let mut content = Vec::new();
            while let Some(piece) = form.piece().await? {
                content.extend(piece);
            }
            parts.push((part, content));
        }
        Ok(parts)
    }

    #[tokio::test]
    async fn a_form_is_the_same_however_it_arrives() {
        let part = |name: &str, file: Option<&str>| Part { name: name.to_owned(), file_name: file.map(str::to_owned) };
        let expect = vec![
            (part("proof", None), b"p".to_vec()),
            (part("file", Some("a;ä\".raw")), b"one\r\n--x\r\n\r--xx\r\ntwo".to_vec()),
        ];
        for size in 1..=FORM.len() {
            let pieces = FORM.chunks(size).map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece)));
            let body = Body::from_stream(stream::iter(pieces.collect::<Vec<_>>()));
            assert_eq!(read(body).await.expect("a form"), expect, "{size}");
        }
    }

    #[tokio::test]
    async fn a_form_that_ends_early_is_refused() {
        for end in 0..FORM.len() - 4 {
            read(Body::from(&FORM[..end])).await.expect_err("the end is missing");
        }
        let endless = Body::from(vec![b'a'; 2 * MOST_HEAD]);
        read(endless).await.expect_err("no part begins");
        let head = [b"--xx\r\n", &[b'a'; 2 * MOST_HEAD][..]].concat();
        read(Body::from(head)).await.expect_err("a head without an end");
    }
}
