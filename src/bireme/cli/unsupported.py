"""Finds flags that ask for what a later release brings, as far as they would switch it on."""

from __future__ import annotations

from bireme.cli.flags import FLAGS, Feature


def find_unsupported(given: dict[str, list[str]]) -> list[str]:
    """Return a message for every given flag that asks for a feature of a later release.

    ``given`` holds the texts of each flag on the command line, by name, in order.
    """
    return [
        f"--{name}: not supported yet: {feature.name} comes with a later release"
        for name, texts in given.items()
        if (feature := FLAGS[name].feature) is not None
        and not _leaves_off(name, texts)
        and (name in feature.switches or not feature.switches or _is_on(feature, given))
    ]


def _leaves_off(name: str, texts: list[str]) -> bool:
    off = {text.lower() for text in FLAGS[name].off}
    return all(text.lower() in off for text in texts)


def _is_on(feature: Feature, given: dict[str, list[str]]) -> bool:
    """Whether tritonserver would have the feature on."""
    return any(not _leaves_off(switch, given[switch]) for switch in feature.switches if switch in given)
