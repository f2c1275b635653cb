//! What the protocol tells about server and models, and what it says of errors.

use packhorse_cluster::{Datatype, Program, TensorSpec};
use serde::{Deserialize, Serialize};

/// What runs our models, as Triton names it: clients look the name up.
pub const PLATFORM: &str = "pytorch_libtorch";

/// `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerMetadata {
    /// The server.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The extensions of the protocol that work here.
    pub extensions: Vec<String>,
}

/// `GET /v2/health/live`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerLive {
    /// Whether the server answers at all.
    pub live: bool,
}

/// `GET /v2/health/ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerReady {
    /// Whether the server takes inference requests.
    pub ready: bool,
}

/// `GET /v2/models/{model}/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelReady {
    /// The model.
    pub name: String,
    /// Whether it takes inference requests.
    pub ready: bool,
}

/// `GET /v2/models/{model}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelMetadata {
    /// The model.
    pub name: String,
    /// Its versions, in digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// [`PLATFORM`].
    pub platform: String,
    /// Its inputs.
    pub inputs: Vec<TensorMetadata>,
    /// Its outputs.
    pub outputs: Vec<TensorMetadata>,
}

/// An input or output in [`ModelMetadata`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TensorMetadata {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its dimensions, -1 for a variable one, the batch dimension included.
    pub shape: Vec<i64>,
}

impl ModelMetadata {
    /// Of this program, of whose model these versions exist.
    pub fn new(program: &Program, versions: Vec<String>) -> Self {
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
        }
    }
}

/// `GET /v2/models/{model}/config`: the part of Triton's model configuration that load generators read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelConfig {
    /// The model.
    pub name: String,
    /// [`PLATFORM`].
    pub platform: String,
    /// The most rows of a request; 0 if the model has no batch dimension.
    pub max_batch_size: u32,
    /// Its inputs.
    pub input: Vec<TensorConfig>,
    /// Its outputs.
    pub output: Vec<TensorConfig>,
    /// There if requests share batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_batching: Option<DynamicBatching>,
}

/// An input or output in [`ModelConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TensorConfig {
    /// Its name.
    pub name: String,
    /// The type of its elements in the configuration's spelling: `TYPE_FP32`.
    pub data_type: String,
    /// Its dimensions, -1 for a variable one, without the batch dimension.
    pub dims: Vec<i64>,
}

/// How requests share batches: an empty object, for how is decided elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DynamicBatching {}

impl ModelConfig {
    /// Of this program.
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

/// An item of the answer to `POST /v2/repository/index`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryEntry {
    /// The model.
    pub name: String,
    /// Its version, in digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether it can be used.
    pub state: RepositoryState,
    /// Why it is in this state, if that is worth a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a model can be used.
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

/// The body of `POST /v2/repository/index`; an empty one means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RepositoryIndexRequest {
    /// Whether to list only models that are ready.
    #[serde(default)]
    pub ready: bool,
}

impl RepositoryIndexRequest {
    /// Reads a body, which may be empty.
    ///
    /// # Errors
    /// It is neither empty nor such an object.
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

/// Every error of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
}
