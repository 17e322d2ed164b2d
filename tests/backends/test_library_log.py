"""Python's warnings in the log of the server."""

import warnings

from bireme.backends.library_log import ignore_warning, warnings_taken


def test_warnings_go_to_the_log_once_but_for_those_that_we_cause_ourselves():
    told = []
    with warnings.catch_warnings():
        ignore_warning("Y does not have", UserWarning)
        with warnings_taken(told.append):
            for text in ("Y does not have valid feature names", "that is old", "that is old"):
                warnings.warn(text, UserWarning, stacklevel=1)
    assert ["UserWarning: that is old"] == told
