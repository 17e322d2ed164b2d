"""The backends of tree models: ``xgboost``, ``lightgbm``, and ``fil``, which runs the models of Triton's FIL backend."""
