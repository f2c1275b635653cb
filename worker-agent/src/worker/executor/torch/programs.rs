//! The programs of a model's file. TorchScript is one. A package has one for any number of rows, named `model`; or some that were compiled
//! for a fixed number of rows each, named `rows-1`, `rows-8` and so on; or both. A batch goes to the program of exactly its rows; else to the
//! one for any; else to the smallest that takes it, with its first row again in the place of those that lack.

use std::collections::BTreeMap;

/// What the program of a package for any number of rows is called.
const ANY_ROWS: &str = "model";
const FIXED_ROWS: &str = "rows-";

/// Programs, or the names of them, by the rows that they take.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Programs<T> {
    variable: Option<T>,
    fixed: BTreeMap<u64, T>,
    /// PyTorch compiles programs with a variable dimension for sizes from 2: what it knows of 0 and 1 is only that they are special. So a
    /// batch of one row is computed as two.
    doubles_single: bool,
}

impl<T> Programs<T> {
    /// One for whatever it is given.
    pub(super) fn of(program: T) -> Self {
        Self {
            variable: Some(program),
            fixed: BTreeMap::new(),
            doubles_single: false,
        }
    }

    /// How many rows the program gets that runs a batch of so many.
    pub(super) fn rows_given(&self, rows: u64) -> u64 {
        if self.fixed.contains_key(&rows) {
            return rows;
        }
        if self.variable.is_some() {
            return if self.doubles_single {
                rows.max(2)
            } else {
                rows
            };
        }
        let larger = self.fixed.range(rows..).next();
        larger.map_or(rows, |(taken, _)| *taken)
    }

    /// The program for so many rows, as [`Programs::rows_given`] gave them; `None` if they are more than any takes.
    pub(super) fn for_rows(&self, rows: u64) -> Option<&T> {
        self.fixed.get(&rows).or(self.variable.as_ref())
    }

    /// The most rows that it takes; `None` if there is no limit.
    pub(super) fn most_rows(&self) -> Option<u64> {
        if self.variable.is_some() {
            return None;
        }
        Some(self.fixed.keys().next_back().copied().unwrap_or(0))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.variable.iter().chain(self.fixed.values())
    }

    /// The same with something else in the place of each.
    pub(super) fn try_map<U, E>(
        self,
        mut f: impl FnMut(T) -> Result<U, E>,
    ) -> Result<Programs<U>, E> {
        let fixed = self.fixed.into_iter();
        Ok(Programs {
            variable: self.variable.map(&mut f).transpose()?,
            fixed: fixed
                .map(|(rows, of)| Ok((rows, f(of)?)))
                .collect::<Result<_, E>>()?,
            doubles_single: self.doubles_single,
        })
    }
}

impl Programs<String> {
    /// Those of a package with these names in it, for a model whose batches have at most so many rows; 0 is one without batches.
    pub(super) fn named(names: impl IntoIterator<Item = String>, max_batch_size: u32) -> Self {
        let mut programs = Self {
            doubles_single: max_batch_size > 1,
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

    fn named(names: &[&str], max_batch_size: u32) -> Programs<String> {
        Programs::named(names.iter().map(ToString::to_string), max_batch_size)
    }

    #[test]
    fn a_batch_goes_to_the_program_of_its_rows_then_to_any_then_to_a_larger_one() {
        for (names, rows, given, program) in [
            (&["model"][..], 3, 3, "model"),
            (&["model"], 1, 2, "model"),
            (&["rows-1", "rows-4", "model"], 1, 1, "rows-1"),
            (&["rows-1", "rows-4", "model"], 2, 2, "model"),
            (&["rows-1", "rows-4"], 2, 4, "rows-4"),
            (&["rows-2", "model"], 1, 2, "rows-2"),
        ] {
            let programs = named(names, 8);
            assert_eq!(programs.rows_given(rows), given, "{names:?} {rows}");
            let found = programs.for_rows(given).map(String::as_str);
            assert_eq!(found, Some(program), "{names:?} {rows}");
        }
    }

    #[test]
    fn without_a_program_for_any_number_there_is_a_limit() {
        assert_eq!(named(&["rows-1", "rows-16"], 32).most_rows(), Some(16));
        assert_eq!(named(&["rows-1", "model"], 32).most_rows(), None);
        assert_eq!(
            named(&["other", "rows-0", "rows-x"], 32).most_rows(),
            Some(0)
        );
        let programs = named(&["rows-4"], 8);
        assert_eq!(programs.for_rows(programs.rows_given(5)), None);
    }

    #[test]
    fn a_model_without_batches_has_one_program_and_its_first_dimension_is_no_batch() {
        let programs = named(&["rows-1", "model"], 0);
        assert_eq!(programs.rows_given(1), 1);
        assert_eq!(programs.for_rows(1).map(String::as_str), Some("model"));
        assert_eq!(Programs::of("script").rows_given(1), 1);
    }
}
