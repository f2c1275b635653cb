//! Traces of PyTorch's profiler (Kineto): Chrome's trace format, with launch configurations and device properties.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use packhorse_cluster::{ByteCount, Time};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{ComputeCapability, Gpu, Kernel, Launch};

/// The largest number of kernels of one trace.
pub const MAX_KERNELS: usize = 1 << 20;

/// The GPUs and kernels of a trace, by the device's number in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KinetoTrace {
    /// The GPUs with properties in the trace and a known architecture.
    pub gpus: BTreeMap<u32, Gpu>,
    /// The kernels, in the trace's order.
    pub kernels: BTreeMap<u32, Vec<Kernel>>,
}

/// The error for a text that is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The text does not have the format of a trace.
    #[error("the trace cannot be read")]
    Json(#[from] serde_json::Error),
    /// A field of a kernel is missing or invalid.
    #[error("kernel {name:?}: {problem}")]
    Kernel {
        /// The kernel's name in the profiler.
        name: String,
        /// The missing or invalid field.
        problem: String,
    },
    /// There are too many kernels.
    #[error("the trace has more than {MAX_KERNELS} kernels")]
    TooMany,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(default)]
    device_properties: Vec<Properties>,
    #[serde(borrow)]
    trace_events: Vec<Event<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Properties {
    id: u32,
    compute_major: u32,
    compute_minor: u32,
    num_sms: u32,
}

/// An event. Those of other categories than kernels may have any arguments.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    ts: Option<&'a RawValue>,
    #[serde(borrow)]
    dur: Option<&'a RawValue>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Arguments {
    device: u32,
    grid: [u32; 3],
    block: [u32; 3],
    #[serde(rename = "registers per thread")]
    registers_per_thread: u32,
    /// The static and dynamic shared memory, in bytes.
    #[serde(rename = "shared memory")]
    shared_memory: u64,
}

impl KinetoTrace {
    /// Reads the JSON that `torch.profiler` exports. Events other than kernels are skipped.
    pub fn from_json(json: &str) -> Result<Self, TraceError> {
        let document: Document<'_> = serde_json::from_str(json)?;
        let gpu = |properties: &Properties| {
            let capability = ComputeCapability {
                major: properties.compute_major,
                minor: properties.compute_minor,
            };
            Some((
                properties.id,
                Gpu::new(capability, properties.num_sms).ok()?,
            ))
        };
        let mut trace = Self {
            gpus: document.device_properties.iter().filter_map(gpu).collect(),
            kernels: BTreeMap::new(),
        };
        let kernels = document
            .trace_events
            .iter()
            .filter(|event| event.cat == "kernel");
        for (index, event) in kernels.enumerate() {
            if index == MAX_KERNELS {
                return Err(TraceError::TooMany);
            }
            let (device, kernel) = read_kernel(event).map_err(|problem| TraceError::Kernel {
                name: event.name.clone().into_owned(),
                problem,
            })?;
            trace.kernels.entry(device).or_default().push(kernel);
        }
        Ok(trace)
    }
}

fn read_kernel(event: &Event<'_>) -> Result<(u32, Kernel), String> {
    let arguments = event.args.ok_or("args is missing")?;
    let arguments: Arguments =
        serde_json::from_str(arguments.get()).map_err(|e| format!("args: {e}"))?;
    let time = |field, text: Option<&RawValue>| {
        text.and_then(|text| parse_micros(text.get()))
            .ok_or_else(|| format!("{field} must be a number of microseconds"))
    };
    let kernel = Kernel {
        name: event.name.clone().into_owned(),
        launch: Launch {
            grid: arguments.grid,
            block: arguments.block,
            registers_per_thread: arguments.registers_per_thread,
            shared_memory: ByteCount::new(arguments.shared_memory),
        },
        start: Time::from_nanos(time("ts", event.ts)?),
        duration: Duration::from_nanos(time("dur", event.dur)?),
    };
    Ok((arguments.device, kernel))
}

/// Converts decimal microseconds to nanoseconds. Times count from 1970: floating-point numbers would lose their nanoseconds.
fn parse_micros(micros: &str) -> Option<u64> {
    let (whole, fraction) = micros.split_once('.').unwrap_or((micros, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
    let whole: u64 = whole.parse().ok()?;
    whole
        .checked_mul(1000)?
        .checked_add(thousandths.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelProfile;

    /// Two kernels from traces of a V100 and an H100, with other events.
    const TRACE: &str = r#"{
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": 0, "name": "V100", "computeMajor": 7, "computeMinor": 0, "numSms": 80},
            {"id": 1, "name": "H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132},
            {"id": 2, "name": "K80", "computeMajor": 3, "computeMinor": 7, "numSms": 13}
        ],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "ts": -1.5, "args": {"name": "python"}},
            {"ph": "X", "cat": "kernel", "name": "square", "pid": 0, "tid": 7, "ts": 1713738903328187.042, "dur": 164,
             "args": {"device": 0, "stream": 7, "registers per thread": 20, "shared memory": 0, "blocks per SM": 51.200001,
                      "grid": [4096, 1, 1], "block": [512, 1, 1], "est. achieved occupancy %": 100}},
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 1, "dur": 31, "args": {"device": 1, "bytes": 1609728}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 7, "ts": 1689861288841850, "dur": 9,
             "args": {"device": 1, "stream": 7, "registers per thread": 128, "shared memory": 13056, "blocks per SM": 0.72727275,
                      "warps per SM": 2.909091, "grid": [8, 12, 1], "block": [128, 1, 1], "est. achieved occupancy %": 5}}
        ]
    }"#;

    #[test]
    fn recorded_kernels_have_the_occupancy_that_the_profiler_estimated() {
        let trace = KinetoTrace::from_json(TRACE).unwrap();
        assert_eq!(trace.gpus.keys().copied().collect::<Vec<u32>>(), [0, 1]);
        for (device, name, estimate) in [(0, "square", "100"), (1, "gemm", "5")] {
            let kernels = &trace.kernels[&device];
            assert_eq!(kernels[0].name, name);
            let profile = KernelProfile::new(&trace.gpus[&device], kernels).unwrap();
            let ours = profile.achieved_occupancy.max().get();
            assert_eq!(format!("{ours:.0}"), estimate);
        }
        let square = &trace.kernels[&0][0];
        assert_eq!(square.start, Time::from_nanos(1_713_738_903_328_187_042));
        assert_eq!(square.duration, Duration::from_micros(164));
    }

    #[test]
    fn errors_name_the_kernel_and_the_field_that_cannot_be_read() {
        let message = |json: &str| KinetoTrace::from_json(json).unwrap_err().to_string();
        assert_eq!(message("["), "the trace cannot be read");
        let lacking = TRACE.replace("\"grid\": [8, 12, 1], ", "");
        assert!(message(&lacking).starts_with("kernel \"gemm\": args: missing field `grid`"));
        for time in ["-9", "1e3", "\"9\"", "99999999999999999999"] {
            let wrong = TRACE.replace("\"dur\": 9,", &format!("\"dur\": {time},"));
            assert_eq!(
                message(&wrong),
                "kernel \"gemm\": dur must be a number of microseconds"
            );
        }
    }

    #[test]
    fn a_trace_of_a_cpu_has_no_kernels() {
        let trace =
            KinetoTrace::from_json(r#"{"traceEvents": [{"cat": "cpu_op", "name": "aten::mm"}]}"#);
        assert_eq!(trace.unwrap(), KinetoTrace::default());
    }
}
