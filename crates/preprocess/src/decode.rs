//! The pixels of a picture, as Pillow's `convert("RGB")` has them: grey becomes three equal channels, and an alpha channel is dropped.

use std::{
    io::{self, BufRead, Cursor, Read},
    panic::catch_unwind,
};

use image_webp::WebPDecoder;
use png::Transformations;

use crate::{Head, PictureError, PictureKind};

/// Returns the pixels, three bytes each, row by row.
pub(crate) fn decode(bytes: &[u8], head: &Head) -> Result<Vec<u8>, PictureError> {
    let pixels = match head.kind {
        PictureKind::Jpeg => jpeg(bytes),
        PictureKind::Png => png(bytes),
        PictureKind::Webp => webp(bytes),
    };
    let pixels = pixels.map_err(|problem| PictureError::damaged(head.kind, problem))?;
    if pixels.len() as u64 == head.pixels() * 3 {
        return Ok(pixels);
    }
    Err(PictureError::damaged(
        head.kind,
        "its pixels are not as many as its head says",
    ))
}

/// Decodes a JPEG. libjpeg reports its errors by unwinding.
fn jpeg(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let decoded = catch_unwind(|| -> io::Result<Vec<u8>> {
        let whole = Whole { rest: bytes };
        let mut started = mozjpeg::Decompress::new_reader(whole)?.rgb()?;
        let pixels = started.read_scanlines::<u8>()?;
        started.finish()?;
        Ok(pixels)
    });
    match decoded {
        Ok(Ok(pixels)) => Ok(pixels),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panicked) => {
            let text = panicked.downcast_ref::<String>().map(String::as_str);
            let text = text.unwrap_or("it cannot be decoded");
            Err(text.trim_start_matches("libjpeg fatal error: ").to_owned())
        }
    }
}

/// The bytes of a JPEG. Reading beyond them is an error, as it is for Pillow: libjpeg itself goes on with grey.
struct Whole<'a> {
    rest: &'a [u8],
}

impl Read for Whole<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.rest.read(buffer)
    }
}

impl BufRead for Whole<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.rest.is_empty() {
            return Err(io::Error::other("it ends early"));
        }
        Ok(self.rest)
    }

    fn consume(&mut self, amount: usize) {
        self.rest = self.rest.get(amount..).unwrap_or_default();
    }
}

fn png(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::EXPAND);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|e| e.to_string())?;
    let size = reader.output_buffer_size().ok_or("its size overflows")?;
    let mut pixels = vec![0; size];
    reader.next_frame(&mut pixels).map_err(|e| e.to_string())?;
    let (color, _) = reader.output_color_type();
    Ok(rgb(pixels, color.samples()))
}

fn webp(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    let size = decoder.output_buffer_size().ok_or("its size overflows")?;
    let mut pixels = vec![0; size];
    decoder.read_image(&mut pixels).map_err(|e| e.to_string())?;
    Ok(rgb(pixels, if decoder.has_alpha() { 4 } else { 3 }))
}

/// Makes three channels of one to four.
fn rgb(pixels: Vec<u8>, channels: usize) -> Vec<u8> {
    match channels {
        3 => pixels,
        4 => pixels
            .chunks_exact(4)
            .flat_map(|p| [p[0], p[1], p[2]])
            .collect(),
        _ => pixels
            .chunks_exact(channels)
            .flat_map(|p| [p[0]; 3])
            .collect(),
    }
}
