//! Pickles, read as data: an object is the name of its class and its arguments, and none is made.
//!
//! Values refer to others by number, so that a pickle which repeats a part of itself a million times takes no more memory than its bytes do.

use std::collections::BTreeMap;

/// The largest pickle that is read, in bytes: the inputs of a trace have some hundred.
pub(crate) const MAX_BYTES: u64 = 4 << 20;
/// The most values of a pickle.
const MAX_VALUES: usize = 1 << 18;

/// The number of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(usize);

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `None`, or what is not looked at.
    None,
    Bool(bool),
    Integer(i64),
    Text(String),
    /// A list or a tuple.
    List(Vec<Id>),
    /// Keys and values in their order.
    Dict(Vec<(Id, Id)>),
    /// A class or function, as `module name`.
    Global(String),
    /// A call of a class or function with its arguments.
    Call(Id, Id),
    /// What is stored apart, by its description.
    Persistent(Id),
}

/// A pickle that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PickleError {
    #[error("the pickle ends too early")]
    Truncated,
    #[error("the pickle has an operation {0:#04x} that PyTorch does not write")]
    Operation(u8),
    #[error("the pickle contradicts itself")]
    Broken,
    #[error("the pickle has more than {MAX_VALUES} values")]
    Values,
}

/// The values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    /// Reads a pickle.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, PickleError> {
        let mut reader = Reader {
            rest: bytes,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
        };
        while !reader.step()? {}
        let root = reader.pop()?;
        Ok(Self {
            values: reader.values,
            root,
        })
    }

    /// Returns the outermost value.
    pub(crate) fn root(&self) -> &Value {
        self.value(self.root)
    }

    /// Returns a value.
    pub(crate) fn value(&self, id: Id) -> &Value {
        &self.values[id.0]
    }

    /// Returns the arguments of a call of this class or function.
    pub(crate) fn call_of(&self, value: &Value, global: &str) -> Option<&[Id]> {
        let Value::Call(function, arguments) = value else {
            return None;
        };
        match (self.value(*function), self.value(*arguments)) {
            (Value::Global(name), Value::List(arguments)) if name == global => Some(arguments),
            _ => None,
        }
    }

    /// Returns the elements of a list or tuple.
    pub(crate) fn list(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Value::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns an integer.
    pub(crate) fn integer(&self, id: Id) -> Option<i64> {
        match self.value(id) {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
}

impl<'a> Reader<'a> {
    /// Carries out an operation. Returns true at the end.
    fn step(&mut self) -> Result<bool, PickleError> {
        match self.byte()? {
            // PROTO
            0x80 => drop(self.byte()?),
            // STOP
            b'.' => return Ok(true),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            // BININT, BININT1, BININT2, LONG1, BINFLOAT
            b'J' => {
                let number = self.array().map(i32::from_le_bytes)?;
                self.push(Value::Integer(number.into()))?;
            }
            b'K' => {
                let number = self.byte()?;
                self.push(Value::Integer(number.into()))?;
            }
            b'M' => {
                let number = self.array().map(u16::from_le_bytes)?;
                self.push(Value::Integer(number.into()))?;
            }
            0x8a => self.long()?,
            b'G' => {
                self.take(8)?;
                self.push(Value::None)?;
            }
            // BINUNICODE
            b'X' => {
                let length = self.array().map(u32::from_le_bytes)?;
                let text = self.take(length as usize)?;
                self.push(Value::Text(String::from_utf8_lossy(text).into_owned()))?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Global(format!("{module} {name}")))?;
            }
            b'q' => {
                let key = self.byte()?;
                self.remember(key.into())?;
            }
            b'r' => {
                let key = self.array().map(u32::from_le_bytes)?;
                self.remember(key)?;
            }
            b'h' => {
                let key = self.byte()?;
                self.recall(key.into())?;
            }
            b'j' => {
                let key = self.array().map(u32::from_le_bytes)?;
                self.recall(key)?;
            }
            operation => self.step_of_containers(operation)?,
        }
        Ok(false)
    }

    fn step_of_containers(&mut self, operation: u8) -> Result<(), PickleError> {
        match operation {
            b')' | b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            b't' | b'l' => {
                let elements = self.since_mark()?;
                self.push(Value::List(elements))
            }
            0x85..=0x87 => {
                let count = usize::from(operation - 0x84);
                let begin = self.stack.len().checked_sub(count);
                let begin = begin.ok_or(PickleError::Broken)?;
                let elements = self.stack.split_off(begin);
                self.push(Value::List(elements))
            }
            // APPEND, APPENDS
            b'a' | b'e' => {
                let elements = match operation {
                    b'a' => vec![self.pop()?],
                    _ => self.since_mark()?,
                };
                match self.top()? {
                    Value::List(list) => list.extend(elements),
                    _ => return Err(PickleError::Broken),
                }
                Ok(())
            }
            // SETITEM, SETITEMS
            b's' | b'u' => {
                let items = match operation {
                    b's' => {
                        let value = self.pop()?;
                        vec![self.pop()?, value]
                    }
                    _ => self.since_mark()?,
                };
                let (pairs, odd) = items.as_chunks();
                match self.top()? {
                    Value::Dict(dict) if odd.is_empty() => {
                        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                    }
                    _ => return Err(PickleError::Broken),
                }
                Ok(())
            }
            // REDUCE, NEWOBJ
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                let function = self.pop()?;
                self.push(Value::Call(function, arguments))
            }
            // BUILD: the state of an object is not looked at.
            b'b' => self.pop().map(drop),
            // BINPERSID
            b'Q' => {
                let description = self.pop()?;
                self.push(Value::Persistent(description))
            }
            other => Err(PickleError::Operation(other)),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= MAX_VALUES {
            return Err(PickleError::Values);
        }
        self.stack.push(Id(self.values.len()));
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        self.stack.pop().ok_or(PickleError::Broken)
    }

    fn top(&mut self) -> Result<&mut Value, PickleError> {
        let id = self.stack.last().ok_or(PickleError::Broken)?;
        Ok(&mut self.values[id.0])
    }

    fn since_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or(PickleError::Broken)?))
    }

    fn remember(&mut self, key: u32) -> Result<(), PickleError> {
        let id = *self.stack.last().ok_or(PickleError::Broken)?;
        self.memo.insert(key, id);
        Ok(())
    }

    /// Puts a value on the stack again. The stack cannot outgrow the pickle's bytes.
    fn recall(&mut self, key: u32) -> Result<(), PickleError> {
        let id = *self.memo.get(&key).ok_or(PickleError::Broken)?;
        self.stack.push(id);
        Ok(())
    }

    fn long(&mut self) -> Result<(), PickleError> {
        let length = usize::from(self.byte()?);
        let bytes = self.take(length)?;
        let value = if length > 8 {
            Value::None
        } else {
            let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
            let mut all = [if negative { 0xff } else { 0 }; 8];
            all[..length].copy_from_slice(bytes);
            Value::Integer(i64::from_le_bytes(all))
        };
        self.push(value)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let (array, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(PickleError::Truncated)?;
        self.rest = rest;
        Ok(*array)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let (bytes, rest) = { self.rest.split_at_checked(length) }.ok_or(PickleError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn line(&mut self) -> Result<String, PickleError> {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let line = self.take(end.ok_or(PickleError::Truncated)?)?;
        let line = String::from_utf8_lossy(line).into_owned();
        self.byte()?;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_dicts_calls_and_what_is_remembered_are_values() {
        let bytes = b"\x80\x02ctorch f\ng\nq\x00(K\x01M\x00\x01h\x00tR.";
        let pickle = Pickle::read(bytes).unwrap();
        let arguments = pickle.call_of(pickle.root(), "torch f g").unwrap();
        let numbers: Vec<_> = arguments.iter().map(|id| pickle.integer(*id)).collect();
        assert_eq!(numbers, [Some(1), Some(256), None]);
        let pickle = Pickle::read(b"\x80\x02}(X\x01\x00\x00\x00aJ\xff\xff\xff\xffu.").unwrap();
        let Value::Dict(items) = pickle.root() else {
            panic!("{pickle:?}")
        };
        assert_eq!(pickle.value(items[0].0), &Value::Text("a".to_owned()));
        assert_eq!(pickle.integer(items[0].1), Some(-1));
    }

    #[test]
    fn a_pickle_that_repeats_itself_takes_no_more_memory_than_its_bytes() {
        // Each list contains the one before it twice: 2^200 elements, if they were copied.
        let mut bytes = b"]q\x00".to_vec();
        for _ in 0..200 {
            bytes.extend(b"h\x00h\x00\x86q\x00");
        }
        bytes.push(b'.');
        let pickle = Pickle::read(&bytes).unwrap();
        assert_eq!(pickle.values.len(), 201);
    }

    #[test]
    fn what_is_no_pickle_is_refused_with_the_reason() {
        for (bytes, error) in [
            (&b""[..], PickleError::Truncated),
            (b"X\xff\xff\xff\x7fa", PickleError::Truncated),
            (b".", PickleError::Broken),
            (b"e", PickleError::Broken),
            (b"h\x07.", PickleError::Broken),
            (b"N(Nu.", PickleError::Broken),
            (b"i", PickleError::Operation(b'i')),
        ] {
            assert_eq!(Pickle::read(bytes).map(drop), Err(error), "{bytes:?}");
        }
        let many = vec![b'N'; MAX_VALUES + 2];
        assert_eq!(Pickle::read(&many).map(drop), Err(PickleError::Values));
    }

    #[test]
    fn a_mark_above_what_is_left_of_the_stack_is_refused() {
        // The mark is made above two values, of which one is taken before it is looked for.
        assert_eq!(
            Pickle::read(b"NN(b0").map(drop),
            Err(PickleError::Operation(b'0'))
        );
        assert_eq!(Pickle::read(b"NN(bt.").map(drop), Err(PickleError::Broken));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Pickle::read(&bytes);
        }

        #[test]
        fn any_operations_are_read_or_refused(
            bytes in prop::collection::vec(prop::sample::select(&b"(N)]}tlaesubRQ.K\x01\x85\x86\x87\x88q\x00h"[..]), 0..400)
        ) {
            let _ = Pickle::read(&bytes);
        }
    }
}
