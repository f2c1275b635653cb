//! Texts as inputs: from UTF-8 to the tokens of the model, and from tokens to its tensors.

use axum::http::StatusCode;
use packhorse_cluster::{Dim, Program, Shape, TensorSpec, TextPreprocess, TokenTensor};
use packhorse_preprocess::{Cut, TextError, Tokenizer, Tokens};
use packhorse_protocol::Tensor;

use super::{
    error::InferenceError,
    raw_rows::{bad, check_rows, too_late},
};
use crate::{driver::ServedModel, memory::Reservation};

/// The way from texts to the inputs of a model.
pub(in crate::api) struct TextInput<'a> {
    /// The name of the input that is a text.
    name: &'a str,
    declared: &'a TextPreprocess,
    program: &'a Program,
    tokenizer: &'a Tokenizer,
}

impl<'a> TextInput<'a> {
    /// Returns the way that a model declares. Its tokenizer is read, which blocks, unless it was before.
    pub(in crate::api) fn of(model: &'a ServedModel) -> Result<Self, InferenceError> {
        let (Some((name, declared)), Some(tokenizer)) =
            (model.spec.processing.text(), &model.tokenizer)
        else {
            let message = "the model does not declare how a text becomes its inputs (preprocess)";
            return Err(InferenceError::bad_request(message));
        };
        let unreadable = |e: crate::tokenizers::ReadTokenizerError| {
            InferenceError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())
        };
        Ok(Self {
            name,
            declared,
            program: &model.spec.program,
            tokenizer: tokenizer.tokenizer().map_err(unreadable)?,
        })
    }

    /// Returns the tokens of a text. A longer one than the model takes is cut or refused, as the registration says unless the request does.
    pub(in crate::api) fn tokens(
        &self,
        text: &[u8],
        truncate: Option<bool>,
    ) -> Result<Tokens, TextError> {
        let limit = self.declared.max_length as usize;
        let truncate = truncate.unwrap_or(self.declared.truncate);
        self.tokenizer.tokens(text, limit, truncate)
    }

    /// Cuts a text that is compared with others.
    pub(in crate::api) fn cut(&self, text: &[u8]) -> Result<Cut, TextError> {
        self.tokenizer.cut(text)
    }

    /// Returns the tokens of two texts that the model compares.
    pub(in crate::api) fn pair_tokens(
        &self,
        first: &Cut,
        second: &[u8],
        truncate: Option<bool>,
    ) -> Result<Tokens, TextError> {
        let second = self.tokenizer.cut(second)?;
        let limit = self.declared.max_length as usize;
        let truncate = truncate.unwrap_or(self.declared.truncate);
        self.tokenizer.pair_tokens(first, &second, limit, truncate)
    }

    /// Returns the bytes that cutting texts into tokens takes, one after the other, beside the tokens.
    pub(in crate::api) fn work(texts: impl Iterator<Item = usize>) -> u64 {
        let longest = texts.max().unwrap_or_default();
        longest.min(Tokenizer::MAX_TEXT_BYTES) as u64 * Tokenizer::WORK
    }

    /// Returns the bytes of the tensors of so many rows.
    pub(in crate::api) fn bytes(&self, rows: u64, longest: usize) -> u64 {
        let of_input = |(spec, _): (&TensorSpec, TokenTensor)| {
            let width = spec.datatype.width().unwrap_or_default() as u64;
            rows * Self::width(spec, longest) as u64 * width
        };
        self.inputs().map(of_input).sum()
    }

    /// Makes the tensors of rows of tokens, filled up to the longest of them.
    pub(in crate::api) fn tensors(&self, rows: &[&Tokens]) -> Result<Vec<Tensor>, InferenceError> {
        let longest = rows.iter().map(|tokens| tokens.len()).max();
        let longest = longest.unwrap_or_default();
        let tensor = |(spec, of): (&TensorSpec, TokenTensor)| {
            let width = Self::width(spec, longest);
            let pad = match (&spec.pad, of) {
                (Some(padding), _) => padding.value,
                (None, TokenTensor::Ids) => f64::from(self.tokenizer.pad()),
                (None, TokenTensor::Mask | TokenTensor::TypeIds) => 0.0,
            };
            let element = spec.datatype.width().unwrap_or_default();
            let mut data = Vec::with_capacity(rows.len() * width * element);
            for tokens in rows {
                tokens.write_row(of, spec.datatype, width, pad, &mut data);
            }
            let first = (spec.shape.len() > 1).then_some(rows.len());
            let dims = first.into_iter().chain([width]);
            let dims: Vec<i64> = dims.map(|size| (size as u64).cast_signed()).collect();
            let shape = Shape::new(&dims).map_err(|e| bad(self.name, &e))?;
            let made = Tensor::new(spec.name.clone(), spec.datatype, shape, data.into());
            made.map_err(|e| bad(self.name, &e))
        };
        self.inputs().map(tensor).collect()
    }

    /// Returns the inputs that tokens fill.
    fn inputs(&self) -> impl Iterator<Item = (&'a TensorSpec, TokenTensor)> {
        let (program, declared) = (self.program, self.declared);
        let inputs = program.inputs.iter();
        inputs.filter_map(|spec| Some((spec, *declared.inputs.get(&spec.name)?)))
    }

    /// Returns the length of the rows of an input whose longest has so many tokens.
    fn width(spec: &TensorSpec, longest: usize) -> usize {
        let axis = spec.shape.len().saturating_sub(1);
        let fixed = |dim: Option<&Dim>| match dim {
            Some(Dim::Fixed(size)) => Some(*size as usize),
            Some(Dim::Any) | None => None,
        };
        let least = spec.min_shape.as_ref().and_then(|min| fixed(min.get(axis)));
        fixed(spec.shape.get(axis)).unwrap_or_else(|| longest.max(least.unwrap_or_default()))
    }
}

/// Makes the tensors of an input that is texts. What that takes is counted before.
pub(super) fn tensors_of(
    input: &Tensor,
    model: &ServedModel,
    memory: &mut Reservation,
    has_passed: impl Fn() -> bool,
) -> Result<Vec<Tensor>, InferenceError> {
    let way = TextInput::of(model)?;
    let rows = check_rows(input, way.program, "text")?;
    let texts = input.byte_strings().unwrap_or_default();
    memory.grow(TextInput::work(texts.iter().map(bytes::Bytes::len)))?;
    let mut tokens = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        if has_passed() {
            return Err(too_late("text", index));
        }
        let cut = way.tokens(text, None);
        tokens.push(cut.map_err(|error| wrong(way.name, index, &error))?);
    }
    let longest = tokens.iter().map(Tokens::len).max().unwrap_or_default();
    memory.grow(way.bytes(rows, longest))?;
    way.tensors(&tokens.iter().collect::<Vec<_>>())
}

fn wrong(name: &str, index: usize, error: &TextError) -> InferenceError {
    InferenceError::bad_request(format!("input {name:?}, text {index}: {error}"))
}
