"""Defaults that every config gets, and what unset fields of instance groups mean."""

import pytest

from bireme.config import ModelConfig, UsableGpus, normalise, normalise_instance_groups
from bireme.config.model_config import (
    EnsembleStep,
    LatestPolicy,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelSequenceBatching,
    ModelVersionPolicy,
    PinnedMemoryBuffer,
    SpecificPolicy,
    StrategyDirect,
    StrategyOldest,
)
from bireme.types import InvalidArgument

ENSEMBLE = ModelEnsembling(step=(EnsembleStep(model_name="a"),))


def test_version_policy_is_the_latest_one():
    given = ModelVersionPolicy(specific=SpecificPolicy((3,)))

    assert normalise(ModelConfig()).version_policy == ModelVersionPolicy(latest=LatestPolicy(1))
    assert normalise(ModelConfig(version_policy=given)).version_policy == given


@pytest.mark.parametrize(
    ("max_batch_size", "given", "preferred"), [(8, (), (8,)), (8, (2, 4), (2, 4)), (0, (), ()), (-1, (), ())]
)
def test_preferred_size_is_the_largest_batch(max_batch_size, given, preferred):
    dynamic = normalise(
        ModelConfig(
            max_batch_size=max_batch_size, dynamic_batching=ModelDynamicBatching(preferred_batch_size=given)
        )
    )
    oldest = normalise(
        ModelConfig(
            max_batch_size=max_batch_size,
            sequence_batching=ModelSequenceBatching(oldest=StrategyOldest(preferred_batch_size=given)),
        )
    )

    assert dynamic.dynamic_batching.preferred_batch_size == preferred
    assert oldest.sequence_batching.oldest.preferred_batch_size == preferred


@pytest.mark.parametrize(("given", "idle_us"), [(0, 1_000_000), (5, 5)])
def test_sequences_may_be_silent_for_a_second(given, idle_us):
    batching = ModelSequenceBatching(direct=StrategyDirect(), max_sequence_idle_microseconds=given)

    normalised = normalise(ModelConfig(sequence_batching=batching)).sequence_batching

    assert normalised.max_sequence_idle_microseconds == idle_us
    assert normalised.direct == StrategyDirect()


def test_pinned_memory_is_on_unless_the_config_says_no():
    off = PinnedMemoryBuffer(enable=False)

    assert normalise(ModelConfig()).optimization == ModelOptimizationPolicy(
        input_pinned_memory=PinnedMemoryBuffer(enable=True),
        output_pinned_memory=PinnedMemoryBuffer(enable=True),
    )
    given = ModelOptimizationPolicy(input_pinned_memory=off, eager_batching=True)
    assert normalise(ModelConfig(optimization=given)).optimization == ModelOptimizationPolicy(
        input_pinned_memory=off, output_pinned_memory=PinnedMemoryBuffer(enable=True), eager_batching=True
    )


def test_ensemble_gets_neither_optimization_nor_instances():
    config = normalise_instance_groups(normalise(ModelConfig(ensemble_scheduling=ENSEMBLE)))

    assert config.optimization is None
    assert config.instance_group == ()


def test_normalising_twice_changes_nothing():
    config = normalise_instance_groups(
        normalise(ModelConfig(max_batch_size=4, dynamic_batching=ModelDynamicBatching()))
    )

    assert normalise_instance_groups(normalise(config)) == config


GROUPS = [
    # backend, GPUs of the machine, groups given, groups made
    ("python", 0, [], [ModelInstanceGroup("m", "KIND_CPU", 1)]),
    ("onnxruntime", 0, [], [ModelInstanceGroup("m", "KIND_CPU", 2)]),
    ("tensorflow", 0, [], [ModelInstanceGroup("m", "KIND_CPU", 2)]),
    ("onnxruntime", 2, [], [ModelInstanceGroup("m", "KIND_GPU", 1, gpus=(0, 1))]),
    ("onnxruntime", 0, [ModelInstanceGroup(count=5)], [ModelInstanceGroup("m_0", "KIND_CPU", 5)]),
    ("onnxruntime", 0, [ModelInstanceGroup(count=-1)], [ModelInstanceGroup("m_0", "KIND_CPU", 2)]),
    ("onnxruntime", 0, [ModelInstanceGroup(kind="KIND_MODEL")], [ModelInstanceGroup("m_0", "KIND_MODEL", 1)]),
    (
        "python",
        0,
        [ModelInstanceGroup(), ModelInstanceGroup("g"), ModelInstanceGroup()],
        [ModelInstanceGroup(name, "KIND_CPU", 1) for name in ("m_0", "g", "m_2")],
    ),
    ("python", 2, [ModelInstanceGroup(gpus=(1,))], [ModelInstanceGroup("m_0", "KIND_GPU", 1, gpus=(1,))]),
    ("python", 2, [ModelInstanceGroup(gpus=(1, 2))], [ModelInstanceGroup("m_0", "KIND_CPU", 1)]),
    ("python", 0, [ModelInstanceGroup(gpus=(0,))], [ModelInstanceGroup("m_0", "KIND_CPU", 1)]),
    (
        "python",
        2,
        [ModelInstanceGroup(kind="KIND_GPU")],
        [ModelInstanceGroup("m_0", "KIND_GPU", 1, gpus=(0, 1))],
    ),
]


@pytest.mark.parametrize(("backend", "num_gpus", "given", "made"), GROUPS)
def test_instance_groups(backend, num_gpus, given, made):
    config = ModelConfig(name="m", backend=backend, instance_group=tuple(given))

    assert normalise_instance_groups(config, UsableGpus(num_gpus)).instance_group == tuple(made)


@pytest.mark.parametrize(
    ("num_gpus", "group", "message"),
    [
        (
            0,
            ModelInstanceGroup(kind="KIND_GPU"),
            (
                "instance group m_0 of model m has kind KIND_GPU but no GPUs are available: use KIND_CPU, or KIND_AUTO to "
                "run on either"
            ),
        ),
        (
            2,
            ModelInstanceGroup("g", "KIND_GPU", gpus=(0, 2)),
            "instance group g of model m specifies invalid or unsupported gpu id 2. GPUs are: 0, 1",
        ),
        (
            2,
            ModelInstanceGroup("g", "KIND_CPU", gpus=(0,)),
            "instance group g of model m has kind KIND_CPU but specifies one or more GPUs: gpus is [0]",
        ),
    ],
)
def test_group_that_this_machine_cannot_run_is_refused(num_gpus, group, message):
    with pytest.raises(InvalidArgument) as caught:
        normalise_instance_groups(ModelConfig(name="m", instance_group=(group,)), UsableGpus(num_gpus))

    assert caught.value.message == message
