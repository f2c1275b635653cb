//! The messages of metadata, configuration, statistics and the repository, from those that HTTP sends as JSON.

use packhorse_protocol as protocol;
use packhorse_protocol::RepositoryState;

use crate::messages::inference as messages;
use messages::{
    model_config::SchedulingChoice, model_metadata_response::TensorMetadata as Metadata,
    repository_index_response::ModelIndex, system_shared_memory_status_response::RegionStatus,
};

impl From<protocol::ServerMetadata> for messages::ServerMetadataResponse {
    fn from(metadata: protocol::ServerMetadata) -> Self {
        let protocol::ServerMetadata {
            name,
            version,
            extensions,
        } = metadata;
        Self {
            name,
            version,
            extensions,
        }
    }
}

impl From<protocol::ModelMetadata> for messages::ModelMetadataResponse {
    fn from(metadata: protocol::ModelMetadata) -> Self {
        let tensors = |tensors: Vec<protocol::TensorMetadata>| {
            let tensor = |tensor: protocol::TensorMetadata| Metadata {
                name: tensor.name,
                datatype: tensor.datatype.to_string(),
                shape: tensor.shape,
            };
            tensors.into_iter().map(tensor).collect()
        };
        Self {
            name: metadata.name,
            versions: metadata.versions,
            platform: metadata.platform,
            inputs: tensors(metadata.inputs),
            outputs: tensors(metadata.outputs),
        }
    }
}

impl From<protocol::ModelConfig> for messages::ModelConfig {
    fn from(config: protocol::ModelConfig) -> Self {
        let data_type = |name: &str| {
            let data_type = messages::DataType::from_str_name(name);
            data_type.unwrap_or_default().into()
        };
        let input = config.input.into_iter().map(|tensor| messages::ModelInput {
            data_type: data_type(&tensor.data_type),
            name: tensor.name,
            dims: tensor.dims,
        });
        let output = config.output.into_iter();
        let output = output.map(|tensor| messages::ModelOutput {
            data_type: data_type(&tensor.data_type),
            name: tensor.name,
            dims: tensor.dims,
        });
        let batches = config.dynamic_batching;
        Self {
            name: config.name,
            platform: config.platform,
            max_batch_size: i32::try_from(config.max_batch_size).unwrap_or(i32::MAX),
            input: input.collect(),
            output: output.collect(),
            scheduling_choice: batches
                .map(|_| SchedulingChoice::DynamicBatching(messages::ModelDynamicBatching {})),
        }
    }
}

impl From<protocol::DurationStatistics> for messages::StatisticDuration {
    fn from(duration: protocol::DurationStatistics) -> Self {
        Self {
            count: duration.count,
            ns: duration.ns,
        }
    }
}

impl From<protocol::ModelStatistics> for messages::ModelStatistics {
    fn from(statistics: protocol::ModelStatistics) -> Self {
        let duration = |duration: protocol::DurationStatistics| Some(duration.into());
        let stages = statistics.inference_stats;
        let batch = |batch: protocol::BatchStatistics| messages::InferBatchStatistics {
            batch_size: batch.batch_size,
            compute_input: duration(batch.compute_input),
            compute_infer: duration(batch.compute_infer),
            compute_output: duration(batch.compute_output),
        };
        Self {
            name: statistics.name,
            version: statistics.version,
            last_inference: statistics.last_inference,
            inference_count: statistics.inference_count,
            execution_count: statistics.execution_count,
            inference_stats: Some(messages::InferStatistics {
                success: duration(stages.success),
                fail: duration(stages.fail),
                queue: duration(stages.queue),
                compute_input: duration(stages.compute_input),
                compute_infer: duration(stages.compute_infer),
                compute_output: duration(stages.compute_output),
                cache_hit: duration(stages.cache_hit),
                cache_miss: duration(stages.cache_miss),
            }),
            batch_stats: statistics.batch_stats.into_iter().map(batch).collect(),
        }
    }
}

impl From<protocol::RepositoryEntry> for ModelIndex {
    fn from(entry: protocol::RepositoryEntry) -> Self {
        let state = match entry.state {
            RepositoryState::Ready => "READY",
            RepositoryState::Unavailable => "UNAVAILABLE",
            RepositoryState::Loading => "LOADING",
            RepositoryState::Unloading => "UNLOADING",
            RepositoryState::Unknown => "UNKNOWN",
        };
        Self {
            name: entry.name,
            version: entry.version.unwrap_or_default(),
            state: state.to_owned(),
            reason: entry.reason.unwrap_or_default(),
        }
    }
}

impl FromIterator<protocol::SystemSharedMemory> for messages::SystemSharedMemoryStatusResponse {
    fn from_iter<I: IntoIterator<Item = protocol::SystemSharedMemory>>(regions: I) -> Self {
        let regions = regions.into_iter().map(|region| {
            let status = RegionStatus {
                name: region.name.clone(),
                key: region.key,
                offset: region.offset,
                byte_size: region.byte_size,
            };
            (region.name, status)
        });
        Self {
            regions: regions.collect(),
        }
    }
}
