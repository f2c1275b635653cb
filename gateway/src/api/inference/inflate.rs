//! Decompression of bodies with a `Content-Encoding`.

use std::io::{self, BufRead, Read};

use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Buf, Bytes, BytesMut};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use packhorse_protocol::ByteRope;

use super::error::InferenceError;
use crate::memory::Reservation;

/// A supported encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    /// Returns the encoding of the headers; an unknown one, or several, is an error with status 415.
    pub(in crate::api) fn from_headers(headers: &HeaderMap) -> Result<Self, InferenceError> {
        let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
        let (first, more) = (values.next(), values.next());
        let name = first
            .map_or(&b""[..], |value| value.as_bytes().trim_ascii())
            .to_ascii_lowercase();
        match name.as_slice() {
            _ if more.is_some() => {}
            b"" | b"identity" => return Ok(Self::Identity),
            b"gzip" | b"x-gzip" => return Ok(Self::Gzip),
            b"deflate" => return Ok(Self::Deflate),
            _ => {}
        }
        let shown: String = String::from_utf8_lossy(&name).chars().take(64).collect();
        Err(InferenceError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!(
                "Content-Encoding {shown:?} is not supported: use one of gzip, deflate and identity"
            ),
        ))
    }
}

/// The number of bytes that are decompressed at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Decompresses a body. The result may have at most `limit` bytes, and is reserved from the budget piece by piece.
pub(in crate::api) fn inflate(
    body: ByteRope,
    encoding: Encoding,
    limit: u64,
    reservation: &mut Reservation,
) -> Result<ByteRope, InferenceError> {
    let deflated = body.len() as u64;
    let mut decoder = match encoding {
        Encoding::Identity => return Ok(body),
        Encoding::Gzip => Decoder::Gzip(MultiGzDecoder::new(RopeReader::new(body))),
        Encoding::Deflate => Decoder::Zlib(ZlibDecoder::new(RopeReader::new(body))),
    };
    let mut inflated = ByteRope::new();
    loop {
        let piece = decoder
            .piece()
            .map_err(|e| InferenceError::bad_request(format!("Content-Encoding: {e}")))?;
        if piece.is_empty() {
            reservation.shrink(deflated);
            return Ok(inflated);
        }
        if inflated.len() as u64 + piece.len() as u64 > limit {
            return Err(InferenceError::body_too_large(limit));
        }
        reservation.grow(piece.len() as u64)?;
        inflated.push(piece);
    }
}

/// Returns at most `most` bytes from the beginning of a body of which a part has come: none if the part is too short to tell, or is no compressed body.
pub(in crate::api) fn beginning(part: &[u8], encoding: Encoding, most: usize) -> Vec<u8> {
    let mut inflated = vec![0; most];
    let mut filled = 0;
    let mut fill = |decoder: &mut dyn Read| {
        // An error is the end of what has come, or damage, of which whoever reads all of the body is told.
        while let Ok(read @ 1..) = decoder.read(&mut inflated[filled..]) {
            filled += read;
        }
    };
    match encoding {
        Encoding::Identity => {}
        Encoding::Gzip => fill(&mut MultiGzDecoder::new(part)),
        Encoding::Deflate => fill(&mut ZlibDecoder::new(part)),
    }
    inflated.truncate(filled);
    inflated
}

enum Decoder {
    Gzip(MultiGzDecoder<RopeReader>),
    Zlib(ZlibDecoder<RopeReader>),
}

impl Decoder {
    /// Returns the next bytes; none at the end.
    fn piece(&mut self) -> io::Result<Bytes> {
        let mut piece = BytesMut::zeroed(PIECE_BYTES);
        let mut filled = 0;
        while filled < PIECE_BYTES {
            let read = match self {
                Self::Gzip(decoder) => decoder.read(&mut piece[filled..])?,
                Self::Zlib(decoder) => decoder.read(&mut piece[filled..])?,
            };
            if read == 0 {
                self.finish()?;
                break;
            }
            filled += read;
        }
        piece.truncate(filled);
        Ok(piece.freeze())
    }

    /// Checks the end of the stream. Gzip continues with further members; no bytes may follow a zlib stream.
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(_) => Ok(()),
            Self::Zlib(decoder) if decoder.get_ref().is_at_end() => Ok(()),
            Self::Zlib(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "there are bytes after the end of the compressed data",
            )),
        }
    }
}

/// A reader of the chunks of a rope, one after the other.
struct RopeReader {
    chunks: std::vec::IntoIter<Bytes>,
    chunk: Bytes,
}

impl RopeReader {
    fn new(rope: ByteRope) -> Self {
        Self {
            chunks: rope.into_chunks().collect::<Vec<_>>().into_iter(),
            chunk: Bytes::new(),
        }
    }

    fn is_at_end(&self) -> bool {
        // A rope has no empty chunks.
        self.chunk.is_empty() && self.chunks.len() == 0
    }
}

impl BufRead for RopeReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.chunk = self.chunks.next().unwrap_or_default();
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, amount: usize) {
        self.chunk.advance(amount);
    }
}

impl Read for RopeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::http::HeaderValue;
    use axum::response::IntoResponse;
    use flate2::{
        Compression,
        write::{GzEncoder, ZlibEncoder},
    };

    use super::*;
    use crate::memory::MemoryBudget;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn status(body: &[u8], encoding: Encoding, limit: u64) -> Result<Bytes, StatusCode> {
        let mut reservation = MemoryBudget::new(2 << 20).model().reservation();
        reservation.grow(body.len() as u64).unwrap();
        // The chunks are small, as from a slow socket.
        let rope = body.chunks(7).map(Bytes::copy_from_slice).collect();
        let inflated = inflate(rope, encoding, limit, &mut reservation);
        inflated
            .map(|rope| rope.to_bytes())
            .map_err(|error| error.into_response().status())
    }

    #[test]
    fn what_was_deflated_comes_back() {
        let text: Vec<u8> = (0..200_000_u32).map(|i| (i / 7) as u8).collect();
        assert_eq!(status(&gzip(&text), Encoding::Gzip, 200_000).unwrap(), text);
        assert_eq!(
            status(&zlib(&text), Encoding::Deflate, 200_000).unwrap(),
            text
        );
        let members = [gzip(b"one, "), gzip(b"two")].concat();
        assert_eq!(status(&members, Encoding::Gzip, 100).unwrap(), "one, two");
    }

    #[test]
    fn the_beginning_is_known_before_the_rest_has_come() {
        let text: Vec<u8> = (0..200_000_u32).map(|i| (i / 7) as u8).collect();
        for (encoding, deflated) in [
            (Encoding::Gzip, gzip(&text)),
            (Encoding::Deflate, zlib(&text)),
        ] {
            for length in 0..deflated.len().min(600) {
                let known = beginning(&deflated[..length], encoding, 1000);
                assert!(known.len() <= 1000 && text.starts_with(&known), "{length}");
            }
            let known = beginning(&deflated[..deflated.len() / 2], encoding, 1000);
            assert_eq!(known, text[..1000]);
            assert!(beginning(b"no such thing", encoding, 1000).is_empty());
        }
        assert_eq!(beginning(&gzip(b"short"), Encoding::Gzip, 1000), b"short");
    }

    #[test]
    fn damage_is_a_bad_request() {
        let bad = Err(StatusCode::BAD_REQUEST);
        let good = gzip(&[1; 5000]);
        assert_eq!(
            status(&good[..good.len() - 1], Encoding::Gzip, 1 << 20),
            bad
        );
        assert_eq!(status(b"no gzip at all", Encoding::Gzip, 1 << 20), bad);
        assert_eq!(
            status(
                &[good.clone(), b"left over".to_vec()].concat(),
                Encoding::Gzip,
                1 << 20
            ),
            bad
        );
        let good = zlib(&[1; 5000]);
        assert_eq!(
            status(&good[..good.len() - 1], Encoding::Deflate, 1 << 20),
            bad
        );
        assert_eq!(
            status(
                &[good, b"left over".to_vec()].concat(),
                Encoding::Deflate,
                1 << 20
            ),
            bad
        );
    }

    #[test]
    fn a_bomb_stops_at_the_limit_or_at_the_budget() {
        let bomb = gzip(&vec![0; 10 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(
            status(&bomb, Encoding::Gzip, 300_000),
            Err(StatusCode::PAYLOAD_TOO_LARGE)
        );
        assert_eq!(
            status(&bomb, Encoding::Gzip, 1 << 30),
            Err(StatusCode::SERVICE_UNAVAILABLE)
        );
    }

    #[test]
    fn only_one_known_encoding_is_accepted() {
        let encoding = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            Encoding::from_headers(&headers).map_err(|error| error.into_response().status())
        };
        assert_eq!(encoding(&[]), Ok(Encoding::Identity));
        assert_eq!(encoding(&["GZip"]), Ok(Encoding::Gzip));
        assert_eq!(encoding(&["deflate"]), Ok(Encoding::Deflate));
        for unknown in [&["br"][..], &["gzip, gzip"], &["gzip", "gzip"]] {
            assert_eq!(encoding(unknown), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
    }
}
