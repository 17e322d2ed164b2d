"""From how likely each frame has speech to when somebody speaks: the rule of Silero's own package, as the frames come."""

from __future__ import annotations

FRAME_S = 0.032
BEGINS, ENDS = 0.5, 0.35
"""Speech begins with a frame above the one, and ends with frames below the other."""
SILENCE_S, MARGIN_S = 0.1, 0.03
"""How long it must be quiet, and what a segment has around it."""

LEVELS = "▁▂▃▄▅▆▇█"


class Segments:
    """One recording, frame by frame."""

    def __init__(self) -> None:
        self._length_s = 0.0
        self._start_s: float | None = None
        self._quiet_s: float | None = None

    def add(self, speech: float) -> tuple[float, float] | None:
        """Take the next frame's probability; return the segment, from and to in seconds, that is over with it."""
        at_s, self._length_s = self._length_s, self._length_s + FRAME_S
        if speech >= BEGINS:
            self._quiet_s = None
            if self._start_s is None:
                self._start_s = max(0.0, at_s - MARGIN_S)
        elif speech < ENDS and self._start_s is not None:
            if self._quiet_s is None:
                self._quiet_s = at_s
            if at_s - self._quiet_s >= SILENCE_S:
                return self._end(self._quiet_s + MARGIN_S)
        return None

    def finish(self) -> tuple[float, float] | None:
        """Return the segment that the end of the recording cuts off."""
        return None if self._start_s is None else self._end(self._length_s)

    def _end(self, end_s: float) -> tuple[float, float]:
        start_s, self._start_s, self._quiet_s = self._start_s, None, None
        return start_s, end_s


def bar(speech: list[float], frames_per_letter: int = 4) -> str:
    """Return the probabilities as a line of blocks: of a few frames the highest."""
    groups = [speech[index : index + frames_per_letter] for index in range(0, len(speech), frames_per_letter)]
    return "".join(LEVELS[min(int(max(group) * len(LEVELS)), len(LEVELS) - 1)] for group in groups)
