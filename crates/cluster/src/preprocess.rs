//! Inputs as clients have them: what the gateway makes of pictures and texts before they are tensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ArtifactDigest, Postprocess, TextPreprocess, TokenizerFile};

/// The ways from what clients have to the inputs of a model, and from its outputs to what they want, which the gateway goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Processing {
    /// By the name of the input: that of a model's own for a picture, and a further one for a text, which becomes several of the model's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub preprocess: BTreeMap<String, Preprocess>,
    /// By the name of the output.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub postprocess: BTreeMap<String, Postprocess>,
}

/// The way from what a client has to an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Preprocess {
    /// A picture: JPEG, PNG or WebP.
    Image(ImagePreprocess),
    /// A text: UTF-8.
    Text(TextPreprocess),
}

/// The way from a picture to a row of a tensor: resize, crop, rescale, normalise. The pixels are those of Pillow to the bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ImagePreprocess {
    /// The size to which the picture is brought.
    pub resize: Resize,
    /// The filter of the resize.
    #[serde(default)]
    pub filter: ImageFilter,
    /// The height and width of the crop from the middle; without it the whole picture, which `resize.exact` must then give its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crop: Option<[u32; 2]>,
    /// Where the crop lies if what is left cannot be halved.
    #[serde(default)]
    pub crop_rounding: CropRounding,
    /// The order of the channels.
    #[serde(default)]
    pub channels: Channels,
    /// The factor of the pixels, which are 0 to 255.
    #[serde(default = "one")]
    pub rescale: f64,
    /// The numbers that are subtracted from each channel after that, in the order of `channels`.
    #[serde(default)]
    pub mean: [f64; 3],
    /// The numbers by which each channel is divided after that, in the order of `channels`.
    #[serde(default = "ones")]
    pub std: [f64; 3],
    /// The order of the dimensions.
    #[serde(default)]
    pub layout: ImageLayout,
    /// True if the picture is turned as its EXIF orientation says. Pillow's `Image.open` and torchvision leave it as it is.
    #[serde(default)]
    pub exif: bool,
}

pub(crate) fn one() -> f64 {
    1.0
}

pub(crate) fn ones() -> [f64; 3] {
    [1.0; 3]
}

/// The size to which a picture is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Resize {
    /// The shorter side, in pixels; the longer one keeps the ratio, rounded down.
    Shortest(u32),
    /// The height and the width, in pixels, whatever the ratio.
    Exact([u32; 2]),
}

/// The filter of a resize, with the support that Pillow gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ImageFilter {
    /// Linear interpolation.
    #[default]
    Bilinear,
    /// Cubic interpolation.
    Bicubic,
}

/// Where a crop lies if the pixels left and right of it cannot be as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CropRounding {
    /// Half of an odd number is rounded to the even one, as torchvision and timm do.
    #[default]
    HalfEven,
    /// Half of an odd number is rounded down, as Hugging Face's processors do.
    Floor,
}

/// The order of the channels of a pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Channels {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red.
    Bgr,
}

/// The order of the dimensions of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum ImageLayout {
    /// Channels, rows, columns.
    #[default]
    Nchw,
    /// Rows, columns, channels.
    Nhwc,
}

impl ImagePreprocess {
    /// The largest side of a resized picture and of a crop, in pixels.
    pub const MAX_SIDE: u32 = 8192;

    /// Returns the height and width of a row of the tensor.
    pub fn size(&self) -> [u32; 2] {
        match (self.crop, self.resize) {
            (Some(crop), _) => crop,
            (None, Resize::Exact(size)) => size,
            // Refused when the model is registered.
            (None, Resize::Shortest(side)) => [side, side],
        }
    }

    /// Returns the dimensions of a row of the tensor, in the declared layout.
    pub fn row_dims(&self) -> [u64; 3] {
        let [height, width] = self.size().map(u64::from);
        match self.layout {
            ImageLayout::Nchw => [3, height, width],
            ImageLayout::Nhwc => [height, width, 3],
        }
    }
}

impl Processing {
    /// Returns true if nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.preprocess.is_empty() && self.postprocess.is_empty()
    }

    /// Returns the name of the input that is a text, and the way from it to inputs of the model.
    pub fn text(&self) -> Option<(&str, &TextPreprocess)> {
        self.preprocess
            .iter()
            .find_map(|(name, declared)| match declared {
                Preprocess::Text(text) => Some((name.as_str(), text)),
                Preprocess::Image(_) => None,
            })
    }

    /// Returns the digest of the tokenizer's file, if there is one and it is stored.
    pub fn tokenizer(&self) -> Option<ArtifactDigest> {
        match self.text()?.1.tokenizer {
            TokenizerFile::Stored(digest) => Some(digest),
            TokenizerFile::Path(_) => None,
        }
    }
}
