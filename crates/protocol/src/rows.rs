//! Requests of the protocol of TensorFlow Serving and `KServe`, version 1: rows of inputs, which say neither datatypes nor shapes.
//!
//! `{"instances": [...]}` has a value for each row, or an object of values by the inputs' names; `{"inputs": {...}}` has the rows of each input. They are
//! read in one pass into the bytes of tensors. A value is nested as deeply as the model declares, and no deeper; the lengths of its lists are those of
//! the first row. Bytes are `{"b64": "..."}`, and texts are strings.

use std::{ops::Range, time::Duration};

use packhorse_cluster::{Datatype, Processing, Program};

use crate::{
    MessageError, RequestMessage, TensorError,
    json::Cursor,
    message::{field_error, set_once},
    request::Parameters,
    row_reader::{Column, Reader},
    tensor::append_byte_string,
};

/// Rows of inputs, as a request has them.
#[derive(Clone, Debug)]
pub struct Rows {
    columns: Vec<Column>,
    count: usize,
    /// True if each row is one of a batch.
    batches: bool,
    parameters: Parameters,
}

impl Rows {
    /// Reads the rows of a request for a model: at most `limit` of them.
    ///
    /// # Errors
    /// Names the first mistake and its place.
    pub fn parse(
        text: &[u8],
        program: &Program,
        processing: &Processing,
        limit: usize,
    ) -> Result<Self, MessageError> {
        let mut cursor = Cursor::new(text)?;
        let (mut parameters, mut read) = (None, None);
        cursor.object(|cursor, key| match key {
            "parameters" if cursor.eat_word("null") => Ok(()),
            "parameters" => set_once(&mut parameters, key, Parameters::read(cursor)?),
            "instances" | "inputs" => {
                let mut reader = Reader::new(program, processing, limit);
                if key == "inputs" && cursor.peek() == Some(b'{') {
                    reader.columns(cursor, program.batches())?;
                } else {
                    reader.rows(cursor, key)?;
                }
                match read.replace(reader) {
                    None => Ok(()),
                    Some(_) => Err(field_error(key, "given beside other rows")),
                }
            }
            _ => Ok(cursor.skip()?),
        })?;
        cursor.finish()?;
        let reader = read.ok_or_else(|| {
            field_error(
                "instances",
                "missing: expected a list of rows, or \"inputs\"",
            )
        })?;
        Ok(Self {
            count: reader.count,
            columns: reader.finish(),
            batches: program.batches(),
            parameters: parameters.unwrap_or_default(),
        })
    }

    /// Creates the row of a request that is one text or one picture, as it is, for the input of this name.
    pub fn one(name: &str, bytes: &[u8], batches: bool) -> Result<Self, TensorError> {
        let mut data = Vec::with_capacity(4 + bytes.len());
        append_byte_string(&mut data, bytes)?;
        let column = Column {
            name: name.to_owned(),
            datatype: Datatype::Bytes,
            row: Vec::new(),
            is_raw: true,
            ends: vec![data.len()],
            bytes: data.into(),
        };
        Ok(Self {
            columns: vec![column],
            count: 1,
            batches,
            parameters: Parameters::default(),
        })
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the longest time that the client waits; none for the model's latency objective.
    pub fn timeout(&self) -> Option<Duration> {
        self.parameters.timeout
    }

    /// Returns the priority: 0 is the default, otherwise 1 is the most urgent.
    pub fn priority(&self) -> u64 {
        self.parameters.priority
    }

    /// Returns the bytes of all rows.
    pub fn bytes(&self) -> u64 {
        let columns = self.columns.iter();
        columns.map(|column| column.bytes.len() as u64).sum()
    }

    /// Returns true if any input is texts or pictures.
    pub fn has_raw(&self) -> bool {
        self.columns.iter().any(|column| column.is_raw)
    }

    /// Returns the texts or pictures, if the rows have nothing else, with the name of their input.
    pub fn only_raw(&self) -> Option<(&str, impl Iterator<Item = &[u8]>)> {
        let [column] = self.columns.as_slice() else {
            return None;
        };
        let begins = std::iter::once(0).chain(column.ends.iter().copied());
        // The length of an element is before it.
        let rows = begins
            .zip(&column.ends)
            .map(|(begin, end)| column.bytes.get(begin + 4..*end).unwrap_or_default());
        column.is_raw.then_some((column.name.as_str(), rows))
    }

    /// Returns the request for some of the rows.
    ///
    /// # Errors
    /// A shape that no tensor has.
    pub fn message(&self, rows: Range<usize>) -> Result<RequestMessage, TensorError> {
        let tensor = |column: &Column| column.tensor(rows.clone(), self.batches);
        let inputs = self.columns.iter().map(tensor);
        Ok(RequestMessage {
            inputs: inputs.collect::<Result<_, _>>()?,
            timeout: self.parameters.timeout,
            priority: self.parameters.priority,
            non_finite: self.parameters.non_finite,
            ..RequestMessage::default()
        })
    }
}

/// Returns true if a body is a request of the Open Inference Protocol rather than one of rows: its `inputs` are a list of objects with a datatype and a
/// shape.
pub fn is_oip(text: &[u8]) -> bool {
    let Ok(mut cursor) = Cursor::new(text) else {
        return false;
    };
    let mut is_oip = false;
    // What is wrong is found by whoever reads it.
    let _ = cursor.object(|cursor, key| {
        match key {
            // Nothing after them can change it.
            "instances" => return Err(cursor.expected("no rows")),
            "inputs" => {}
            _ => return cursor.skip(),
        }
        cursor.list(|cursor, _| {
            let mut seen = [false; 2];
            cursor.object(|cursor, key| {
                seen[0] |= key == "datatype";
                seen[1] |= key == "shape";
                is_oip |= seen == [true; 2];
                cursor.skip()
            })
        })
    });
    is_oip
}
