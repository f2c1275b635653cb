//! `packhorse infer --image`: converts an image into a tensor. It is scaled, cropped, normalised and laid out, in steps that are named
//! like torchvision's.

mod rgb_image;

use std::{borrow::Cow, path::PathBuf, str::FromStr};

use anyhow::{Context as _, bail, ensure};
use packhorse_cluster::{Datatype, Shape};
use packhorse_protocol::{Tensor, TensorMetadata};
use packhorse_terminal::files::{read_file, read_text};
use serde::Deserialize;

use self::rgb_image::{Filter, RgbImage};

/// The flags of `packhorse infer` for images.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ImageArgs {
    /// JPEG or PNG image for an input
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Input that --image is for [default: the model's only input]
    #[arg(long, value_name = "NAME", requires = "image")]
    input_name: Option<String>,
    /// TOML file with the preprocessing of --image; its keys are the names of the flags, which override it
    #[arg(
        long,
        value_name = "FILE",
        requires = "image",
        help_heading = "Preprocessing of --image"
    )]
    preprocess: Option<PathBuf>,
    #[command(flatten)]
    preprocessing: Preprocessing,
}

impl ImageArgs {
    /// Returns the tensor of the image, if one is given.
    pub(crate) fn tensor(&self, inputs: &[TensorMetadata]) -> anyhow::Result<Option<Tensor>> {
        let Some(path) = &self.image else {
            return Ok(None);
        };
        let name = match (&self.input_name, inputs) {
            (Some(name), _) => name,
            (None, [only]) => &only.name,
            (None, inputs) => bail!(
                "the model has {} inputs: name the one of the image with --input-name",
                inputs.len()
            ),
        };
        let preprocessing = self.preprocessing()?;
        let image = RgbImage::decode(&read_file(path)?)
            .with_context(|| format!("cannot decode the image {}", path.display()))?;
        Ok(Some(preprocessing.tensor(&image, name)?))
    }

    fn preprocessing(&self) -> anyhow::Result<Preprocessing> {
        let file = match &self.preprocess {
            Some(path) => Preprocessing::from_toml(&read_text(path)?)
                .with_context(|| format!("{}", path.display()))?,
            None => Preprocessing::default(),
        };
        Ok(self.preprocessing.clone().or(file))
    }
}

/// The steps that convert an image into a tensor.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[command(next_help_heading = "Preprocessing of --image")]
#[group(id = "preprocessing", multiple = true, requires = "image")]
struct Preprocessing {
    /// Scale the shorter side to N pixels, or the image to height x width
    #[arg(long, value_name = "N|HxW")]
    resize: Option<Size>,
    /// Interpolation of --resize [default: bilinear]
    #[arg(long, value_enum)]
    filter: Option<Filter>,
    /// Crop the centre: N by N pixels, or height x width
    #[arg(long, value_name = "N|HxW")]
    crop: Option<Size>,
    /// Divide pixels by 255, then subtract this: one number, or three for red, green and blue [default: 0]
    #[arg(
        long,
        value_name = "R,G,B",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    mean: Option<Vec<f32>>,
    /// Divide by this after --mean: one number, or three for red, green and blue [default: 1]
    #[arg(long, value_name = "R,G,B", value_delimiter = ',')]
    std: Option<Vec<f32>>,
    /// Order of the tensor's axes [default: nchw]
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// FP32 for normalised values, or UINT8 for unchanged pixels [default: FP32]
    #[arg(long)]
    datatype: Option<Datatype>,
}

/// A size in pixels: a side, or height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NumberOrText")]
enum Size {
    Square(usize),
    Exact { height: usize, width: usize },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(usize),
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
    /// The largest side in pixels: four times that of the inputs of the largest vision models.
    const LIMIT: usize = 4096;
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
                "{text:?} is not a size: expected N or HxW, each from 1 to {} pixels",
                Self::LIMIT
            )
        })
    }
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

impl Preprocessing {
    /// Parses a TOML file whose keys are the names of the flags.
    fn from_toml(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Returns these steps, with those of `other` where a step is not given.
    fn or(self, other: Self) -> Self {
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

    fn tensor(&self, image: &RgbImage, name: &str) -> anyhow::Result<Tensor> {
        let scaled = self.scaled(image)?;
        let image = self.cropped(&scaled)?;
        let (width, height) = image.size();
        let layout = self.layout.unwrap_or(Layout::Nchw);
        let shape = match layout {
            Layout::Nchw => vec![1, 3, height, width],
            Layout::Nhwc => vec![1, height, width, 3],
            Layout::Chw => vec![3, height, width],
            Layout::Hwc => vec![height, width, 3],
        };
        let dims = shape.into_iter().map(i64::try_from);
        let shape = Shape::new(&dims.collect::<Result<Vec<_>, _>>()?)?;
        let bytes = match layout {
            Layout::Nhwc | Layout::Hwc => image.interleaved(),
            Layout::Nchw | Layout::Chw => image.planar(),
        };
        match self.datatype.unwrap_or(Datatype::Fp32) {
            Datatype::Uint8 => {
                ensure!(
                    self.mean.is_none() && self.std.is_none(),
                    "--mean and --std need --datatype FP32, not UINT8"
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
            other => bail!("--datatype must be FP32 or UINT8, not {other}"),
        }
    }

    /// Returns the image after `--resize`.
    fn scaled<'a>(&self, image: &'a RgbImage) -> anyhow::Result<Cow<'a, RgbImage>> {
        let Some(size) = self.resize else {
            return Ok(Cow::Borrowed(image));
        };
        let (new_width, new_height) = scaled_size(size, image.size());
        let filter = self.filter.unwrap_or(Filter::Bilinear);
        Ok(Cow::Owned(image.scaled(new_width, new_height, filter)?))
    }

    /// Returns the image after `--crop`.
    fn cropped<'a>(&self, image: &'a RgbImage) -> anyhow::Result<Cow<'a, RgbImage>> {
        let (width, height) = image.size();
        let (crop_width, crop_height) = match self.crop {
            None => return Ok(Cow::Borrowed(image)),
            Some(Size::Square(side)) => (side, side),
            Some(Size::Exact { height, width }) => (width, height),
        };
        ensure!(
            crop_width <= width && crop_height <= height,
            "--crop {crop_height}x{crop_width} is larger than the image, which is {height}x{width} after --resize"
        );
        let (left, top) = (half(width - crop_width), half(height - crop_height));
        Ok(Cow::Owned(image.cropped(
            left,
            top,
            crop_width,
            crop_height,
        )))
    }
}

/// Returns width and height after `--resize`.
fn scaled_size(target: Size, (width, height): (usize, usize)) -> (usize, usize) {
    let shorter = match target {
        Size::Exact { height, width } => return (width, height),
        Size::Square(shorter) => shorter,
    };
    // The limit keeps a narrow strip from becoming larger than memory allows.
    let longer = |long: usize, short: usize| (shorter * long / short.max(1)).min(16 * Size::LIMIT);
    if width <= height {
        (shorter, longer(height, width))
    } else {
        (longer(width, height), shorter)
    }
}

/// Returns half of a length; a half pixel is rounded to the even neighbour, like torchvision's centre.
fn half(pixels: usize) -> usize {
    let half = pixels / 2;
    half + usize::from(pixels % 2 == 1 && half % 2 == 1)
}

/// Returns a value for each channel.
fn channels(flag: &str, given: Option<&[f32]>, default: f32) -> anyhow::Result<[f32; 3]> {
    let given = given.unwrap_or(std::slice::from_ref(&default));
    ensure!(
        given.iter().all(|value| value.is_finite()),
        "--{flag} must be a finite number"
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
    use super::*;

    /// 3 columns, 2 rows; red is 10 x row + column, green 100 more, blue 200 more.
    fn image() -> RgbImage {
        RgbImage::from_fn(3, 2, |x, y| {
            let red = (10 * y + x) as u8;
            [red, 100 + red, 200 + red]
        })
    }

    fn preprocessing(toml: &str) -> Preprocessing {
        Preprocessing::from_toml(toml).unwrap()
    }

    fn bytes(toml: &str) -> (Vec<u64>, Vec<u8>) {
        let tensor = preprocessing(&format!("datatype = 'UINT8'\n{toml}"))
            .tensor(&image(), "x")
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
    fn the_centre_is_cropped() {
        assert_eq!(
            bytes("crop = 1\nlayout = 'hwc'"),
            (vec![1, 1, 3], vec![1, 101, 201])
        );
        assert_eq!(
            bytes("crop = '2x1'\nlayout = 'chw'"),
            (vec![3, 2, 1], vec![1, 11, 101, 111, 201, 211])
        );
        let error = preprocessing("crop = 3")
            .tensor(&image(), "x")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "--crop 3x3 is larger than the image, which is 2x3 after --resize"
        );
        // torchvision: int(round((h - th) / 2.0)), which rounds 0.5 to 0 and 1.5 to 2.
        assert_eq!([0, 1, 2, 3, 4, 5].map(half), [0, 0, 1, 2, 2, 2]);
    }

    #[test]
    fn pixels_are_divided_by_255_then_normalised_per_channel() {
        let steps = preprocessing("mean = [0.5, 0.0, -1.0]\nstd = [0.25, 1.0, 2.0]\ncrop = 1");
        let values: Vec<f32> = steps.tensor(&image(), "x").unwrap().values().unwrap();
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
        let lite = preprocessing("mean = [0.498]\nstd = [0.502]\nlayout = 'hwc'");
        let extremes = RgbImage::from_fn(2, 1, |x, _| [255 * x as u8; 3]);
        let values: Vec<f32> = lite.tensor(&extremes, "x").unwrap().values().unwrap();
        assert!(
            (values[0] + 0.992_031_9).abs() < 1e-6 && (values[3] - 1.0).abs() < 1e-6,
            "{values:?}"
        );
    }

    #[test]
    fn the_shorter_side_is_scaled_and_the_other_follows() {
        let size = |width, height, toml: &str| {
            let image = RgbImage::from_fn(width, height, |_, _| [0; 3]);
            preprocessing(toml).scaled(&image).unwrap().size()
        };
        assert_eq!(size(451, 300, "resize = 256"), (384, 256));
        assert_eq!(size(300, 451, "resize = 256"), (256, 384));
        assert_eq!(size(451, 300, "resize = '224x200'"), (200, 224));
        assert_eq!(size(451, 300, ""), (451, 300));
    }

    #[test]
    fn halving_averages_neighbours() {
        // Bilinear with antialiasing: at half the size the weights of four neighbours are 1/8, 3/8, 3/8, 1/8; at the edge
        // those inside are normalised: (3/8 a + 3/8 b + 1/8 c) / (7/8).
        let row = RgbImage::from_fn(4, 1, |x, _| [[0, 70, 140, 210][x]; 3]);
        let steps = preprocessing("resize = '1x2'");
        let halved = steps.scaled(&row).unwrap();
        assert_eq!(halved.interleaved(), [50, 50, 50, 160, 160, 160]);
    }

    #[test]
    fn flags_override_the_file_and_errors_name_the_key() {
        let flags = Preprocessing {
            crop: Some(Size::Square(1)),
            ..Preprocessing::default()
        };
        let both = flags.or(preprocessing("crop = 2\nresize = 4\nfilter = 'bicubic'"));
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
            ("crop = 0", "\"0\" is not a size"),
            ("resize = '2y3'", "\"2y3\" is not a size"),
            ("layout = 'NCHW'", "nchw"),
        ] {
            let error = Preprocessing::from_toml(toml).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
        for (toml, expected) in [
            ("mean = [1.0, 2.0]", "expected one number or three"),
            ("std = [0.0]", "must not be 0"),
            ("mean = [nan]", "must be a finite number"),
            ("datatype = 'INT8'", "FP32 or UINT8"),
            ("datatype = 'UINT8'\nstd = [2.0]", "need --datatype FP32"),
        ] {
            let error = preprocessing(toml)
                .tensor(&image(), "x")
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
