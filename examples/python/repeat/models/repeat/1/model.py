"""Send the values back one by one, ``DELAY_MS`` apart, from a thread: the instance takes the next request meanwhile."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.threads = set()

    def execute(self, requests):
        """Start a thread per request and return at once; a decoupled model returns no responses."""
        for request in requests:
            delay = pb_utils.get_input_tensor_by_name(request, "DELAY_MS")
            delay_s = int(delay.as_numpy()[0]) / 1e3 if delay is not None else 0.0
            values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
            # The thread keeps the sender only: with it, the request stays open after execute has returned.
            arguments = (request.get_response_sender(), values.copy(), delay_s)
            thread = threading.Thread(target=self.answer, args=arguments)
            self.threads.add(thread)
            thread.start()

    def answer(self, sender, values, delay_s):
        for index, value in enumerate(values):
            if sender.is_cancelled():  # the client is gone, or does not want the rest
                cancelled = pb_utils.TritonError("the client has left", pb_utils.TritonError.CANCELLED)
                sender.send(pb_utils.InferenceResponse(error=cancelled), flags=FINAL)
                break
            time.sleep(delay_s)
            outputs = [
                pb_utils.Tensor("VALUE", np.array([value], np.int32)),
                pb_utils.Tensor("INDEX", np.array([index], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
        else:
            sender.send(flags=FINAL)  # no more responses: must be said, in whichever way
        self.threads.discard(threading.current_thread())

    def finalize(self):
        for thread in list(self.threads):
            thread.join()
