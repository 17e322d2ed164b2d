"""Pace: when a model is held for a client that is behind, and when it goes on."""

from bireme.frontend.pace import Pace
from bireme.types import InferenceRequest
from http_fakes import Owner


def ignore(request, response):
    """Nobody waits."""


def test_a_model_is_held_from_a_quarter_of_the_limit_to_an_eighth():
    request = InferenceRequest("m", {}, ignore)
    owner = Owner(request)
    pace = Pace(800)
    seen = []
    for num_unsent in (0, 200, 201, 500, 200, 101, 100, 200, 0):
        pace.look(request, num_unsent)
        seen.append((num_unsent, pace.is_held))

    assert [num_unsent for num_unsent, is_held in seen if is_held] == [201, 500, 200, 101]
    assert owner.events == ["hold", "resume"]


def test_a_request_that_has_its_final_response_has_no_model_to_hold():
    pace = Pace(800)

    pace.look(InferenceRequest("m", {}, ignore), 500)

    assert pace.is_held
