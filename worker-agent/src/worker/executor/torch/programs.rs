//! The programs of a model's file, and the choice among them. A TorchScript file has one program. A package has one for any number of rows,
//! named `model`; or several that were compiled for a fixed number of rows each, named `rows-1`, `rows-8` and so on; or both. A batch is
//! computed by the program for exactly its rows; else by the one for any number; else by the smallest that accepts it, with copies of its
//! first row as padding.

use std::collections::BTreeMap;

/// The name of a package's program for any number of rows.
const ANY_ROWS: &str = "model";
/// The prefix of the name of a package's program for a fixed number of rows.
const FIXED_ROWS: &str = "rows-";

/// Programs, or their names, by the number of rows that they accept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Programs<T> {
    variable: Option<T>,
    fixed: BTreeMap<u64, T>,
    /// True if a batch of one row is computed as two by the program for any number. PyTorch compiles programs with a variable dimension for
    /// sizes from 2 on, and treats 0 and 1 specially.
    pads_single_row: bool,
}

impl<T> Programs<T> {
    /// Creates a set with a single program, for any number of rows.
    pub(super) fn from_single(program: T) -> Self {
        Self {
            variable: Some(program),
            fixed: BTreeMap::new(),
            pads_single_row: false,
        }
    }

    /// Returns the number of rows, including padding, that the program for a batch of `rows` rows gets.
    pub(super) fn padded_rows(&self, rows: u64) -> u64 {
        if self.fixed.contains_key(&rows) {
            return rows;
        }
        if self.variable.is_some() {
            return if self.pads_single_row {
                rows.max(2)
            } else {
                rows
            };
        }
        let larger = self.fixed.range(rows..).next();
        larger.map_or(rows, |(accepted, _)| *accepted)
    }

    /// Returns the program for a number of rows from [`Programs::padded_rows`]; `None` if no program accepts as many.
    pub(super) fn for_rows(&self, rows: u64) -> Option<&T> {
        self.fixed.get(&rows).or(self.variable.as_ref())
    }

    /// Returns the most rows that a program accepts; `None` if there is no limit.
    pub(super) fn max_rows(&self) -> Option<u64> {
        if self.variable.is_some() {
            return None;
        }
        Some(self.fixed.keys().next_back().copied().unwrap_or(0))
    }

    /// Returns all programs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.variable.iter().chain(self.fixed.values())
    }

    /// Converts each program.
    pub(super) fn try_map<U, E>(
        self,
        mut convert: impl FnMut(T) -> Result<U, E>,
    ) -> Result<Programs<U>, E> {
        let fixed = self.fixed.into_iter();
        Ok(Programs {
            variable: self.variable.map(&mut convert).transpose()?,
            fixed: fixed
                .map(|(rows, program)| Ok((rows, convert(program)?)))
                .collect::<Result<_, E>>()?,
            pads_single_row: self.pads_single_row,
        })
    }
}

impl Programs<String> {
    /// Creates the set of a package with programs of these names, for a model with this `max_batch_size`, which is 0 for a model without
    /// batches.
    pub(super) fn from_names(names: impl IntoIterator<Item = String>, max_batch_size: u32) -> Self {
        let mut programs = Self {
            pads_single_row: max_batch_size > 1,
            ..Self::default()
        };
        for name in names {
            let rows = name
                .strip_prefix(FIXED_ROWS)
                .and_then(|rows| rows.parse().ok());
            match rows {
                Some(rows) if rows > 0 && max_batch_size > 0 => {
                    programs.fixed.insert(rows, name);
                }
                None if name == ANY_ROWS => programs.variable = Some(name),
                _ => {}
            }
        }
        programs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_names(names: &[&str], max_batch_size: u32) -> Programs<String> {
        Programs::from_names(names.iter().map(ToString::to_string), max_batch_size)
    }

    #[test]
    fn a_batch_goes_to_the_program_of_its_rows_then_to_any_then_to_a_larger_one() {
        for (names, rows, padded, program) in [
            (&["model"][..], 3, 3, "model"),
            (&["model"], 1, 2, "model"),
            (&["rows-1", "rows-4", "model"], 1, 1, "rows-1"),
            (&["rows-1", "rows-4", "model"], 2, 2, "model"),
            (&["rows-1", "rows-4"], 2, 4, "rows-4"),
            (&["rows-2", "model"], 1, 2, "rows-2"),
        ] {
            let programs = from_names(names, 8);
            assert_eq!(programs.padded_rows(rows), padded, "{names:?} {rows}");
            let found = programs.for_rows(padded).map(String::as_str);
            assert_eq!(found, Some(program), "{names:?} {rows}");
        }
    }

    #[test]
    fn without_a_program_for_any_number_there_is_a_limit() {
        assert_eq!(from_names(&["rows-1", "rows-16"], 32).max_rows(), Some(16));
        assert_eq!(from_names(&["rows-1", "model"], 32).max_rows(), None);
        assert_eq!(
            from_names(&["other", "rows-0", "rows-x"], 32).max_rows(),
            Some(0)
        );
        let programs = from_names(&["rows-4"], 8);
        assert_eq!(programs.for_rows(programs.padded_rows(5)), None);
    }

    #[test]
    fn a_model_without_batches_has_one_program_and_its_first_dimension_is_no_batch() {
        let programs = from_names(&["rows-1", "model"], 0);
        assert_eq!(programs.padded_rows(1), 1);
        assert_eq!(programs.for_rows(1).map(String::as_str), Some("model"));
        assert_eq!(Programs::from_single("script").padded_rows(1), 1);
    }
}
