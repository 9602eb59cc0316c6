"""`[experiments.<name>]` of a policy as written: arms, their weights and rails.

In: a table. Out: one immutable `Experiment`. What its presets may say is checked with the
policy that it stands in; what it comes to for a request is in trials.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec

from router.tables import Field, Table, field_validator, model_validator

#: tables of an arm, by the same names as a scenario's
TABLES = ("preset", "direct", "thinking")


class Arm(Table):
    """One way to answer: what it does otherwise than the scenario's own preset."""

    weight: float = Field(
        default=1, ge=0, le=1e6, description="Share of the sessions, relative to the other arms."
    )
    control: bool = Field(
        default=False, description="What the others are compared with; left out: the first arm."
    )
    preset: Mapping[str, Any] = Field(
        default_factory=dict, description="Rules in place of the scenario's own for a parameter."
    )
    direct: Mapping[str, Any] = Field(
        default_factory=dict, description="Likewise, for requests without thinking."
    )
    thinking: Mapping[str, Any] = Field(
        default_factory=dict, description="Likewise, for requests with thinking."
    )

    @property
    def is_plain(self) -> bool:
        return not (self.preset or self.direct or self.thinking)


class Rails(Table):
    """How much worse than control an arm may be; one that surely is more is stopped."""

    error_rate: float | None = Field(
        default=0.02, ge=0, lt=1, description="Answers that failed, as a share above control's."
    )
    empty_rate: float | None = Field(
        default=0.02, ge=0, lt=1, description="Answers without content, likewise."
    )
    truncated_rate: float | None = Field(
        default=None, ge=0, lt=1, description="Answers cut at a token limit, likewise."
    )
    ttft_ratio: float | None = Field(
        default=None, ge=1, le=100, description="Time to the first token over control's."
    )
    total_ratio: float | None = Field(
        default=None, ge=1, le=100, description="Time of the whole answer over control's."
    )
    min_requests: int = Field(
        default=50, ge=20, description="Of the arm and of control, before anything is judged."
    )
    confidence: float = Field(
        default=0.95,
        ge=0.5,
        le=0.999999,
        description="That no sound arm of the experiment is ever stopped, however often one looks.",
    )

    @field_validator("error_rate", "empty_rate", "truncated_rate", mode="before")
    @classmethod
    def _may_be_off(cls, value: Any) -> Any:
        return None if value is False else value  # TOML has no null

    @property
    def set_up(self) -> dict[str, float]:
        """The rails that are up: name → how much worse is allowed."""
        names = ("error_rate", "empty_rate", "truncated_rate", "ttft_ratio", "total_ratio")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Shadow(Table):
    """Repeating finished requests with another arm's preset, while the backend is idle."""

    share: float = Field(
        default=0.0, ge=0, le=1, description="Of the experiment's requests; 0: none."
    )


class Experiment(Table):
    """Two or more presets side by side on real requests."""

    title: str = Field(default="", description="For people.")
    scenarios: tuple[str, ...] = Field(min_length=1, description="Whose requests take part.")
    share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Of their sessions; the others get the plain preset and are in no arm.",
    )
    state: Literal["running", "stopped"] = Field(
        default="running", description="Stopped: as if it were not there."
    )
    salt: str = Field(default="", description="Another one draws all sessions anew.")
    goal: Literal["total", "ttft", "output_tokens"] = Field(
        default="total", description="What a better arm has less of."
    )
    margin: float = Field(
        default=0.05, gt=0, lt=1, description="A difference of the goal below it is none."
    )
    arms: Mapping[str, Arm] = Field(min_length=2, description="By name, two or more.")
    guard: Rails = Rails()
    shadow: Shadow = Shadow()

    @model_validator(mode="after")
    def _one_control(self) -> Self:
        named = [name for name, arm in self.arms.items() if arm.control]
        if len(named) > 1:
            raise ValueError(f"one arm is control, not {len(named)} ({', '.join(named)})")
        if not self.arms[self.control].is_plain:
            raise ValueError(
                f"the arm {self.control!r} is control and has no preset of its own: what it is "
                "compared with is the scenario as it stands"
            )
        if self.arms[self.control].weight == 0:
            raise ValueError(f"the arm {self.control!r} is control and needs a weight above 0")
        return self

    @property
    def control(self) -> str:
        return next((name for name, arm in self.arms.items() if arm.control), next(iter(self.arms)))

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def digest(self) -> str:
        """12 hex digits over what it does; another one is another experiment.

        Its title and whether it runs do not count, nor what is only told about it.
        """
        untold = frozenset({"title", "state", "goal", "margin", "shadow"})
        told = msgspec.json.encode(self.model_dump(exclude=untold))
        return hashlib.sha256(told).hexdigest()[:12]
