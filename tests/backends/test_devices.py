"""Devices that a backend cannot use."""

import pytest

from bireme.backends.devices import refuse_gpu
from bireme.backends.interface import Placement
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
