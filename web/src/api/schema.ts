// Generated from openapi/gateway.json (sha256 221f03492f694aaa7cb91b8e6925a7cfd51d20a09d8293a956413b5dddb883ca) by cargo xtask web.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description The whole state of a node, sent on every change and with every renewal of the lease. */
        AgentStatus: {
            /**
             * Format: int64
             * @description The epoch of the wanted state that the agent last received.
             */
            epoch: number;
            /** @description The state of each GPU of the node. */
            gpus?: components["schemas"]["GpuStatus"][];
            /**
             * @description The inspections that have ended and are still wanted; null from an agent that makes none, because it is of an earlier version or all its
             *     devices are simulated.
             */
            inspections?: components["schemas"]["InspectionResult"][] | null;
            /** @description The agent's instance, as in its lease request. */
            instance: string;
            /** @description The measurements that are running, or finished and still wanted. */
            profiles: components["schemas"]["ProfileProgress"][];
            /** @description The replicas on the node, wanted or not. */
            replicas: components["schemas"]["ReplicaStatus"][];
            /**
             * Format: int64
             * @description The revision of that wanted state.
             */
            revision: number;
        };
        /** @description A stored model file. */
        ArtifactView: {
            /**
             * Format: int64
             * @description The size of the file, in bytes.
             */
            bytes: number;
            /** @description The SHA-256 digest of the file. */
            digest: string;
        };
        /** @description The owner of the token, key or session with which a request came. */
        AuditActor: {
            /** @description The address that the request came from. */
            address?: string | null;
            /** @description The identity of the API key; null for the admin token. */
            key_id?: string | null;
            /** @description The name of the key, or of the admin token. */
            name: string;
            /** @description True if a session of the dashboard acted for the owner of the token or key. */
            session: boolean;
        };
        /** @description An act of an admin that was carried out. */
        AuditEntry: {
            /** @description The act: the kind of its subject and a verb, such as `model.register`. */
            action: string;
            /** @description Who acted. */
            actor: components["schemas"]["AuditActor"];
            /**
             * Format: int64
             * @description The time of the act, as Unix time in milliseconds.
             */
            at_ms: number;
            /** @description The values that it replaced: the fields of the change that were different before it; null if there are none, or they are not known. */
            before?: Record<string, never> | null;
            /** @description What was changed, as in the request, without secrets. */
            change: Record<string, never>;
            /**
             * Format: int64
             * @description The entry's number. Later acts have larger ones.
             */
            id: number;
            /** @description The model, node, key or file that it was about; null if it was about the whole cluster. */
            subject?: string | null;
        };
        /** @description The number of executed batches of one size and their time, by stage. */
        BatchStatistics: {
            /**
             * Format: int64
             * @description The number of rows in the batch.
             */
            batch_size: number;
            /** @description The time of computing. */
            compute_infer: components["schemas"]["DurationStatistics"];
            /** @description The time of copying inputs to the device. */
            compute_input: components["schemas"]["DurationStatistics"];
            /** @description The time of copying outputs from the device. */
            compute_output: components["schemas"]["DurationStatistics"];
        };
        /** @description The time of a batch of a model on a kind of device, in its profile and as it was observed. */
        BatchTimeView: {
            /**
             * Format: int32
             * @description The rows of the batch.
             */
            batch_size: number;
            /** @description The kind of device. */
            device_kind: string;
            learned?: components["schemas"]["LearnedTimeView"] | null;
            /** @description The name of the model. */
            model: string;
            /**
             * Format: double
             * @description The time in the profile, in milliseconds.
             */
            profile_ms: number;
            /** @description The source of the profile. */
            source: components["schemas"]["ProfileSource"];
            /**
             * Format: int32
             * @description The version of the model.
             */
            version: number;
        };
        /** @description The batch of a request. */
        BatchView: {
            /** @description The device of the replica, as NODE/DEVICE; null if the gateway no longer knows. */
            device?: string | null;
            /**
             * Format: int64
             * @description The number of the batch since the gateway's start.
             */
            id: number;
            /** @description The replica that it was sent to; null if the gateway no longer knows. */
            replica?: string | null;
            /**
             * Format: int32
             * @description The number of its rows.
             */
            rows: number;
        };
        /** @description The bottleneck of a model: the first variant that holds, in this order. */
        Bound: {
            /** @enum {string} */
            by: "rate";
        } | {
            /** @enum {string} */
            by: "no-profile";
        } | {
            /** @enum {string} */
            by: "latency-floor";
            /**
             * Format: double
             * @description The least latency, on the fastest device: hand-over, network both ways, and the smallest batch that may be planned.
             */
            floor_ms: number;
            /**
             * Format: double
             * @description The model's latency objective.
             */
            slo_ms: number;
        } | {
            /** @enum {string} */
            by: "memory";
        } | {
            /** @enum {string} */
            by: "policy";
            /** @description The reason that the policy gives. */
            why: string;
        } | {
            /** @enum {string} */
            by: "interference";
        } | {
            /**
             * Format: int32
             * @description The largest batch size of the model's replicas.
             */
            batch_size: number;
            /** @enum {string} */
            by: "batch-time";
            /**
             * Format: double
             * @description The model's latency objective.
             */
            slo_ms: number;
        } | {
            /** @enum {string} */
            by: "device-time";
        };
        /**
         * @description The outcome of looking for a request in the cache of predictions.
         * @enum {string}
         */
        CacheUse: "hit" | "miss";
        /** @description The limits that a worker found on its device and in its memory. */
        Capacity: {
            /**
             * Format: int32
             * @description The largest number of rows in one batch that there is memory for, at most the wanted batch size.
             */
            batch_size: number;
            /**
             * Format: int32
             * @description The number of batches that the worker accepts before it has answered the first.
             */
            in_flight: number;
            /**
             * Format: int32
             * @description The number of multiprocessors that the worker may use; none if the device has none.
             */
            multiprocessors?: number | null;
        };
        /** @description A change to the cluster or to a model. */
        Change: {
            /** @enum {string} */
            change: "add-devices";
            /**
             * Format: int32
             * @description The number of added devices.
             */
            count: number;
            /** @description The kind of the added devices. */
            kind: string;
        } | {
            /** @enum {string} */
            change: "slo";
            /**
             * Format: double
             * @description The new latency objective.
             */
            slo_ms: number;
        } | {
            /** @enum {string} */
            change: "max-batch-size";
            /**
             * Format: int32
             * @description The new largest number of rows in one batch.
             */
            max_batch_size: number;
        } | {
            /** @enum {string} */
            change: "rate";
            /**
             * Format: double
             * @description The new rate.
             */
            rate_rps: number;
        } | {
            /** @enum {string} */
            change: "priority";
            /**
             * Format: int32
             * @description The new priority.
             */
            priority: number;
        };
        /** @description The answer to a change that may be a dry run. */
        ChangeAnswer_ModelView: components["schemas"]["Changed_ModelView"] | components["schemas"]["DryRunAnswer"];
        /** @description The answer to a change that may be a dry run. */
        ChangeAnswer_NodeView: components["schemas"]["Changed_NodeView"] | components["schemas"]["DryRunAnswer"];
        /** @description The answer to a change that may be a dry run. */
        ChangeAnswer_PolicyView: components["schemas"]["Changed_PolicyView"] | components["schemas"]["DryRunAnswer"];
        /** @description The answer to a change that may be a dry run. */
        ChangeAnswer_RemovedModel: components["schemas"]["Changed_RemovedModel"] | components["schemas"]["DryRunAnswer"];
        /** @description The answer to a change that may be a dry run. */
        ChangeAnswer_RemovedNode: components["schemas"]["Changed_RemovedNode"] | components["schemas"]["DryRunAnswer"];
        /** @description A model, node or policy that an admin has changed or removed, with the consequences of the change. */
        Changed_ModelView: {
            /**
             * Format: double
             * @description The part of the version's answers that are right, in percent; null without a family.
             */
            accuracy?: number | null;
            /** @description The digest of the model's TorchScript file. */
            artifact: string;
            /**
             * Format: int64
             * @description The size of the file, in bytes.
             */
            artifact_bytes: number;
            /** @description True if answers are kept, and given again to requests of the same client with the same inputs. */
            cache?: boolean;
            /** @description The kinds of device for which the model's profile is estimated from the operators of its program. A measurement replaces it. */
            estimated_on?: string[];
            /** @description The family that the model is a variant of; null if it is in none. */
            family?: string | null;
            /** @description The declared inputs. */
            inputs: components["schemas"]["TensorSpec"][];
            /**
             * Format: int32
             * @description The largest number of rows in one batch; 0 for a model without a batch dimension.
             */
            max_batch_size: number;
            /**
             * Format: int32
             * @description The most milliseconds for which a request waits while the model is loaded from its file; null if that is `slo_ms`.
             */
            max_cold_wait_ms?: number | null;
            measured?: components["schemas"]["MeasuredRateView"] | null;
            /**
             * @description The kinds of device on which measuring the model failed since the start of the gateway, which does not measure it there again before its next
             *     start. On those that are in `estimated_on`, too, the model serves by its estimate.
             */
            measuring_failed_on?: string[];
            /**
             * Format: int32
             * @description The least number of different devices with replicas of the model.
             */
            min_replicas?: number;
            /** @description The name that clients use. */
            name: string;
            /** @description The declared outputs. */
            outputs: components["schemas"]["TensorSpec"][];
            /**
             * @description The way from an output to what clients want, by the name of the output: the best classes of each row, with their names.
             *     Lists of models and events leave out the names, which may be megabytes.
             */
            postprocess?: {
                [key: string]: components["schemas"]["Postprocess"];
            };
            predicted?: components["schemas"]["PredictedGoodputView"] | null;
            /** @description The way from what clients have to an input, by the name of the input: pictures of JPEG, PNG or WebP. */
            preprocess?: {
                [key: string]: components["schemas"]["Preprocess"];
            };
            /**
             * Format: int32
             * @description The priority over other models, 0 to 9.
             */
            priority?: number;
            /** @description The kinds of device for which the model has a measured or imported profile. */
            profiled_on: string[];
            /** @description The measurements that are assigned to a device and not finished. */
            profiling: components["schemas"]["ProfilingView"][];
            /**
             * Format: int32
             * @description The largest number of requests in the model's queue; null if the gateway's `--queue-limit` applies.
             */
            queue_limit?: number | null;
            /** @description The rate to plan for beside a reservation: `declared`, `measured`, `max` or `min`. */
            rate?: components["schemas"]["RateMode"];
            /**
             * Format: double
             * @description The reserved request rate, in requests of one row per second; null without a reservation, where the model is planned for its measured rate.
             */
            rate_rps?: number | null;
            /** @description The reason for the state and what the model waits for, as text for people. */
            reason?: string | null;
            /** @description The replicas of the current plan, and those of earlier plans that still run. */
            replicas: components["schemas"]["ReplicaView"][];
            /** @description The shares of the versions in percent to which a rollback returns; null if there are none. */
            rollback_split?: {
                [key: string]: number;
            } | null;
            /**
             * Format: int32
             * @description The present share of this version in the requests to the model that name no version, in percent.
             */
            share_pct?: number;
            /**
             * Format: double
             * @description The latency objective (SLO) in milliseconds.
             */
            slo_ms: number;
            /**
             * @description The shares of the versions in percent that an admin gave; null if the newest version takes over by itself, in steps of what its
             *     serving replicas are planned to carry.
             */
            split?: {
                [key: string]: number;
            } | null;
            /** @description The state between registration and serving. */
            state: components["schemas"]["ModelState"];
            /** @description The choice of a version for a request: `none`, or `request-id` (requests with the same `x-request-id` get the same version). */
            sticky?: components["schemas"]["Sticky"];
            /**
             * Format: int32
             * @description The version.
             */
            version: number;
        } & components["schemas"]["Consequences"];
        /** @description A model, node or policy that an admin has changed or removed, with the consequences of the change. */
        Changed_NodeView: {
            /** @description The agent's version. */
            agent_version: string;
            /** @description The node's devices. */
            devices: components["schemas"]["DeviceView"][];
            /**
             * Format: int64
             * @description The time since the agent's last message, in milliseconds; null if there was none since the gateway started.
             */
            last_seen_ms?: number | null;
            /** @description The node's name. */
            name: string;
            /** @description The node's state. */
            state: components["schemas"]["NodeState"];
        } & components["schemas"]["Consequences"];
        /** @description A model, node or policy that an admin has changed or removed, with the consequences of the change. */
        Changed_PolicyView: {
            /** @description The dispatch discipline. */
            discipline: string;
            /** @description The dispatch disciplines. */
            disciplines?: components["schemas"]["DisciplineInfo"][];
            /** @description The policy's options. */
            options: components["schemas"]["PolicyOptions"];
            /** @description The available placement policies. */
            policies: components["schemas"]["PolicyInfo"][];
            /** @description The placement policy. */
            policy: string;
        } & components["schemas"]["Consequences"];
        /** @description A model, node or policy that an admin has changed or removed, with the consequences of the change. */
        Changed_RemovedModel: {
            /** @description The model's name. */
            removed: string;
            /**
             * Format: int32
             * @description The removed version; null if all were.
             */
            version?: number | null;
        } & components["schemas"]["Consequences"];
        /** @description A model, node or policy that an admin has changed or removed, with the consequences of the change. */
        Changed_RemovedNode: {
            /** @description The node's name. */
            removed: string;
        } & components["schemas"]["Consequences"];
        /**
         * @description The order of the channels of a pixel.
         * @enum {string}
         */
        Channels: "RGB" | "BGR";
        /** @description The way from a row of scores to its best classes. */
        Classes: {
            /** @description The names of the classes, in the order of the output. */
            labels?: string[];
            /** @description True if the scores of classes are the softmax of the output's rows, which are then logits. */
            softmax?: boolean;
            /**
             * Format: int32
             * @description The number of classes that a request without JSON is answered.
             */
            top_k: number;
        };
        /** @description An output in [`ModelMetadata`] with the scores of classes. */
        ClassesMetadata: {
            /** @description The name of the output. */
            output: string;
            /**
             * Format: int32
             * @description The number of classes that are answered.
             */
            top_k: number;
        };
        /** @description A model from which a change takes a part of its planned goodput. */
        Consequence: {
            /**
             * Format: double
             * @description The goodput that is planned for the model with the change, in requests per second within the SLO.
             */
            after_rps: number;
            /**
             * Format: double
             * @description The goodput that is planned for the model without the change, in requests per second within the SLO.
             */
            before_rps: number;
            /** @description The name of the model, whose versions count together, or of the family, whose variants do. */
            model: string;
            /** @description The reason why it is less, as text for people. */
            reason: string;
        };
        /** @description The consequences of a change for the models of the cluster. They are found by planning twice, without the change and with it. */
        Consequences: {
            /**
             * @description The models from which the change takes more than a hundredth of their planned goodput, by name; empty if there are none. The
             *     changed model is one of them if it gets less of what it asks for. Null if the consequences are not known.
             */
            consequences?: components["schemas"]["Consequence"][] | null;
            /** @description The reason why the consequences are not known, as text for people; absent if they are known. */
            consequences_unknown?: string | null;
        };
        /** @description A key that was made or rotated, with its secret, which is shown here and never again. */
        CreatedKey: components["schemas"]["KeyView"] & {
            /** @description The key, for `Authorization: Bearer`. */
            key: string;
        };
        /**
         * @description Where a crop lies if the pixels left and right of it cannot be as many.
         * @enum {string}
         */
        CropRounding: "half-even" | "floor";
        /** @description The cure of a finding. */
        Cure: {
            preview?: components["schemas"]["PlanPreviewRequest"] | null;
            /** @description The cure, in a sentence for people. */
            text: string;
        };
        /**
         * @description A datatype of the Open Inference Protocol, version 2.
         * @enum {string}
         */
        Datatype: "BOOL" | "UINT8" | "UINT16" | "UINT32" | "UINT64" | "INT8" | "INT16" | "INT32" | "INT64" | "FP16" | "BF16" | "FP32" | "FP64" | "BYTES";
        /** @description A device in a step. */
        DevicePoint: {
            /**
             * Format: int64
             * @description The begin of the step, in milliseconds since 1970.
             */
            at_ms: number;
            /**
             * Format: double
             * @description The compute time of the batches that came back, over the time. Batches that ran beside each other count each, so that it may be above 1.
             */
            busy: number;
            /**
             * Format: double
             * @description The time of which something is known, in seconds; less than the step where a part of it is a gap.
             */
            covered_s: number;
            /**
             * Format: int64
             * @description The most memory that its workers reported, in bytes.
             */
            memory_bytes: number;
            /**
             * Format: int64
             * @description The generation of the plan at the end of the step; null before the first.
             */
            plan?: number | null;
            /**
             * Format: double
             * @description The part of the time in which the device computed, from 0 to 1, as its node read it; null where it cannot be read.
             */
            utilization?: number | null;
        };
        /** @description The properties of a device whose models can share one worker process, which copies weights to the device as they are needed. */
        DevicePool: {
            /**
             * Format: double
             * @description The bandwidth from the node's memory to the device, in bytes per second.
             */
            host_link_bytes_per_second: number;
            /**
             * Format: int32
             * @description The number of models up to which each rather has a worker process of its own.
             */
            own_workers: number;
            /**
             * Format: int64
             * @description The device memory of the process without models, in bytes.
             */
            process_bytes: number;
        };
        /** @description A device as its agent reports it. */
        DeviceReport: {
            /** @description The device's name in its driver or the operating system. */
            description: string;
            /** @description The kind of device, as in profiles. */
            kind: string;
            /**
             * Format: int64
             * @description The memory that replicas may use, in bytes.
             */
            memory_bytes: number;
            /**
             * Format: int32
             * @description The number of streaming multiprocessors of a GPU, or of threads of a CPU; null if unknown.
             */
            multiprocessors?: number | null;
            /** @description The device's name within the node: the UUID of an NVIDIA GPU, `cpu0`, `sim0`. */
            name: string;
            pool?: components["schemas"]["DevicePool"] | null;
        };
        /** @description A device of a node. */
        DeviceView: {
            /** @description The device's name in its driver or the operating system. */
            description: string;
            gpu?: components["schemas"]["GpuStatus"] | null;
            /** @description The device's identity, as NODE/DEVICE. */
            id: string;
            /** @description The kind of device, as in profiles. */
            kind: string;
            /**
             * Format: int64
             * @description The memory that replicas may use, in bytes.
             */
            memory_bytes: number;
            /**
             * Format: int32
             * @description The number of streaming multiprocessors of a GPU, or of threads of a CPU; null if unknown.
             */
            multiprocessors?: number | null;
            /** @description The replicas on the device. */
            replicas: string[];
        };
        /** @description A dispatch discipline. */
        DisciplineInfo: {
            /** @description True if the gateway has it; the others run in the simulator only. */
            live: boolean;
            /** @description The discipline's name. */
            name: string;
        };
        /** @description A document. */
        Document: string | {
            /** @description The text. */
            text: string;
        };
        /** @description A rewriting that a worker does without. */
        DroppedRewriting: {
            /** @description The difference of its answers, as text for people. */
            reason: string;
            /** @description The rewriting, such as `oneDNN's aten::avg_pool2d`. */
            rewriting: string;
        };
        /** @description The answer to a dry run. */
        DryRunAnswer: components["schemas"]["Consequences"] & {
            /** @description True: the change is not made. */
            dry_run: boolean;
        };
        /** @description The number of events and their total duration. */
        DurationStatistics: {
            /**
             * Format: int64
             * @description The number of events.
             */
            count: number;
            /**
             * Format: int64
             * @description The total duration, in nanoseconds.
             */
            ns: number;
        };
        /** @description The batching configuration in [`ModelConfig`], which is an empty object. */
        DynamicBatching: Record<string, never>;
        /** @description The way from a row of numbers to an embedding. */
        Embedding: {
            /** @description True if the vector is brought to the length of one. */
            normalize?: boolean;
            pool?: components["schemas"]["Pool"] | null;
        };
        /** @description An embedding. */
        EmbeddingItem: {
            /** @description The numbers. */
            embedding: unknown;
            /** @description The index of the text. */
            index: number;
            /** @description The word `embedding`. */
            object: string;
        };
        /** @description Embeddings of texts. */
        EmbeddingsAnswer: {
            /** @description The embeddings, in the order of the texts. */
            data: components["schemas"]["EmbeddingItem"][];
            /** @description The model. */
            model: string;
            /** @description The word `list`. */
            object: string;
            /** @description The tokens that were counted. */
            usage: components["schemas"]["Usage"];
        };
        /** @description A request for embeddings. Further fields are not looked at. */
        EmbeddingsRequest: {
            /** @description The number of dimensions that are left of each embedding, which is brought to the length of one again. */
            dimensions?: number | null;
            encoding_format?: components["schemas"]["EncodingFormat"] | null;
            /** @description A text, or a list of at most 2048 texts. */
            input: components["schemas"]["Texts"];
            /** @description The model, as `NAME` or `NAME:VERSION`. */
            model: string;
        };
        /**
         * @description The form of an embedding in an answer.
         * @enum {string}
         */
        EncodingFormat: "float" | "base64";
        /**
         * @description The way in which a request ended.
         * @enum {string}
         */
        EndOfRequest: "answered" | "late" | "refused" | "expired" | "lost" | "failed" | "cancelled" | "rejected";
        /** @description The body of every response that is not a success. */
        ErrorBody: {
            /** @description The error message. It names the field and its limit. */
            error: string;
        };
        ErrorItem: {
            /** @description The word `model_not_found` if there is no such model. */
            code?: string | null;
            /** @description What is wrong. */
            message: string;
            /** @description Nothing: the message names the field. */
            param?: string | null;
            /** @description The kind of error. */
            type: string;
        };
        /**
         * @description The kind of a change: the name of its event in the stream.
         * @enum {string}
         */
        EventKind: "model" | "node" | "device" | "replica" | "plan" | "drift" | "finding";
        /** @description The subject of an event after the change, in the form of its own route. */
        EventObject: components["schemas"]["ModelView"] | components["schemas"]["PlanView"] | components["schemas"]["NodeView"] | components["schemas"]["ReplicaView"] | components["schemas"]["DeviceView"] | components["schemas"]["Finding"];
        /**
         * @description The state of the subject after a change. Each kind of event has its own states.
         * @enum {string}
         */
        EventState: "registered" | "fetching" | "profiling" | "planning" | "loading" | "ready" | "unplaced" | "failed" | "cordoned" | "draining" | "lost" | "removed" | "rerouted" | "backing_off" | "serving" | "ejected" | "stopped" | "proposed" | "adopted" | "rejected" | "completed" | "degraded" | "rate" | "latency" | "slowdown" | "input_shapes" | "raised" | "cleared";
        /** @description A change in the cluster. Its kind is the name of its event in the stream. */
        EventView: {
            /**
             * Format: int64
             * @description The time of the change, in milliseconds since 1970.
             */
            at_ms: number;
            /**
             * Format: int64
             * @description The number of the event. Numbers ascend and are never used again.
             */
            id: number;
            /** @description The kind of change. */
            kind: components["schemas"]["EventKind"];
            object?: components["schemas"]["EventObject"] | null;
            /** @description The reason for the change, as text for people. */
            reason?: string | null;
            /** @description The state of the subject after the change. */
            state: components["schemas"]["EventState"];
            subject?: components["schemas"]["Subject"] | null;
            /** @description The change in a sentence for people. */
            text: string;
        };
        /** @description A number that shows a finding. */
        Evidence: {
            /** @description The route of the admin API that has more of it; null if there is none. */
            route?: string | null;
            /** @description The sentence with the number. */
            text: string;
        };
        /** @description The part of one model's requests that a plan serves in time, the bottleneck, and changes that would serve the model. */
        Explanation: {
            /** @description The bottleneck. */
            bound: components["schemas"]["Bound"];
            /**
             * @description True if the search was completed. Otherwise remedies may be missing or larger than necessary, and the bound `memory` may have
             *     been overlooked.
             */
            complete: boolean;
            /**
             * @description Changes each of which would suffice by itself, with a new plan of the same policy. Empty if the model is served, if a new plan would serve it
             *     without a change, or if no such change was found.
             */
            remedies: components["schemas"]["Remedy"][];
            /**
             * Format: double
             * @description The fraction of its requests that is answered within the SLO, from 0 to 1, by the estimate of queueing and interference, whatever
             *     the policy itself expects; 1 for a model that expects no requests and has a replica.
             */
            served_fraction: number;
        };
        /** @description The goodput of the variants of a family together in a time window, whether the requests were for the family or for a variant alone. */
        FamilyGoodput: {
            /**
             * Format: double
             * @description The mean accuracy of the answers within the SLO, in percent; null without any.
             */
            accuracy_pct?: number | null;
            /**
             * Format: double
             * @description The requests that were answered within the SLO, each counted by the accuracy of the variant that answered, per second.
             */
            accurate_goodput_rps: number;
            /**
             * Format: double
             * @description The requests that were answered within the SLO, per second.
             */
            goodput_rps: number;
            /** @description The name of the family. */
            name: string;
            /**
             * Format: double
             * @description The requests that arrived, per second.
             */
            offered_rps: number;
        };
        /** @description Something that is wrong, with its cause and its cure. */
        Finding: {
            /** @description The cause, as text for people. A finding with the same problem, subject and model is the same finding, even if its texts have other numbers. */
            cause: string;
            cure?: components["schemas"]["Cure"] | null;
            /** @description The numbers that show it. */
            evidence?: components["schemas"]["Evidence"][];
            /**
             * Format: int64
             * @description The number of requests that it cost in the last minute, or of a process that ended since then; 0 if it is not known.
             */
            missed_requests?: number;
            /** @description The model on the subject that has the trouble, as NAME:VERSION, where several can have it. */
            model?: string | null;
            /** @description The kind of trouble, such as `slo_missed`: the label `problem` of the metric `packhorse_findings`. */
            problem?: string;
            root?: components["schemas"]["Subject"] | null;
            /** @description The urgency. */
            severity: components["schemas"]["Severity"];
            /**
             * Format: int64
             * @description The time since which it is there, in milliseconds since 1970; null if that is not known. A finding that is away for less than a minute is
             *     the same.
             */
            since_ms?: number | null;
            subject?: components["schemas"]["Subject"] | null;
            /** @description The trouble, in a sentence for people, with its numbers. */
            text: string;
            /** @description The models whose requests suffer from it, beside the subject itself. */
            victims?: string[];
        };
        /** @description The forecast of a plan for a model. */
        ForecastView: {
            explanation?: components["schemas"]["Explanation"] | null;
            /** @description The model's name. */
            name: string;
            /**
             * Format: double
             * @description The predicted goodput, in requests per second within the SLO, by the policy's own estimate.
             */
            predicted_goodput_rps: number;
            /**
             * Format: double
             * @description The request rate that was planned for, in requests per second.
             */
            rate_rps: number;
            /** @description The number of replicas. */
            replicas: number;
            /** @description The reason why the model is not, or not fully, served. */
            shortfall?: string | null;
            /**
             * Format: int32
             * @description The model's version.
             */
            version: number;
        };
        /** @description The goodput and latency of all models in a time window that ends now. */
        GoodputView: {
            /** @description The goodput of each family, and how accurate it is. */
            families?: components["schemas"]["FamilyGoodput"][];
            /** @description The goodput and latency of each model. */
            models: components["schemas"]["ModelGoodput"][];
            /** @description The goodput of all models together. */
            total: components["schemas"]["TotalGoodput"];
            /**
             * Format: double
             * @description The length of the window, in seconds.
             */
            window_s: number;
        };
        /** @description A process that computes on a GPU. */
        GpuProcess: {
            /**
             * Format: int64
             * @description The GPU memory of the process, in bytes. The memory of an MPS client may be counted with the MPS server.
             */
            memory_bytes?: number | null;
            /**
             * Format: int32
             * @description The process id on the node.
             */
            pid: number;
        };
        /** @description The current state of a GPU. Values that its driver does not report are null. */
        GpuStatus: {
            /**
             * @description The device's name within the node, which is the GPU's UUID.
             * @default
             */
            device: string;
            /**
             * Format: int64
             * @description The number of corrected memory errors since the driver was loaded.
             * @default null
             */
            ecc_corrected_errors: number | null;
            /**
             * Format: int64
             * @description The number of uncorrected memory errors since the driver was loaded.
             * @default null
             */
            ecc_uncorrected_errors: number | null;
            /**
             * Format: double
             * @description The energy used since the driver was loaded, in joules.
             * @default null
             */
            energy_joules: number | null;
            /**
             * Format: int32
             * @description The clock of the memory, in MHz.
             * @default null
             */
            memory_clock_mhz: number | null;
            /**
             * Format: int64
             * @description The total memory, in bytes.
             * @default null
             */
            memory_total_bytes: number | null;
            /**
             * Format: int64
             * @description The memory in use by all processes, in bytes.
             * @default null
             */
            memory_used_bytes: number | null;
            /**
             * @description True if the GPU's replicas share it through MPS and compute at the same time; otherwise they are time-sliced.
             * @default false
             */
            mps: boolean;
            /**
             * @description The reason why MPS could not be used, if it was tried.
             * @default null
             */
            mps_reason: string | null;
            /**
             * Format: double
             * @description The limit of the power draw, in watts.
             * @default null
             */
            power_limit_watts: number | null;
            /**
             * Format: double
             * @description The power draw, in watts.
             * @default null
             */
            power_watts: number | null;
            /**
             * @description The processes that compute on the GPU.
             * @default []
             */
            processes: components["schemas"]["GpuProcess"][];
            /**
             * Format: int32
             * @description The clock of the multiprocessors, in MHz.
             * @default null
             */
            sm_clock_mhz: number | null;
            /**
             * Format: int32
             * @description The temperature, in degrees Celsius.
             * @default null
             */
            temperature_celsius: number | null;
            /**
             * @description The reasons why the clocks are reduced; empty if they are not.
             * @default []
             */
            throttle_reasons: string[];
            /**
             * Format: double
             * @description The share of time in which the GPU computed, in percent.
             * @default null
             */
            utilization_pct: number | null;
        };
        /** @description Something that happened. */
        HistoryMark: {
            /**
             * Format: int64
             * @description The time, in milliseconds since 1970.
             */
            at_ms: number;
            /** @description The device; null if it is not about one. */
            device?: string | null;
            /** @description What it is about. */
            kind: components["schemas"]["HistoryMarkKind"];
            /** @description The model, with its version; null if it is not about one. */
            model?: string | null;
            /** @description A sentence for people. */
            text: string;
        };
        /**
         * @description What a mark is about.
         * @enum {string}
         */
        HistoryMarkKind: "plan" | "version" | "finding";
        /** @description What is known of the models or of a device in a time of the last day. */
        HistoryView: {
            /** @description The device in each step of which something is known. Empty for models. */
            device: components["schemas"]["DevicePoint"][];
            /**
             * Format: int64
             * @description The begin, in milliseconds since 1970.
             */
            from_ms: number;
            /**
             * Format: int64
             * @description The time before which nothing is known of anything, in milliseconds since 1970; null if nothing is.
             */
            known_from_ms?: number | null;
            /** @description What happened, in its order: what concerns the model or device, or all. */
            marks: components["schemas"]["HistoryMark"][];
            /** @description The requests of the model, or of all, in each step of which something is known, in their order. Other steps are gaps. Empty for a device. */
            requests: components["schemas"]["RequestPoint"][];
            /**
             * Format: int64
             * @description The length of a step, in seconds.
             */
            step_s: number;
            /**
             * Format: int64
             * @description The end, in milliseconds since 1970.
             */
            to_ms: number;
        };
        /**
         * @description The filter of a resize, with the support that Pillow gives it.
         * @enum {string}
         */
        ImageFilter: "bilinear" | "bicubic";
        /**
         * @description The order of the dimensions of a picture.
         * @enum {string}
         */
        ImageLayout: "NCHW" | "NHWC";
        /** @description The way from a picture to a row of a tensor: resize, crop, rescale, normalise. The pixels are those of Pillow to the bit. */
        ImagePreprocess: {
            /** @description The order of the channels. */
            channels?: components["schemas"]["Channels"];
            /** @description The height and width of the crop from the middle; without it the whole picture, which `resize.exact` must then give its size. */
            crop?: number[] | null;
            /** @description Where the crop lies if what is left cannot be halved. */
            crop_rounding?: components["schemas"]["CropRounding"];
            /** @description True if the picture is turned as its EXIF orientation says. Pillow's `Image.open` and torchvision leave it as it is. */
            exif?: boolean;
            /** @description The filter of the resize. */
            filter?: components["schemas"]["ImageFilter"];
            /** @description The order of the dimensions. */
            layout?: components["schemas"]["ImageLayout"];
            /** @description The numbers that are subtracted from each channel after that, in the order of `channels`. */
            mean?: number[];
            /**
             * Format: double
             * @description The factor of the pixels, which are 0 to 255.
             */
            rescale?: number;
            /** @description The size to which the picture is brought. */
            resize: components["schemas"]["Resize"];
            /** @description The numbers by which each channel is divided after that, in the order of `channels`. */
            std?: number[];
        };
        /** @description The outcome of an import of profiles. */
        ImportedProfiles: {
            /** @description The number of profiles that were imported. */
            imported: number;
            /** @description The number of estimates that were left out, because a measured profile is there. */
            left_out: number;
        };
        /** @description Findings with one root, from the first of them until the last is over. A gateway forgets its incidents when it ends. */
        Incident: {
            /**
             * Format: int64
             * @description The time at which its last finding was over, in milliseconds since 1970; null while there is one. If the root has findings again within a
             *     minute, the incident goes on.
             */
            end_ms?: number | null;
            /** @description Its findings, at most 32: those of the root first, then those with the most missed requests. */
            findings: components["schemas"]["IncidentFinding"][];
            /**
             * Format: int64
             * @description The number of the incident since the gateway's start, from 1.
             */
            id: number;
            /** @description The models whose requests these were, the one with the most first; at most 32. */
            missed_by_model?: components["schemas"]["MissedByModel"][];
            /**
             * Format: int64
             * @description The number of requests that missed their SLO in it so far, of all models.
             */
            missed_requests?: number;
            root?: components["schemas"]["Subject"] | null;
            /** @description The worst urgency so far. */
            severity: components["schemas"]["Severity"];
            /**
             * Format: int64
             * @description The begin of its first finding, in milliseconds since 1970.
             */
            since_ms: number;
        };
        /** @description A finding of an incident: as it is now, and once it is over as it was at its worst, when the largest part of the requests was missed. */
        IncidentFinding: {
            /**
             * Format: int64
             * @description The time at which it was over, in milliseconds since 1970; null while it is there.
             */
            end_ms?: number | null;
            /** @description The finding. */
            finding: components["schemas"]["Finding"];
        };
        /** @description The number of requests and their time, by outcome and stage. */
        InferenceStatistics: {
            /** @description Cache hits: always zero, as responses are not cached. */
            cache_hit: components["schemas"]["DurationStatistics"];
            /** @description Cache misses: always zero, as responses are not cached. */
            cache_miss: components["schemas"]["DurationStatistics"];
            /** @description The time of computing. */
            compute_infer: components["schemas"]["DurationStatistics"];
            /** @description The time of copying inputs to the device. */
            compute_input: components["schemas"]["DurationStatistics"];
            /** @description The time of copying outputs from the device. */
            compute_output: components["schemas"]["DurationStatistics"];
            /** @description The time of failed requests, from arrival to failure. */
            fail: components["schemas"]["DurationStatistics"];
            /** @description The time in the queue. */
            queue: components["schemas"]["DurationStatistics"];
            /** @description The time of answered requests, from arrival to answer. */
            success: components["schemas"]["DurationStatistics"];
        };
        /** @description A model that takes texts. */
        Info: {
            /** @description True if texts that are too long are cut. */
            auto_truncate: boolean;
            /** @description The most texts of a call. */
            max_client_batch_size: number;
            /**
             * Format: int32
             * @description The most tokens of a text.
             */
            max_input_length: number;
            /** @description The datatype of the output. */
            model_dtype: string;
            /** @description The model's name. */
            model_id: string;
            /** @description The version. */
            model_sha: string;
            /** @description What it is for. */
            model_type: unknown;
            /** @description The version of the gateway. */
            version: string;
        };
        /** @description The result of an inspection that has ended. */
        InspectionResult: {
            /** @description The reason why the operators cannot be found, as text for people. */
            error?: string | null;
            /** @description The model whose program was inspected. */
            model: string;
            /** @description The operators of the program, as JSON; none if they cannot be found. */
            operators?: string | null;
        };
        /** @description Changes the limits of a key. Absent fields stay unchanged. */
        KeyChange: {
            /**
             * Format: int32
             * @description The most inference requests at the same time; null removes the limit.
             */
            max_in_flight?: number | null;
            /** @description The limits for single models, in place of all that the key has. */
            model_limits?: components["schemas"]["KeyModelLimit"][] | null;
            /**
             * Format: double
             * @description The most inference requests per second; null removes the limit.
             */
            rate_rps?: number | null;
        };
        /** @description A limit of a key for the models of a pattern. */
        KeyModelLimit: {
            /**
             * Format: int32
             * @description The most inference requests to them at the same time; no limit if absent.
             */
            max_in_flight?: number | null;
            /**
             * @description The pattern of the models' names (`*` and `?` match). The limit is for the sum of their requests.
             * @example resnet*
             */
            model: string;
            /**
             * Format: double
             * @description The most inference requests per second to them; no limit if absent.
             */
            rate_rps?: number | null;
        };
        /** @description Makes a key. */
        KeyRequest: {
            /**
             * Format: int64
             * @description The Unix time in milliseconds from which on the key is not valid any more; never if absent.
             */
            expires_at_ms?: number | null;
            /**
             * Format: int32
             * @description The most inference requests at the same time; no limit if absent.
             */
            max_in_flight?: number | null;
            /** @description The limits for single models, beside those of the key. A request is within all whose pattern its model or family matches. */
            model_limits?: components["schemas"]["KeyModelLimit"][];
            /**
             * @description The name, for people: 1 to 128 characters.
             * @example checkout service
             */
            name: string;
            /**
             * Format: double
             * @description The most inference requests per second, over which requests are refused with 429; as many more may come at once. No limit if
             *     absent.
             */
            rate_rps?: number | null;
            /**
             * @description The permissions: `infer:PATTERN` (model names; `*` and `?` match), `read` and `admin`.
             * @example [
             *       "infer:minilm*"
             *     ]
             */
            scopes: string[];
        };
        /** @description Replaces the secret of a key. */
        KeyRotation: {
            /**
             * Format: int32
             * @description The time for which the former secret stays valid, in seconds; 0 if absent.
             */
            overlap_s?: number;
        };
        /** @description A key, without its secret. */
        KeyView: {
            /**
             * Format: int64
             * @description The Unix time at which the key was made, in milliseconds.
             */
            created_at_ms: number;
            /**
             * Format: int64
             * @description The Unix time from which on the key is not valid any more, in milliseconds; null for never.
             */
            expires_at_ms?: number | null;
            /** @description The identity, which is a part of the key. */
            id: string;
            /**
             * Format: int64
             * @description The Unix time at which the key was last used, in milliseconds, exact to a minute over a restart; null for never.
             */
            last_used_at_ms?: number | null;
            /**
             * Format: int32
             * @description The most inference requests at the same time; null for no limit.
             */
            max_in_flight?: number | null;
            /** @description The limits for single models. */
            model_limits?: components["schemas"]["KeyModelLimit"][];
            /** @description The name, for people. */
            name: string;
            /**
             * Format: double
             * @description The most inference requests per second; null for no limit.
             */
            rate_rps?: number | null;
            /** @description The permissions. */
            scopes: string[];
        };
        /** @description The observed batches of a model of about one size on a kind of device. */
        LearnedTimeView: {
            /**
             * Format: double
             * @description The time since the last of them was counted, in seconds.
             */
            age_s: number;
            /**
             * Format: double
             * @description The time of a batch without an active neighbour, in milliseconds; null if there was none.
             */
            alone_ms?: number | null;
            /**
             * Format: int64
             * @description The number of batches.
             */
            batches: number;
            /** @description True if the time contradicts the profile: it is more than a quarter away from it, and known well enough. */
            contradicts_profile: boolean;
            /**
             * Format: double
             * @description The time of a batch, neighbours on the device included, in milliseconds.
             */
            latency_ms: number;
        };
        /** @description The granted lease of a node. */
        LeaseGrant: {
            /** @description The identity of the gateway's store; null from a gateway that has none yet. */
            cluster_id?: string | null;
            /**
             * Format: int64
             * @description The gateway's epoch. The agent ignores wanted states of older epochs.
             */
            epoch: number;
            /**
             * Format: int64
             * @description The duration of the lease, in milliseconds. Agents renew it after a third of this time.
             */
            lease_ms: number;
            /**
             * @description The proof that the gateway may change the agent's cluster, in hexadecimal digits: an HMAC-SHA256 over the agent's nonce and the
             *     cluster id, keyed with the link secret, or with the SHA-256 of the agent's token where there is none. Null if the agent's
             *     cluster is the gateway's.
             */
            proof?: string | null;
            /** @description The versions of the agent protocol that the gateway speaks. */
            protocol?: components["schemas"]["ProtocolRange"];
        };
        /** @description Takes or renews the lease of a node. */
        LeaseRequest: {
            /** @description The agent's version. */
            agent_version: string;
            /** @description The cluster that the agent obeys; null before the first. */
            cluster_id?: string | null;
            /** @description The node's devices. */
            devices: components["schemas"]["DeviceReport"][];
            /**
             * Format: int64
             * @description The highest epoch of that cluster that the agent has seen. If it is not below the gateway's, the gateway's store is a
             *     restored one, and the gateway raises its epoch.
             */
            highest_epoch?: number;
            /** @description A random identity of the agent's state folder. It distinguishes two agents that claim the same node. */
            instance: string;
            /** @description The version of libtorch of the node's workers, by which measurements are known again; null if devices are simulated. */
            libtorch?: string | null;
            /** @description Fresh random hexadecimal digits, over which the gateway of another cluster makes its proof. */
            nonce?: string | null;
            /** @description The versions of the agent protocol that the agent speaks. */
            protocol?: components["schemas"]["ProtocolRange"];
        };
        /** @description The measured request rate of a model, in requests per second, each counted as many times as it has rows. */
        MeasuredRateView: {
            /**
             * Format: double
             * @description The upper end of that interval.
             */
            high_rps: number;
            /**
             * Format: double
             * @description The lower end of the interval that contains the rate with a probability of 95 %.
             */
            low_rps: number;
            /**
             * Format: double
             * @description The rate that the next plan is made for, which follows from the measured and the reserved one.
             */
            planned_rps: number;
            /**
             * Format: double
             * @description The expected rate.
             */
            rate_rps: number;
            /**
             * Format: double
             * @description The mean number of rows of a request since the gateway's start; null if none have come.
             */
            rows_per_request?: number | null;
        };
        /** @description The requests of a model that missed its SLO in an incident. */
        MissedByModel: {
            /** @description The model, as NAME:VERSION. */
            model: string;
            /**
             * Format: int64
             * @description The number of these requests.
             */
            requests: number;
        };
        /**
         * @description Changes the SLO, reserved rate, rate mode, priority, least number of replicas, queue limit, wait for a load, cache, family, accuracy or split of a model.
         *     Absent fields stay unchanged.
         */
        ModelChange: {
            /**
             * Format: double
             * @description The part of the version's answers that are right, in percent, 0 to 100; of all versions that come into a family with it.
             */
            accuracy?: number | null;
            /** @description True if answers are kept, and given again to requests of the same client with the same inputs. */
            cache?: boolean | null;
            /** @description The family that the model is a variant of; null takes it out of its family. It belongs to all versions: not with `?version`. */
            family?: string | null;
            /**
             * Format: int32
             * @description The most milliseconds for which a request that finds the model in its file only waits until it is loaded, 0 to 60000; null restores `slo_ms`.
             */
            max_cold_wait_ms?: number | null;
            /**
             * Format: int32
             * @description The least number of different devices with replicas of the model, 1 to 16.
             */
            min_replicas?: number | null;
            /**
             * Format: int32
             * @description The priority over other models, 0 to 9.
             */
            priority?: number | null;
            /**
             * Format: int32
             * @description The largest number of requests in the model's queue, 1 to 1000000; null restores the gateway's `--queue-limit`.
             */
            queue_limit?: number | null;
            rate?: components["schemas"]["RateMode"] | null;
            /**
             * Format: double
             * @description The reserved request rate, in requests of one row per second; null removes the reservation, so that the model is planned for its measured rate.
             */
            rate_rps?: number | null;
            /**
             * Format: double
             * @description The latency objective (SLO) in milliseconds; above 0 and at most 60000. It belongs to all variants of a family: all of them change.
             */
            slo_ms?: number | null;
            /**
             * @description The shares of the versions in the requests that name none, in percent, which sum to 100; null lets the newest version take over by
             *     itself. It belongs to all versions: not with `?version`.
             */
            split?: {
                [key: string]: number;
            } | null;
            sticky?: components["schemas"]["Sticky"] | null;
        };
        /** @description The response to `GET /v2/models/{model}/config`: the part of Triton's model configuration that load generators read. */
        ModelConfig: {
            dynamic_batching?: components["schemas"]["DynamicBatching"] | null;
            /** @description The model's inputs. */
            input: components["schemas"]["TensorConfig"][];
            /**
             * Format: int32
             * @description The largest number of rows in a request; 0 if the model has no batch dimension.
             */
            max_batch_size: number;
            /** @description The model. */
            name: string;
            /** @description The model's outputs. */
            output: components["schemas"]["TensorConfig"][];
            /** @description The platform, always [`PLATFORM`]. */
            platform: string;
        };
        /** @description The goodput and latency of a model in a time window. */
        ModelGoodput: {
            /**
             * Format: double
             * @description The part of the version's answers that are right, in percent; null without a family.
             */
            accuracy?: number | null;
            /**
             * Format: double
             * @description The requests that failed, or were lost with their worker, per second.
             */
            failed_rps?: number;
            /** @description The family that the model is a variant of; null if it is in none. */
            family?: string | null;
            /**
             * Format: double
             * @description The requests that were answered within the SLO, per second.
             */
            goodput_rps: number;
            /**
             * Format: double
             * @description The requests that were accepted and not answered within the SLO, per second: answered later, or expired in the queue.
             */
            late_rps: number;
            /**
             * Format: double
             * @description The mean number of rows per batch.
             */
            mean_batch?: number | null;
            /** @description The model's name. */
            name: string;
            /**
             * Format: double
             * @description The requests that arrived, per second.
             */
            offered_rps: number;
            /**
             * Format: double
             * @description The median latency of the answered requests, in milliseconds.
             */
            p50_ms?: number | null;
            /**
             * Format: double
             * @description The 95th percentile of the latency, in milliseconds.
             */
            p95_ms?: number | null;
            /**
             * Format: double
             * @description The 99th percentile of the latency, in milliseconds.
             */
            p99_ms?: number | null;
            /**
             * Format: double
             * @description The requests that were refused on arrival, per second.
             */
            refused_rps: number;
            /**
             * Format: double
             * @description The requests that were answered, per second.
             */
            throughput_rps: number;
            /**
             * Format: int32
             * @description The model's version.
             */
            version: number;
        };
        /** @description The response to `GET /v2/models/{model}`. */
        ModelMetadata: {
            /** @description The outputs of which the best classes are answered, where a request is a picture alone. */
            classes?: components["schemas"]["ClassesMetadata"][];
            /** @description The model's inputs. */
            inputs: components["schemas"]["TensorMetadata"][];
            /** @description The model. */
            name: string;
            /** @description The model's outputs. */
            outputs: components["schemas"]["TensorMetadata"][];
            /** @description The platform, always [`PLATFORM`]. */
            platform: string;
            /** @description The inputs that may be sent as they are, as tensors of BYTES with one of them for each row. */
            raw_inputs?: components["schemas"]["RawInputMetadata"][];
            /** @description The model's versions, as decimal numbers. */
            versions?: string[];
        };
        /** @description The response to `GET /v2/models/{model}/ready`. */
        ModelReady: {
            /** @description The model. */
            name: string;
            /** @description True if the model accepts inference requests. */
            ready: boolean;
        };
        /** @description Registers a version of a model. */
        ModelRegistration: {
            /**
             * Format: double
             * @description The part of the model's answers that are right, in percent, 0 to 100: by it a family orders its variants. Only with `family`.
             * @example 84.1
             */
            accuracy?: number | null;
            /** @description The digest of an uploaded TorchScript file. Exactly one of `artifact` and `artifact_path` is required. */
            artifact?: string | null;
            /**
             * @description The path of a TorchScript file on the gateway's machine, within one of its artifact roots (`--artifact-root`). Exactly one
             *     of `artifact` and `artifact_path` is required.
             */
            artifact_path?: string | null;
            /**
             * @description True if the gateway keeps the model's answers in its memory, and gives them again to requests of the same client with the same inputs (`--prediction-cache`).
             *     Only for a model that answers the same inputs always alike.
             */
            cache?: boolean;
            /**
             * @description The family that the model is a variant of, a name that clients use like a model's: a request for it is answered by its most accurate
             *     variant that can be in time. All variants have the same inputs, outputs, `max_batch_size` and `slo_ms`. `accuracy` is then required.
             * @example sentences
             */
            family?: string | null;
            /** @description The inputs, in the order of the program's arguments. Shapes include the batch dimension. */
            inputs: components["schemas"]["TensorSpec"][];
            /**
             * Format: int32
             * @description The largest number of rows in one batch, at most 4096; 0 for a model without a batch dimension.
             * @example 16
             */
            max_batch_size: number;
            /**
             * Format: int32
             * @description The most milliseconds for which a request that finds the model in its file only waits until it is loaded, 0 to 60000. A request that would wait
             *     longer is answered 503 with a `Retry-After` at which it should be loaded. If absent, it is `slo_ms`.
             */
            max_cold_wait_ms?: number | null;
            /**
             * Format: int32
             * @description The least number of different devices with replicas of the model, 1 to 16; those beyond its rate are placed where memory is left, and on different
             *     nodes first. If absent, that of the newest version, and 1 for the first one or in place of a registered one.
             */
            min_replicas?: number | null;
            /**
             * @description The name that clients use.
             * @example minilm
             */
            name: string;
            /** @description The outputs, in the order of the program's results. Shapes include the batch dimension. */
            outputs: components["schemas"]["TensorSpec"][];
            /** @description The way from an output to what clients want, by the name of the output: the best classes of each row, with their names. */
            postprocess?: {
                [key: string]: components["schemas"]["Postprocess"];
            };
            /** @description The way from what clients have to an input, by the name of the input: pictures of JPEG, PNG or WebP. */
            preprocess?: {
                [key: string]: components["schemas"]["Preprocess"];
            };
            /**
             * Format: int32
             * @description The priority over other models, 0 to 9: where devices do not suffice for all, a plan serves models of a higher priority first, and what a
             *     model reserves may be taken from models of a lower one. If absent, that of the newest version, and 5 for the first
             *     one or in place of a registered one.
             */
            priority?: number | null;
            /**
             * Format: int32
             * @description The largest number of requests in the model's queue, 1 to 1000000; further requests are refused. If absent, the gateway's
             *     `--queue-limit` applies.
             */
            queue_limit?: number | null;
            rate?: components["schemas"]["RateMode"] | null;
            /**
             * Format: double
             * @description The reserved request rate, in requests of one row per second: capacity that is kept free for the model. If absent, that of the newest version;
             *     the first one, or one in place of a registered one, is then planned for its measured rate, and for 1 request per second until
             *     requests are measured.
             * @example 50
             */
            rate_rps?: number | null;
            /**
             * Format: double
             * @description The latency objective (SLO) in milliseconds, end to end at the gateway; above 0 and at most 60000.
             * @example 200
             */
            slo_ms: number;
            /**
             * Format: int32
             * @description The version; 1 if absent.
             */
            version?: number | null;
        };
        /**
         * @description The state of a model between registration and serving.
         * @enum {string}
         */
        ModelState: "registered" | "fetching" | "profiling" | "planning" | "loading" | "ready" | "unplaced" | "failed";
        /** @description Statistics of one version of a model since the server started. */
        ModelStatistics: {
            /** @description The time of batches, per batch size. */
            batch_stats?: components["schemas"]["BatchStatistics"][];
            /**
             * Format: int64
             * @description The number of executed batches.
             */
            execution_count: number;
            /**
             * Format: int64
             * @description The number of inferences, which are rows of answered requests.
             */
            inference_count: number;
            /** @description The time of requests, by outcome and stage. */
            inference_stats: components["schemas"]["InferenceStatistics"];
            /**
             * Format: int64
             * @description The arrival time of the last request, in milliseconds since 1970; 0 if there was none.
             */
            last_inference?: number;
            /** @description The model. */
            name: string;
            /** @description The model's version, as a decimal number. Load generators require it. */
            version: string;
        };
        /** @description A registered version of a model and its current state. */
        ModelView: {
            /**
             * Format: double
             * @description The part of the version's answers that are right, in percent; null without a family.
             */
            accuracy?: number | null;
            /** @description The digest of the model's TorchScript file. */
            artifact: string;
            /**
             * Format: int64
             * @description The size of the file, in bytes.
             */
            artifact_bytes: number;
            /** @description True if answers are kept, and given again to requests of the same client with the same inputs. */
            cache?: boolean;
            /** @description The kinds of device for which the model's profile is estimated from the operators of its program. A measurement replaces it. */
            estimated_on?: string[];
            /** @description The family that the model is a variant of; null if it is in none. */
            family?: string | null;
            /** @description The declared inputs. */
            inputs: components["schemas"]["TensorSpec"][];
            /**
             * Format: int32
             * @description The largest number of rows in one batch; 0 for a model without a batch dimension.
             */
            max_batch_size: number;
            /**
             * Format: int32
             * @description The most milliseconds for which a request waits while the model is loaded from its file; null if that is `slo_ms`.
             */
            max_cold_wait_ms?: number | null;
            measured?: components["schemas"]["MeasuredRateView"] | null;
            /**
             * @description The kinds of device on which measuring the model failed since the start of the gateway, which does not measure it there again before its next
             *     start. On those that are in `estimated_on`, too, the model serves by its estimate.
             */
            measuring_failed_on?: string[];
            /**
             * Format: int32
             * @description The least number of different devices with replicas of the model.
             */
            min_replicas?: number;
            /** @description The name that clients use. */
            name: string;
            /** @description The declared outputs. */
            outputs: components["schemas"]["TensorSpec"][];
            /**
             * @description The way from an output to what clients want, by the name of the output: the best classes of each row, with their names.
             *     Lists of models and events leave out the names, which may be megabytes.
             */
            postprocess?: {
                [key: string]: components["schemas"]["Postprocess"];
            };
            predicted?: components["schemas"]["PredictedGoodputView"] | null;
            /** @description The way from what clients have to an input, by the name of the input: pictures of JPEG, PNG or WebP. */
            preprocess?: {
                [key: string]: components["schemas"]["Preprocess"];
            };
            /**
             * Format: int32
             * @description The priority over other models, 0 to 9.
             */
            priority?: number;
            /** @description The kinds of device for which the model has a measured or imported profile. */
            profiled_on: string[];
            /** @description The measurements that are assigned to a device and not finished. */
            profiling: components["schemas"]["ProfilingView"][];
            /**
             * Format: int32
             * @description The largest number of requests in the model's queue; null if the gateway's `--queue-limit` applies.
             */
            queue_limit?: number | null;
            /** @description The rate to plan for beside a reservation: `declared`, `measured`, `max` or `min`. */
            rate?: components["schemas"]["RateMode"];
            /**
             * Format: double
             * @description The reserved request rate, in requests of one row per second; null without a reservation, where the model is planned for its measured rate.
             */
            rate_rps?: number | null;
            /** @description The reason for the state and what the model waits for, as text for people. */
            reason?: string | null;
            /** @description The replicas of the current plan, and those of earlier plans that still run. */
            replicas: components["schemas"]["ReplicaView"][];
            /** @description The shares of the versions in percent to which a rollback returns; null if there are none. */
            rollback_split?: {
                [key: string]: number;
            } | null;
            /**
             * Format: int32
             * @description The present share of this version in the requests to the model that name no version, in percent.
             */
            share_pct?: number;
            /**
             * Format: double
             * @description The latency objective (SLO) in milliseconds.
             */
            slo_ms: number;
            /**
             * @description The shares of the versions in percent that an admin gave; null if the newest version takes over by itself, in steps of what its
             *     serving replicas are planned to carry.
             */
            split?: {
                [key: string]: number;
            } | null;
            /** @description The state between registration and serving. */
            state: components["schemas"]["ModelState"];
            /** @description The choice of a version for a request: `none`, or `request-id` (requests with the same `x-request-id` get the same version). */
            sticky?: components["schemas"]["Sticky"];
            /**
             * Format: int32
             * @description The version.
             */
            version: number;
        };
        /**
         * @description The state of a node.
         * @enum {string}
         */
        NodeState: "ready" | "cordoned" | "draining" | "lost";
        /** @description A new token of a node. */
        NodeTokenView: {
            /** @description The node's name. */
            node: string;
            /** @description The bearer token, for the agent's `--token-file`. It is not shown again. */
            token: string;
        };
        /** @description A machine with an agent. */
        NodeView: {
            /** @description The agent's version. */
            agent_version: string;
            /** @description The node's devices. */
            devices: components["schemas"]["DeviceView"][];
            /**
             * Format: int64
             * @description The time since the agent's last message, in milliseconds; null if there was none since the gateway started.
             */
            last_seen_ms?: number | null;
            /** @description The node's name. */
            name: string;
            /** @description The node's state. */
            state: components["schemas"]["NodeState"];
        };
        /** @description An error in the form of this API. */
        OpenAiError: {
            /** @description The error. */
            error: components["schemas"]["ErrorItem"];
        };
        /** @description The padding by which requests of different sizes along one axis share a batch: the shorter ones are filled up at their end. */
        Padding: {
            /** @description The padded axis, counted with the batch dimension; not 0. */
            axis: number;
            /**
             * Format: double
             * @description The value that is filled in, converted to the input's datatype.
             */
            value?: number;
        };
        /** @description A planned replica. */
        PlacementView: {
            /**
             * @description The other models that the same worker serves, as NAME:VERSION, because their programs share a backbone with this one's: the device holds
             *     the backbone once, and batches of all of them are computed together.
             */
            also?: string[];
            /**
             * Format: int32
             * @description The largest number of rows in one batch.
             */
            batch_size: number;
            /**
             * Format: double
             * @description The share of the device's multiprocessors that the replica may use, in percent; null if unlimited.
             */
            compute_share_pct?: number | null;
            /** @description The device, as NODE/DEVICE. */
            device: string;
            /** @description The kind of the device. */
            device_kind: string;
            /**
             * Format: double
             * @description The duty cycle of a time-shared replica: the period in which it gets one turn, in milliseconds. The replicas of a device
             *     that have one compute one batch at a time, in turn.
             */
            duty_cycle_ms?: number | null;
            /** @description The replica's identity; null in a plan that is not stored. */
            id?: string | null;
            /** @description The name of the model that the replica serves. */
            model: string;
            /**
             * Format: int32
             * @description The version of the model.
             */
            version: number;
        };
        /** @description The difference between two plans. */
        PlanDiff: {
            /** @description The replicas that would start. */
            added: components["schemas"]["PlacementView"][];
            /** @description The number of replicas in both plans. */
            kept: number;
            /** @description The replicas that would stop. */
            removed: components["schemas"]["PlacementView"][];
        };
        /**
         * @description The requests of all models in the time in which a plan was current, predicted and observed. The time ends when another plan replaces
         *     it, and begins anew when the gateway is started.
         */
        PlanOutcome: {
            /**
             * Format: double
             * @description The length of the time, in seconds.
             */
            duration_s: number;
            /**
             * Format: double
             * @description The goodput: the requests per second that were answered within the SLO.
             */
            goodput_rps: number;
            /**
             * Format: double
             * @description The requests per second that arrived. Here and below each counts as many times as it has rows.
             */
            offered_rps: number;
            /**
             * Format: double
             * @description The requests per second that the plan expected to be answered within the SLO, of those that arrived.
             */
            predicted_rps: number;
        };
        /** @description The plan that a policy would make. */
        PlanPreview: {
            /**
             * Format: double
             * @description A bound on the goodput of any plan for the previewed models and devices, in requests per second: what the devices compute with the
             *     cheapest batches that are in time, as if requests were a fluid.
             */
            bound_rps: number;
            current?: components["schemas"]["PlanView"] | null;
            /** @description The difference from the current plan. */
            diff: components["schemas"]["PlanDiff"];
            /** @description The plan that the policy would make. */
            plan: components["schemas"]["PlanView"];
        };
        /** @description Requests the plan that a policy would make if the cluster were different. Changes nothing. */
        PlanPreviewRequest: {
            /** @description The devices to add to those of the cluster, and to take away; at most 64 entries. */
            devices?: components["schemas"]["PreviewDevices"][];
            /** @description The dispatch discipline to plan for; the configured one if absent. */
            discipline?: string | null;
            /** @description True to explain why models are not fully served and what would serve them. The explanation may take as long as planning. */
            explain?: boolean;
            /** @description The models that differ, and those to add; at most 1024. */
            models?: components["schemas"]["PreviewModel"][];
            options?: components["schemas"]["PolicyOptions"] | null;
            /** @description The placement policy; the configured one if absent. */
            policy?: string | null;
            /** @description The names of the models to leave out, in all versions; at most 1024. */
            remove?: string[];
        };
        /** @description A stored plan without its replicas and forecasts, which `GET /v1/plans/{generation}` returns. */
        PlanSummary: {
            /**
             * Format: int64
             * @description The time at which the plan was stored, in milliseconds since 1970.
             */
            created_unix_ms: number;
            /** @description The number of devices with at least one replica. */
            devices_used: number;
            /**
             * Format: int64
             * @description The plan's number.
             */
            generation: number;
            /** @description The number of models that were planned for. */
            models: number;
            outcome?: components["schemas"]["PlanOutcome"] | null;
            /** @description The policy that made the plan. */
            policy: string;
            /**
             * Format: double
             * @description The sum of the models' predicted goodput, in requests per second.
             */
            predicted_goodput_rps: number;
            /** @description The reason why the plan was made, as text for people. */
            reason: string;
            /** @description The number of planned replicas. */
            replicas: number;
            /**
             * Format: double
             * @description The time that the policy took, in milliseconds.
             */
            solve_ms: number;
            /** @description The first 16 of these models, as NAME:VERSION. */
            unserved: string[];
            /** @description The number of models without a replica. */
            unserved_models: number;
        };
        /** @description A plan: the replicas that shall run, and the goodput that the policy expects. */
        PlanView: {
            /**
             * Format: double
             * @description The observed goodput of the last hour over the predicted one, minus 1, over all models: negative if it is worse than predicted.
             *     Null while there is nothing to compare, and for plans that are not the current one.
             */
            bias?: number | null;
            /**
             * Format: int64
             * @description The time at which the plan was stored, in milliseconds since 1970; null for a plan that is not stored.
             */
            created_unix_ms?: number | null;
            /** @description The number of devices with at least one replica. */
            devices_used: number;
            /**
             * Format: int64
             * @description The plan's number; null for a plan that is not stored.
             */
            generation?: number | null;
            /** @description The forecast of each model. */
            models: components["schemas"]["ForecastView"][];
            /** @description The policy that made the plan. */
            policy: string;
            /**
             * Format: double
             * @description The sum of the models' predicted goodput, in requests per second.
             */
            predicted_goodput_rps: number;
            /** @description The reason why the plan was made, as text for people. */
            reason: string;
            /** @description The planned replicas. */
            replicas: components["schemas"]["PlacementView"][];
            /**
             * Format: double
             * @description The time that the policy took, in milliseconds.
             */
            solve_ms: number;
            /** @description The names of the models without a replica. */
            unserved: string[];
        };
        /** @description Changes the placement policy, its options or the dispatch discipline. Absent fields stay unchanged. */
        PolicyChange: {
            /** @description The dispatch discipline. */
            discipline?: string | null;
            options?: components["schemas"]["PolicyOptions"] | null;
            /** @description The placement policy. */
            policy?: string | null;
        };
        /** @description An available placement policy. */
        PolicyInfo: {
            /** @description The policy's name. */
            name: string;
            /** @description The publication that describes the policy, or its origin. */
            source: string;
            /** @description A sentence that describes the policy. */
            summary: string;
        };
        /** @description The options of the placement policies. A policy reads the options that apply to it and ignores the others. */
        PolicyOptions: {
            /**
             * @description All policies: `bda` to choose the batch size of every planned replica once more, by InSS' bisection under SLO, memory and rate;
             *     `own` or null for the policy's own batch sizes.
             * @default own
             */
            batch_step: string | null;
            /**
             * @description `usher`, `wao-usher`, `ao-milp`, `wsm-milp`: the measured quantity that counts as a replica's compute requirement, `achieved`,
             *     `mean` or `sm`; null is the policy's own choice.
             * @default null
             */
            compute_metric: string | null;
            /**
             * @description `goodput`: `auto` to limit replicas to a share of their GPU's multiprocessors where that raises the estimate, which requires
             *     MPS; `never` or null to set no limits.
             * @default never
             */
            compute_shares: string | null;
            /**
             * Format: int32
             * @description `goodput`: the number of changes that the search tries, as a multiple of the default; null is 1.
             * @default 1
             */
            effort: number | null;
            /**
             * @description `herd`: true to form groups by a heuristic, which takes almost no time, instead of an integer program.
             * @default false
             */
            herd_greedy: boolean;
            /**
             * @description `gpulet`, `gslice`, and every policy with `batch_step` `bda`: the way from a profile to the time of a batch under a compute share,
             *     `profile` or `inss`; null is `profile`.
             * @default profile
             */
            latency_model: string | null;
            /**
             * @description `nexus`: true to compute the wait for a residual batch of b as (b - 1) / rate, like the published code, and not as b / rate,
             *     like the paper.
             * @default false
             */
            nexus_published: boolean;
            /**
             * @description `ao-milp`, `wsm-milp`, `goodput`: the quantity that the policy maximises, `goodput`, `max-min` or `blend`; null is `goodput`.
             * @default goodput
             */
            objective: string | null;
            /**
             * @description `ao-milp`, `wsm-milp`: true to choose the smallest batches among the optimal placements.
             * @default false
             */
            prefer_small_batch: boolean;
        };
        /** @description The placement policy, its options and the dispatch discipline. */
        PolicyView: {
            /** @description The dispatch discipline. */
            discipline: string;
            /** @description The dispatch disciplines. */
            disciplines?: components["schemas"]["DisciplineInfo"][];
            /** @description The policy's options. */
            options: components["schemas"]["PolicyOptions"];
            /** @description The available placement policies. */
            policies: components["schemas"]["PolicyInfo"][];
            /** @description The placement policy. */
            policy: string;
        };
        /**
         * @description The way from the vectors of a text's tokens to one.
         * @enum {string}
         */
        Pool: "mean" | "cls" | "last";
        /** @description The way from an output to what clients want. */
        Postprocess: components["schemas"]["Classes"] | components["schemas"]["Embedding"];
        /** @description The answer to rows. */
        PredictAnswer: {
            /**
             * @description For each row the value of the only output, or an object of values by the outputs' names. For pictures and texts classes with their scores or an
             *     embedding, where the model declares them.
             */
            predictions: unknown[];
        };
        /** @description A request of rows: `instances`, or `inputs`. */
        PredictRequest: {
            /** @description The rows of each input by its name, or a list as `instances`. */
            inputs?: unknown;
            /** @description At most 65536 rows: the value of the only input, or an object of values by the inputs' names. */
            instances?: unknown[];
            /** @description `timeout` in microseconds, `priority` and `non_finite_as_null`, as in the Open Inference Protocol. */
            parameters?: unknown;
        };
        /** @description The goodput of a model, predicted for the requests that arrived, and observed. Each request counts as many times as it has rows. */
        PredictedGoodputView: {
            /**
             * Format: double
             * @description The observed goodput of the last hour over the predicted one, minus 1: negative if it is worse than predicted. Null while there
             *     is nothing to compare.
             */
            bias?: number | null;
            /**
             * Format: double
             * @description The requests per second that were answered within the SLO.
             */
            observed_rps: number;
            /**
             * Format: double
             * @description The requests per second that arrived.
             */
            offered_rps: number;
            /**
             * Format: double
             * @description The requests per second that the plan expected to be answered within the SLO.
             */
            predicted_rps: number;
        };
        /** @description A class of a text. */
        Prediction: {
            /** @description The name of the class, or `LABEL_` and its index. */
            label: string;
            /**
             * Format: double
             * @description The score.
             */
            score: number;
        };
        /** @description The way from what a client has to an input. */
        Preprocess: (components["schemas"]["ImagePreprocess"] & {
            /** @enum {string} */
            kind: "image";
        }) | (components["schemas"]["TextPreprocess"] & {
            /** @enum {string} */
            kind: "text";
        });
        /** @description Devices to add or to take away. */
        PreviewDevices: {
            /**
             * Format: int32
             * @description The number of devices to add, at most 1024 in one request; a negative number takes away as many devices of the cluster, those with
             *     the fewest replicas first.
             */
            count: number;
            /** @description The kind of the devices: one that the cluster has, or one with a built-in data sheet. */
            kind: string;
        };
        /** @description A registered model with another rate, SLO or priority, or a model to add. */
        PreviewModel: {
            /** @description The model's name. */
            name: string;
            /**
             * Format: int32
             * @description The priority over other models, of all versions of the model's name; unchanged if absent.
             */
            priority?: number | null;
            /**
             * @description The registered model, in its newest version, with whose profiles and batch sizes the model to add is planned, and with whose SLO,
             *     priority and reserved rate where they are absent; without a reservation the rate is then 1. Absent for a registered model.
             */
            profile_of?: string | null;
            /**
             * Format: double
             * @description The request rate to plan for, in requests per second; unchanged if absent.
             */
            rate_rps?: number | null;
            /**
             * Format: double
             * @description The latency objective (SLO) in milliseconds; unchanged if absent.
             */
            slo_ms?: number | null;
            /**
             * Format: int32
             * @description The model's version; if absent, the newest of a registered model, and 1 for one to add.
             */
            version?: number | null;
        };
        /** @description The progress that a node reports of one measurement. */
        ProfileProgress: {
            /** @description The finished measurement, in the CSV format of profiles; none while it is not finished. */
            csv?: string | null;
            /** @description The kind of device that it is measured on. */
            device_kind: string;
            /**
             * Format: int32
             * @description The number of batch sizes measured so far.
             */
            done: number;
            /** @description The reason why there is no measurement: the program cannot be served as it is registered. */
            error?: string | null;
            /** @description The recorded kernels, as CSV; none on a device without kernels. */
            kernels?: string | null;
            /** @description The model that is measured. */
            model: string;
            /** @description The operators of the program, as JSON, from which its profile is estimated until it is measured; none if they are not known. */
            operators?: string | null;
            /**
             * Format: int32
             * @description The number of batch sizes to measure.
             */
            total: number;
        };
        /**
         * @description The source of a profile's numbers.
         * @enum {string}
         */
        ProfileSource: "measured" | "estimated";
        /** @description The progress of a measurement. */
        ProfilingView: {
            /** @description The kind of device that the model is measured on. */
            device_kind: string;
            /**
             * Format: int32
             * @description The number of batch sizes measured so far.
             */
            done: number;
            /**
             * Format: int32
             * @description The number of batch sizes to measure; 0 while unknown.
             */
            total: number;
        };
        /** @description The program that a replica runs: a TorchScript file with its signature. A worker needs no other information about a model. */
        Program: {
            /** @description The digest of the TorchScript file. */
            artifact: string;
            /** @description The input tensors, in the order of the program's arguments. */
            inputs: components["schemas"]["TensorSpec"][];
            /**
             * Format: int32
             * @description The largest number of rows in a batch; 0 if the model has no batch dimension and takes one request at a time.
             */
            max_batch_size: number;
            /** @description Name and version, as `NAME:VERSION`. */
            model: string;
            /** @description The output tensors, in the order of the program's results. */
            outputs: components["schemas"]["TensorSpec"][];
        };
        /** @description Gives all requests that name no version to one. */
        Promotion: {
            /**
             * Format: int32
             * @description The version.
             * @example 2
             */
            version: number;
        };
        /** @description The versions of the agent protocol that a side speaks: all from the first to the last. A message without a range is of version 1. */
        ProtocolRange: {
            /**
             * Format: int32
             * @description The oldest version.
             */
            first: number;
            /**
             * Format: int32
             * @description The newest version.
             */
            last: number;
        };
        /** @description The rank of a text. */
        Rank: {
            /** @description The index of the text. */
            index: number;
            /**
             * Format: double
             * @description The score.
             */
            score: number;
            /** @description The text, if it is wanted. */
            text?: string | null;
        };
        /** @description The ranks of documents. */
        RankAnswer: {
            /** @description The id of the request. */
            id: string;
            /** @description The model. */
            model: string;
            /** @description The ranks, the best first. */
            results: components["schemas"]["RankItem"][];
            /** @description The tokens that were counted. */
            usage: components["schemas"]["RankUsage"];
        };
        /** @description The rank of a document. */
        RankItem: {
            document?: components["schemas"]["Document"] | null;
            /** @description The index of the document. */
            index: number;
            /**
             * Format: double
             * @description The score, 0 to 1.
             */
            relevance_score: number;
        };
        /** @description A request for the ranks of documents by a query. Further fields are not looked at. */
        RankRequest: {
            /** @description At most 2048 documents: texts, or objects with a field `text`. */
            documents: components["schemas"]["Document"][];
            /** @description The model, as `NAME` or `NAME:VERSION`. */
            model: string;
            /** @description The query. */
            query: string;
            /** @description True to have the documents in the answer. */
            return_documents?: boolean | null;
            /** @description The most documents in the answer. */
            top_n?: number | null;
        };
        /** @description The tokens of a call. */
        RankUsage: {
            /** @description The tokens of all pairs of query and document. */
            total_tokens: number;
        };
        /**
         * @description The part that a model's reserved rate has beside the measured one in the rate that placement plans for.
         * @enum {string}
         */
        RateMode: "declared" | "measured" | "max" | "min";
        /**
         * @description The kind of an input that may be sent as it is.
         * @enum {string}
         */
        RawInputKind: "image" | "text";
        /** @description An input in [`ModelMetadata`] that may be sent as it is. */
        RawInputMetadata: {
            /** @description The kind of each of its elements. */
            kind: components["schemas"]["RawInputKind"];
            /** @description The name of the tensor of BYTES. */
            name: string;
        };
        /** @description The body of `POST /v2/systemsharedmemory/region/{region}/register`. */
        RegisterSystemSharedMemory: {
            /**
             * Format: int64
             * @description The number of bytes of the region.
             */
            byte_size: number;
            /** @description The name of the POSIX shared memory object, as `shm_open` takes it: `/input`. */
            key: string;
            /**
             * Format: int64
             * @description The first byte of the region in the object.
             */
            offset?: number;
        };
        /** @description A change that would serve a model. */
        Remedy: components["schemas"]["Change"] & {
            /**
             * Format: double
             * @description The fraction of the model's requests that is in time after the change, from 0 to 1, by the estimate.
             */
            served_fraction: number;
        };
        /** @description A model that was removed. */
        RemovedModel: {
            /** @description The model's name. */
            removed: string;
            /**
             * Format: int32
             * @description The removed version; null if all were.
             */
            version?: number | null;
        };
        /** @description A node that was removed. */
        RemovedNode: {
            /** @description The node's name. */
            removed: string;
        };
        /**
         * @description The state of a replica's worker.
         * @enum {string}
         */
        ReplicaState: "fetching" | "loading" | "ready" | "draining" | "backing_off" | "failed";
        /** @description The status that a node reports of one replica. */
        ReplicaStatus: {
            /** @description The address on which the worker listens; none before it does. */
            address?: string | null;
            capacity?: components["schemas"]["Capacity"] | null;
            /** @description The replica. */
            id: string;
            /** @description The path of the Unix socket on which the worker listens for a gateway of its host; none if it listens on the address alone. */
            local_path?: string | null;
            /**
             * Format: int64
             * @description The memory that the replica needs, in bytes; none while unknown.
             */
            memory_bytes?: number | null;
            /**
             * Format: int32
             * @description The process id of the worker; none while there is no process.
             */
            pid?: number | null;
            /** @description The reason why the replica is not ready, as text for people. */
            reason?: string | null;
            /**
             * Format: int32
             * @description The number of times that the worker was restarted.
             */
            restarts: number;
            /** @description The state of the replica's worker. */
            state: components["schemas"]["ReplicaState"];
            verification?: components["schemas"]["Verification"] | null;
            /** @description The kind of the worker. */
            worker?: components["schemas"]["WorkerKind"];
        };
        /** @description A replica of a model. */
        ReplicaView: {
            /**
             * Format: int32
             * @description The largest number of rows in one batch.
             */
            batch_size: number;
            capacity?: components["schemas"]["Capacity"] | null;
            /**
             * Format: double
             * @description The share of the device's multiprocessors that the replica may use, in percent; null if unlimited.
             */
            compute_share_pct?: number | null;
            /** @description The device that the replica runs on, as NODE/DEVICE. */
            device: string;
            /** @description The kind of the device. */
            device_kind: string;
            /** @description The replica's identity while it exists. */
            id: string;
            /**
             * Format: int64
             * @description The device memory that the worker uses, in bytes; null before it is ready or if unknown.
             */
            memory_bytes?: number | null;
            /**
             * Format: int32
             * @description The process id of the replica's worker on the node; null while there is no process.
             */
            pid?: number | null;
            /** @description The reason why the replica is not ready. */
            reason?: string | null;
            /**
             * Format: int32
             * @description The number of times that the replica's worker was restarted.
             */
            restarts: number;
            /** @description True if the gateway is connected to the replica and sends it batches. */
            serving: boolean;
            state?: components["schemas"]["ReplicaState"] | null;
            verification?: components["schemas"]["Verification"] | null;
            weights?: components["schemas"]["WeightsView"] | null;
            /** @description The kind of that process: the replica's own, or one that runs other replicas, too. */
            worker?: components["schemas"]["WorkerKind"];
        };
        /** @description An item of the response to `POST /v2/repository/index`. */
        RepositoryEntry: {
            /** @description The model. */
            name: string;
            /** @description The reason for the state, if there is one to report. */
            reason?: string | null;
            /** @description The state of the model version. */
            state: components["schemas"]["RepositoryState"];
            /** @description The version, as a decimal number. */
            version?: string | null;
        };
        /** @description The body of `POST /v2/repository/index`; an empty body has the default values. */
        RepositoryIndexRequest: {
            /** @description True to list only models that are ready. */
            ready?: boolean;
        };
        /** @description An entry of the folder of models that is not registered as it is there. */
        RepositoryProblem: {
            /** @description The entry. Only its first 1000 characters are kept. */
            place: string;
            /** @description The sentence that says what is wrong. Only its first 1000 characters are kept. */
            problem: string;
        };
        /** @description The problems of the folder of models. */
        RepositoryProblems: {
            /** @description The entries that are not registered as they are there, at most 100. */
            problems: components["schemas"]["RepositoryProblem"][];
        };
        /**
         * @description The state of a model version in the repository.
         * @enum {string}
         */
        RepositoryState: "READY" | "UNAVAILABLE" | "LOADING" | "UNLOADING" | "UNKNOWN";
        /** @description The requests of a model, or of all, in a step. */
        RequestPoint: {
            /**
             * Format: int64
             * @description The begin of the step, in milliseconds since 1970.
             */
            at_ms: number;
            /**
             * Format: double
             * @description The time of which something is known, in seconds; less than the step where a part of it is a gap. Rates are counts over this time.
             */
            covered_s: number;
            /**
             * Format: int64
             * @description The requests that failed, or were lost with their worker.
             */
            failed: number;
            /**
             * Format: int64
             * @description The requests that were answered within the SLO.
             */
            in_time: number;
            /**
             * Format: int64
             * @description The requests that were answered late, or expired in the queue.
             */
            late: number;
            /**
             * Format: int64
             * @description The requests that missed their SLO: those that were late, refused or failed.
             */
            missed: number;
            /**
             * Format: int64
             * @description The requests that arrived.
             */
            offered: number;
            /**
             * Format: double
             * @description The median latency of the answered requests of the step, in milliseconds, within an eighth; null without one.
             */
            p50_ms?: number | null;
            /**
             * Format: double
             * @description The latency that one of a hundred of them exceeded, in milliseconds, within an eighth, or above; null without one.
             */
            p99_ms?: number | null;
            /**
             * Format: int64
             * @description The generation of the plan at the end of the step; null before the first.
             */
            plan?: number | null;
            /**
             * Format: int64
             * @description The requests that were refused on arrival.
             */
            refused: number;
        };
        /**
         * @description The parts of a request's latency, in milliseconds. Those from `network` on are those of its batch; all that a request did not reach
         *     are 0.
         */
        RequestStages: {
            /**
             * Format: double
             * @description From then until the last request of its batch arrived.
             */
            batch: number;
            /**
             * Format: double
             * @description The computation.
             */
            compute: number;
            /**
             * Format: double
             * @description The copy into the device's memory.
             */
            copy_in: number;
            /**
             * Format: double
             * @description The copy out of the device's memory.
             */
            copy_out: number;
            /**
             * Format: double
             * @description The time in which its pictures became tensors.
             */
            decode: number;
            /**
             * Format: double
             * @description From then until the weights of the model were on the device, where they were not when the request came.
             */
            load: number;
            /**
             * Format: double
             * @description The time in which it was looked for in the cache of predictions.
             */
            lookup: number;
            /**
             * Format: double
             * @description The transmission to the worker and back.
             */
            network: number;
            /**
             * Format: double
             * @description From then until its batch was formed, or it ended without one.
             */
            queue: number;
            /**
             * Format: double
             * @description From the head of the HTTP request to the complete, valid request, without `decode`, `tokenize` and `lookup`.
             */
            receive: number;
            /**
             * Format: double
             * @description The time in which its texts became tensors.
             */
            tokenize: number;
            /**
             * Format: double
             * @description The time before the batch was computed: in the gateway until its turn on a time-shared device, and in the worker.
             */
            worker_queue: number;
        };
        /** @description A request that has ended. */
        RequestView: {
            /** @description The address that a rejected request came from; null of others, and if it is not known. */
            address?: string | null;
            /**
             * Format: double
             * @description The time of its arrival, in milliseconds since 1970.
             */
            at_ms: number;
            batch?: components["schemas"]["BatchView"] | null;
            cache?: components["schemas"]["CacheUse"] | null;
            /**
             * Format: int64
             * @description The number of the request since the gateway's start: its address is `/v1/requests/NUMBER`. Those of rejected requests begin at 2^48.
             */
            id: number;
            /** @description The id of the API key that it came with; null without one. */
            key?: string | null;
            /** @description The name of this key; null without one, and if it was deleted since. */
            key_name?: string | null;
            /**
             * Format: double
             * @description The time from its head to its end, in milliseconds.
             */
            latency_ms: number;
            /** @description The model's name; null of a rejected request whose path has none. */
            model?: string | null;
            /** @description The way in which it ended. */
            outcome: components["schemas"]["EndOfRequest"];
            /** @description The reason for an end without an answer, as text for people: the exception if the model threw one, at most 255 bytes of it. */
            reason?: string | null;
            /** @description The id in its header `x-request-id`, or the one that the gateway chose for it and answered with; null if it is no longer known. */
            request_id?: string | null;
            /**
             * Format: int32
             * @description The number of its rows; 0 if it was refused before it was read.
             */
            rows: number;
            /**
             * Format: double
             * @description The time within which its answer was in time, in milliseconds: its own `timeout`, else the model's SLO; 0 of a rejected request.
             */
            slo_ms: number;
            /** @description The parts of its latency. */
            stages_ms: components["schemas"]["RequestStages"];
            /**
             * Format: int32
             * @description The status that a rejected request was answered with, such as 401; null of others.
             */
            status?: number | null;
            /** @description The id of its trace in 32 hexadecimal digits: that of its header `traceparent`, else a new one where traces are exported; null otherwise. */
            trace_id?: string | null;
            /**
             * Format: int32
             * @description The model's version; null of a rejected request.
             */
            version?: number | null;
        };
        /** @description A request for the ranks of texts by a query. */
        RerankRequest: {
            /** @description The query. */
            query: string;
            /** @description True for the number of the output in place of its sigmoid. */
            raw_scores?: boolean | null;
            /** @description True to have the texts in the answer. */
            return_text?: boolean | null;
            /** @description At most 2048 texts. */
            texts: components["schemas"]["Texts"];
            /** @description True to cut texts that are too long, false to refuse them; by default as the model's registration says. */
            truncate?: boolean | null;
        };
        /**
         * @description The place of a model's weights.
         * @enum {string}
         */
        Residency: "resident" | "warm" | "cold";
        /** @description The size to which a picture is brought. */
        Resize: {
            /**
             * Format: int32
             * @description The shorter side, in pixels; the longer one keeps the ratio, rounded down.
             */
            shortest: number;
        } | {
            /** @description The height and the width, in pixels, whatever the ratio. */
            exact: number[];
        };
        /** @description The response to `GET /v2/health/live`. */
        ServerLive: {
            /** @description True if the server answers at all. */
            live: boolean;
        };
        /** @description The response to `GET /v2`. */
        ServerMetadata: {
            /** @description The protocol extensions that the server supports. */
            extensions: string[];
            /** @description The server's name. */
            name: string;
            /** @description The server's version. */
            version: string;
        };
        /** @description The response to `GET /v2/health/ready`. */
        ServerReady: {
            /** @description True if the server accepts inference requests. */
            ready: boolean;
        };
        /** @description A code that starts a session once. */
        SessionCode: {
            /** @description The code. */
            code: string;
            /**
             * Format: int32
             * @description The time for which it is valid, in seconds.
             */
            expires_in_s: number;
        };
        /** @description Starts a session with one of the two. */
        SessionRequest: {
            /** @description A code of `POST /v1/session/codes`, which is valid once. */
            code?: string | null;
            /** @description The admin token, or a key with the scope `admin` or `read`. */
            token?: string | null;
        };
        /**
         * @description The rights of a session.
         * @enum {string}
         */
        SessionScope: "read" | "admin";
        /** @description The owner of a session, token or key, with its rights. */
        SessionView: {
            /**
             * Format: int64
             * @description The end of the session, as Unix time in milliseconds; null for a request with a token or key instead of a session.
             */
            expires_at_ms?: number | null;
            /** @description The address of Grafana, to which the dashboard links; null if none is configured. */
            grafana_url?: string | null;
            /** @description The name of the key; `admin` for the admin token. */
            name: string;
            /** @description The rights of the session. */
            scope: components["schemas"]["SessionScope"];
        };
        /**
         * @description The urgency of a finding.
         * @enum {string}
         */
        Severity: "info" | "warning" | "critical";
        /** @description The state of the whole cluster, with which a stream of events begins. Each part is the body of its own route. */
        Snapshot: {
            /**
             * Format: int64
             * @description The time of the snapshot, in milliseconds since 1970.
             */
            at_ms: number;
            /** @description The findings. */
            findings: components["schemas"]["Finding"][];
            /** @description The goodput of the last second. */
            goodput: components["schemas"]["GoodputView"];
            /**
             * Format: int64
             * @description The number of the last event that the snapshot contains. The events after it follow.
             */
            id: number;
            /** @description All models. */
            models: components["schemas"]["ModelView"][];
            /** @description All nodes. */
            nodes: components["schemas"]["NodeView"][];
            plan?: components["schemas"]["PlanView"] | null;
            /** @description The placement policy and the dispatch discipline. */
            policy: components["schemas"]["PolicyView"];
        };
        /** @description The response with the statistics of models. */
        Statistics: {
            /** @description The statistics, one item per model version. */
            model_stats: components["schemas"]["ModelStatistics"][];
        };
        /**
         * @description The choice of a version for a request without one.
         * @enum {string}
         */
        Sticky: "none" | "request-id";
        /** @description The schema of [`Subject`], whose identities are texts in JSON. */
        Subject: {
            /** @description A version of a model, as NAME:VERSION. */
            model: string;
        } | {
            /** @description A node. */
            node: string;
        } | {
            /** @description A device, as NODE/DEVICE. */
            device: string;
        } | {
            /** @description A replica. */
            replica: string;
        } | {
            /**
             * Format: int64
             * @description A plan, by its number.
             */
            plan: number;
        };
        /** @description A registered region, in the response to `GET /v2/systemsharedmemory/status`. */
        SystemSharedMemory: {
            /**
             * Format: int64
             * @description The number of bytes of the region.
             */
            byte_size: number;
            /** @description The name of the POSIX shared memory object. */
            key: string;
            /** @description The region's name. */
            name: string;
            /**
             * Format: int64
             * @description The first byte of the region in the object.
             */
            offset: number;
        };
        /** @description An error in the form of these routes. */
        TeiError: {
            /** @description What is wrong. */
            error: string;
            /** @description The kind of error. */
            error_type: string;
        };
        /** @description An input or output in [`ModelConfig`]. */
        TensorConfig: {
            /** @description The tensor's element type in the configuration's spelling: `TYPE_FP32`. */
            data_type: string;
            /** @description The tensor's dimensions, -1 for a variable one, without the batch dimension. */
            dims: number[];
            /** @description The tensor's name. */
            name: string;
        };
        /** @description An input or output in [`ModelMetadata`]. */
        TensorMetadata: {
            /** @description The tensor's element type. */
            datatype: components["schemas"]["Datatype"];
            /** @description The tensor's name. */
            name: string;
            /** @description The tensor's dimensions, -1 for a variable one, including the batch dimension. */
            shape: number[];
        };
        /** @description The signature of an input or output tensor. */
        TensorSpec: {
            /** @description The tensor's element type. */
            datatype: components["schemas"]["Datatype"];
            /**
             * @description The name of each dimension of an input, null for one without; a list as long as `shape`. Dimensions of the same name have the
             *     same size in each request, such as the length of tokens and of their mask. An `AOTInductor` package checks that itself nowhere: those of
             *     its variable dimensions that have no name must be equal where they are at the same place in several inputs.
             */
            dim_names?: (string | null)[] | null;
            /**
             * @description The elements of a usual row of an input, where those that the program is tried with do not suit it: at most 4096 numbers, and 16384 for all
             *     inputs; integers up to 2^53, 1 and 0 for BOOL. They are repeated until a row is full.
             */
            example?: number[] | null;
            /**
             * @description The largest size of each dimension of an input, -1 for one without a declared limit; a list as long as `shape`. Without limits
             *     for all of its variable dimensions, a row of the input has at most 4194304 elements.
             */
            max_shape?: number[] | null;
            /** @description The smallest size of each dimension of an input, -1 for one without a declared limit; a list as long as `shape`. */
            min_shape?: number[] | null;
            /** @description The tensor's name. */
            name: string;
            pad?: components["schemas"]["Padding"] | null;
            /** @description The tensor's dimensions, -1 for a variable one; the first is the batch dimension if the model has one. */
            shape: number[];
            typical_shape?: components["schemas"]["TypicalShapes"] | null;
        };
        /** @description The way from a text to rows of inputs: the numbers of its tokens, and what a model wants to know of each. */
        TextPreprocess: {
            /** @description What each input of the model is filled with, by its name. */
            inputs: {
                [key: string]: components["schemas"]["TokenTensor"];
            };
            /**
             * Format: int32
             * @description The most tokens of a text, with those that the tokenizer adds.
             */
            max_length: number;
            /**
             * @description The file that cuts a text into tokens, of Hugging Face's format `tokenizer.json`: the digest of a stored file. A file `model.json` has its path
             *     beside it, and the command line stores it.
             * @example sha256:0123…
             */
            tokenizer: string;
            /** @description True if a longer text is cut at its end. It is refused otherwise. */
            truncate?: boolean;
        };
        /** @description The description of [`Texts`] in the API's document. */
        Texts: string | string[];
        /** @description A request for embeddings or classes of texts. Further fields are not looked at. */
        TextsRequest: {
            /** @description The number of dimensions that are left of each embedding, which is brought to the length of one again. */
            dimensions?: number | null;
            /** @description A text, or a list of at most 2048 texts. */
            inputs: components["schemas"]["Texts"];
            /** @description True to bring embeddings to the length of one, false not to; by default as the model's registration says. */
            normalize?: boolean | null;
            /** @description True for the numbers of the output in place of their softmax. */
            raw_scores?: boolean | null;
            /** @description True to cut texts that are too long, false to refuse them; by default as the model's registration says. */
            truncate?: boolean | null;
        };
        /**
         * @description A property of tokens that an input is filled with.
         * @enum {string}
         */
        TokenTensor: "ids" | "mask" | "type_ids";
        /** @description The goodput of all models together in a time window. */
        TotalGoodput: {
            /**
             * Format: double
             * @description The requests that failed, or were lost with their worker, per second.
             */
            failed_rps?: number;
            /**
             * Format: double
             * @description The requests that were answered within their SLO, per second.
             */
            goodput_rps: number;
            /**
             * Format: double
             * @description The requests that were accepted and not answered within their SLO, per second: answered later, or expired in the queue.
             */
            late_rps: number;
            /**
             * Format: double
             * @description The requests that arrived, per second.
             */
            offered_rps: number;
            /**
             * Format: double
             * @description The requests that were refused on arrival, per second.
             */
            refused_rps: number;
            /**
             * Format: double
             * @description The requests that were answered, per second.
             */
            throughput_rps: number;
        };
        /** @description The answer to a request that an admin tries, with the parts of its latency. */
        TryView_Value: {
            batch?: components["schemas"]["BatchView"] | null;
            /**
             * Format: double
             * @description The time from the head of the request to its answer, in milliseconds.
             */
            latency_ms: number;
            /** @description The model's answer: an inference response of the Open Inference Protocol, with tensors as JSON. */
            response: Record<string, never>;
            /**
             * Format: double
             * @description The model's latency objective (SLO), in milliseconds.
             */
            slo_ms: number;
            /** @description The parts of the latency. */
            stages_ms: components["schemas"]["RequestStages"];
        };
        /** @description The usual shapes of an input: one, or several with weights. */
        TypicalShapes: number[] | components["schemas"]["WeightedShape"][];
        /** @description The tokens of a call. */
        Usage: {
            /** @description The tokens of all texts, with those that the tokenizer adds. */
            prompt_tokens: number;
            /** @description The same. */
            total_tokens: number;
        };
        /**
         * @description The comparison of a program's answers to random inputs, as its worker has rewritten it to be fast, with those of the program as it is in its
         *     file.
         */
        Verification: {
            /**
             * Format: int32
             * @description The number of batches whose answers were compared.
             */
            compared: number;
            /** @description The rewritings that the worker does without, because they answered something else. */
            dropped?: components["schemas"]["DroppedRewriting"][];
            /** @description The reason why nothing was compared, as text for people; none if something was. */
            not_compared?: string | null;
        };
        /** @description A measurement that a node shall make: the program's latency and memory for batch sizes 1, 2, 4, … on a device. */
        WantedProfile: {
            /** @description The device, by its name within the node. */
            device: string;
            /** @description The kind of the device. */
            device_kind: string;
            /** @description True if the operators of the program are wanted, too. */
            inspect?: boolean;
            /** @description The program that is measured. */
            program: components["schemas"]["Program"];
            /**
             * Format: int64
             * @description The time after which no further batch size is begun, in milliseconds.
             */
            time_limit_ms: number;
        };
        /** @description A replica that a node shall run. */
        WantedReplica: {
            /**
             * Format: int32
             * @description The number of the last restart that the gateway has asked for, because the replica's worker answered and was broken all the same; 0
             *     for none. When it rises, the agent restarts the worker.
             */
            attempt?: number;
            /**
             * Format: int32
             * @description The largest number of rows in one batch, at most the program's limit.
             */
            batch_size: number;
            /**
             * Format: double
             * @description The share of the multiprocessors that the replica may use, in percent; none sets no limit.
             */
            compute_share_pct?: number | null;
            /** @description The device, by its name within the node. */
            device: string;
            /** @description The replica's identity while it exists. */
            id: string;
            /**
             * Format: int64
             * @description The device memory that the plan sets aside for the replica, in bytes, without the device's own overhead per process; none if
             *     unknown.
             */
            memory_bytes?: number | null;
            /** @description True if the replica is in its device's pool: one process runs all of them, and their weights are on the device as the gateway decides. */
            pooled?: boolean;
            /** @description The program that the replica runs. */
            program: components["schemas"]["Program"];
            /**
             * @description The identity of the worker, which runs all replicas with the same one because their programs share a backbone; none if the replica has
             *     a worker of its own.
             */
            worker?: string | null;
        };
        /** @description The whole wanted state of a node. A later revision replaces an earlier one of the same epoch; a later epoch replaces all. */
        WantedState: {
            /**
             * Format: int64
             * @description The number of the gateway's start, which is a fencing token: an agent ignores messages of an older epoch.
             */
            epoch: number;
            /** @description The programs whose operators shall be found without measuring them. This needs no device. */
            inspections?: components["schemas"]["Program"][];
            /** @description The measurements that shall be made. */
            profiles: components["schemas"]["WantedProfile"][];
            /** @description The replicas that shall run, and no others. */
            replicas: components["schemas"]["WantedReplica"][];
            /**
             * Format: int64
             * @description The number of the change within the epoch.
             */
            revision: number;
        };
        /** @description A usual shape of an input, with the part of the rows that have it. */
        WeightedShape: {
            /** @description The size of each dimension, -1 for one without a usual size; a list as long as the input's `shape`. */
            shape: number[];
            /**
             * Format: int32
             * @description The number of rows with this shape, among as many as the sum of all weights; 1 to 1000.
             */
            weight: number;
        };
        /** @description The weights of a replica that shares the memory of its device with more models than fit. */
        WeightsView: {
            /**
             * Format: int64
             * @description The bytes that leave the device with them; 0 if they stay.
             */
            bytes: number;
            /**
             * Format: double
             * @description The time to load the program from its file, as the worker measured it, in milliseconds.
             */
            cold_load_ms?: number;
            /**
             * Format: int64
             * @description The times among them that the program was loaded from its file.
             */
            cold_loads?: number;
            /**
             * Format: int64
             * @description The times that they left the device for others since then.
             */
            evictions: number;
            /**
             * Format: double
             * @description The time to bring the weights to the device from where they are, or were last, as the worker measured it, in milliseconds.
             */
            load_ms: number;
            /**
             * Format: int64
             * @description The times that the weights were brought to the device since the gateway connected to the replica.
             */
            loads: number;
            /**
             * Format: int64
             * @description The bytes of the device that the weights of all its models may have together; null if there is no limit.
             */
            pool_bytes?: number | null;
            /** @description The place of the weights now: on the device, in the memory of its node, ready to be copied, or in a file of the node only. */
            residency: components["schemas"]["Residency"];
        };
        /**
         * @description The kind of a replica's worker process.
         * @enum {string}
         */
        WorkerKind: "own" | "pool";
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
