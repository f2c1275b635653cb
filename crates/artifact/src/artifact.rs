//! A model's file as a whole: what it is, and all that it tells.

use std::io::{self, Read, Seek, SeekFrom};

use crate::{
    archive::{Archive, ArchiveError},
    exported,
    file_kind::{FileKind, inside},
    package::{self, PROGRAMS, Target},
    registration::{self, EmbeddedRegistration, RegistrationError},
    signature::{Format, Signature},
    torchscript,
};

/// The member of an archive in which `packhorse.export` puts the registration.
const REGISTRATION: &str = "extra/packhorse.json";

/// A model's file, and what it tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    /// The format of its program.
    pub format: Format,
    /// The inputs and outputs, as far as the program tells them.
    pub signature: Signature,
    /// The registration that its maker put into it, with which the program agrees.
    pub registration: Option<EmbeddedRegistration>,
    /// The machine that it was compiled for, if it was.
    pub target: Target,
    /// The reason why it cannot be served, with what to do.
    pub obstacle: Option<String>,
}

/// A file that is no program, or whose program cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
    /// It is known what the file is, and that is no program.
    #[error("{0}")]
    Kind(FileKind),
    /// It is unknown what the file is.
    #[error(
        "the file is nothing known: a model's file is TorchScript (torch.jit.trace or torch.jit.script, then save) or an AOTInductor package"
    )]
    Unknown,
    /// The archive around the program cannot be read.
    #[error(transparent)]
    Archive(ArchiveError),
    /// The registration in the file does not hold.
    #[error(
        "the file's own packhorse.json does not hold; export the model again, or write a model.json beside the file"
    )]
    Registration(#[from] RegistrationError),
}

impl From<ArchiveError> for ReadError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Io(error) => error.into(),
            error => Self::Archive(error),
        }
    }
}

impl Artifact {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is no program, or not whole.
    ///
    /// ```
    /// use packhorse_artifact::{Artifact, ReadError};
    ///
    /// let file = std::io::Cursor::new(b"<!DOCTYPE html>");
    /// let error = Artifact::read(file).unwrap_err();
    /// assert!(matches!(&error, ReadError::Kind(_)), "{error}");
    /// ```
    pub fn read(mut file: impl Read + Seek) -> Result<Self, ReadError> {
        match FileKind::recognise(&mut file)? {
            None | Some(FileKind::Exported) => {}
            Some(kind) => return Err(ReadError::Kind(kind)),
        }
        let mut head = [0; 2];
        file.seek(SeekFrom::Start(0))?;
        if file.read_exact(&mut head).is_err() || head != *b"PK" {
            return Err(ReadError::Unknown);
        }
        let mut archive = Archive::open(file)?;
        let place = find(&archive).ok_or(ReadError::Unknown)?;
        let (mut artifact, mut embedded) = match &place {
            (Format::Package, folder) => {
                let package = package::read(&mut archive, folder)?;
                let artifact = Self {
                    target: package.target,
                    ..Self::of(Format::Package, package.signature)
                };
                (artifact, package.registration.map(String::into_bytes))
            }
            (Format::Exported, folder) => {
                let signature = exported::read(&mut archive, folder)?;
                let mut artifact = Self::of(Format::Exported, signature);
                artifact.obstacle = Some(FileKind::Exported.to_string());
                (artifact, None)
            }
            (_, folder) => {
                let script = torchscript::read(&mut archive, folder)?;
                let mut artifact = Self::of(script.format, script.signature);
                artifact.obstacle = script.obstacle;
                (artifact, None)
            }
        };
        let member = format!("{}/{REGISTRATION}", place.1);
        if embedded.is_none() && archive.contains(&member) {
            embedded = Some(archive.read(&member, registration::MAX_BYTES)?);
        }
        if let Some(text) = embedded {
            let registration = EmbeddedRegistration::read(&text)?;
            registration.check(&artifact.signature)?;
            artifact.registration = Some(registration);
        }
        Ok(artifact)
    }

    fn of(format: Format, signature: Signature) -> Self {
        Self {
            format,
            signature,
            registration: None,
            target: Target::default(),
            obstacle: None,
        }
    }
}

/// Returns the format of the program in an archive, and the folder around it, which has the name of the file.
fn find<R: Read + Seek>(archive: &Archive<R>) -> Option<(Format, String)> {
    let mut exported = None;
    for name in archive.names() {
        let folder = || name.split_once('/').map_or("", |(f, _)| f).to_owned();
        match inside(name) {
            path if path.starts_with(PROGRAMS) => return Some((Format::Package, folder())),
            // libtorch tells TorchScript by it.
            "constants.pkl" => return Some((Format::Scripted, folder())),
            "models/model.json" => exported = Some((Format::Exported, folder())),
            _ if name == "serialized_exported_program.json" => {
                exported = Some((Format::Exported, String::new()));
            }
            _ => {}
        }
    }
    exported
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use packhorse_cluster::Datatype;

    use super::*;
    use crate::{
        signature::{Size, Tensor},
        test_archive::archive,
    };

    /// The pickle of the inputs of a trace: one of 64-bit integers, of two rows of sixteen.
    const TRACED: &[u8] = b"\x80\x02}(X\x07\x00\x00\x00forward](ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage\
        ctorch\nLongStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK tQK\x00K\x02K\x10\x86K\x10K\x01\x86\x89ccollections\nOrderedDict\n)RtReu.";
    const CODE: &[u8] = b"class Net(Module):\n  def forward(self: __torch__.Net,\n    ids: Tensor) -> Tensor:\n    return ids\n";
    const CLASS: &[u8] = b"\x80\x02c__torch__\nNet\nq\x00)\x81}(u\x62.";
    const OURS: &str = r#"{"max_batch_size": 4, "slo_ms": 20,
        "inputs": [{"name": "tokens", "datatype": "INT64", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}]}"#;

    fn script<'a>(more: &[(&'a str, &'a [u8])]) -> Vec<u8> {
        let mut members = vec![
            ("m/data.pkl", CLASS),
            ("m/code/__torch__.py", CODE),
            ("m/constants.pkl", &b"\x80\x02)."[..]),
        ];
        members.extend(more);
        archive(&members)
    }

    fn read(bytes: Vec<u8>) -> Result<Artifact, ReadError> {
        Artifact::read(Cursor::new(bytes))
    }

    #[test]
    fn a_trace_tells_names_datatypes_and_its_examples_sizes() {
        let artifact = read(script(&[("m/traced_inputs.pkl", TRACED)])).unwrap();
        assert_eq!(artifact.format, Format::Traced);
        let ids = Tensor {
            name: Some("ids".to_owned()),
            datatype: Some(Datatype::Int64),
            shape: Some(vec![Size::Example(2), Size::Example(16)]),
            ..Tensor::default()
        };
        assert_eq!(artifact.signature.inputs, Some(vec![ids]));
        assert_eq!(artifact.signature.outputs, Some(vec![Tensor::default()]));
        assert_eq!((artifact.registration, artifact.obstacle), (None, None));
    }

    #[test]
    fn a_script_tells_its_arguments_and_nothing_of_their_datatypes() {
        let artifact = read(script(&[])).unwrap();
        assert_eq!(artifact.format, Format::Scripted);
        assert_eq!(artifact.signature.inputs, Some(vec![Tensor::named("ids")]));
    }

    #[test]
    fn our_own_registration_holds_unless_the_program_contradicts() {
        let traced = ("m/traced_inputs.pkl", TRACED);
        let ours = (("m/extra/packhorse.json"), OURS.as_bytes());
        let artifact = read(script(&[traced, ours])).unwrap();
        let registration = artifact.registration.unwrap();
        assert_eq!(registration.inputs[0].name, "tokens");
        let other = OURS.replace("INT64", "INT32");
        let error = read(script(&[
            traced,
            ("m/extra/packhorse.json", other.as_bytes()),
        ]));
        let Err(ReadError::Registration(error)) = error else {
            panic!("{error:?}")
        };
        assert_eq!(
            error.to_string(),
            "inputs[0].datatype is INT32 in it and INT64 in the program of the same file"
        );
    }

    #[test]
    fn a_package_tells_the_machine_that_it_is_for() {
        let folder = "m/data/aotinductor/model/x.wrapper";
        let metadata = r#"{"AOTI_DEVICE_KEY": "cuda", "AOTI_CPU_ISA": "AVX2", "AOTI_COMPUTE_CAPABILITY": "90", "AOTI_MACHINE": ""}"#;
        let artifact = read(archive(&[
            (&format!("{folder}_metadata.json"), metadata.as_bytes()),
            (&format!("{folder}.so"), b"\x7fELF"),
        ]));
        let artifact = artifact.unwrap();
        assert_eq!(artifact.format, Format::Package);
        assert_eq!(artifact.target.cpu_isa.as_deref(), Some("AVX2"));
        assert_eq!(artifact.target.compute_capability.as_deref(), Some("90"));
        assert_eq!(artifact.target.machine, None);
        assert_eq!(artifact.signature, Signature::default());
    }

    #[test]
    fn what_is_no_program_is_named_and_what_is_broken_is_refused() {
        for (bytes, expected) in [
            (b"".to_vec(), "the file is empty"),
            (b"the file of m".to_vec(), "the file is nothing known"),
            (archive(&[("word/a.xml", b"")]), "the file is nothing known"),
            (
                archive(&[("a/data.pkl", b"\x80\x02}.")]),
                "the file has weights (a state_dict)",
            ),
            (
                script(&[])[..300].to_vec(),
                "the file is an archive that ends too early",
            ),
            (
                script(&[("../x", b"")]),
                "the archive has a member with the name \"../x\"",
            ),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let exported = read(archive(&[("m/models/model.json", b"{}")])).unwrap();
        assert!(exported.obstacle.unwrap().contains("torch.export.save"));
    }
}
