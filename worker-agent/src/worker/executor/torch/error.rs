//! The exceptions of libtorch, and the part of their text that is passed on.

use crate::executor::error::ExecutionError;

/// The most bytes of a text that is passed on.
const MAX_SUMMARY: usize = 400;

/// An exception that libtorch or a program threw.
#[derive(Debug)]
pub(super) struct TorchError {
    /// The whole text, with stack traces and paths. Only its summary is passed on.
    pub(super) text: String,
    /// The kind.
    pub(super) kind: TorchErrorKind,
}

/// The kind of a [`TorchError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TorchErrorKind {
    /// libtorch or the program threw an exception.
    Exception,
    /// There was not enough memory.
    OutOfMemory,
    /// The program's result is neither a tensor nor a tuple or list of tensors.
    NoTensors,
    /// The device failed and cannot compute anything any more.
    DeviceFailed,
}

impl TorchError {
    /// Returns true if another attempt may succeed: there is memory, a device or room for an unpacked package then.
    pub(super) fn is_transient(&self) -> bool {
        const NO_ROOM: &str = "No space left on device";
        matches!(
            self.kind,
            TorchErrorKind::OutOfMemory | TorchErrorKind::DeviceFailed
        ) || self.text.contains(NO_ROOM)
    }

    /// Returns one line with the reason, without stack traces and paths.
    pub(super) fn summary(&self) -> String {
        if is_refusal_of_package(&self.text) {
            return REFUSAL_OF_PACKAGE.to_owned();
        }
        let line = reason_line(&self.text);
        let without_paths: Vec<_> = line.split_whitespace().map(hide_path).collect();
        let mut summary = without_paths.join(" ");
        summary.truncate(summary.floor_char_boundary(MAX_SUMMARY));
        summary
    }
}

impl From<TorchError> for ExecutionError {
    fn from(error: TorchError) -> Self {
        let summary = error.summary();
        match error.kind {
            TorchErrorKind::Exception => Self::ModuleThrew(summary),
            TorchErrorKind::OutOfMemory => Self::OutOfMemory(summary),
            TorchErrorKind::DeviceFailed => Self::DeviceFailed(summary),
            TorchErrorKind::NoTensors => Self::WrongOutput(summary),
        }
    }
}

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text,
            other => other.to_string(),
        };
        let kind = if text.contains("out of memory") {
            TorchErrorKind::OutOfMemory
        } else {
            TorchErrorKind::Exception
        };
        Self { text, kind }
    }
}

/// The reason why a package fails that checks nothing itself.
const REFUSAL_OF_PACKAGE: &str = "the package refused its inputs. A package that was compiled for a fixed number of rows must \
    be named rows-N, or be compiled with a dynamic batch dimension; the worker's log has the details";

/// Returns true for the error of a package's code, which tells only its own line: what is wrong goes to standard error.
fn is_refusal_of_package(text: &str) -> bool {
    text.contains("run_func_(") && text.contains("API call failed")
}

/// Returns the line with the reason. The interpreter puts a traceback before it and the C++ stack after it.
fn reason_line(text: &str) -> &str {
    let is_error = |line: &&str| {
        let name = line.split_once(": ").map_or("", |(name, _)| name);
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
        is_name && (name.ends_with("Error") || name.ends_with("Exception"))
    };
    let is_frame = |line: &&str| {
        line.is_empty()
            || line.starts_with("The following operation failed")
            || line.starts_with("Traceback")
            || line.starts_with("File ")
            || line.starts_with("Exception raised from")
    };
    let mut lines = text.lines().map(str::trim);
    let error = lines.clone().rfind(is_error);
    error
        .or_else(|| lines.find(|line| !is_frame(line)))
        .unwrap_or("no reason given")
}

fn hide_path(word: &str) -> &str {
    let bare = word.trim_start_matches(['"', '\'', '(', '[', '<']);
    if bare.len() > 1 && bare.starts_with('/') {
        "<path>"
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(text: &str) -> String {
        let error = TorchError {
            text: text.to_owned(),
            kind: TorchErrorKind::Exception,
        };
        error.summary()
    }

    #[test]
    fn the_summary_of_an_interpreter_error_is_the_error() {
        let text = "The following operation failed in the TorchScript interpreter.\n\
            Traceback of TorchScript, serialized code (most recent call last):\n  \
              File \"code/__torch__.py\", line 7, in forward\n    \
                _0 = torch.matmul(x, self.weight)\n         \
                     ~~~~~~~~~~~~ <--- HERE\n\n\
            Traceback of TorchScript, original code (most recent call last):\n  \
              File \"/home/someone/model.py\", line 12, in forward\n\
            RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x3 and 4x4)\n\n\
            Exception raised from f at /pytorch/x.cpp:1 (most recent call first):\nframe #0: g (0x7)\n";
        assert_eq!(
            summary(text),
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x3 and 4x4)"
        );
    }

    #[test]
    fn a_package_that_refuses_its_inputs_is_explained() {
        let text = "run_func_( container_handle_, input_handles.data(), input_handles.size()) API call failed at \
            /pytorch/torch/csrc/inductor/aoti_runner/model_container_runner.cpp, line 169";
        assert_eq!(summary(text), REFUSAL_OF_PACKAGE);
        assert!(REFUSAL_OF_PACKAGE.len() <= MAX_SUMMARY);
    }

    #[test]
    fn a_full_disk_is_no_finding_about_the_program() {
        let error = |text: &str| TorchError {
            text: text.to_owned(),
            kind: TorchErrorKind::Exception,
        };
        assert!(error("the package cannot be unpacked: No space left on device").is_transient());
        assert!(!error("the package contains no compiled program").is_transient());
    }

    #[test]
    fn a_summary_has_no_paths_and_is_never_empty() {
        assert_eq!(
            summary("open file failed, file path: /var/lib/packhorse/ab.pt"),
            "open file failed, file path: <path>"
        );
        assert_eq!(summary("\n\n"), "no reason given");
        assert_eq!(summary("a ratio of 3 / 4"), "a ratio of 3 / 4");
        assert!(summary(&"ä".repeat(1000)).len() <= MAX_SUMMARY);
    }
}
