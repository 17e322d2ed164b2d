"""InferenceResponseSender: what may be sent when, and what becomes of requests nobody answers."""

import gc
import logging

import numpy as np
import pytest

from bireme.backends.python import pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
EARLY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."


def respond(*names):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.zeros(1)) for name in names or "Y"])


def sent(server):
    """Return what the server got, as (names of outputs, final, flag only)."""
    return [
        ([output.name for output in response.outputs], response.final, response.flag_only)
        for _, response in server.responses
    ]


def misuse(sender, text, *arguments, **keywords):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        sender.send(*arguments, **keywords)
    assert str(caught.value) == text


@pytest.fixture(params=[False, True], ids=["ordinary", "decoupled"])
def request_either(server, request):
    return server.incoming(is_decoupled=request.param)


def test_wrong_arguments(request_either):
    sender = request_either.get_response_sender()

    misuse(sender, "Unable to send response. Unsupported flag provided.", respond(), 2)
    misuse(sender, "Unable to send response. Unsupported flag provided.", flags=3)
    misuse(sender, "Inference Response object must be provided when the response flags is set to zero.")
    with pytest.raises(TypeError, match="InferenceResponse"):
        sender.send([respond()])
    assert not sender.is_closed
    assert sender.number_sent == 0


def test_a_decoupled_model_sends_any_number(server):
    request = server.incoming(is_decoupled=True)
    sender = request.get_response_sender()
    sender.send(respond("Y"))
    sender.send(respond("Z"))
    sender.send(flags=FINAL)

    assert sent(server) == [(["Y"], False, False), (["Z"], False, False), ([], True, True)]
    assert {asked for asked, _ in server.responses} == {request._request}
    assert sender.is_closed
    assert sender.is_answered
    assert sender.number_sent == 3
    misuse(sender, CLOSED, respond())
    misuse(sender, CLOSED, flags=FINAL)


def test_the_last_response_may_carry_the_flag(server):
    sender = server.incoming(is_decoupled=True).get_response_sender()
    sender.send(respond(), FINAL)

    assert sent(server) == [(["Y"], True, False)]
    misuse(sender, CLOSED, respond())


def test_a_decoupled_model_may_send_nothing(server):
    server.incoming(is_decoupled=True).get_response_sender().send(flags=FINAL)

    assert sent(server) == [([], True, True)]


def test_outputs_nobody_asked_for_are_dropped(server):
    sender = server.incoming(is_decoupled=True, outputs=["Z"]).get_response_sender()
    sender.send(respond("Y", "Z"))

    assert sent(server) == [(["Z"], False, False)]


@pytest.mark.parametrize("flags", [0, FINAL])
def test_an_ordinary_model_sends_one_response(server, flags):
    """It is final for the caller, whether the model says so now or later."""
    sender = server.incoming().get_response_sender()
    misuse(sender, EARLY, flags=FINAL)
    sender.send(respond(), flags)

    assert sent(server) == [(["Y"], True, False)]
    assert sender.is_answered
    assert sender.is_closed == bool(flags)
    misuse(sender, SECOND, respond())
    misuse(sender, SECOND, respond(), FINAL)


def test_an_ordinary_model_may_say_later_that_it_is_done(server):
    sender = server.incoming().get_response_sender()
    sender.send(respond())
    sender.send(flags=FINAL)

    assert len(server.responses) == 1
    misuse(sender, CLOSED, flags=FINAL)


def test_errors_are_sent(server):
    sender = server.incoming().get_response_sender()
    error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
    sender.send(pb_utils.InferenceResponse(error=error), FINAL)
    ((_, response),) = server.responses

    assert response.error.code == "CANCELLED"


def test_a_request_has_one_sender(request_either):
    sender = request_either.get_response_sender()

    assert request_either.get_response_sender() is sender
    assert request_either.sender is sender


def test_ordinary_models_pay_for_a_sender_only_when_they_ask(server):
    assert server.incoming().sender is None
    assert server.incoming(is_decoupled=True).sender is not None


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_either_of_sender_and_request_keeps_it_open(server, is_decoupled):
    request = server.incoming(is_decoupled=is_decoupled)
    asked = request._request
    sender = request.get_response_sender()
    del request
    gc.collect()

    assert server.abandoned == []
    del sender
    gc.collect()

    assert server.abandoned == [asked]


def test_a_decoupled_request_that_is_merely_dropped_is_given_up(server):
    server.incoming(is_decoupled=True)
    gc.collect()

    assert len(server.abandoned) == 1


def test_an_answered_request_is_not_given_up(server):
    for is_decoupled in (False, True):
        server.incoming(is_decoupled=is_decoupled).get_response_sender().send(respond(), FINAL)
    server.incoming().get_response_sender().send(respond())
    gc.collect()

    assert server.abandoned == []


def test_responses_without_an_end_give_the_request_up(server):
    server.incoming(is_decoupled=True).get_response_sender().send(respond())
    gc.collect()

    assert len(server.abandoned) == 1


def test_a_server_that_is_gone_does_not_matter_to_the_collector(server, caplog):
    caplog.set_level(logging.ERROR)
    server.failure = OSError("gone")
    server.incoming(is_decoupled=True)
    gc.collect()

    assert "cannot give up" in caplog.text


def test_a_closed_sender_sends_nothing(request_either, server):
    """The batch failed: whoever closes the sender answers."""
    sender = request_either.get_response_sender()

    assert sender.close()
    assert not sender.close()
    misuse(sender, CLOSED, respond())
    del sender, request_either
    gc.collect()

    assert server.responses == server.abandoned == []


def test_closing_tells_whether_there_was_an_answer(server):
    sender = server.incoming().get_response_sender()
    sender.send(respond())

    assert not sender.close()


def test_a_response_that_execute_returned_counts(server):
    sender = server.incoming().get_response_sender()
    sender.count(True, is_final=True)
    with pytest.raises(pb_utils.TritonModelException, match="more than one"):
        sender.count(True, is_final=True)
