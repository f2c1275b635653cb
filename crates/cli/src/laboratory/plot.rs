//! The file of `--plot`.

use std::{path::PathBuf, str::FromStr};

use packhorse_figures::{Figure, Format, UnknownFormat};

use crate::files::write_file;

/// A file for a figure. The end of its name selects the format.
#[derive(Clone, Debug)]
pub(super) struct PlotFile {
    path: PathBuf,
    format: Format,
}

impl FromStr for PlotFile {
    type Err = UnknownFormat;

    fn from_str(path: &str) -> Result<Self, UnknownFormat> {
        Ok(Self {
            path: path.into(),
            format: path.parse()?,
        })
    }
}

impl PlotFile {
    /// Draws the figure into the file.
    pub(super) fn write(&self, figure: &Figure) -> anyhow::Result<()> {
        write_file(&self.path, &figure.encode(self.format))
    }
}
