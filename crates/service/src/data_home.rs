//! The user's data folder, by the XDG Base Directory Specification.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

/// The environment variables that determine the user's data folder.
#[derive(Clone, Debug, Args)]
pub struct DataHome {
    /// The user's data folder; a relative path is ignored, as the specification demands.
    #[arg(long, env = "XDG_DATA_HOME", hide = true)]
    data_home: Option<OsString>,

    /// The user's home folder.
    #[arg(long, env = "HOME", hide = true)]
    home: Option<PathBuf>,
}

impl DataHome {
    /// Returns the user's data folder: `$XDG_DATA_HOME`, else `$HOME/.local/share`; `None` if neither variable is set.
    pub fn path(&self) -> Option<PathBuf> {
        let data_home = self.data_home.as_ref().map(PathBuf::from);
        data_home
            .filter(|path| path.is_absolute())
            .or_else(|| Some(self.home.as_ref()?.join(".local/share")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(data_home: Option<&str>, home: Option<&str>) -> Option<PathBuf> {
        let data_home = data_home.map(OsString::from);
        let home = home.map(PathBuf::from);
        DataHome { data_home, home }.path()
    }

    #[test]
    fn the_data_folder_is_that_of_the_specification() {
        assert_eq!(path(Some("/d"), Some("/h")), Some("/d".into()));
        for ignored in [None, Some(""), Some("relative")] {
            assert_eq!(path(ignored, Some("/h")), Some("/h/.local/share".into()));
        }
        assert_eq!(path(None, None), None);
    }
}
