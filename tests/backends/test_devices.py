"""Devices that a backend cannot use."""

import pytest

from bireme.backends import registry
from bireme.backends.devices import GpuBuild, refuse_gpu
from bireme.backends.interface import Placement
from bireme.config import NO_GPUS, UsableGpus
from bireme.types import Unsupported


def test_an_instance_on_a_gpu_is_refused_with_the_reason():
    with pytest.raises(Unsupported) as refused:
        refuse_gpu(Placement("m_0_0", "KIND_GPU", 1), "m", "sklearn")
    assert refused.value.message == (
        "instance 'm_0_0' of model 'm': KIND_GPU is not supported by the sklearn backend here: it runs models on the CPU; "
        "use KIND_CPU or KIND_AUTO"
    )


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL", "KIND_AUTO"])
def test_instances_elsewhere_pass(kind):
    refuse_gpu(Placement("m_0_0", kind), "m", "sklearn")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make a package that is installed, with a file in it."""

    def install(*files):
        for file in ("__init__.py", *files):
            path = tmp_path / "framework" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("raise AssertionError('nobody imports it')")
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


BUILD = GpuBuild("framework", "lib/libcuda_*.so", "pip install framework-gpu")


def test_a_build_for_cpus_says_what_to_install(installed):
    installed("lib/libcpu.so")

    assert BUILD.why_not() == (
        "the framework installed here was built for CPUs alone (for GPUs: pip install framework-gpu)"
    )


def test_a_build_for_gpus_is_known_by_its_file_without_importing_it(installed):
    installed("lib/libcuda_12.so")

    assert not BUILD.why_not()


def test_what_is_not_installed_or_always_built_for_gpus_is_no_fault():
    assert not GpuBuild("no_such_framework", "x").why_not()
    assert not GpuBuild().why_not()


def test_a_backend_of_the_cpu_has_no_gpus_and_says_so(monkeypatch):
    monkeypatch.setattr(registry, "_BUILT_IN", {"trees": registry._BuiltIn("m", "f", "p")})

    assert registry.usable_gpus("trees", 2) == UsableGpus(0, "the trees backend runs models on the CPU alone")
    assert registry.usable_gpus("trees", 0).why_none == "the trees backend runs models on the CPU alone"


def test_a_framework_without_gpus_has_none_where_the_machine_has_some(monkeypatch, installed):
    installed()
    monkeypatch.setattr(registry, "_BUILT_IN", {"f": registry._BuiltIn("m", "f", "framework", gpus=BUILD)})

    assert registry.usable_gpus("f", 2) == UsableGpus(0, BUILD.why_not())
    assert registry.usable_gpus("f", 0) == NO_GPUS


@pytest.mark.parametrize("name", ["python", "a backend of another package"])
def test_backends_that_know_their_placement_have_all_gpus(name):
    assert registry.usable_gpus(name, 2) == UsableGpus(2)
    assert registry.usable_gpus(name, 0) == NO_GPUS
