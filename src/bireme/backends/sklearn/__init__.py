"""The sklearn backend: fitted estimators and pipelines of scikit-learn, or of any library with its interface."""
