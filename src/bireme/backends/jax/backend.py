"""JaxBackend: from a file to a function that all instances of the model share."""

from __future__ import annotations

from bireme.backends.interface import ModelContext
from bireme.backends.jax.artifact import open_artifact
from bireme.backends.jax.predictor import JaxPredictor
from bireme.backends.jax.settings import read_settings
from bireme.backends.model_file import find_model_file
from bireme.backends.predictor import PredictorModel
from bireme.config.backend_rules import filenames_of


class JaxBackend:
    """Exported JAX functions, on the CPU."""

    name = "jax"

    def load(self, ctx: ModelContext) -> PredictorModel:
        """Open the model file.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
            Unsupported: it needs several devices.
        """
        settings = read_settings(ctx.config)
        artifact = open_artifact(ctx.name, find_model_file(ctx, filenames_of(self.name)))
        return PredictorModel(self.name, ctx, JaxPredictor(artifact, settings))
