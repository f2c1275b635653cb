//! Inputs as clients have them, as the rows of tensors.
//!
//! A picture comes from a stranger: [`Head::read`] tells its kind and size from its first bytes and refuses what is too large or not supported,
//! before any pixel is decoded. [`Head::memory`] is the memory that the rest takes. [`write_row`] decodes, resizes, crops and normalises it.
//!
//! The pixels are those of Pillow to the bit. JPEG is decoded by libjpeg-turbo's code, the resize is that of Pillow in whole numbers, and no other
//! one will do: a difference of one level in 255 changes which of two near classes is the best.
//!
//! A text is cut into tokens by the [`Tokenizer`] of its model, which is Hugging Face's own code: one other token is another meaning.

mod decode;
mod error;
mod exif;
mod head;
mod horizontal;
mod jpeg_head;
mod kind;
mod limits;
mod png_head;
mod read_head;
mod resize;
mod row;
mod tokenizer;
mod tokens;
mod webp_head;
mod weights;

pub use error::PictureError;
pub use head::Head;
pub use kind::PictureKind;
pub use row::write_row;
pub use tokenizer::{Cut, TextError, Tokenizer, TokenizerError};
pub use tokens::Tokens;
