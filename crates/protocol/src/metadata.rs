//! Metadata of the server and of models, and the body of errors.

use packhorse_cluster::{Datatype, Postprocess, Preprocess, Processing, Program, TensorSpec};
use serde::{Deserialize, Serialize};

/// The platform of all models, in Triton's spelling, which clients compare.
pub const PLATFORM: &str = "pytorch_libtorch";

/// The response to `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerMetadata {
    /// The server's name.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The protocol extensions that the server supports.
    pub extensions: Vec<String>,
}

/// The response to `GET /v2/health/live`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerLive {
    /// True if the server answers at all.
    pub live: bool,
}

/// The response to `GET /v2/health/ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerReady {
    /// True if the server accepts inference requests.
    pub ready: bool,
}

/// The response to `GET /v2/models/{model}/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelReady {
    /// The model.
    pub name: String,
    /// True if the model accepts inference requests.
    pub ready: bool,
}

/// The response to `GET /v2/models/{model}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelMetadata {
    /// The model.
    pub name: String,
    /// The model's versions, as decimal numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// The platform, always [`PLATFORM`].
    pub platform: String,
    /// The model's inputs.
    pub inputs: Vec<TensorMetadata>,
    /// The model's outputs.
    pub outputs: Vec<TensorMetadata>,
    /// The inputs that may be sent as they are, as tensors of BYTES with one of them for each row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub raw_inputs: Vec<RawInputMetadata>,
    /// The outputs of which the best classes are answered, where a request is a picture alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub classes: Vec<ClassesMetadata>,
}

/// An input in [`ModelMetadata`] that may be sent as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RawInputMetadata {
    /// The name of the tensor of BYTES.
    pub name: String,
    /// The kind of each of its elements.
    pub kind: RawInputKind,
}

/// The kind of an input that may be sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RawInputKind {
    /// A picture: JPEG, PNG or WebP.
    Image,
    /// A text of UTF-8.
    Text,
}

/// An output in [`ModelMetadata`] with the scores of classes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClassesMetadata {
    /// The name of the output.
    pub output: String,
    /// The number of classes that are answered.
    pub top_k: u32,
}

/// An input or output in [`ModelMetadata`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TensorMetadata {
    /// The tensor's name.
    pub name: String,
    /// The tensor's element type.
    pub datatype: Datatype,
    /// The tensor's dimensions, -1 for a variable one, including the batch dimension.
    pub shape: Vec<i64>,
}

impl ModelMetadata {
    /// Creates the metadata of a program whose model has these versions.
    pub fn new(program: &Program, processing: &Processing, versions: Vec<String>) -> Self {
        let raw_input = |(name, declared): (&String, &Preprocess)| RawInputMetadata {
            name: name.clone(),
            kind: match declared {
                Preprocess::Image(_) => RawInputKind::Image,
                Preprocess::Text(_) => RawInputKind::Text,
            },
        };
        let classes = |(name, declared): (&String, &Postprocess)| {
            Some(ClassesMetadata {
                output: name.clone(),
                top_k: declared.classes()?.top_k,
            })
        };
        let tensors = |specs: &[TensorSpec]| {
            let tensor = |spec: &TensorSpec| TensorMetadata {
                name: spec.name.clone(),
                datatype: spec.datatype,
                shape: spec.dims(),
            };
            specs.iter().map(tensor).collect()
        };
        Self {
            name: program.model.name.to_string(),
            versions,
            platform: PLATFORM.to_owned(),
            inputs: tensors(&program.inputs),
            outputs: tensors(&program.outputs),
            raw_inputs: processing.preprocess.iter().map(raw_input).collect(),
            classes: processing.postprocess.iter().filter_map(classes).collect(),
        }
    }
}

/// The response to `GET /v2/models/{model}/config`: the part of Triton's model configuration that load generators read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelConfig {
    /// The model.
    pub name: String,
    /// The platform, always [`PLATFORM`].
    pub platform: String,
    /// The largest number of rows in a request; 0 if the model has no batch dimension.
    pub max_batch_size: u32,
    /// The model's inputs.
    pub input: Vec<TensorConfig>,
    /// The model's outputs.
    pub output: Vec<TensorConfig>,
    /// The batching of requests; none if requests of the model cannot share batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_batching: Option<DynamicBatching>,
}

/// An input or output in [`ModelConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TensorConfig {
    /// The tensor's name.
    pub name: String,
    /// The tensor's element type in the configuration's spelling: `TYPE_FP32`.
    pub data_type: String,
    /// The tensor's dimensions, -1 for a variable one, without the batch dimension.
    pub dims: Vec<i64>,
}

/// The batching configuration in [`ModelConfig`], which is an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DynamicBatching {}

impl ModelConfig {
    /// Creates the configuration of a program.
    pub fn new(program: &Program) -> Self {
        let tensors = |specs: &[TensorSpec]| {
            let tensor = |spec: &TensorSpec| TensorConfig {
                name: spec.name.clone(),
                data_type: config_type(spec.datatype),
                dims: spec
                    .dims()
                    .split_off(usize::from(program.batches()).min(spec.shape.len())),
            };
            specs.iter().map(tensor).collect()
        };
        Self {
            name: program.model.name.to_string(),
            platform: PLATFORM.to_owned(),
            max_batch_size: program.max_batch_size,
            input: tensors(&program.inputs),
            output: tensors(&program.outputs),
            dynamic_batching: program.batches().then(DynamicBatching::default),
        }
    }
}

fn config_type(datatype: Datatype) -> String {
    match datatype {
        Datatype::Bytes => "TYPE_STRING".to_owned(),
        datatype => format!("TYPE_{datatype}"),
    }
}

/// An item of the response to `POST /v2/repository/index`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryEntry {
    /// The model.
    pub name: String,
    /// The version, as a decimal number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The state of the model version.
    pub state: RepositoryState,
    /// The reason for the state, if there is one to report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The state of a model version in the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum RepositoryState {
    Ready,
    Unavailable,
    Loading,
    Unloading,
    Unknown,
}

/// The body of `POST /v2/repository/index`; an empty body has the default values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryIndexRequest {
    /// True to list only models that are ready.
    #[serde(default)]
    pub ready: bool,
}

impl RepositoryIndexRequest {
    /// Reads a body, which may be empty.
    ///
    /// # Errors
    /// The body is neither empty nor such an object.
    pub fn parse(body: &[u8]) -> Result<Self, crate::MessageError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let error = |e: serde_json::Error| crate::MessageError::Field {
            field: "body".to_owned(),
            problem: e.to_string(),
        };
        serde_json::from_slice(body).map_err(error)
    }
}

/// The body of `POST /v2/systemsharedmemory/region/{region}/register`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterSystemSharedMemory {
    /// The name of the POSIX shared memory object, as `shm_open` takes it: `/input`.
    pub key: String,
    /// The first byte of the region in the object.
    #[serde(default)]
    pub offset: u64,
    /// The number of bytes of the region.
    pub byte_size: u64,
}

/// A registered region, in the response to `GET /v2/systemsharedmemory/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SystemSharedMemory {
    /// The region's name.
    pub name: String,
    /// The name of the POSIX shared memory object.
    pub key: String,
    /// The first byte of the region in the object.
    pub offset: u64,
    /// The number of bytes of the region.
    pub byte_size: u64,
}

/// The body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The error message.
    pub error: String,
}
