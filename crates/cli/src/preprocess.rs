//! From a picture to a tensor: resize, cut out the centre, normalise, lay out. The steps and their names are torchvision's.

use std::{borrow::Cow, path::Path, str::FromStr};

use anyhow::{Context as _, bail, ensure};
use image::{ImageReader, RgbImage, imageops};
use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::Tensor;
use serde::Deserialize;

/// What is done to a picture before a model sees it: from flags, and where a flag is absent from a file.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Preprocessing of --image")]
#[group(id = "preprocessing", multiple = true, requires = "image")]
pub(crate) struct Preprocess {
    /// Scale the shorter side to N pixels, or the picture to height x width
    #[arg(long, value_name = "N|HxW")]
    resize: Option<Size>,
    /// How --resize interpolates [default: bilinear]
    #[arg(long, value_enum)]
    filter: Option<Filter>,
    /// Cut out the centre: N by N pixels, or height x width
    #[arg(long, value_name = "N|HxW")]
    crop: Option<Size>,
    /// Subtract this of every channel, after dividing by 255: one number, or three for red, green, blue [default: 0]
    #[arg(
        long,
        value_name = "R,G,B",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    mean: Option<Vec<f32>>,
    /// Then divide by this: one number, or three for red, green, blue [default: 1]
    #[arg(long, value_name = "R,G,B", value_delimiter = ',')]
    std: Option<Vec<f32>>,
    /// The order of the tensor's axes [default: nchw]
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// FP32, normalised; or UINT8, the pixels as they are [default: FP32]
    #[arg(long)]
    datatype: Option<Datatype>,
}

/// A size in pixels: a number, or height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
enum Size {
    Square(u32),
    Exact { height: u32, width: u32 },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u32),
    Text(String),
}

impl TryFrom<NumberOrText> for Size {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<Self, String> {
        match value {
            NumberOrText::Number(number) => number.to_string().parse(),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl Size {
    /// The largest side: four times what the largest vision models take.
    const LIMIT: u32 = 4096;
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pixels = |text: &str| {
            text.parse()
                .ok()
                .filter(|pixels| (1..=Self::LIMIT).contains(pixels))
        };
        let size = match text.split_once('x') {
            None => pixels(text).map(Self::Square),
            Some((height, width)) => pixels(height)
                .zip(pixels(width))
                .map(|(height, width)| Self::Exact { height, width }),
        };
        size.ok_or_else(|| {
            format!(
                "{text:?} is no size: expected N or HxW, each from 1 to {} pixels",
                Self::LIMIT
            )
        })
    }
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Filter {
    Nearest,
    Bilinear,
    Bicubic,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Layout {
    /// Batch (of one), channel, row, column
    Nchw,
    /// Batch (of one), row, column, channel
    Nhwc,
    /// Channel, row, column
    Chw,
    /// Row, column, channel
    Hwc,
}

impl Preprocess {
    /// From a TOML file whose keys are the flags' names.
    pub(crate) fn from_toml(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// These, and where they say nothing, those.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            resize: self.resize.or(other.resize),
            filter: self.filter.or(other.filter),
            crop: self.crop.or(other.crop),
            mean: self.mean.or(other.mean),
            std: self.std.or(other.std),
            layout: self.layout.or(other.layout),
            datatype: self.datatype.or(other.datatype),
        }
    }

    /// Reads a picture and makes the tensor of this name of it. Transparency is ignored.
    pub(crate) fn load(&self, path: &Path, name: &str) -> anyhow::Result<Tensor> {
        let picture = || anyhow::Ok(ImageReader::open(path)?.with_guessed_format()?.decode()?);
        let picture =
            picture().with_context(|| format!("cannot read the picture {}", path.display()))?;
        self.tensor(&picture.to_rgb8(), name)
    }

    fn tensor(&self, picture: &RgbImage, name: &str) -> anyhow::Result<Tensor> {
        let picture = self.cropped(&self.resized(picture))?;
        let (width, height) = picture.dimensions();
        let layout = self.layout.unwrap_or(Layout::Nchw);
        let shape = match layout {
            Layout::Nchw => vec![1, 3, height, width],
            Layout::Nhwc => vec![1, height, width, 3],
            Layout::Chw => vec![3, height, width],
            Layout::Hwc => vec![height, width, 3],
        };
        let shape = Shape::new(&shape.into_iter().map(i64::from).collect::<Vec<_>>())?;
        let bytes = match layout {
            Layout::Nhwc | Layout::Hwc => picture.into_raw(),
            Layout::Nchw | Layout::Chw => (0..3)
                .flat_map(|channel| picture.pixels().map(move |pixel| pixel.0[channel]))
                .collect(),
        };
        match self.datatype.unwrap_or(Datatype::Fp32) {
            Datatype::Uint8 => {
                ensure!(
                    self.mean.is_none() && self.std.is_none(),
                    "--mean and --std make no sense for --datatype UINT8"
                );
                Ok(Tensor::from_values(name, shape, &bytes)?)
            }
            Datatype::Fp32 => {
                let (mean, std) = (
                    channels("mean", self.mean.as_deref(), 0.0)?,
                    channels("std", self.std.as_deref(), 1.0)?,
                );
                ensure!(!std.contains(&0.0), "--std must not be 0");
                let channel_of = |i: usize| match layout {
                    Layout::Nhwc | Layout::Hwc => i % 3,
                    Layout::Nchw | Layout::Chw => i / (bytes.len() / 3),
                };
                let normalised = bytes.iter().enumerate().map(|(i, &byte)| {
                    let channel = channel_of(i);
                    (f32::from(byte) / 255.0 - mean[channel]) / std[channel]
                });
                Ok(Tensor::from_values(
                    name,
                    shape,
                    &normalised.collect::<Vec<_>>(),
                )?)
            }
            other => bail!("a picture becomes FP32 or UINT8, not {other}"),
        }
    }

    fn resized<'a>(&self, picture: &'a RgbImage) -> Cow<'a, RgbImage> {
        let (width, height) = picture.dimensions();
        let (new_width, new_height) = match self.resize {
            None => return Cow::Borrowed(picture),
            Some(Size::Exact { height, width }) => (width, height),
            Some(Size::Square(side)) => {
                // A thin strip must not become longer than anything could be meant to be.
                let longer = |long: u32, short: u32| {
                    let side = u64::from(side) * u64::from(long) / u64::from(short.max(1));
                    u32::try_from(side)
                        .unwrap_or(u32::MAX)
                        .min(16 * Size::LIMIT)
                };
                if width <= height {
                    (side, longer(height, width))
                } else {
                    (longer(width, height), side)
                }
            }
        };
        let filter = match self.filter.unwrap_or(Filter::Bilinear) {
            Filter::Nearest => imageops::FilterType::Nearest,
            Filter::Bilinear => imageops::FilterType::Triangle,
            Filter::Bicubic => imageops::FilterType::CatmullRom,
        };
        Cow::Owned(imageops::resize(picture, new_width, new_height, filter))
    }

    fn cropped(&self, picture: &RgbImage) -> anyhow::Result<RgbImage> {
        let (width, height) = picture.dimensions();
        let (crop_width, crop_height) = match self.crop {
            None => return Ok(picture.clone()),
            Some(Size::Square(side)) => (side, side),
            Some(Size::Exact { height, width }) => (width, height),
        };
        ensure!(
            crop_width <= width && crop_height <= height,
            "--crop {crop_height}x{crop_width} is larger than the picture, {height}x{width} at that point"
        );
        let (left, top) = (half(width - crop_width), half(height - crop_height));
        Ok(imageops::crop_imm(picture, left, top, crop_width, crop_height).to_image())
    }
}

/// Half of it, rounded to even where it is halfway, as torchvision's centre is.
fn half(pixels: u32) -> u32 {
    let half = pixels / 2;
    half + u32::from(pixels % 2 == 1 && half % 2 == 1)
}

fn channels(flag: &str, given: Option<&[f32]>, default: f32) -> anyhow::Result<[f32; 3]> {
    let given = given.unwrap_or(std::slice::from_ref(&default));
    ensure!(
        given.iter().all(|value| value.is_finite()),
        "--{flag} must be finite"
    );
    match *given {
        [one] => Ok([one; 3]),
        [red, green, blue] => Ok([red, green, blue]),
        _ => bail!(
            "--{flag}: expected one number or three, got {}",
            given.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    /// 3 columns, 2 rows; red is 10 x row + column, green 100 more, blue 200 more.
    fn picture() -> RgbImage {
        RgbImage::from_fn(3, 2, |x, y| {
            let red = (10 * y + x) as u8;
            Rgb([red, 100 + red, 200 + red])
        })
    }

    fn preprocess(toml: &str) -> Preprocess {
        Preprocess::from_toml(toml).unwrap()
    }

    fn bytes(toml: &str) -> (Vec<u64>, Vec<u8>) {
        let tensor = preprocess(&format!("datatype = 'UINT8'\n{toml}"))
            .tensor(&picture(), "x")
            .unwrap();
        (tensor.shape().dims().to_vec(), tensor.values().unwrap())
    }

    #[test]
    fn layouts_order_the_axes() {
        let planes = [
            [0, 1, 2, 10, 11, 12],
            [100, 101, 102, 110, 111, 112],
            [200, 201, 202, 210, 211, 212],
        ]
        .concat();
        assert_eq!(bytes(""), (vec![1, 3, 2, 3], planes.clone()));
        assert_eq!(bytes("layout = 'chw'"), (vec![3, 2, 3], planes));
        let (shape, pixels) = bytes("layout = 'nhwc'");
        assert_eq!(
            (shape, &pixels[..6]),
            (vec![1, 2, 3, 3], &[0, 100, 200, 1, 101, 201][..])
        );
        assert_eq!(bytes("layout = 'hwc'").0, [2, 3, 3]);
    }

    #[test]
    fn the_centre_is_cut_out() {
        assert_eq!(
            bytes("crop = 1\nlayout = 'hwc'"),
            (vec![1, 1, 3], vec![1, 101, 201])
        );
        assert_eq!(
            bytes("crop = '2x1'\nlayout = 'chw'"),
            (vec![3, 2, 1], vec![1, 11, 101, 111, 201, 211])
        );
        let error = preprocess("crop = 3")
            .tensor(&picture(), "x")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "--crop 3x3 is larger than the picture, 2x3 at that point"
        );
        // torchvision: int(round((h - th) / 2.0)), which rounds 0.5 to 0 and 1.5 to 2.
        assert_eq!([0, 1, 2, 3, 4, 5].map(half), [0, 0, 1, 2, 2, 2]);
    }

    #[test]
    fn pixels_are_divided_by_255_then_normalised_per_channel() {
        let whole = preprocess("mean = [0.5, 0.0, -1.0]\nstd = [0.25, 1.0, 2.0]\ncrop = 1");
        let values: Vec<f32> = whole.tensor(&picture(), "x").unwrap().values().unwrap();
        let expected = [
            (1.0 / 255.0 - 0.5) / 0.25,
            101.0 / 255.0,
            456.0 / 255.0 / 2.0,
        ];
        assert!(
            values
                .iter()
                .zip(expected)
                .all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-6),
            "{values:?}"
        );

        // EfficientNet-Lite: white becomes (1 - 0.498) / 0.502 = 1, black -0.498 / 0.502.
        let lite = preprocess("mean = [0.498]\nstd = [0.502]\nlayout = 'hwc'");
        let extremes = RgbImage::from_fn(2, 1, |x, _| Rgb([255 * x as u8; 3]));
        let values: Vec<f32> = lite.tensor(&extremes, "x").unwrap().values().unwrap();
        assert!(
            (values[0] + 0.992_031_9).abs() < 1e-6 && (values[3] - 1.0).abs() < 1e-6,
            "{values:?}"
        );
    }

    #[test]
    fn the_shorter_side_is_scaled_and_the_other_follows() {
        let dims = |width, height, toml: &str| {
            preprocess(toml)
                .resized(&RgbImage::new(width, height))
                .dimensions()
        };
        assert_eq!(dims(451, 300, "resize = 256"), (384, 256));
        assert_eq!(dims(300, 451, "resize = 256"), (256, 384));
        assert_eq!(dims(451, 300, "resize = '224x200'"), (200, 224));
        assert_eq!(dims(451, 300, ""), (451, 300));
    }

    #[test]
    fn halving_averages_neighbours() {
        // Bilinear with antialiasing: at half the size the weights of four neighbours are 1/8, 3/8, 3/8, 1/8; at the edge
        // those inside are normalised: (3/8 a + 3/8 b + 1/8 c) / (7/8).
        let row = RgbImage::from_fn(4, 1, |x, _| Rgb([[0, 70, 140, 210][x as usize]; 3]));
        let halved = preprocess("resize = '1x2'").resized(&row).into_owned();
        assert_eq!(halved.into_raw(), [50, 50, 50, 160, 160, 160]);
    }

    #[test]
    fn flags_win_over_the_file_and_mistakes_are_named() {
        let flags = Preprocess {
            crop: Some(Size::Square(1)),
            ..Preprocess::default()
        };
        let both = flags.or(preprocess("crop = 2\nresize = 4\nfilter = 'bicubic'"));
        assert_eq!(
            (both.crop, both.resize, both.filter),
            (
                Some(Size::Square(1)),
                Some(Size::Square(4)),
                Some(Filter::Bicubic)
            )
        );
        for (toml, expected) in [
            ("crops = 2", "crops"),
            ("crop = 0", "\"0\" is no size"),
            ("resize = '2y3'", "\"2y3\" is no size"),
            ("layout = 'NCHW'", "nchw"),
        ] {
            let error = Preprocess::from_toml(toml).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
        for (toml, expected) in [
            ("mean = [1.0, 2.0]", "expected one number or three"),
            ("std = [0.0]", "must not be 0"),
            ("mean = [nan]", "must be finite"),
            ("datatype = 'INT8'", "FP32 or UINT8"),
            ("datatype = 'UINT8'\nstd = [2.0]", "no sense"),
        ] {
            let error = preprocess(toml)
                .tensor(&picture(), "x")
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
