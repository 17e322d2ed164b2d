"""Forest: a tree model as its library has it, in the terms that both libraries share."""

from __future__ import annotations

from typing import Protocol

from bireme.types import Array


class Forest(Protocol):
    """An ensemble of trees. Every method takes rows, ``FP32`` or ``FP64[n, num_features]``, and may run on several threads."""

    num_features: int
    num_groups: int
    """Margins of a row: classes of a multi-class model, targets of a regression with several, else 1."""
    num_values: int
    """What `predict` gives for a row. 1 with several groups: the class itself."""
    num_trees: int
    """0: it has no trees, and no `leaves` (a linear booster)."""
    num_classes: int
    """0: it is no classifier; 2: each value is the probability of a second class alone."""
    threshold: float
    """Above it, a value of a binary classifier means the second class."""
    datatype: str
    """What the library computes in: the data type that costs no conversion."""

    def expect(self, max_rows: int) -> None:
        """Get ready for runs of at most so many rows; 0: any number. Called once, before the first instance runs."""

    def predict(self, rows: Array) -> Array:
        """Return probabilities, or the predicted values: ``[n, num_values]``."""

    def margins(self, rows: Array) -> Array:
        """Return raw scores, before the objective's transformation: ``[n, num_groups]``."""

    def leaves(self, rows: Array) -> Array:
        """Return the leaf that a row ends in, for each tree: ``[n, num_trees]``."""

    def contributions(self, rows: Array) -> Array:
        """Return each feature's part (SHAP) in the margin, and the bias last: ``[n, num_groups, num_features + 1]``."""
