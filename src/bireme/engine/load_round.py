"""LoadRound: loads that belong together, as one call or one look at the repositories wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from bireme.repository import Catalogue, Fingerprint


@dataclass(slots=True, eq=False)
class LoadRound:
    """What loads that belong together know of each other: each model is loaded once, whoever needs it."""

    catalogue: Catalogue
    """As one look has seen it, as far as looks are dear."""
    expected: Mapping[str, Fingerprint] = field(default_factory=dict)
    """What the files of a model look like, if they must not have changed since that look."""
    loads: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    """Models whose load has not ended."""
    blind: set[str] = field(default_factory=set)
    """Models whose load has not looked at composing models yet."""
    follow_ups: list[asyncio.Task[None]] = field(default_factory=list)
    """Each load's: the ensembles that consist of its model are validated again."""
