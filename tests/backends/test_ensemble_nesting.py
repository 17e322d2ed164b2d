"""Ensembles inside one another: how deep, and which models run in the end."""

import pytest

from bireme.backends.ensemble.nesting import MOST_LEVELS, check_nesting, models_in
from bireme.types import InvalidArgument
from ensembles import ensemble, member, step


class Host:
    """Knows configs by name."""

    def __init__(self, **configs):
        self.configs = configs

    def find_config(self, name, version):
        assert version == -1
        return self.configs[name]


def tower(num_levels, *, steps_of_each=1):
    """Return a host with ``num_levels`` ensembles, the first of which consists of the model "e0"."""
    models = [member(f"e{level}") for level in range(num_levels + 1)]
    configs = {"e0": models[0]}
    for below in models[:-1]:
        name = f"e{len(configs)}"
        names = ["X", *(f"t{index}" for index in range(1, steps_of_each)), "Y"]
        steps = [step(below, f"X={names[index]}", f"Y={names[index + 1]}") for index in range(steps_of_each)]
        configs[name] = ensemble(steps)
    return Host(**configs)


def test_depth_has_a_limit():
    host = tower(MOST_LEVELS + 1)
    check_nesting(host.configs[f"e{MOST_LEVELS}"], host)
    with pytest.raises(InvalidArgument, match="more than 64 levels"):
        check_nesting(host.configs[f"e{MOST_LEVELS + 1}"], host)


def test_each_ensemble_is_looked_into_once_however_many_ways_lead_to_it():
    host = tower(50, steps_of_each=2)  # 2^50 ways
    check_nesting(host.configs["e50"], host)
    assert models_in("e50", -1, host) == {"e0"}


def test_model_runs_itself():
    assert models_in("e0", -1, tower(1)) == {"e0"}
