"""How long the launches of a stream take, by what is launched: learned from the time between two marks in the stream.

A mark is put into the stream whenever the launches since the last one are thought to take ``MARK_US`` on the device, and the host waits
until the mark before has passed: so it is between one and two marks ahead, whether launches take 5 us or a second each. What holds for a
launch (the time of its interval divided among those in it) includes what other streams do on the device meanwhile: that is how long a
third one waits for this stream.
"""

from __future__ import annotations

from collections.abc import Mapping

AHEAD = 256
"""The most launches between two marks. A stream takes about a thousand."""

MARK_US = 80 * AHEAD
"""Microseconds of the device between two marks."""

LEAST_US = MARK_US // AHEAD
"""What a launch counts at least."""


class Pace:
    """Microseconds of the launches of one stream, by keys of what is launched."""

    def __init__(self) -> None:
        self._us: dict[int, float] = {}

    def enter(self, key: int, us: float | None) -> None:
        """Something that may be launched from now on. ``us``: what a launch takes, where that is known from elsewhere."""
        if us is not None:
            self._us[key] = us

    def us(self, key: int) -> float | None:
        """The duration of a launch in microseconds; None: unknown."""
        return self._us.get(key)

    def weight(self, key: int) -> int:
        """The assumed duration of a launch in microseconds. A launch with an unknown duration gets its own mark."""
        return min(max(LEAST_US, round(self._us.get(key, MARK_US))), MARK_US)

    def learn(self, counts: Mapping[int, int], us: float) -> None:
        """What an interval has taken.

        Launches that were not known take what known ones leave. Where all were known, all take more or less in proportion: more at once,
        half as much at the most, so that an interval in which nothing was there to do does not count for long.

        Args:
            counts: launches in it by their keys.
            us: microseconds between its two marks.
        """
        known = sum(n * self._us[key] for key, n in counts.items() if key in self._us)
        new = [key for key in counts if key not in self._us]
        if new:
            each = max(us - known, 0.0) / sum(counts[key] for key in new)
            self._us |= dict.fromkeys(new, max(1.0, each))
        elif known:
            ratio = max(0.5, us / known)
            self._us |= {key: max(1.0, self._us[key] * ratio) for key in counts}
