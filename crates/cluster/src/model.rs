//! Registered models.

use std::{collections::BTreeSet, fmt, str::FromStr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    ArtifactDigest, Dim, MinReplicas, ModelId, ModelName, Priority, Processing, RequestsPerSecond,
    Shape, TensorSpec, TypicalShapes, VariantOf, WeightedShape,
};

/// The index of a model in a [`Problem`](crate::Problem).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelIndex(pub usize);

/// The program that a replica runs: a TorchScript file with its signature. A worker needs no other information about a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Program {
    /// Name and version, as `NAME:VERSION`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub model: ModelId,
    /// The digest of the TorchScript file.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub artifact: ArtifactDigest,
    /// The largest number of rows in a batch; 0 if the model has no batch dimension and takes one request at a time.
    pub max_batch_size: u32,
    /// The input tensors, in the order of the program's arguments.
    pub inputs: Vec<TensorSpec>,
    /// The output tensors, in the order of the program's results.
    pub outputs: Vec<TensorSpec>,
}

/// A registered version of a model: its program, its objective and its expected load.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The program that replicas run.
    pub program: Program,
    /// The latency objective (SLO), end to end at the gateway.
    pub slo: Duration,
    /// The reserved request rate; none if the model is planned for its measured rate alone.
    pub rate: Option<RequestsPerSecond>,
    /// The part that the reserved rate has beside the measured one in the rate that placement plans for.
    pub rate_mode: RateMode,
    /// The priority of what the model needs and reserves over what other models do.
    pub priority: Priority,
    /// The least number of devices that the model has replicas on, where memory is left.
    pub min_replicas: MinReplicas,
    /// The largest number of waiting requests; one more is refused. With `None` the gateway's limit for any model holds.
    pub queue_limit: Option<u32>,
    /// The longest time for which a request waits while the model is loaded from its file. With `None` it is the objective.
    pub max_cold_wait: Option<Duration>,
    /// True if answers are kept, and given again to requests with the same inputs.
    pub cache: bool,
    /// The family that the model is a variant of, and its accuracy; none if it is in no family.
    pub variant: Option<VariantOf>,
    /// The ways from what clients have to the inputs, and from the outputs to what they want.
    pub processing: Arc<Processing>,
}

/// The part that a model's reserved rate has beside the measured one in the rate that placement plans for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RateMode {
    /// The reserved rate is planned for, whatever is measured.
    Declared,
    /// The measured rate is planned for; the reserved one counts only until enough requests are measured.
    Measured,
    /// The larger of the two is planned for: the reserved rate is the floor.
    #[default]
    Max,
    /// The smaller of the two is planned for: the reserved rate is the ceiling.
    Min,
}

/// A text that names no rate mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown rate mode {given:?}: expected one of {}", RateMode::ALL.map(RateMode::as_str).join(", "))]
pub struct UnknownRateMode {
    given: String,
}

impl RateMode {
    /// All rate modes.
    pub const ALL: [Self; 4] = [Self::Declared, Self::Measured, Self::Max, Self::Min];

    /// Returns the name in the API and in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Measured => "measured",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl FromStr for RateMode {
    type Err = UnknownRateMode;

    fn from_str(text: &str) -> Result<Self, UnknownRateMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| UnknownRateMode {
                given: text.chars().take(64).collect(),
            })
    }
}

impl fmt::Display for RateMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The error for a field of a model that is out of its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ModelSpecError {
    /// The field in the API's spelling: `inputs[0].shape`.
    pub field: String,
    /// The problem, with the limit.
    pub problem: String,
}

impl ModelSpec {
    /// The largest latency objective. Clients wait this long by default.
    pub const MAX_SLO: Duration = Duration::from_mins(1);
    /// The largest queue limit of a model, in requests.
    pub const MAX_QUEUE_LIMIT: u32 = 1_000_000;
    /// The rate that a model without a reservation is planned for until its requests are measured, in requests/s. It is small, so that
    /// newcomers take little from models that get requests.
    pub const UNMEASURED_RATE: RequestsPerSecond = RequestsPerSecond::ONE;

    /// Returns the rate that the model is expected to get before its requests are measured.
    pub fn prior_rate(&self) -> RequestsPerSecond {
        self.rate.unwrap_or(Self::UNMEASURED_RATE)
    }

    /// Returns the name of the model's family, if it has one.
    pub fn family(&self) -> Option<&ModelName> {
        Some(&self.variant.as_ref()?.family)
    }

    /// Returns the name whose requests the model shares with others: that of its family, else its own.
    pub fn demand_name(&self) -> &ModelName {
        self.family().unwrap_or(&self.program.model.name)
    }

    /// Returns the first field, in the API's spelling, in which the model differs from another so that they could not answer the same
    /// requests.
    pub fn first_difference(&self, other: &Self) -> Option<&'static str> {
        let (this, that) = (&self.program, &other.program);
        [
            ("slo_ms", self.slo == other.slo),
            ("max_batch_size", this.max_batch_size == that.max_batch_size),
            ("inputs", takes_as(&this.inputs, &that.inputs)),
            ("outputs", this.outputs == that.outputs),
            (
                "preprocess",
                self.processing.preprocess == other.processing.preprocess,
            ),
        ]
        .into_iter()
        .find_map(|(field, is_equal)| (!is_equal).then_some(field))
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// Names the first field that is out of its limits.
    pub fn validate(&self) -> Result<(), ModelSpecError> {
        if self.slo.is_zero() || self.slo > Self::MAX_SLO {
            return Err(ModelSpecError {
                field: "slo_ms".to_owned(),
                problem: format!(
                    "expected above 0 and at most {} ms",
                    Self::MAX_SLO.as_millis()
                ),
            });
        }
        if let Some(limit) = self.queue_limit
            && !(1..=Self::MAX_QUEUE_LIMIT).contains(&limit)
        {
            return Err(ModelSpecError {
                field: "queue_limit".to_owned(),
                problem: format!(
                    "{limit} is not between 1 and {} requests",
                    Self::MAX_QUEUE_LIMIT
                ),
            });
        }
        if self.max_cold_wait.is_some_and(|wait| wait > Self::MAX_SLO) {
            return Err(ModelSpecError {
                field: "max_cold_wait_ms".to_owned(),
                problem: format!("expected at most {} ms", Self::MAX_SLO.as_millis()),
            });
        }
        self.program.validate()?;
        self.processing.validate(&self.program)
    }
}

impl Program {
    /// The largest `max_batch_size` of a model, in rows.
    pub const MAX_BATCH_SIZE: u32 = 4096;
    /// The largest number of inputs and the largest number of outputs.
    pub const MAX_TENSORS: usize = 64;

    /// Returns true if requests of this model can share a batch.
    pub fn batches(&self) -> bool {
        self.max_batch_size > 0
    }

    /// Returns the largest number of rows in one batch; 1 for a model without a batch dimension.
    pub fn rows_limit(&self) -> u32 {
        self.max_batch_size.max(1)
    }

    /// Returns true if this axis of every tensor is the batch dimension.
    pub fn is_batch_axis(&self, axis: usize) -> bool {
        axis == 0 && self.batches()
    }

    /// Returns the variable dimensions of the inputs, each as the index of its input and its axis; without the batch dimension.
    pub fn variable_dims(&self) -> impl Iterator<Item = (usize, usize)> {
        let inputs = self.inputs.iter().enumerate();
        inputs.flat_map(move |(input, spec)| {
            let dims = spec.shape.iter().enumerate();
            dims.filter(|(axis, dim)| **dim == Dim::Any && !self.is_batch_axis(*axis))
                .map(move |(axis, _)| (input, axis))
        })
    }

    /// Returns true if an input has a variable dimension beside that of the batch.
    pub fn has_variable_inputs(&self) -> bool {
        self.variable_dims().next().is_some()
    }

    /// Returns true if the registration says the usual sizes of an input.
    pub fn says_typical_shapes(&self) -> bool {
        self.inputs.iter().any(|spec| spec.typical_shape.is_some())
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// Names the first field that is out of its limits.
    pub fn validate(&self) -> Result<(), ModelSpecError> {
        if self.max_batch_size > Self::MAX_BATCH_SIZE {
            return Err(ModelSpecError {
                field: "max_batch_size".to_owned(),
                problem: format!(
                    "{} is over the limit of {}",
                    self.max_batch_size,
                    Self::MAX_BATCH_SIZE
                ),
            });
        }
        self.validate_side("inputs", &self.inputs, true)?;
        self.validate_tried_dims()
            .map_err(|(input, problem)| ModelSpecError {
                field: format!("inputs[{input}].typical_shape"),
                problem,
            })?;
        let examples = self.inputs.iter().filter_map(|spec| spec.example.as_ref());
        let elements: usize = examples.map(Vec::len).sum();
        if elements > TensorSpec::MAX_EXAMPLES {
            return Err(ModelSpecError {
                field: "inputs".to_owned(),
                problem: format!(
                    "their examples have {elements} numbers, over the limit of {}",
                    TensorSpec::MAX_EXAMPLES
                ),
            });
        }
        self.validate_side("outputs", &self.outputs, false)
    }

    /// Returns true if another program answers the same requests with the same file: it differs at most in the inputs that it is tried with.
    pub fn serves_as(&self, other: &Self) -> bool {
        let Self {
            model,
            artifact,
            max_batch_size,
            inputs,
            outputs,
        } = self;
        *model == other.model
            && *artifact == other.artifact
            && *max_batch_size == other.max_batch_size
            && *outputs == other.outputs
            && takes_as(inputs, &other.inputs)
    }

    /// Checks that the usual sizes of an input belong to its shape and are within its limits.
    fn validate_typical_shape(&self, spec: &TensorSpec, is_input: bool) -> Result<(), String> {
        let Some(shapes) = &spec.typical_shape else {
            return Ok(());
        };
        if !is_input {
            return Err("only inputs have usual sizes".to_owned());
        }
        if shapes.shapes().len() > TypicalShapes::MAX_SHAPES {
            return Err(format!(
                "{} shapes are over the limit of {}",
                shapes.shapes().len(),
                TypicalShapes::MAX_SHAPES
            ));
        }
        for (index, WeightedShape { shape, weight }) in shapes.shapes().iter().enumerate() {
            let which = if shapes.are_several() {
                format!("shape {index}: ")
            } else {
                String::new()
            };
            if !(1..=TypicalShapes::MAX_WEIGHT).contains(weight) {
                return Err(format!(
                    "{which}the weight {weight} is not between 1 and {}",
                    TypicalShapes::MAX_WEIGHT
                ));
            }
            let checked = self.validate_usual_sizes(spec, shape);
            checked.map_err(|problem| format!("{which}{problem}"))?;
        }
        let mut several = self.inputs.iter().filter_map(TensorSpec::several_shapes);
        match several.next() {
            Some(first) if shapes.are_several() && !first.weights().eq(shapes.weights()) => {
                let weights: Vec<String> =
                    first.weights().map(|weight| weight.to_string()).collect();
                Err(format!(
                    "expected shapes with the weights of the first input that has several: {}",
                    weights.join(", ")
                ))
            }
            _ => Ok(()),
        }
    }

    fn validate_usual_sizes(&self, spec: &TensorSpec, sizes: &[Dim]) -> Result<(), String> {
        let first = usize::from(self.batches());
        check_sizes(
            spec,
            sizes,
            first,
            "size",
            "the batch dimension is tried with all sizes: expected -1",
            "a fixed dimension has its size or -1",
        )?;
        let row = spec.shape.iter().zip(sizes).enumerate();
        let row = row.map(|(axis, (dim, size))| match (dim, size) {
            (Dim::Any, Dim::Fixed(size)) => size.cast_signed(),
            (Dim::Any, Dim::Any) if axis < first => 1,
            (Dim::Any, Dim::Any) => spec.assumed_dim(axis).cast_signed(),
            (Dim::Fixed(_), _) => (*dim).into(),
        });
        let row = Shape::new(&row.collect::<Vec<i64>>()).map_err(|e| e.to_string())?;
        if let Some(undersized) = spec.undersized_dim(&row) {
            return Err(undersized.to_string());
        }
        if let Some(oversized) = spec.oversized_dim(&row, first) {
            return Err(oversized.to_string());
        }
        let width = spec.datatype.width().unwrap_or(1) as u64;
        let bytes = row.elements().saturating_mul(width);
        if bytes > TypicalShapes::MAX_ROW_BYTES {
            return Err(format!(
                "a row has {bytes} bytes, over the limit of {}",
                TypicalShapes::MAX_ROW_BYTES
            ));
        }
        Ok(())
    }

    /// Checks that an input's limits belong to its shape, and that the default limit leaves room where there is none.
    fn validate_max_shape(&self, spec: &TensorSpec, is_input: bool) -> Result<(), String> {
        let first = usize::from(self.batches());
        if let Some(limits) = &spec.max_shape {
            if !is_input {
                return Err("only inputs can be limited".to_owned());
            }
            check_sizes(
                spec,
                limits,
                first,
                "limit",
                "the limit of the batch dimension is max_batch_size: expected -1",
                "a fixed dimension has its size or -1 as its limit",
            )?;
        }
        if !is_input {
            return Ok(());
        }
        let size = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Any => spec.max_dim(axis).map_or(1, u64::cast_signed),
            Dim::Fixed(_) => (*dim).into(),
        };
        let largest: Vec<i64> = spec.shape.iter().enumerate().map(size).collect();
        let largest = Shape::new(&largest).map_err(|e| e.to_string())?;
        // Dimensions without a limit count as 1: at least these must be possible.
        let smallest = spec.shape.iter().enumerate().skip(first);
        let smallest = smallest.map(|(axis, dim)| match dim {
            Dim::Any => 1,
            Dim::Fixed(_) => largest.dims()[axis],
        });
        let has_open = (first..spec.shape.len())
            .any(|axis| spec.shape[axis] == Dim::Any && spec.max_dim(axis).is_none());
        if has_open && smallest.product::<u64>() > TensorSpec::MAX_ROW_ELEMENTS {
            return Err(format!(
                "a row of an input without limits for its variable dimensions has at most {} elements; declare them",
                TensorSpec::MAX_ROW_ELEMENTS
            ));
        }
        Ok(())
    }

    /// Checks that an input's smallest sizes belong to its shape, and are not above its largest ones.
    fn validate_min_shape(&self, spec: &TensorSpec, is_input: bool) -> Result<(), String> {
        let Some(limits) = &spec.min_shape else {
            return Ok(());
        };
        if !is_input {
            return Err("only inputs can be limited".to_owned());
        }
        check_sizes(
            spec,
            limits,
            usize::from(self.batches()),
            "limit",
            "a batch has one row or more: expected -1",
            "a fixed dimension has its size or -1 as its limit",
        )?;
        let too_large = (0..limits.len()).find_map(|axis| {
            let (least, most) = (spec.min_dim(axis)?, spec.max_dim(axis)?);
            (least > most).then_some((axis, least, most))
        });
        if let Some((axis, least, most)) = too_large {
            return Err(format!(
                "dimension {axis}: {least} is over the largest size of {most} (max_shape)"
            ));
        }
        // With the smallest sizes an input must be possible.
        let smallest = spec.shape.iter().enumerate().map(|(axis, dim)| match dim {
            Dim::Any => spec.min_dim(axis).map_or(1, u64::cast_signed),
            Dim::Fixed(_) => (*dim).into(),
        });
        let smallest = Shape::new(&smallest.collect::<Vec<i64>>()).map_err(|e| e.to_string())?;
        match spec.oversized_dim(&smallest, usize::from(self.batches())) {
            Some(oversized) => Err(oversized.to_string()),
            None => Ok(()),
        }
    }

    fn validate_side(
        &self,
        side: &str,
        specs: &[TensorSpec],
        may_pad: bool,
    ) -> Result<(), ModelSpecError> {
        let error = |field: String, problem: String| Err(ModelSpecError { field, problem });
        if specs.is_empty() || specs.len() > Self::MAX_TENSORS {
            return error(
                side.to_owned(),
                format!(
                    "expected 1 to {} tensors, got {}",
                    Self::MAX_TENSORS,
                    specs.len()
                ),
            );
        }
        let mut names = BTreeSet::new();
        for (i, spec) in specs.iter().enumerate() {
            let field = |part: &str| format!("{side}[{i}].{part}");
            if spec.name.is_empty()
                || spec.name.len() > 256
                || spec.name.chars().any(char::is_control)
            {
                return error(
                    field("name"),
                    "expected 1 to 256 bytes without control characters".to_owned(),
                );
            }
            if !names.insert(&spec.name) {
                return error(field("name"), format!("{:?} is given twice", spec.name));
            }
            if spec.datatype.width().is_none() {
                return error(
                    field("datatype"),
                    "BYTES is not supported, as libtorch has no such tensor; use UINT8 with a length".to_owned(),
                );
            }
            if spec.shape.len() > Shape::MAX_RANK {
                return error(
                    field("shape"),
                    format!(
                        "rank {} is over the limit of {}",
                        spec.shape.len(),
                        Shape::MAX_RANK
                    ),
                );
            }
            let fixed: Vec<i64> = spec
                .shape
                .iter()
                .map(|dim| if *dim == Dim::Any { 1 } else { (*dim).into() })
                .collect();
            if let Err(e) = Shape::new(&fixed) {
                return error(field("shape"), e.to_string());
            }
            if spec.shape.contains(&Dim::Fixed(0)) {
                return error(field("shape"), "a dimension must not be 0".to_owned());
            }
            if self.batches() && spec.shape.first() != Some(&Dim::Any) {
                return error(
                    field("shape"),
                    format!(
                        "with max_batch_size {} the first dimension is the batch and must be -1",
                        self.max_batch_size
                    ),
                );
            }
            if let Some(pad) = spec.pad {
                if !may_pad || !self.batches() {
                    return error(
                        field("pad"),
                        "only inputs of a model with a batch dimension can be padded".to_owned(),
                    );
                }
                if pad.axis == 0 || spec.shape.get(pad.axis) != Some(&Dim::Any) {
                    return error(
                        field("pad.axis"),
                        format!(
                            "{} is not a variable dimension (-1) after the batch dimension",
                            pad.axis
                        ),
                    );
                }
                if !pad.value.is_finite() {
                    return error(field("pad.value"), "expected a finite number".to_owned());
                }
            }
            if let Err(problem) = self.validate_max_shape(spec, may_pad) {
                return error(field("max_shape"), problem);
            }
            if let Err(problem) = self.validate_min_shape(spec, may_pad) {
                return error(field("min_shape"), problem);
            }
            if let Err(problem) = self.validate_dim_names(spec, may_pad) {
                return error(field("dim_names"), problem);
            }
            if let Err(problem) = self.validate_typical_shape(spec, may_pad) {
                return error(field("typical_shape"), problem);
            }
            if let Err(problem) = validate_example(spec, may_pad) {
                return error(field("example"), problem);
            }
        }
        Ok(())
    }
}

/// Checks that the elements of a usual row are of the input's datatype.
fn validate_example(spec: &TensorSpec, is_input: bool) -> Result<(), String> {
    let Some(elements) = &spec.example else {
        return Ok(());
    };
    if !is_input {
        return Err("only inputs have an example".to_owned());
    }
    if elements.is_empty() || elements.len() > TensorSpec::MAX_EXAMPLE {
        return Err(format!(
            "expected 1 to {} numbers, got {}; they are repeated until a row is full",
            TensorSpec::MAX_EXAMPLE,
            elements.len()
        ));
    }
    let wrong = { elements.iter().enumerate() }.find(|(_, number)| !spec.datatype.holds(**number));
    let Some((index, number)) = wrong else {
        return Ok(());
    };
    let (least, most) = spec.datatype.range().unwrap_or_default();
    let what = if spec.datatype.is_float() {
        "a number"
    } else {
        "an integer"
    };
    Err(format!(
        "element {index} is {number}: in an example of {} it is {what} from {least} to {most}",
        spec.datatype
    ))
}

/// Returns true if the same requests suit both lists of inputs.
fn takes_as(inputs: &[TensorSpec], others: &[TensorSpec]) -> bool {
    inputs.len() == others.len() && { inputs.iter().zip(others) }.all(|(spec, other)| {
        let TensorSpec {
            name,
            datatype,
            shape,
            pad,
            max_shape,
            min_shape,
            dim_names,
            typical_shape: _,
            example: _,
        } = spec;
        *name == other.name
            && *datatype == other.datatype
            && *shape == other.shape
            && *pad == other.pad
            && *max_shape == other.max_shape
            && *min_shape == other.min_shape
            && *dim_names == other.dim_names
    })
}

/// Checks a list with a size for each dimension of an input, -1 for those without one. The dimensions before `first` have none. Says in the given words
/// what a size is, and what is wrong with one of a batch dimension and with another one than that of a fixed dimension.
fn check_sizes(
    spec: &TensorSpec,
    sizes: &[Dim],
    first: usize,
    word: &str,
    batch: &str,
    fixed: &str,
) -> Result<(), String> {
    if sizes.len() != spec.shape.len() {
        return Err(format!(
            "expected {} dimensions as in shape, got {}",
            spec.shape.len(),
            sizes.len()
        ));
    }
    for (axis, (size, dim)) in sizes.iter().zip(&spec.shape).enumerate() {
        let problem = match (size, dim) {
            (Dim::Fixed(_), Dim::Any) if axis < first => batch.to_owned(),
            (Dim::Fixed(0), _) => format!("a {word} must not be 0"),
            (Dim::Fixed(size), Dim::Fixed(of)) if size != of => fixed.to_owned(),
            (Dim::Any | Dim::Fixed(_), _) => continue,
        };
        return Err(format!("dimension {axis}: {problem}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Datatype, Padding};

    fn spec() -> ModelSpec {
        let tensor = |name: &str| TensorSpec::new(name, Datatype::Fp32, vec![Dim::Any, Dim::Any]);
        ModelSpec {
            program: Program {
                model: "m:1".parse().unwrap(),
                artifact: ArtifactDigest::from_sha256([0; 32]),
                max_batch_size: 8,
                inputs: vec![tensor("x")],
                outputs: vec![tensor("y")],
            },
            slo: Duration::from_millis(100),
            rate: RequestsPerSecond::new(10.0).ok(),
            rate_mode: RateMode::default(),
            priority: Priority::default(),
            min_replicas: MinReplicas::default(),
            queue_limit: None,
            max_cold_wait: None,
            cache: false,
            variant: None,
            processing: Arc::default(),
        }
    }

    fn field_of(change: impl FnOnce(&mut ModelSpec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        spec.validate().unwrap_err().field
    }

    #[test]
    fn rate_modes_are_read_back_as_they_are_written_and_errors_list_them() {
        for mode in RateMode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
            let json = serde_json::to_string(&mode).unwrap();
            assert_eq!(json, format!("\"{mode}\""));
            assert_eq!(serde_json::from_str::<RateMode>(&json).unwrap(), mode);
        }
        assert_eq!(
            "Max".parse::<RateMode>().unwrap_err().to_string(),
            r#"unknown rate mode "Max": expected one of declared, measured, max, min"#
        );
    }

    #[test]
    fn errors_name_the_field() {
        assert_eq!(spec().validate(), Ok(()));
        assert_eq!(
            field_of(|m| m.program.max_batch_size = 4097),
            "max_batch_size"
        );
        assert_eq!(field_of(|m| m.slo = Duration::ZERO), "slo_ms");
        assert_eq!(field_of(|m| m.slo = Duration::from_secs(61)), "slo_ms");
        assert_eq!(field_of(|m| m.queue_limit = Some(0)), "queue_limit");
        assert_eq!(field_of(|m| m.queue_limit = Some(1_000_001)), "queue_limit");
        let long = Some(Duration::from_secs(61));
        assert_eq!(field_of(|m| m.max_cold_wait = long), "max_cold_wait_ms");
        assert_eq!(field_of(|m| m.program.inputs.clear()), "inputs");
        assert_eq!(
            field_of(|m| m.program.outputs.push(m.program.outputs[0].clone())),
            "outputs[1].name"
        );
        assert_eq!(
            field_of(|m| m.program.inputs[0].datatype = Datatype::Bytes),
            "inputs[0].datatype"
        );
        assert_eq!(
            field_of(|m| m.program.inputs[0].shape[0] = Dim::Fixed(3)),
            "inputs[0].shape"
        );
        assert_eq!(
            field_of(|m| m.program.inputs[0].shape[1] = Dim::Fixed(u64::MAX)),
            "inputs[0].shape"
        );
        assert_eq!(
            field_of(|m| m.program.outputs[0].pad = Some(Padding {
                axis: 1,
                value: 0.0
            })),
            "outputs[0].pad"
        );
        assert_eq!(
            field_of(|m| m.program.inputs[0].pad = Some(Padding {
                axis: 2,
                value: 0.0
            })),
            "inputs[0].pad.axis"
        );
        assert_eq!(
            field_of(|m| m.program.inputs[0].pad = Some(Padding {
                axis: 0,
                value: 0.0
            })),
            "inputs[0].pad.axis"
        );
    }

    #[test]
    fn limits_of_dimensions_belong_to_the_shape() {
        let dims = |dims: &[i64]| -> Vec<Dim> {
            dims.iter()
                .map(|dim| Dim::try_from(*dim).unwrap())
                .collect()
        };
        let problem_of = |shape: &[i64], limits: Option<&[i64]>| {
            let mut spec = spec();
            spec.program.inputs[0].shape = dims(shape);
            spec.program.inputs[0].max_shape = limits.map(dims);
            spec.validate().map_err(|error| {
                assert_eq!(error.field, "inputs[0].max_shape");
                error.problem
            })
        };
        assert_eq!(problem_of(&[-1, -1], Some(&[-1, 512])), Ok(()));
        assert_eq!(problem_of(&[-1, -1, 3], Some(&[-1, -1, 3])), Ok(()));
        for (shape, limits, problem) in [
            (
                &[-1, -1][..],
                Some(&[512][..]),
                "expected 2 dimensions as in shape, got 1",
            ),
            (
                &[-1, -1],
                Some(&[8, 512]),
                "dimension 0: the limit of the batch dimension is max_batch_size: expected -1",
            ),
            (
                &[-1, -1],
                Some(&[-1, 0]),
                "dimension 1: a limit must not be 0",
            ),
            (
                &[-1, 3],
                Some(&[-1, 4]),
                "dimension 1: a fixed dimension has its size or -1 as its limit",
            ),
            (
                &[-1, -1, 5_000_000],
                None,
                "a row of an input without limits for its variable dimensions has at most 4194304 elements; declare them",
            ),
        ] {
            assert_eq!(problem_of(shape, limits), Err(problem.to_owned()));
        }
        assert_eq!(problem_of(&[-1, -1, 5_000_000], Some(&[-1, 2, -1])), Ok(()));
        let mut spec = spec();
        spec.program.outputs[0].max_shape = Some(vec![Dim::Any, Dim::Any]);
        assert_eq!(spec.validate().unwrap_err().field, "outputs[0].max_shape");
    }

    #[test]
    fn usual_sizes_belong_to_the_shape_and_are_within_its_limits() {
        let dims = |dims: &[i64]| -> Vec<Dim> {
            let dims = dims.iter().map(|dim| Dim::try_from(*dim).unwrap());
            dims.collect()
        };
        let problem_of = |shape: &[i64], sizes: &[i64], limits: Option<&[i64]>| {
            let mut spec = spec();
            let input = &mut spec.program.inputs[0];
            input.shape = dims(shape);
            input.typical_shape = Some(TypicalShapes::one(dims(sizes)));
            input.max_shape = limits.map(dims);
            spec.validate().map_err(|error| {
                assert_eq!(error.field, "inputs[0].typical_shape");
                error.problem
            })
        };
        assert_eq!(problem_of(&[-1, -1], &[-1, 128], None), Ok(()));
        assert_eq!(problem_of(&[-1, 80, -1], &[-1, 80, 3000], None), Ok(()));
        assert_eq!(problem_of(&[-1, -1], &[-1, 512], Some(&[-1, 512])), Ok(()));
        let wide = Some(&[-1, 1 << 40][..]);
        assert_eq!(problem_of(&[-1, -1], &[-1, 1 << 28], wide), Ok(()));
        for (shape, sizes, limits, problem) in [
            (
                &[-1, -1][..],
                &[16][..],
                None,
                "expected 2 dimensions as in shape, got 1",
            ),
            (
                &[-1, -1],
                &[8, 16],
                None,
                "dimension 0: the batch dimension is tried with all sizes: expected -1",
            ),
            (
                &[-1, -1],
                &[-1, 0],
                None,
                "dimension 1: a size must not be 0",
            ),
            (
                &[-1, 3],
                &[-1, 4],
                None,
                "dimension 1: a fixed dimension has its size or -1",
            ),
            (
                &[-1, -1],
                &[-1, 513],
                Some(&[-1, 512][..]),
                "dimension 1 is 513, over the limit of 512 that the model declares (max_shape)",
            ),
            (
                &[-1, -1],
                &[-1, 1 << 40],
                wide,
                "a row has 4398046511104 bytes, over the limit of 1073741824",
            ),
            (
                &[-1, -1],
                &[-1, 5_000_000],
                None,
                "dimension 1 is 5000000, over the limit of 4194304: a row has at most 4194304 elements where the model declares no max_shape",
            ),
        ] {
            assert_eq!(problem_of(shape, sizes, limits), Err(problem.to_owned()));
        }
        let mut spec = spec();
        let shape = TypicalShapes::one(vec![Dim::Any, Dim::Any]);
        spec.program.outputs[0].typical_shape = Some(shape);
        assert_eq!(
            spec.validate().unwrap_err().field,
            "outputs[0].typical_shape"
        );
    }

    #[test]
    fn several_usual_shapes_have_weights_and_belong_together() {
        let shapes = |list: &[(i64, u32)]| {
            let shapes = list
                .iter()
                .map(|(size, weight)| serde_json::json!({"shape": [-1, size], "weight": weight}));
            serde_json::from_value(shapes.collect()).unwrap()
        };
        let problem_of = |first: &[(i64, u32)], second: &[(i64, u32)]| {
            let mut spec = spec();
            let mut other = spec.program.inputs[0].clone();
            other.name = "mask".to_owned();
            spec.program.inputs.push(other);
            for (input, list) in spec.program.inputs.iter_mut().zip([first, second]) {
                input.typical_shape = Some(shapes(list));
            }
            let problem = |error: ModelSpecError| format!("{}: {}", error.field, error.problem);
            spec.validate().map_err(problem)
        };
        let two = &[(32, 9), (512, 1)][..];
        assert_eq!(problem_of(two, two), Ok(()));
        assert_eq!(problem_of(two, &[(16, 1)]), Ok(()));
        for (first, second, problem) in [
            (
                two,
                &[(32, 9), (512, 2)][..],
                "inputs[1].typical_shape: expected shapes with the weights of the first input that has several: 9, 1",
            ),
            (
                two,
                &[(32, 9), (64, 1), (96, 1)],
                "inputs[1].typical_shape: expected shapes with the weights of the first input that has several: 9, 1",
            ),
            (
                &[(32, 0), (64, 1)],
                two,
                "inputs[0].typical_shape: shape 0: the weight 0 is not between 1 and 1000",
            ),
            (
                &[(32, 1), (0, 1)],
                two,
                "inputs[0].typical_shape: shape 1: dimension 1: a size must not be 0",
            ),
            (
                &[(1, 1); 9],
                two,
                "inputs[0].typical_shape: 9 shapes are over the limit of 8",
            ),
        ] {
            assert_eq!(problem_of(first, second), Err(problem.to_owned()));
        }
    }

    #[test]
    fn an_example_has_elements_of_the_datatype() {
        let problem_of = |datatype, example: &[f64]| {
            let mut spec = spec();
            spec.program.inputs[0].datatype = datatype;
            spec.program.inputs[0].example = Some(example.to_vec());
            spec.validate().map_err(|error| {
                assert_eq!(error.field, "inputs[0].example");
                error.problem
            })
        };
        assert_eq!(problem_of(Datatype::Int64, &[101.0, 7592.0]), Ok(()));
        for (datatype, example, problem) in [
            (
                Datatype::Int64,
                &[][..],
                "expected 1 to 4096 numbers, got 0; they are repeated until a row is full",
            ),
            (
                Datatype::Int32,
                &[1.0, 0.5],
                "element 1 is 0.5: in an example of INT32 it is an integer from -2147483648 to 2147483647",
            ),
            (
                Datatype::Bool,
                &[2.0],
                "element 0 is 2: in an example of BOOL it is an integer from 0 to 1",
            ),
            (
                Datatype::Fp16,
                &[1e6],
                "element 0 is 1000000: in an example of FP16 it is a number from -65504 to 65504",
            ),
        ] {
            assert_eq!(problem_of(datatype, example), Err(problem.to_owned()));
        }
        let mut spec = spec();
        let input = spec.program.inputs[0].clone();
        let inputs = (0..5).map(|number| TensorSpec {
            name: format!("x{number}"),
            example: Some(vec![1.0; TensorSpec::MAX_EXAMPLE]),
            ..input.clone()
        });
        spec.program.inputs = inputs.collect();
        assert_eq!(
            spec.validate().unwrap_err().to_string(),
            "inputs: their examples have 20480 numbers, over the limit of 16384"
        );
        spec.program.inputs = vec![input];
        spec.program.outputs[0].example = Some(vec![1.0]);
        assert_eq!(spec.validate().unwrap_err().field, "outputs[0].example");
    }

    #[test]
    fn what_a_program_is_tried_with_changes_no_answer() {
        let (this, mut that) = (spec(), spec());
        that.program.inputs[0].example = Some(vec![1.0]);
        let shape = TypicalShapes::one(vec![Dim::Any, Dim::Fixed(9)]);
        that.program.inputs[0].typical_shape = Some(shape);
        assert!(this.program.serves_as(&that.program));
        assert_eq!(this.first_difference(&that), None);
        that.program.inputs[0].max_shape = Some(vec![Dim::Any, Dim::Fixed(9)]);
        assert!(!this.program.serves_as(&that.program));
        assert_eq!(this.first_difference(&that), Some("inputs"));
    }
}
