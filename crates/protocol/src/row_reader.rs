//! The reading of rows: in one pass, into the bytes of tensors.

use std::{fmt, ops::Range};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use packhorse_cluster::{Datatype, Preprocess, Processing, Program, Shape};

use crate::{
    ByteRope, JsonError, MessageError, Tensor, TensorError, field_path::FieldPath, json::Cursor,
    json_tensor::read_elements, message::field_error, tensor::append_byte_string,
};

/// The most characters of a name that an error quotes.
const SHOWN: usize = 64;

/// The rows of one input.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) datatype: Datatype,
    /// The shape of a row.
    pub(crate) row: Vec<u64>,
    /// True if the rows are texts or pictures, which become tensors.
    pub(crate) is_raw: bool,
    pub(crate) bytes: Bytes,
    /// The end of each row in the bytes.
    pub(crate) ends: Vec<usize>,
}

impl Column {
    /// Returns the tensor of some of the rows.
    pub(crate) fn tensor(&self, rows: Range<usize>, batches: bool) -> Result<Tensor, TensorError> {
        let end = |rows: usize| rows.checked_sub(1).map_or(0, |row| self.ends[row]);
        let data = self.bytes.slice(end(rows.start)..end(rows.end));
        let count = (batches || self.is_raw).then_some(rows.len() as u64);
        let dims = count.into_iter().chain(self.row.iter().copied());
        let dims: Vec<i64> = dims.map(u64::cast_signed).collect();
        let shape = Shape::new(&dims).map_err(TensorError::Shape)?;
        Tensor::new(
            self.name.clone(),
            self.datatype,
            shape,
            ByteRope::from(data),
        )
    }
}

/// A name that rows may have: an input of the model, or a text.
struct Field<'a> {
    name: &'a str,
    /// The datatype of the input and the number of a row's dimensions; none for a text.
    tensor: Option<(Datatype, usize)>,
    raw: Option<&'a Preprocess>,
    column: Option<ReadColumn>,
}

/// The rows of an input so far.
struct ReadColumn {
    datatype: Datatype,
    is_raw: bool,
    /// The lengths of the lists of a row, as far as the first one told them.
    row: Vec<Option<u64>>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// A reader of the rows of a request.
pub(crate) struct Reader<'a> {
    fields: Vec<Field<'a>>,
    /// The number of rows that were read.
    pub(crate) count: usize,
    limit: usize,
}

/// The place of a row's value in a message.
#[derive(Clone, Copy)]
struct Place<'a> {
    list: &'a str,
    row: usize,
    input: Option<&'a str>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.list, self.row)?;
        self.input.map_or(Ok(()), |input| write!(f, ".{input}"))
    }
}

impl Place<'_> {
    fn error(&self, problem: impl fmt::Display) -> MessageError {
        field_error(self.to_string().as_str(), &problem.to_string())
    }
}

impl<'a> Reader<'a> {
    /// Creates a reader of at most `limit` rows.
    pub(crate) fn new(program: &'a Program, processing: &'a Processing, limit: usize) -> Self {
        let inputs = program.inputs.iter().map(|spec| Field {
            name: &spec.name,
            tensor: Some((
                spec.datatype,
                spec.shape.len() - usize::from(program.batches() && !spec.shape.is_empty()),
            )),
            raw: processing.preprocess.get(&spec.name),
            column: None,
        });
        let declared = processing.preprocess.iter();
        let others = declared.filter(|(name, _)| {
            let mut inputs = program.inputs.iter();
            inputs.all(|spec| spec.name != **name)
        });
        let others = others.map(|(name, raw)| Field {
            name,
            tensor: None,
            raw: Some(raw),
            column: None,
        });
        Self {
            fields: inputs.chain(others).collect(),
            count: 0,
            limit,
        }
    }

    /// Reads a list of rows.
    pub(crate) fn rows(&mut self, cursor: &mut Cursor<'_>, list: &str) -> Result<(), MessageError> {
        if cursor.peek() != Some(b'[') {
            return Err(field_error(list, &cursor.expected("a list of rows")));
        }
        cursor.list(|cursor, row| {
            let place = Place {
                list,
                row,
                input: None,
            };
            if row == self.limit {
                return Err(self.too_many(list));
            }
            self.row(cursor, place)?;
            self.count += 1;
            self.check_row(place)
        })?;
        if self.count == 0 {
            return Err(field_error(list, "an empty list"));
        }
        Ok(())
    }

    /// Reads the rows of each input.
    pub(crate) fn columns(
        &mut self,
        cursor: &mut Cursor<'_>,
        batches: bool,
    ) -> Result<(), MessageError> {
        let limit = self.limit;
        cursor.object(|cursor, name| {
            let place = Place {
                list: "inputs",
                row: 0,
                input: Some(name),
            };
            let too_many = self.too_many("inputs");
            let field = self.named(name, place)?;
            let whole = FieldPath::from("inputs");
            let whole = whole.member(name);
            if field.column.is_some() {
                return Err(field_error(whole, "given twice"));
            }
            if !batches && field.tensor.is_some() && cursor.peek() != Some(b'{') {
                return field.value(cursor, place);
            }
            if cursor.peek() != Some(b'[') {
                return Err(field_error(whole, &cursor.expected("a list of rows")));
            }
            cursor.list(|cursor, row| {
                if row == limit {
                    return Err(too_many.clone());
                }
                field.value(cursor, Place { row, ..place })
            })
        })?;
        let mut columns = self.fields.iter();
        let read = |field: &Field<'_>| field.column.as_ref().map(|column| column.ends.len());
        self.count = columns.find_map(read).unwrap_or_default();
        if self.count == 0 {
            return Err(field_error("inputs", "no rows"));
        }
        for field in &self.fields {
            if let Some(rows) = read(field).filter(|rows| *rows != self.count) {
                let problem = format!("{rows} rows, but another input has {}", self.count);
                return Err(field_error(
                    format!("inputs.{}", field.name).as_str(),
                    &problem,
                ));
            }
        }
        Ok(())
    }

    fn too_many(&self, list: &str) -> MessageError {
        field_error(list, &format!("more rows than the limit of {}", self.limit))
    }

    /// Reads a row: the value of the only input that can have it, or an object of values by the inputs' names.
    fn row(&mut self, cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<(), MessageError> {
        if cursor.peek() != Some(b'{') || self.is_b64(*cursor) {
            let is_bytes = cursor.peek() != Some(b'[');
            return self.only(is_bytes, place)?.value(cursor, place);
        }
        cursor.object(|cursor, name| {
            let place = Place {
                input: Some(name),
                ..place
            };
            let field = self.named(name, place)?;
            let before = field.column.as_ref().map_or(0, |column| column.ends.len());
            if before > place.row {
                return Err(place.error("given twice"));
            }
            field.value(cursor, place)
        })
    }

    /// Returns true if an object stands for bytes, and not for inputs by their names.
    fn is_b64(&self, mut cursor: Cursor<'_>) -> bool {
        cursor.eat(b'{')
            && cursor.string().is_ok_and(|key| key == "b64")
            && self.fields.iter().all(|field| field.name != "b64")
    }

    fn named(&mut self, name: &str, place: Place<'_>) -> Result<&mut Field<'a>, MessageError> {
        let known = self.fields.iter().take(8).map(|field| field.name);
        let known = known.collect::<Vec<_>>().join(", ");
        let mut fields = self.fields.iter_mut();
        fields.find(|field| field.name == name).ok_or_else(|| {
            let name: String = name.chars().take(SHOWN).collect();
            let place = Place {
                input: None,
                ..place
            };
            place.error(format!("the model has no input {name:?}, only {known}"))
        })
    }

    /// Returns the only input that a value without a name can be for: bytes and texts are for what takes them, if anything does.
    fn only(&mut self, is_bytes: bool, place: Place<'_>) -> Result<&mut Field<'a>, MessageError> {
        let takes_bytes = |field: &Field<'_>| {
            let datatype = field.tensor.map(|(datatype, _)| datatype);
            field.raw.is_some() || datatype == Some(Datatype::Bytes)
        };
        let any_bytes = is_bytes && self.fields.iter().any(takes_bytes);
        let takes = |field: &Field<'_>| {
            if any_bytes {
                takes_bytes(field)
            } else {
                field.tensor.is_some()
            }
        };
        let names = self.fields.iter().filter(|field| takes(field));
        let names: Vec<&str> = names.map(|field| field.name).take(8).collect();
        if names.len() != 1 {
            let names = names.join(", ");
            let problem =
                format!("expected an object of values by the names of the inputs: {names}");
            return Err(place.error(problem));
        }
        let found = self.fields.iter_mut().find(|field| takes(field));
        found.ok_or_else(|| place.error("the model has no inputs"))
    }

    /// Checks that a row has the inputs of those before it.
    fn check_row(&self, place: Place<'_>) -> Result<(), MessageError> {
        let mut any = false;
        for field in &self.fields {
            let Some(column) = &field.column else {
                continue;
            };
            any = true;
            if column.ends.len() != self.count {
                let input = Some(field.name);
                return Err(Place { input, ..place }.error("in some rows and not in others"));
            }
        }
        if any {
            return Ok(());
        }
        Err(place.error("an object without inputs"))
    }

    /// Returns the rows of each input that has any.
    pub(crate) fn finish(self) -> Vec<Column> {
        let columns = self.fields.into_iter().filter_map(|field| {
            let column = field.column?;
            let row = column.row.iter().map(|length| length.unwrap_or_default());
            Some(Column {
                name: field.name.to_owned(),
                datatype: column.datatype,
                row: row.collect(),
                is_raw: column.is_raw,
                bytes: column.bytes.into(),
                ends: column.ends,
            })
        });
        columns.collect()
    }
}

impl Field<'_> {
    /// Reads the value of a row.
    fn value(&mut self, cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<(), MessageError> {
        let next = cursor.peek();
        let is_bytes = matches!(next, Some(b'"' | b'{'));
        if let (Some(Preprocess::Image(_)), Some(b'"')) = (self.raw, next) {
            return Err(place.error(cursor.expected(r#"a list, or {"b64": "..."}"#)));
        }
        let (datatype, rank, is_raw) = match (self.tensor, self.raw) {
            (_, Some(_)) if is_bytes => (Datatype::Bytes, 0, true),
            (Some((datatype, rank)), _) => (datatype, rank, false),
            (None, _) => return Err(place.error(cursor.expected("a text"))),
        };
        let column = self.column.get_or_insert_with(|| ReadColumn {
            datatype,
            is_raw,
            row: vec![None; rank],
            bytes: Vec::new(),
            ends: Vec::new(),
        });
        if column.is_raw != is_raw {
            return Err(place.error("another kind of value than in the rows before"));
        }
        let before = cursor.remaining();
        column.value(cursor, 0, place)?;
        if column.ends.is_empty() {
            // Rows are about as long as the first; what comes longer has its memory when it is there.
            let text = (before - cursor.remaining()).max(1);
            let more = cursor.remaining() / text * column.bytes.len();
            column.bytes.reserve_exact(more);
        }
        column.ends.push(column.bytes.len());
        Ok(())
    }
}

impl ReadColumn {
    /// Reads the lists of a row from an axis on. Its depth is that which the model declares.
    fn value(
        &mut self,
        cursor: &mut Cursor<'_>,
        axis: usize,
        place: Place<'_>,
    ) -> Result<(), MessageError> {
        if axis == self.row.len() {
            return self.elements(cursor, 1, place).map(drop);
        }
        if !cursor.eat(b'[') {
            let depth = self.row.len();
            let problem = format!(
                "expected lists nested {depth} deep, found {} at depth {axis}",
                cursor.describe_next()
            );
            return Err(place.error(problem));
        }
        let mut length = 0;
        if !cursor.eat(b']') {
            loop {
                length += if axis + 1 == self.row.len() {
                    self.elements(cursor, u64::MAX, place)?
                } else {
                    self.value(cursor, axis + 1, place)?;
                    1
                };
                if cursor.eat(b']') {
                    break;
                }
                if !cursor.eat(b',') {
                    return Err(cursor.expected("\",\" or \"]\"").into());
                }
            }
        }
        match self.row[axis].replace(length) {
            Some(others) if others != length => Err(place.error(format!(
                "a list of length {length} where the lists before it have {others}"
            ))),
            _ => Ok(()),
        }
    }

    /// Reads one or more elements, with the commas between them.
    fn elements(
        &mut self,
        cursor: &mut Cursor<'_>,
        at_most: u64,
        place: Place<'_>,
    ) -> Result<u64, MessageError> {
        if self.datatype == Datatype::Bytes && cursor.peek() == Some(b'{') {
            self.base64(cursor, place)?;
            return Ok(1);
        }
        let read = read_elements(cursor, self.datatype, at_most, &mut self.bytes);
        read.map_err(|error| match error {
            TensorError::Json(error) => error.into(),
            TensorError::Value {
                expected,
                datatype,
                found,
                ..
            } => place.error(format!("expected {expected} for {datatype}, found {found}")),
            TensorError::OutOfRange {
                datatype, found, ..
            } => place.error(format!("{found} is out of the range of {datatype}")),
            error => place.error(error),
        })
    }

    /// Reads `{"b64": "..."}`.
    fn base64(&mut self, cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<(), MessageError> {
        let mut decoded = None;
        cursor.object(|cursor, key| {
            if key != "b64" {
                return Err(place.error(r#"bytes are {"b64": "..."}"#));
            }
            let text = cursor.string().map_err(|e: JsonError| place.error(e))?;
            let bytes = BASE64_STANDARD.decode(text.as_bytes());
            let bytes = bytes.map_err(|e| place.error(format!("b64: {e}")))?;
            match decoded.replace(bytes) {
                None => Ok(()),
                Some(_) => Err(place.error("b64: given twice")),
            }
        })?;
        let decoded = decoded.ok_or_else(|| place.error(r#"bytes are {"b64": "..."}"#))?;
        append_byte_string(&mut self.bytes, &decoded).map_err(|e| place.error(e))
    }
}
