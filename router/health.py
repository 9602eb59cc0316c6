"""Whether a backend can be used, from what was observed of it. Pure: `now` is given."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, frozen=True):
    """What is known of one backend. Before the first observation it counts as usable."""

    is_up: bool = True
    is_known: bool = False
    since: float = 0.0
    reason: str = "not checked yet"

    def observed(self, is_up: bool, reason: str, now: float) -> Health:
        """The health after one more observation."""
        since = self.since if self.is_known and self.is_up == is_up else now
        return Health(is_up, True, since, reason)
