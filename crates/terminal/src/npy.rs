//! NumPy's file format `.npy`, versions 1 to 3: little-endian, row-major arrays.
//!
//! The crates for this format convert arrays into Rust vectors and depend on a parser generator. A tensor needs the bytes of the
//! array as they are, so that only the header has to be parsed: three fields of a Python dictionary.
//! Source: NumPy Enhancement Proposal 1, and the documentation of `numpy.lib.format`.

use packhorse_cluster::{Datatype, Shape, ShapeError};
use packhorse_protocol::{Tensor, TensorError};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read, in bytes; NumPy's own limit is 10,000.
const HEADER_LIMIT: usize = 1 << 16;
/// The offset of the data in a written file is a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// The reason why a file cannot be read as a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadNpyError {
    /// The file does not begin like one.
    #[error("not an .npy file")]
    Magic,
    /// A later version of the format.
    #[error("version {0} of the .npy format is not supported")]
    Version(u8),
    /// The header does not end within the file or the limit.
    #[error("the header is incomplete or over the limit of {HEADER_LIMIT} bytes")]
    HeaderLength,
    /// The header, from where it cannot be read.
    #[error("the header is not in NumPy's form, at {0:?}")]
    Header(String),
    /// A type that the protocol does not have.
    #[error("the Open Inference Protocol has no datatype for {0:?}")]
    Type(String),
    /// The bytes of elements are in the other order.
    #[error("the array is big-endian: save a.astype(a.dtype.newbyteorder('<'))")]
    BigEndian,
    /// The elements are in the other order.
    #[error("the array is column-major: save numpy.ascontiguousarray(a)")]
    ColumnMajor,
    /// The shape is none of the protocol's.
    #[error("shape: {0}")]
    Shape(#[from] ShapeError),
    /// Shape and data disagree.
    #[error("the array has {bytes} bytes of data for {elements} elements of {width} bytes")]
    Size {
        /// The bytes of data.
        bytes: usize,
        /// The elements of the shape.
        elements: u64,
        /// The bytes of an element.
        width: usize,
    },
    /// A code that is no character.
    #[error("the array has text that is not valid Unicode")]
    Text,
    /// The tensor is none of the protocol's.
    #[error("{0}")]
    Tensor(#[from] TensorError),
}

/// The reason why a tensor cannot be saved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteNpyError {
    /// A text that NumPy would shorten.
    #[error("element {0} ends with a zero byte, which NumPy's byte strings cannot represent")]
    TrailingZero(usize),
    /// A text over the limit.
    #[error("padded to the longest, the byte strings have {0} bytes, over the limit of 4 GiB")]
    TooLong(u64),
}

/// Reads an array into a tensor with this name.
pub fn read(name: &str, file: &[u8]) -> Result<Tensor, ReadNpyError> {
    let (header, data) = split(file)?;
    let header = Header::parse(header)?;
    if header.column_major && header.shape.len() > 1 {
        return Err(ReadNpyError::ColumnMajor);
    }
    let shape = Shape::new(&header.shape)?;
    let tensor = match Elements::from_descr(&header.descr)? {
        Elements::Packed(datatype) => {
            Tensor::new(name.to_owned(), datatype, shape, data.to_vec().into())?
        }
        Elements::ByteStrings(width) => {
            let strings: Vec<_> = cells(data, width, &shape)?.map(trimmed).collect();
            Tensor::from_byte_strings(name, shape, &strings)?
        }
        Elements::Text(chars) => {
            let texts = cells(data, chars.saturating_mul(4), &shape)?.map(utf32);
            let texts = texts
                .collect::<Option<Vec<_>>>()
                .ok_or(ReadNpyError::Text)?;
            Tensor::from_byte_strings(name, shape, &texts)?
        }
    };
    Ok(tensor)
}

/// Writes a tensor as an array. `BF16` becomes `V2`, like in files of the package `ml_dtypes`.
pub fn write(tensor: &Tensor) -> Result<Vec<u8>, WriteNpyError> {
    let (descr, data) = match tensor.byte_strings() {
        None => (
            descr(tensor.datatype()).to_owned(),
            tensor.data().to_bytes().to_vec(),
        ),
        Some(strings) => {
            let width = strings.iter().map(bytes_len).max().unwrap_or(0).max(1);
            let all = (width as u64).saturating_mul(strings.len() as u64);
            if all > u64::from(u32::MAX) {
                return Err(WriteNpyError::TooLong(all));
            }
            let mut data = vec![0; width * strings.len()];
            for (i, (cell, string)) in data.chunks_exact_mut(width).zip(&strings).enumerate() {
                if string.last() == Some(&0) {
                    return Err(WriteNpyError::TrailingZero(i));
                }
                cell[..string.len()].copy_from_slice(string);
            }
            (format!("|S{width}"), data)
        }
    };
    let dims: Vec<String> = tensor.shape().dims().iter().map(u64::to_string).collect();
    // In Python the comma distinguishes a tuple of one element from a number in parentheses.
    let comma = if dims.len() == 1 { "," } else { "" };
    let dims = dims.join(", ");
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}{comma}), }}");
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(ALIGNMENT) - unpadded));
    header.push('\n');
    let length = u16::try_from(header.len()).expect("the header of 16 dimensions is short");
    Ok([
        MAGIC,
        &[1, 0],
        &length.to_le_bytes(),
        header.as_bytes(),
        &data,
    ]
    .concat())
}

fn bytes_len(bytes: impl AsRef<[u8]>) -> usize {
    bytes.as_ref().len()
}

fn descr(datatype: Datatype) -> &'static str {
    match datatype {
        Datatype::Bool => "|b1",
        Datatype::Uint8 => "|u1",
        Datatype::Int8 => "|i1",
        Datatype::Uint16 => "<u2",
        Datatype::Uint32 => "<u4",
        Datatype::Uint64 => "<u8",
        Datatype::Int16 => "<i2",
        Datatype::Int32 => "<i4",
        Datatype::Int64 => "<i8",
        Datatype::Fp16 => "<f2",
        Datatype::Bf16 => "<V2",
        Datatype::Fp32 => "<f4",
        Datatype::Fp64 => "<f8",
        Datatype::Bytes => "|S1",
    }
}

/// The encoding of the elements in the file.
enum Elements {
    /// The same bytes as in a tensor.
    Packed(Datatype),
    /// Byte strings, padded with zeros to this many bytes.
    ByteStrings(usize),
    /// Strings of this many characters of four bytes, padded with zeros.
    Text(usize),
}

impl Elements {
    fn from_descr(descr: &str) -> Result<Self, ReadNpyError> {
        let unknown = || ReadNpyError::Type(descr.chars().take(64).collect());
        let bare = descr.trim_start_matches(['<', '>', '|', '=']);
        let length = || {
            bare.get(1..)
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(unknown)
        };
        let elements = match bare.as_bytes().first() {
            Some(b'S') => Self::ByteStrings(length()?),
            Some(b'U') => Self::Text(length()?),
            _ => {
                let same = |datatype: &Datatype| {
                    *datatype != Datatype::Bytes && self::descr(*datatype).get(1..) == Some(bare)
                };
                Self::Packed(Datatype::ALL.into_iter().find(same).ok_or_else(unknown)?)
            }
        };
        let one_byte = matches!(elements, Self::ByteStrings(_))
            || bare.ends_with('1') && !matches!(elements, Self::Text(_));
        if descr.starts_with('>') && !one_byte {
            Err(ReadNpyError::BigEndian)
        } else {
            Ok(elements)
        }
    }
}

/// Returns the cells of an array, each of `width` bytes.
fn cells<'a>(
    data: &'a [u8],
    width: usize,
    shape: &Shape,
) -> Result<impl Iterator<Item = &'a [u8]>, ReadNpyError> {
    let expected = shape.elements().saturating_mul(width as u64);
    if width == 0 || expected != data.len() as u64 {
        return Err(ReadNpyError::Size {
            bytes: data.len(),
            elements: shape.elements(),
            width,
        });
    }
    Ok(data.chunks_exact(width))
}

/// Returns a cell without its padding.
fn trimmed(cell: &[u8]) -> &[u8] {
    let end = cell
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    &cell[..end]
}

/// Returns the text of a cell without its padding, or `None` if it is not valid Unicode.
fn utf32(cell: &[u8]) -> Option<String> {
    let scalars = cell
        .chunks(4)
        .map(|scalar| Some(u32::from_le_bytes(scalar.try_into().ok()?)));
    let mut text = scalars
        .map(|scalar| char::from_u32(scalar?))
        .collect::<Option<String>>()?;
    text.truncate(text.trim_end_matches('\0').len());
    Some(text)
}

/// Splits a file into the header's text and the data.
fn split(file: &[u8]) -> Result<(&str, &[u8]), ReadNpyError> {
    let rest = file.strip_prefix(MAGIC).ok_or(ReadNpyError::Magic)?;
    let (version, rest) = rest
        .split_first_chunk::<2>()
        .ok_or(ReadNpyError::HeaderLength)?;
    let (length, rest) = match version[0] {
        1 => rest
            .split_first_chunk()
            .map(|(length, rest)| (usize::from(u16::from_le_bytes(*length)), rest)),
        2 | 3 => rest
            .split_first_chunk()
            .map(|(length, rest)| (u32::from_le_bytes(*length) as usize, rest)),
        other => return Err(ReadNpyError::Version(other)),
    }
    .ok_or(ReadNpyError::HeaderLength)?;
    if length > HEADER_LIMIT || length > rest.len() {
        return Err(ReadNpyError::HeaderLength);
    }
    let (header, data) = rest.split_at(length);
    let header = std::str::from_utf8(header)
        .map_err(|_| ReadNpyError::Header("bytes that are not UTF-8".to_owned()))?;
    Ok((header, data))
}

/// The fields of a header.
#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    column_major: bool,
    shape: Vec<i64>,
}

impl Header {
    fn parse(text: &str) -> Result<Self, ReadNpyError> {
        let mut rest = text;
        let header = Self::dictionary(&mut rest).filter(|_| rest.trim().is_empty());
        header.ok_or_else(|| ReadNpyError::Header(rest.trim_start().chars().take(40).collect()))
    }

    fn dictionary(rest: &mut &str) -> Option<Self> {
        let (mut descr, mut column_major, mut shape) = (None, None, None);
        eat(rest, "{")?;
        while eat(rest, "}").is_none() {
            let key = quoted(rest)?;
            eat(rest, ":")?;
            match key {
                "descr" => descr = Some(quoted(rest)?.to_owned()),
                "fortran_order" => {
                    let yes = eat(rest, "True").is_some();
                    column_major = Some(yes);
                    if !yes {
                        eat(rest, "False")?;
                    }
                }
                "shape" => shape = Some(tuple(rest)?),
                _ => return None,
            }
            if eat(rest, ",").is_none() && !rest.trim_start().starts_with('}') {
                return None;
            }
        }
        Some(Self {
            descr: descr?,
            column_major: column_major?,
            shape: shape?,
        })
    }
}

/// Removes a token and the blanks before it from the front of `rest`.
fn eat(rest: &mut &str, token: &str) -> Option<()> {
    *rest = rest.trim_start().strip_prefix(token)?;
    Some(())
}

fn quoted<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let text = rest.trim_start();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, after) = text[1..].split_once(quote)?;
    *rest = after;
    Some(inside)
}

fn tuple(rest: &mut &str) -> Option<Vec<i64>> {
    eat(rest, "(")?;
    let (inside, after) = rest.split_once(')')?;
    let dims = inside.trim().trim_end_matches(',');
    let dims = if dims.is_empty() {
        Vec::new()
    } else {
        // Python 2 wrote long integers with an L.
        dims.split(',')
            .map(|dim| dim.trim().trim_end_matches('L').parse().ok())
            .collect::<Option<_>>()?
    };
    *rest = after;
    Some(dims)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
        [
            MAGIC,
            b"\x01\x00",
            &(header.len() as u16).to_le_bytes(),
            header.as_bytes(),
            data,
        ]
        .concat()
    }

    fn error(descr: &str, order: &str, shape: &str, data: &[u8]) -> String {
        read("x", &file(descr, order, shape, data))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_file_as_numpy_writes_it_is_read_and_written_alike() {
        // numpy.save(f, numpy.array([[1, 2, 3]], dtype=numpy.float32)), NumPy 2.
        let mut numpy =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }"
                .to_vec();
        numpy.resize(127, b' ');
        numpy.push(b'\n');
        for value in [1_f32, 2.0, 3.0] {
            numpy.extend_from_slice(&value.to_le_bytes());
        }
        let tensor = read("x", &numpy).unwrap();
        assert_eq!(tensor.values::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(tensor.shape().dims(), [1, 3]);
        let written = write(&tensor).unwrap();
        assert_eq!(read("x", &written).unwrap(), tensor);
        let data = written.len() - 12;
        assert_eq!((data % ALIGNMENT, written[data - 1]), (0, b'\n'));
    }

    #[test]
    fn scalars_vectors_and_text_are_read() {
        let scalar = read("x", &file("'<i8'", "False", "()", &7_i64.to_le_bytes())).unwrap();
        assert_eq!(
            (scalar.shape().rank(), scalar.values::<i64>().unwrap()),
            (0, vec![7])
        );
        // NumPy writes vectors as column-major too.
        let vector = read("x", &file("'|b1'", "True", "(2,)", &[1, 0])).unwrap();
        assert_eq!(vector.values::<bool>().unwrap(), [true, false]);
        let bytes = read("x", &file("'|S3'", "False", "(2,)", b"ab\0\0\0\0")).unwrap();
        assert_eq!(bytes.byte_strings().unwrap(), ["ab", ""]);
        let text = read("x", &file("'<U2'", "False", "(1,)", b"\xe4\0\0\0\0\0\0\0")).unwrap();
        assert_eq!(text.byte_strings().unwrap(), ["ä"]);
    }

    #[test]
    fn unsupported_arrays_are_refused_with_a_remedy() {
        assert_eq!(read("x", b"PK\x03\x04"), Err(ReadNpyError::Magic));
        assert_eq!(
            read("x", b"\x93NUMPY\x09\x00\0\0"),
            Err(ReadNpyError::Version(9))
        );
        assert_eq!(
            read("x", b"\x93NUMPY\x01\x00\xff\xff{}"),
            Err(ReadNpyError::HeaderLength)
        );
        assert!(error("'>f4'", "False", "(1,)", &[0; 4]).contains("big-endian"));
        assert!(error("'<f4'", "True", "(1, 1)", &[0; 4]).contains("ascontiguousarray"));
        assert!(error("'|O'", "False", "(1,)", &[0; 8]).contains("|O"));
        assert!(error("'<c8'", "False", "(1,)", &[0; 8]).contains("<c8"));
        assert!(error("[('a', '<f4')]", "False", "(1,)", &[0; 4]).contains("header"));
        assert!(error("'<f4'", "False", "(2,)", &[0; 4]).contains("requires 8"));
        assert!(error("'|S2'", "False", "(2,)", b"abc").contains("3 bytes"));
        assert!(error("'|S0'", "False", "(2,)", b"").contains("0 bytes"));
        assert!(error("'<f4'", "False", "(-1,)", &[0; 4]).contains("-1"));
        assert!(error("'<f4'", "False", "(9999999999, 9999999999)", &[]).contains("limit"));
    }

    fn any_tensor() -> impl Strategy<Value = Tensor> {
        let dims = proptest::collection::vec(0_i64..5, 0..4);
        let datatype = proptest::sample::select(Datatype::ALL.to_vec());
        (dims, datatype, any::<u64>()).prop_map(|(dims, datatype, seed)| {
            let shape = Shape::new(&dims).unwrap();
            let noise = (0_u64..).map(|i| (seed.wrapping_mul(i + 1) >> 7) as u8);
            let count = shape.elements() as usize;
            let Some(width) = datatype.width() else {
                let strings: Vec<Vec<u8>> = (0..count)
                    .map(|i| vec![b'a' + (i % 26) as u8; i % 7])
                    .collect();
                return Tensor::from_byte_strings("x", shape, &strings).unwrap();
            };
            let keep = if datatype == Datatype::Bool { 1 } else { 0xff };
            let data: Vec<u8> = noise.take(count * width).map(|byte| byte & keep).collect();
            Tensor::new("x".to_owned(), datatype, shape, data.into()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn every_tensor_comes_back(tensor in any_tensor()) {
            prop_assert_eq!(read("x", &write(&tensor).unwrap()).unwrap(), tensor);
        }

        #[test]
        fn no_bytes_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), header in "\\{?'?[a-z':, ()0-9-]{0,60}\\}?") {
            let _ = read("x", &[MAGIC, b"\x01\x00", &tail].concat());
            let length = (header.len() as u16).to_le_bytes();
            let _ = read("x", &[MAGIC, b"\x01\x00", &length, header.as_bytes(), &tail].concat());
        }
    }
}
