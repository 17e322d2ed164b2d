import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0])


def output(name, number):
    return pb_utils.Tensor(name, np.array([[number]], np.int64).astype(np.int32))


class TritonPythonModel:
    """SUM adds up the numbers of each sequence; KEPT, for those who ask for it, is how many sums are kept."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            sequence = value(request, "ID")
            total = value(request, "X")
            if not value(request, "START"):
                total += self.sums[sequence]
            if value(request, "END"):
                self.sums.pop(sequence, None)
            else:
                self.sums[sequence] = total
            outputs = [output("SUM", total)]
            if "KEPT" in request.requested_output_names():
                outputs.append(output("KEPT", len(self.sums)))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses

    def drop_sequence(self, correlation_id):
        """Bireme says so when a sequence is over without its END."""
        self.sums.pop(correlation_id, None)
