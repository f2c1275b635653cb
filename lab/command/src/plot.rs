//! The file of `--plot`.

use std::{path::PathBuf, str::FromStr};

use packhorse_figures::Figure;
use packhorse_terminal::files::write_file;

/// A file for a figure, whose name ends in `.svg`.
#[derive(Clone, Debug)]
pub(super) struct PlotFile(PathBuf);

/// The error for a file name with another ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a file name that ends in .svg")]
pub(super) struct NotSvg;

impl FromStr for PlotFile {
    type Err = NotSvg;

    fn from_str(path: &str) -> Result<Self, NotSvg> {
        let path = PathBuf::from(path);
        let extension = path.extension();
        if extension.is_some_and(|extension| extension.eq_ignore_ascii_case("svg")) {
            Ok(Self(path))
        } else {
            Err(NotSvg)
        }
    }
}

impl PlotFile {
    /// Draws the figure into the file.
    pub(super) fn write(&self, figure: &Figure) -> anyhow::Result<()> {
        write_file(&self.0, figure.to_svg().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_written_only_into_a_file_whose_name_says_svg() {
        for name in ["a/plan.svg", "PLAN.SVG"] {
            assert_eq!(name.parse::<PlotFile>().unwrap().0, PathBuf::from(name));
        }
        for name in ["plan", "plan.pdf", "plan.png", ".svg", ""] {
            assert_eq!(name.parse::<PlotFile>().unwrap_err(), NotSvg);
        }
    }
}
