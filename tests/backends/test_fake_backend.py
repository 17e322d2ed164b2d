"""The fake backend does what it is told, and notices what an engine must not do."""

import threading
from pathlib import Path

import numpy as np
import pytest

from bireme.backends.interface import Backend, Instance, LoadedModel, ModelContext, Placement, RequestInstance
from bireme.config.model_config import ModelConfig, ModelInput, ModelOutput
from bireme.testing import FakeBackend

CONFIG = ModelConfig(
    name="m",
    input=(ModelInput("X", "TYPE_FP32", dims=(1,)),),
    output=(ModelOutput("Y", "TYPE_FP32", dims=(1,)), ModelOutput("Z", "TYPE_FP32", dims=(1,))),
)
X = {"X": np.ones(1, np.float32)}


def make(backend: FakeBackend, name: str = "m"):
    model = backend.load(ModelContext(name, 1, Path(name), Path(name, "1"), CONFIG))
    model.check_config(CONFIG)
    return model, model.create_instance(Placement("m_0"))


def test_it_is_a_backend():
    backend: Backend = FakeBackend()
    model: LoadedModel = backend.load(ModelContext("m", 1, Path("m"), Path("m/1"), CONFIG))
    instance: Instance | RequestInstance = model.create_instance(Placement("m_0"))

    assert not isinstance(instance, RequestInstance)


def test_without_a_function_inputs_come_back_as_outputs():
    _, instance = make(FakeBackend())

    assert instance.execute(X) == {"Y": X["X"], "Z": X["X"]}


def test_functions_go_by_the_models_name():
    backend = FakeBackend(
        lambda inputs: {"Y": inputs["X"] + 1}, functions={"two": lambda inputs: {"Y": inputs["X"] + 2}}
    )

    assert make(backend)[1].execute(X)["Y"] == 2
    assert make(backend, "two")[1].execute(X)["Y"] == 3


def test_completion_is_the_tests_own():
    backend = FakeBackend(complete=lambda config: ModelConfig(name=config.name, max_batch_size=3))
    model, _ = make(backend)

    assert model.complete_config(CONFIG) == ModelConfig(name="m", max_batch_size=3)
    backend.complete = None
    assert model.complete_config(CONFIG) is CONFIG


def test_what_is_open_is_counted():
    backend = FakeBackend(delay_s=1e-6)
    model, instance = make(backend)
    instance.execute(X)

    assert (backend.num_open_models, backend.num_open_instances, backend.max_executing) == (1, 1, 1)
    assert backend.batches == [{"X": (1,)}]
    assert backend.threads == {threading.get_ident()}

    instance.close()
    model.close()

    assert (backend.num_open_models, backend.num_open_instances, backend.num_executing) == (0, 0, 0)
    assert (instance.num_executions, instance.num_closes, model.num_closes) == (1, 1, 1)


@pytest.mark.parametrize("step", ["load", "config", "instance", "execute"])
def test_every_step_fails_when_told_to(step):
    backend = FakeBackend()
    setattr(backend, f"{step}_error", ValueError(step))

    with pytest.raises(ValueError, match=step):
        make(backend)[1].execute(X)

    assert len(backend.contexts) == 1
    assert backend.num_executing == 0


def test_the_gate_holds_executions_back_and_overlap_is_an_error():
    backend = FakeBackend()
    _, instance = make(backend)
    backend.gate.clear()
    thread = threading.Thread(target=instance.execute, args=(X,))
    thread.start()
    backend.started.acquire()

    with pytest.raises(RuntimeError, match="instance m_0 is already executing"):
        instance.execute(X)

    backend.gate.set()
    thread.join()
    assert instance.num_executions == 1


def test_a_closed_instance_does_not_execute():
    _, instance = make(FakeBackend())
    instance.close()

    with pytest.raises(RuntimeError, match="instance m_0 is closed"):
        instance.execute(X)


def test_running_inline_is_the_tests_choice():
    backend = FakeBackend(may_run_inline=True)
    _, instance = make(backend)

    assert instance.may_run_inline
    backend.may_run_inline = False
    assert not instance.may_run_inline
