//! RGB images: decodes, scales and crops them.

use std::io::Cursor;

use anyhow::{Context as _, bail, ensure};
use png::{BitDepth, Transformations};
use resize::px::RGB;
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

/// The largest decoded image, in bytes.
const DECODED_LIMIT: usize = 512 << 20;

/// The method that calculates the pixels of a scaled image.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Filter {
    Nearest,
    Bilinear,
    Bicubic,
}

/// An image of 8-bit RGB pixels, row by row.
#[derive(Clone, Debug)]
pub(super) struct RgbImage {
    width: usize,
    height: usize,
    pixels: Vec<RGB<u8>>,
}

impl RgbImage {
    /// Decodes a JPEG or PNG file. Transparency and orientation are ignored.
    pub(super) fn decode(file: &[u8]) -> anyhow::Result<Self> {
        if file.starts_with(b"\xff\xd8\xff") {
            decode_jpeg(file)
        } else if file.starts_with(b"\x89PNG") {
            decode_png(file)
        } else {
            bail!("the file is neither a JPEG nor a PNG image")
        }
    }

    fn new(width: usize, height: usize, pixels: Vec<RGB<u8>>) -> anyhow::Result<Self> {
        ensure!(
            pixels.len() == width * height,
            "the image has {} pixels in place of {height} x {width}",
            pixels.len()
        );
        Ok(Self {
            width,
            height,
            pixels,
        })
    }

    /// Creates an image from a function of column and row.
    #[cfg(test)]
    pub(super) fn from_fn(
        width: usize,
        height: usize,
        pixel: impl Fn(usize, usize) -> [u8; 3],
    ) -> Self {
        let pixels = (0..width * height).map(|i| pixel(i % width, i / width).into());
        Self {
            width,
            height,
            pixels: pixels.collect(),
        }
    }

    /// Returns width and height in pixels.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Returns the bytes of all pixels, row by row: red, green, blue, red, …
    pub(super) fn interleaved(&self) -> Vec<u8> {
        let pixels = self.pixels.iter();
        pixels
            .flat_map(|pixel| [pixel.r, pixel.g, pixel.b])
            .collect()
    }

    /// Returns the bytes of all pixels, row by row: all red, then all green, then all blue.
    pub(super) fn planar(&self) -> Vec<u8> {
        let channel = |of: fn(&RGB<u8>) -> u8| self.pixels.iter().map(of);
        let (red, green) = (channel(|pixel| pixel.r), channel(|pixel| pixel.g));
        red.chain(green).chain(channel(|pixel| pixel.b)).collect()
    }

    /// Returns the image scaled to this size.
    pub(super) fn scaled(
        &self,
        width: usize,
        height: usize,
        filter: Filter,
    ) -> anyhow::Result<Self> {
        let kernel = match filter {
            Filter::Nearest => return Ok(self.nearest(width, height)),
            Filter::Bilinear => resize::Type::Triangle,
            Filter::Bicubic => resize::Type::Catrom,
        };
        let mut pixels = vec![RGB::new(0, 0, 0); width * height];
        resize::new(
            self.width,
            self.height,
            width,
            height,
            resize::Pixel::RGB8,
            kernel,
        )
        .and_then(|mut resizer| resizer.resize(&self.pixels, &mut pixels))
        .with_context(|| format!("cannot scale the image to {height}x{width}"))?;
        Self::new(width, height, pixels)
    }

    fn nearest(&self, width: usize, height: usize) -> Self {
        // The source pixel at the centre of each pixel.
        let source = |i: usize, from: usize, to: usize| (2 * i + 1) * from / (2 * to);
        let pixels = (0..height).flat_map(|y| {
            let row = source(y, self.height, height) * self.width;
            (0..width).map(move |x| row + source(x, self.width, width))
        });
        Self {
            width,
            height,
            pixels: pixels.map(|i| self.pixels[i]).collect(),
        }
    }

    /// Returns a part of the image. The part must lie within the image.
    pub(super) fn cropped(&self, left: usize, top: usize, width: usize, height: usize) -> Self {
        let rows = self.pixels.chunks_exact(self.width).skip(top).take(height);
        Self {
            width,
            height,
            pixels: rows
                .flat_map(|row| &row[left..left + width])
                .copied()
                .collect(),
        }
    }
}

fn decode_jpeg(file: &[u8]) -> anyhow::Result<RgbImage> {
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers()?;
    let (width, height) = decoder.dimensions().context("the image has no size")?;
    check_decoded_size(width * height * 3)?;
    let bytes = decoder.decode()?;
    let pixels = bytes.chunks_exact(3);
    let pixels = pixels.map(|pixel| RGB::new(pixel[0], pixel[1], pixel[2]));
    RgbImage::new(width, height, pixels.collect())
}

fn decode_png(file: &[u8]) -> anyhow::Result<RgbImage> {
    let limits = png::Limits {
        bytes: DECODED_LIMIT,
    };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    // Palettes become colours, and samples have at least 8 bits.
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info()?;
    let size = reader
        .output_buffer_size()
        .context("the image is too large")?;
    check_decoded_size(size)?;
    let mut samples = vec![0; size];
    let frame = reader.next_frame(&mut samples)?;
    samples.truncate(frame.buffer_size());
    if frame.bit_depth == BitDepth::Sixteen {
        let wide = samples.chunks_exact(2);
        let wide = wide.map(|bytes| u32::from(u16::from_be_bytes([bytes[0], bytes[1]])));
        samples = wide.map(|sample| ((sample + 128) / 257) as u8).collect();
    }
    let pixels = samples.chunks_exact(frame.color_type.samples());
    let pixels = pixels.map(|pixel| match *pixel {
        [red, green, blue, ..] => RGB::new(red, green, blue),
        [grey, ..] => RGB::new(grey, grey, grey),
        [] => unreachable!("a pixel has at least one sample"),
    });
    RgbImage::new(
        frame.width as usize,
        frame.height as usize,
        pixels.collect(),
    )
}

fn check_decoded_size(bytes: usize) -> anyhow::Result<()> {
    ensure!(
        bytes <= DECODED_LIMIT,
        "the decoded image has {bytes} bytes, over the limit of {DECODED_LIMIT}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(colour: png::ColorType, depth: BitDepth, size: (u32, u32), data: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == png::ColorType::Indexed {
            encoder.set_palette(vec![1, 2, 3, 4, 5, 6]);
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(data).unwrap();
        writer.finish().unwrap();
        file
    }

    #[test]
    fn every_form_of_png_becomes_rgb() {
        use png::ColorType;
        for (colour, depth, data, expected) in [
            (ColorType::Rgb, BitDepth::Eight, &[9, 8, 7][..], [9, 8, 7]),
            (ColorType::Rgba, BitDepth::Eight, &[9, 8, 7, 0], [9, 8, 7]),
            (ColorType::Grayscale, BitDepth::Eight, &[9], [9, 9, 9]),
            (ColorType::Grayscale, BitDepth::One, &[0x80], [255; 3]),
            (
                ColorType::GrayscaleAlpha,
                BitDepth::Eight,
                &[9, 0],
                [9, 9, 9],
            ),
            (ColorType::Indexed, BitDepth::Eight, &[1], [4, 5, 6]),
            // 0x01ff / 257 is 1.99, and 0x017f / 257 is 1.49.
            (
                ColorType::Rgb,
                BitDepth::Sixteen,
                &[1, 0xff, 1, 0x7f, 0xff, 0xff],
                [2, 1, 255],
            ),
        ] {
            let image = RgbImage::decode(&png(colour, depth, (1, 1), data)).unwrap();
            assert_eq!(image.size(), (1, 1));
            assert_eq!(image.interleaved(), expected, "{colour:?} {depth:?}");
        }
    }

    #[test]
    fn damaged_and_huge_images_are_refused() {
        let file = png(png::ColorType::Rgb, BitDepth::Eight, (1, 1), &[1, 2, 3]);
        assert!(RgbImage::decode(&file[..20]).is_err());
        assert!(RgbImage::decode(b"\xff\xd8\xff\xe0").is_err());
        let error = RgbImage::decode(b"GIF89a").unwrap_err().to_string();
        assert_eq!(error, "the file is neither a JPEG nor a PNG image");
        // The header of an image with 30,000 x 30,000 pixels.
        let mut encoder = Vec::new();
        png::Encoder::new(&mut encoder, 30_000, 30_000)
            .write_header()
            .unwrap();
        assert!(RgbImage::decode(&encoder).is_err());
    }

    #[test]
    fn nearest_takes_the_pixel_at_the_centre() {
        let row = RgbImage::from_fn(5, 1, |x, _| [x as u8; 3]);
        let scaled = |width| row.scaled(width, 1, Filter::Nearest).unwrap().planar();
        assert_eq!(scaled(2)[..2], [1, 3]);
        assert_eq!(scaled(10)[..10], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }
}
