//! The kinds of file that people take for a program and that are none, recognised by their content. libtorch says of all of them that the file
//! is corrupted.

use std::{
    fmt,
    io::{self, Read, Seek, SeekFrom},
};

use crate::archive::{Archive, ArchiveError};

/// The bytes at the beginning of a file that are looked at.
const HEAD: u64 = 4096;
/// The first bytes of what `torch.save` wrote before it wrote archives: a pickled magic number.
const LEGACY_SAVE: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";
/// The most bytes of a class's name that are passed on.
const MAX_CLASS: usize = 80;
/// The number of the field of an ONNX file that contains the graph.
const ONNX_GRAPH: u64 = 7;
/// The largest number of a field of an ONNX file.
const ONNX_LAST: u64 = 32;

/// A kind of file that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The weights of a module without its program, of `torch.save(module.state_dict())`.
    Weights,
    /// A pickled object of this Python class, whose code is not in the file.
    Pickled(String),
    /// A program of `torch.export.save`, which is not compiled.
    Exported,
    /// A model of ONNX.
    Onnx,
    /// Weights of safetensors, without a program.
    Safetensors,
    /// A file of another program, by its name.
    Other(&'static str),
    /// A file that stands for another one, which was not fetched.
    LfsPointer,
    /// A web page, such as that of a failed download.
    WebPage,
    /// A pickle of Python outside of an archive, such as of joblib.
    Pickle,
    /// An archive whose end is missing.
    Truncated,
    /// A file without a byte.
    Empty,
}

impl FileKind {
    /// Recognises a file; `None` if it is TorchScript, a package, or unknown.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn recognise(mut file: impl Read + Seek) -> io::Result<Option<Self>> {
        let mut head = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.by_ref().take(HEAD).read_to_end(&mut head)?;
        if !head.starts_with(b"PK") {
            return Ok(of_head(&head));
        }
        match Archive::open(file) {
            Ok(archive) => Ok(of_archive(archive)),
            Err(ArchiveError::Io(error)) => Err(error),
            Err(ArchiveError::Truncated) if head.starts_with(b"PK\x03\x04") => {
                Ok(Some(Self::Truncated))
            }
            Err(_) => Ok(None),
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SCRIPT: &str = "save the module with torch.jit.trace(module.eval(), example).save(file) or torch.jit.script, \
            or compile a package";
        match self {
            Self::Weights => write!(
                f,
                "the file has weights (a state_dict) and no program: load them into the module, and {SCRIPT}"
            ),
            Self::Pickled(class) => write!(
                f,
                "the file is a pickled Python object of the class {class}, whose code is not in it: {SCRIPT}"
            ),
            Self::Exported => write!(
                f,
                "the file is a program of torch.export.save, which is not compiled: compile it into a package with \
                 torch._inductor.aoti_compile_and_package, or trace the module into TorchScript"
            ),
            Self::Onnx => write!(
                f,
                "the file is an ONNX model, which is not served: take the module that it was exported from, and {SCRIPT}"
            ),
            Self::Safetensors => write!(
                f,
                "the file has weights (safetensors) and no program: load them into the module, and {SCRIPT}"
            ),
            Self::Other(name) => write!(
                f,
                "the file is of {name}; TorchScript files and AOTInductor packages are served"
            ),
            Self::LfsPointer => write!(
                f,
                "the file is a pointer of Git LFS: fetch the file itself with git lfs pull"
            ),
            Self::WebPage => write!(
                f,
                "the file is a web page: the download of the model has failed"
            ),
            Self::Pickle => write!(
                f,
                "the file is a pickle of Python and has no program: load it in Python, and {SCRIPT}"
            ),
            Self::Truncated => write!(
                f,
                "the file is an archive that ends too early: its download or copy is not whole, so fetch it again"
            ),
            Self::Empty => write!(
                f,
                "the file is empty: its download or copy has failed, so fetch it again"
            ),
        }
    }
}

/// Recognises an archive by its members.
fn of_archive(mut archive: Archive<impl Read + Seek>) -> Option<FileKind> {
    let mut pickle = None;
    let mut exported = false;
    for name in archive.names() {
        match inside(name) {
            "constants.pkl" => return None,
            path if path.starts_with("code/") || path.starts_with("data/aotinductor/") => {
                return None;
            }
            "data.pkl" => pickle = Some(name.to_owned()),
            path => {
                let is_program = path.starts_with("models/")
                    && std::path::Path::new(path).extension() == Some("json".as_ref());
                exported |= is_program || name == "serialized_exported_program.json";
            }
        }
    }
    if exported {
        return Some(FileKind::Exported);
    }
    let head = archive.read_head(&pickle?, HEAD).ok()?;
    Some(of_pickle(&head))
}

/// Returns the path of a member within the folder around all, which has the name of the file.
pub(crate) fn inside(name: &str) -> &str {
    name.split_once('/').map_or("", |(_, path)| path)
}

/// Recognises a pickled object by its first opcode after the protocol: GLOBAL names its class.
fn of_pickle(pickle: &[u8]) -> FileKind {
    let Some(global) = pickle.get(2..).and_then(|rest| rest.strip_prefix(b"c")) else {
        return FileKind::Weights;
    };
    let mut lines = global.split(|byte| *byte == b'\n').take(2);
    let mut part = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (module, class) = (part(), part());
    if module == "collections" {
        return FileKind::Weights;
    }
    let name = format!("{module}.{class}");
    FileKind::Pickled(name.chars().take(MAX_CLASS).collect())
}

fn of_head(head: &[u8]) -> Option<FileKind> {
    const OTHERS: [(usize, &[u8], &str); 6] = [
        (0, b"GGUF", "llama.cpp (GGUF)"),
        (0, b"\x89HDF", "Keras (HDF5)"),
        (4, b"TFL3", "TensorFlow Lite"),
        (4, b"ET12", "ExecuTorch"),
        (0, b"ftrt", "TensorRT"),
        (0, b"\x1f\x8b", "gzip"),
    ];
    let begins = |at: usize, with: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(with));
    if head.is_empty() {
        return Some(FileKind::Empty);
    }
    if let Some((.., name)) = OTHERS.iter().find(|(at, magic, _)| begins(*at, magic)) {
        return Some(FileKind::Other(name));
    }
    if begins(0, LEGACY_SAVE) {
        // The magic number, the version of the protocol and facts about the machine come first, each pickled alone.
        let pickles = head.windows(2).enumerate().skip(LEGACY_SAVE.len());
        let mut starts = pickles.filter(|(_, bytes)| bytes == b"\x80\x02");
        return Some(match starts.nth(2) {
            Some((at, _)) => of_pickle(&head[at..]),
            None => FileKind::Weights,
        });
    }
    let text = head.trim_ascii_start().to_ascii_lowercase();
    if text.starts_with(b"version https://git-lfs") {
        return Some(FileKind::LfsPointer);
    }
    if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
        return Some(FileKind::WebPage);
    }
    // PROTO with a version since 2, and its last operation or a frame.
    if let [0x80, 2..=5, ..] = head {
        return Some(FileKind::Pickle);
    }
    if is_safetensors(head) {
        return Some(FileKind::Safetensors);
    }
    is_onnx(head).then_some(FileKind::Onnx)
}

/// Returns true for the length of a JSON object, and its beginning.
fn is_safetensors(head: &[u8]) -> bool {
    const LONGEST: u64 = 100 << 20;
    let Some((length, rest)) = head.split_first_chunk::<8>() else {
        return false;
    };
    (2..LONGEST).contains(&u64::from_le_bytes(*length)) && rest.starts_with(b"{\"")
}

/// Returns true for the fields of a protocol buffer `ModelProto`: the version first, later the graph, whose length may exceed what was read.
fn is_onnx(head: &[u8]) -> bool {
    if head.first() != Some(&0x08) {
        return false;
    }
    let mut rest = head;
    while let Some(key) = varint(&mut rest) {
        match (key >> 3, key & 7) {
            (ONNX_GRAPH, 2) => return true,
            (1..=ONNX_LAST, 0) => {
                if varint(&mut rest).is_none() {
                    return false;
                }
            }
            (1..=ONNX_LAST, 2) => {
                let length = varint(&mut rest).and_then(|length| usize::try_from(length).ok());
                match length.and_then(|length| rest.get(length..)) {
                    Some(after) => rest = after,
                    None => return false,
                }
            }
            _ => return false,
        }
    }
    false
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::test_archive;

    fn recognised(bytes: &[u8]) -> Option<FileKind> {
        FileKind::recognise(Cursor::new(bytes)).unwrap()
    }

    /// An archive with these members, all of which are this pickle.
    fn archive(members: &[&str], pickle: &[u8]) -> Vec<u8> {
        let members: Vec<_> = members.iter().map(|name| (*name, pickle)).collect();
        test_archive::archive(&members)
    }

    #[test]
    fn archives_are_recognised_by_their_members_and_what_is_pickled() {
        const DICT: &[u8] = b"\x80\x02}q\x00(X\x05\x00\x00\x00epoch";
        let pickled = |class: &str| Some(FileKind::Pickled(class.to_owned()));
        for (members, pickle, kind) in [
            (
                &["a/data.pkl", "a/data/0", "a/version"][..],
                DICT,
                Some(FileKind::Weights),
            ),
            (
                &["a/data.pkl"],
                b"\x80\x02ccollections\nOrderedDict\nq\x00",
                Some(FileKind::Weights),
            ),
            (
                &["a/data.pkl"],
                b"\x80\x02c__main__\nNet\nq\x00",
                pickled("__main__.Net"),
            ),
            (
                &["a/models/model.json", "a/data/weights/weight_0"],
                b"",
                Some(FileKind::Exported),
            ),
            (
                &["serialized_exported_program.json", "version"],
                b"",
                Some(FileKind::Exported),
            ),
            // What is served.
            (
                &["a/data.pkl", "a/code/__torch__.py", "a/constants.pkl"],
                DICT,
                None,
            ),
            (
                &["a/data/aotinductor/model/x.so", "a/models/model.json"],
                b"",
                None,
            ),
            (&["word/document.xml"], b"", None),
        ] {
            assert_eq!(recognised(&archive(members, pickle)), kind, "{members:?}");
        }
    }

    #[test]
    fn other_files_are_recognised_by_their_first_bytes() {
        let mut legacy = LEGACY_SAVE.to_vec();
        legacy.extend(b"\x80\x02M\xe9\x03.\x80\x02}q\x00(X\x10.");
        let (mut weights, mut object) = (legacy.clone(), legacy);
        weights.extend(b"\x80\x02ccollections\nOrderedDict\n");
        object.extend(b"\x80\x02cmodels.yolo\nModel\n");
        let onnx = b"\x08\x09\x12\x07pytorch\x1a\x052.1.0\x3a\xc0\x84\x3d\x0a\x05nodes";
        let safetensors = b"\x10\x00\x00\x00\x00\x00\x00\x00{\"w\":{\"dtype\"";
        for (bytes, kind) in [
            (&weights[..], Some(FileKind::Weights)),
            (
                &object,
                Some(FileKind::Pickled("models.yolo.Model".to_owned())),
            ),
            (onnx, Some(FileKind::Onnx)),
            (safetensors, Some(FileKind::Safetensors)),
            (b"GGUF\x03", Some(FileKind::Other("llama.cpp (GGUF)"))),
            (
                b"version https://git-lfs.github.com/spec/v1\n",
                Some(FileKind::LfsPointer),
            ),
            (b"\n<!DOCTYPE html><html>", Some(FileKind::WebPage)),
            (b"\x80\x04\x95\x00", Some(FileKind::Pickle)),
            (b"PK\x03\x04\x00", Some(FileKind::Truncated)),
            (b"", Some(FileKind::Empty)),
            (b"the file of m", None),
            (b"\x08\x01\x02", None),
        ] {
            assert_eq!(recognised(bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn a_part_of_a_file_is_unknown_or_of_its_kind_and_never_a_panic() {
        let whole = archive(&["a/data.pkl"], b"\x80\x02c__main__\nNet\nq\x00");
        let onnx = b"\x08\x09\x12\x07pytorch\x3a\xc0\x84\x3d\x0a\x05nodes".to_vec();
        for bytes in [whole, onnx, LEGACY_SAVE.to_vec()] {
            for length in 1..bytes.len() {
                recognised(&bytes[..length]);
            }
        }
    }

    #[test]
    fn a_kind_says_what_to_do() {
        for (kind, words) in [
            (FileKind::Weights, "a state_dict"),
            (FileKind::Pickled("a.B".to_owned()), "the class a.B"),
            (FileKind::Exported, "aoti_compile_and_package"),
            (FileKind::Onnx, "ONNX"),
        ] {
            let text = kind.to_string();
            assert!(text.contains(words), "{text}");
            assert!(text.contains("torch."), "{text}");
        }
    }
}
