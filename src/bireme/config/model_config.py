"""ModelConfig: the frozen form of ``config.pbtxt``, one class per message, named and shaped as in the ``.proto``.

Enums are their names (``"TYPE_FP32"``, ``"KIND_CPU"``, ``"REJECT"``). An absent sub-message is None; an absent scalar
has the proto's default. Maps are dicts that nobody changes. `parse_text` and `parse_json` make these.

Source: Triton ``model_config.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from bireme.config.message import Message


class LatestPolicy(Message):
    """The highest versions, so many of them."""

    num_versions: int = 0


class AllPolicy(Message):
    """Every version."""


class SpecificPolicy(Message):
    """The versions listed."""

    versions: tuple[int, ...] = ()


class ModelVersionPolicy(Message):
    """Exactly one is set (a oneof)."""

    latest: LatestPolicy | None = None
    all: AllPolicy | None = None
    specific: SpecificPolicy | None = None


class ModelTensorReshape(Message):
    """What the backend sees where clients see ``dims``."""

    shape: tuple[int, ...] = ()


class ModelInput(Message):
    """A tensor that requests bring."""

    name: str = ""
    data_type: str = "TYPE_INVALID"
    format: str = "FORMAT_NONE"
    dims: tuple[int, ...] = ()
    reshape: ModelTensorReshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False


class ModelOutput(Message):
    """A tensor that responses bring."""

    name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    reshape: ModelTensorReshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False


class BatchInput(Message):
    """A tensor that the server makes for each batch."""

    kind: str = "BATCH_ELEMENT_COUNT"
    target_name: tuple[str, ...] = ()
    data_type: str = "TYPE_INVALID"
    source_input: tuple[str, ...] = ()


class BatchOutput(Message):
    """An output made for the batch as a whole, to be cut up again."""

    target_name: tuple[str, ...] = ()
    kind: str = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    source_input: tuple[str, ...] = ()


class RateLimiterResource(Message):
    """Something that an instance holds while it runs."""

    name: str = ""
    global_: bool = False
    """Field ``global`` of the proto (a Python keyword)."""
    count: int = 0


class ModelRateLimiter(Message):
    """What an instance needs to run, and how urgently."""

    resources: tuple[RateLimiterResource, ...] = ()
    priority: int = 0


class SecondaryDevice(Message):
    """An accelerator beside the GPU."""

    kind: str = "KIND_NVDLA"
    device_id: int = 0


class ModelInstanceGroup(Message):
    """A number of like instances."""

    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 0
    rate_limiter: ModelRateLimiter | None = None
    gpus: tuple[int, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""


class ModelQueuePolicy(Message):
    """How long, and how many, requests may wait."""

    timeout_action: str = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class ModelDynamicBatching(Message):
    """Batches made of whatever requests wait."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: ModelQueuePolicy | None = None
    priority_queue_policy: Mapping[int, ModelQueuePolicy] = field(default_factory=dict)


class SequenceControl(Message):
    """What a control tensor tells the model."""

    kind: str = "CONTROL_SEQUENCE_START"
    int32_false_true: tuple[int, ...] = ()
    fp32_false_true: tuple[float, ...] = ()
    bool_false_true: tuple[bool, ...] = ()
    data_type: str = "TYPE_INVALID"


class SequenceControlInput(Message):
    """A tensor that tells the model where in its sequence a request is."""

    name: str = ""
    control: tuple[SequenceControl, ...] = ()


class InitialState(Message):
    """A state's value at the start of a sequence; data is one of ``zero_data`` and ``data_file``."""

    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    zero_data: bool | None = None
    data_file: str | None = None
    name: str = ""


class SequenceState(Message):
    """A tensor that the server carries from one request of a sequence to the next."""

    input_name: str = ""
    output_name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    initial_state: tuple[InitialState, ...] = ()
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


class StrategyDirect(Message):
    """Each sequence has a row of the batch."""

    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


class StrategyOldest(Message):
    """Batches of the oldest requests of all sequences."""

    max_candidate_sequences: int = 0
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


class ModelSequenceBatching(Message):
    """Requests of one sequence go to one instance; the strategy is one of ``direct`` and ``oldest``."""

    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[SequenceControlInput, ...] = ()
    state: tuple[SequenceState, ...] = ()
    iterative_sequence: bool = False


class EnsembleStep(Message):
    """One model of an ensemble; maps go from its tensors' names to the ensemble's."""

    model_name: str = ""
    model_version: int = 0
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)
    model_namespace: str = ""


class ModelEnsembling(Message):
    """A graph of models."""

    step: tuple[EnsembleStep, ...] = ()
    max_inflight_requests: int = 0


class ModelParameter(Message):
    """A value that the backend understands."""

    string_value: str = ""


class WarmupInput(Message):
    """A tensor of a warm-up request; data is one of the last three."""

    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    zero_data: bool | None = None
    random_data: bool | None = None
    input_data_file: str | None = None


class ModelWarmup(Message):
    """A request that is run before the model is ready."""

    name: str = ""
    batch_size: int = 0
    inputs: Mapping[str, WarmupInput] = field(default_factory=dict)
    count: int = 0


class ModelOperations(Message):
    """Libraries of custom operators."""

    op_library_filename: tuple[str, ...] = ()


class ModelTransactionPolicy(Message):
    """How many responses a request has."""

    decoupled: bool = False


class RepositoryAgent(Message):
    """A plug-in that acts on a model as it loads."""

    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


class ModelRepositoryAgents(Message):
    """Agents, in the order in which they act."""

    agents: tuple[RepositoryAgent, ...] = ()


class ModelResponseCache(Message):
    """Whether responses are kept for equal requests."""

    enable: bool = False


class MetricIdentifier(Message):
    """Which metric a control is about."""

    family: str = ""


class HistogramOptions(Message):
    """Upper bounds of a histogram's buckets."""

    buckets: tuple[float, ...] = ()


class MetricControl(Message):
    """Options of one metric."""

    metric_identifier: MetricIdentifier | None = None
    histogram_options: HistogramOptions | None = None


class ModelMetrics(Message):
    """Options of the model's metrics."""

    metric_control: tuple[MetricControl, ...] = ()


class OptimizationGraph(Message):
    """How far the backend optimises the model's graph."""

    level: int = 0


class GraphSpecShape(Message):
    """Dims of one input."""

    dim: tuple[int, ...] = ()


class GraphLowerBound(Message):
    """The smallest request that a CUDA graph serves."""

    batch_size: int = 0
    input: Mapping[str, GraphSpecShape] = field(default_factory=dict)


class GraphSpec(Message):
    """A CUDA graph to capture."""

    batch_size: int = 0
    input: Mapping[str, GraphSpecShape] = field(default_factory=dict)
    graph_lower_bound: GraphLowerBound | None = None


class OptimizationCuda(Message):
    """CUDA hints."""

    graphs: bool = False
    busy_wait_events: bool = False
    graph_spec: tuple[GraphSpec, ...] = ()
    output_copy_stream: bool = False


class Accelerator(Message):
    """An execution provider and its parameters."""

    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


class ExecutionAccelerators(Message):
    """Execution providers, in the order in which they are tried."""

    gpu_execution_accelerator: tuple[Accelerator, ...] = ()
    cpu_execution_accelerator: tuple[Accelerator, ...] = ()


class PinnedMemoryBuffer(Message):
    """Whether page-locked memory is used for copies to and from a GPU."""

    enable: bool = False


class ModelOptimizationPolicy(Message):
    """Hints to the backend."""

    graph: OptimizationGraph | None = None
    priority: str = "PRIORITY_DEFAULT"
    cuda: OptimizationCuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemoryBuffer | None = None
    output_pinned_memory: PinnedMemoryBuffer | None = None
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


class ModelConfig(Message):
    """A model's whole configuration. Change one with `dataclasses.replace`."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: ModelVersionPolicy | None = None
    max_batch_size: int = 0
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    batch_input: tuple[BatchInput, ...] = ()
    batch_output: tuple[BatchOutput, ...] = ()
    optimization: ModelOptimizationPolicy | None = None
    dynamic_batching: ModelDynamicBatching | None = None
    sequence_batching: ModelSequenceBatching | None = None
    ensemble_scheduling: ModelEnsembling | None = None
    instance_group: tuple[ModelInstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, ModelParameter] = field(default_factory=dict)
    model_warmup: tuple[ModelWarmup, ...] = ()
    model_operations: ModelOperations | None = None
    model_transaction_policy: ModelTransactionPolicy | None = None
    model_repository_agents: ModelRepositoryAgents | None = None
    response_cache: ModelResponseCache | None = None
    model_metrics: ModelMetrics | None = None

    def parameter(self, key: str, default: str = "") -> str:
        """Return ``parameters[key].string_value``, or ``default`` when the key is absent."""
        found = self.parameters.get(key)
        return default if found is None else found.string_value
