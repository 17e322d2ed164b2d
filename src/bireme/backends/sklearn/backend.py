"""SklearnBackend: from a file to an estimator that all instances of the model share."""

from __future__ import annotations

from bireme.backends.interface import ModelContext
from bireme.backends.library_log import ignore_warning
from bireme.backends.model_file import find_model_file
from bireme.backends.predictor import PredictorModel
from bireme.backends.sklearn.estimator_file import open_estimator
from bireme.backends.sklearn.estimators import is_foreign, limit_jobs, select_by_number
from bireme.backends.sklearn.predictor import SklearnPredictor
from bireme.backends.sklearn.settings import NO_FRAME, read_settings
from bireme.config.backend_rules import filenames_of
from bireme.ipc.cpu_limit import cpu_limit


class SklearnBackend:
    """Estimators of scikit-learn, on the CPU."""

    name = "sklearn"

    def load(self, ctx: ModelContext) -> PredictorModel:
        """Open the model file; what it holds as pickled code runs.

        Raises:
            InvalidArgument: the file or a parameter is wrong.
            NotFound: there is no such file.
            Unsupported: it needs a package that is not installed.
        """
        settings = read_settings(ctx.config, cpu_limit())
        estimator = open_estimator(
            ctx.name, find_model_file(ctx, filenames_of(self.name)), settings.trusted_types
        )
        if settings.frame == NO_FRAME:
            select_by_number(estimator)
            # Arrays are what we give to those fitted on DataFrames: the columns are in order.
            ignore_warning("X does not have valid feature names", UserWarning)
        most_jobs = limit_jobs(estimator, settings.num_jobs)
        # Waiting for the threads of joblib, and for code of others, may take any time.
        may_run_inline = most_jobs == 1 and not is_foreign(estimator)
        predictor = SklearnPredictor(ctx.config, estimator, settings, may_run_inline=may_run_inline)
        return PredictorModel(self.name, ctx, predictor)
