//! Pictures that are asked for with `--plot`.

use std::{fs, path::PathBuf, str::FromStr};

use anyhow::Context as _;
use packhorse_figures::{Figure, Format, UnknownFormat};

/// Where a picture goes; the end of its name says how it is written.
#[derive(Clone, Debug)]
pub(crate) struct PlotFile {
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
    pub(crate) fn write(&self, figure: &Figure) -> anyhow::Result<()> {
        fs::write(&self.path, figure.bytes(self.format))
            .with_context(|| format!("write {}", self.path.display()))
    }
}
