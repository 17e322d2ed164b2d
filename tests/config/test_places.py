"""A broken rule is shown with its line in the config file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.config.places import Places

CONFIG = """\
name: "other"
max_batch_size: -2
input { name: "x" data_type: TYPE_FP32 dims: [ 3, 0 ] }
input [ { name: "y"
          dims: [ 3 ] } ]
output { name: "x" dims: [ 1 ] }
dynamic_batching {
  preferred_batch_size: [ 0,
    99 ]
  default_priority_level: 7
}
instance_group { count: 1 }
instance_group { kind: KIND_GPU }
version_policy { specific { versions: [ 0 ] } }
"""
PLACES = Places(Path("config.pbtxt"), CONFIG)


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("'max_batch_size' must be non-negative value for other: found -2", "2:1"),
        ("unexpected directory name 'm' for model 'other', directory name must equal model name", "1:1"),
        ("model input 'x' dimension must be integer >= 1 for other: dims [3, 0] holds 0", "3:40"),
        ("model input 'y' must specify 'data_type' for other", "4:11"),
        ("model output 'x' has different size for dims and reshape", "6:20"),
        ("must be positive for other: dynamic_batching.preferred_batch_size[1] is 99", "9:5"),
        ("must be in range [1, 2]: dynamic_batching.default_priority_level is 7", "10:3"),
        ("dynamic_batching.priority_queue_policy has no entry", "7:1"),
        ("instance group other_1 of model other has kind KIND_GPU", "13:16"),
        ("version_policy.specific.versions holds 0", "14:29"),
    ],
)
def test_a_fault_is_found_in_the_file(fault, place):
    assert f"config.pbtxt:{place}: " == PLACES.prefix(fault)


@pytest.mark.parametrize(
    "fault", ["model output 'q' must specify 'dims'", "something else", "batch_input[0].kind"]
)
def test_a_fault_about_nothing_in_the_file_has_no_line(fault):
    assert "config.pbtxt: " == PLACES.prefix(fault)
    assert not PLACES.knows(fault)


def test_a_broken_file_has_places_as_far_as_it_goes():
    places = Places(Path("c"), 'name: "a"\nmax_batch_size: 3\ninput {')

    assert "c:2:1: " == places.prefix("'max_batch_size' is odd")
