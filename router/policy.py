"""policies/*.toml: scenarios, presets and how requests are told apart.

In: TOML text. Out: one immutable `Policy`, checked as a whole, with everything
worked out that does not depend on a request. Knows parameters' names and ranges,
no backend and no request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import re2

from router import migration, tomlfile
from router.experiment import TABLES, Arm, Experiment
from router.params import PARAMS, Param, is_number, is_sayable
from router.tables import Field, Table, field_validator, model_validator
from router.tomlfile import FileFault, Mistake

SCHEMA = migration.current("policy")
RULE_WORDS = ("fill", "force", "cap", "floor", "strip")
_ID = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}$")


class Range(Table):
    """Inclusive bounds; either may be left out."""

    min: int | None = Field(default=None, ge=0, description="At least this many.")
    max: int | None = Field(default=None, ge=0, description="At most this many.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min is greater than max")
        return self

    def holds(self, count: int) -> bool:
        return (self.min is None or count >= self.min) and (self.max is None or count <= self.max)


class Structure(Table):
    """Conditions on a request's shape; those given must all hold."""

    turns: Range | None = Field(default=None, description="User turns, the present one included.")
    chars: Range | None = Field(default=None, description="Characters the user wrote this turn.")
    has: tuple[
        Literal["tools", "forced_tool", "json_schema", "code", "image", "tool_loop"], ...
    ] = Field(default=(), description="What the request must hold, all of it.")
    lang: tuple[Literal["zh", "ja", "ko", "en", "other"], ...] = Field(
        default=(), description="Main script of the user's text, any of these."
    )

    @field_validator("lang", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def says_something(self) -> bool:
        return bool(self.turns or self.chars or self.has or self.lang)


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    if any(not entry.strip().strip("* \t") for entry in value):
        raise ValueError("holds an empty entry, which would match everything")
    return value


def _linear_time(value: tuple[str, ...]) -> tuple[str, ...]:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False  # as it will be matched
    for pattern in value:
        try:
            re2.compile(pattern, options)
        except re2.error as error:
            text = error.args[0] if error.args else ""
            reason = text.decode() if isinstance(text, bytes) else str(text)
            raise ValueError(f"{pattern!r} is no RE2 expression: {_told(reason)}") from None
    return value


class Match(Structure):
    """How requests of this scenario look. Any part may be left out."""

    keywords: tuple[str, ...] = Field(
        default=(),
        description="Substring for CJK, whole word for Latin; a trailing * allows any ending.",
    )
    patterns: tuple[str, ...] = Field(
        default=(), description="RE2 regular expressions (linear time), case folded."
    )
    examples: tuple[str, ...] = Field(
        default=(),
        description="Prompts of this kind to learn from, where nothing is said of thinking.",
    )
    require: Structure = Field(
        default=Structure(), description="A gate: without it the scenario is out of question."
    )
    structure_weight: float | None = Field(
        default=None, ge=0, description="What the shape is worth here; see [classify] structure."
    )
    continues: str | None = Field(
        default=None,
        description="Takes this scenario's place, where the shape fits, for turns that lean on "
        "the turns before them or that nothing speaks for.",
    )

    _are_filled = field_validator("keywords", "patterns")(_not_empty)
    _are_linear = field_validator("patterns")(_linear_time)


#: what engines with backtracking have and RE2 leaves out, by what RE2 says of it
_BACKTRACKING = {
    "(?=": "a lookahead",
    "(?!": "a negative lookahead",
    "(?<=": "a lookbehind",
    "(?<!": "a negative lookbehind",
    "(?P": "a backreference",
    "(?(": "a condition",
    "(?>": "an atomic group",
    **dict.fromkeys(("*+", "++", "?+"), "a possessive quantifier"),
    **dict.fromkeys((*(f"\\{digit}" for digit in range(1, 10)), "\\g", "\\k"), "a backreference"),
}


def _told(reason: str) -> str:
    name = _BACKTRACKING.get(reason.rpartition(": ")[2])
    if name is None:
        return reason
    return f"{name} needs backtracking, RE2 matches in linear time and has none ({reason})"


class Words(Table):
    """Words that call for thinking where a preset says `thinking = "auto"`."""

    keywords: tuple[str, ...] = Field(default=(), description="As in a scenario's match.")
    patterns: tuple[str, ...] = Field(default=(), description="As in a scenario's match.")
    weight: float | None = Field(
        default=None,
        description="What they add, in log-odds; left out: what the examples make of them.",
    )

    _are_filled = field_validator("keywords", "patterns")(_not_empty)
    _are_linear = field_validator("patterns")(_linear_time)


class Examples(Table):
    """Prompts that the classifier learns one scenario from."""

    direct: tuple[str, ...] = Field(
        default=(), description="Prompts of this scenario that a quick answer serves."
    )
    thinking: tuple[str, ...] = Field(
        default=(), description="Prompts of this scenario for which thinking pays."
    )


class Conversation(Table):
    """How a turn is told that only the turns before it explain."""

    follow_ups: tuple[str, ...] = Field(
        default=(), description='Turns that say nothing by themselves ("go on", "继续").'
    )


class ExamplesFile(Table):
    """A file that holds nothing but prompts to learn from."""

    examples: Mapping[str, Examples] = Field(
        default_factory=dict, description="Prompts to learn from, by scenario."
    )
    conversation: Conversation = Conversation()


class PolicyTest(Table):
    """A prompt and what must become of it; the policy is not taken where it does not."""

    prompt: str = Field(description="The last turn's text.")
    before: tuple[str, ...] = Field(
        default=(), description="User turns before it, the oldest first."
    )
    scenario: str = Field(description="The scenario it must be.")
    thinking: bool | None = Field(
        default=None, description="Whether it must be answered with thinking; left out: either."
    )


class Guard(Table):
    """What a preset must never break; each can be switched off."""

    tools: bool = Field(
        default=True,
        description="With tools: no cap, stop or repetition penalty; forced: no thinking either.",
    )
    structured_output: bool = Field(
        default=True,
        description="With JSON asked for: no cap, stop or penalty, and thinking off.",
    )
    choices: bool = Field(default=True, description="With n > 1: no greedy temperature.")
    logprobs: bool = Field(default=True, description="With logprobs: reasoning is left in place.")
    empty_answers: bool = Field(
        default=True,
        description="An answer that thought used up is asked for once more, without thinking.",
    )


class Scenario(Table):
    """One kind of job."""

    title: str = Field(default="", description="For people; the id is what headers carry.")
    description: str = Field(default="", description="For people.")
    priority: int = Field(default=0, description="Breaks ties only; higher wins.")
    pool: str = Field(default="default", description="Backends that serve it.")
    match: Match = Match()
    preset: Mapping[str, Any] = Field(default_factory=dict, description="Rules that always hold.")
    direct: Mapping[str, Any] = Field(
        default_factory=dict, description="Rules for requests without thinking."
    )
    thinking: Mapping[str, Any] = Field(
        default_factory=dict, description="Rules for requests with thinking."
    )
    guard: Guard = Guard()


class Defaults(Table):
    """Rules under every preset; a bare value fills."""

    direct: Mapping[str, Any] = Field(default_factory=dict, description="Thinking off.")
    thinking: Mapping[str, Any] = Field(default_factory=dict, description="Thinking on.")


class Classify(Table):
    """What evidence is worth and how much text is read."""

    keyword: float = Field(
        default=1.5, gt=0, description="A keyword that was found, in natural log-odds."
    )
    pattern: float = Field(default=1.5, gt=0, description="A pattern that was found, likewise.")
    structure: float = Field(default=1.0, ge=0, description="A shape that fits, likewise.")
    head_chars: int = Field(default=2000, ge=100, description="Read from the start of a turn.")
    tail_chars: int = Field(default=1000, ge=0, description="Read from the end of a long turn.")


class PolicyFile(Table):
    """A policy as written."""

    schema_: int = Field(
        default=1,
        ge=1,
        alias="schema",
        description="Version of this format; an older one is read as what it is now.",
    )
    default_scenario: str = Field(description="Taken when nothing speaks for another.")
    classify: Classify = Classify()
    thinking: Words = Words()
    defaults: Defaults = Defaults()
    examples: Mapping[str, Examples] = Field(
        default_factory=dict, description="Prompts to learn from, by scenario."
    )
    conversation: Conversation = Conversation()
    examples_files: tuple[str, ...] = Field(
        default=(),
        description="Files with more [examples] and [conversation], relative to this one.",
    )
    tests: tuple[PolicyTest, ...] = Field(
        default=(), description="Prompts that must be classified as they say."
    )
    scenarios: Mapping[str, Scenario] = Field(min_length=1)
    experiments: Mapping[str, Experiment] = Field(
        default_factory=dict, description="Presets that are tried beside the scenarios' own."
    )


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator wants of one parameter; None is "says nothing"."""

    force: Any = None
    fill: Any = None
    cap: float | None = None
    floor: float | None = None
    strip: bool = False


class PresetRule(msgspec.Struct, frozen=True):
    """The rules for one parameter in one scenario and mode, strongest first."""

    name: str
    rule: Rule | None  # the scenario's own
    default: Rule | None  # from [defaults.*]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in force. `presets` is by (scenario, thinking)."""

    name: str
    hash: str  # 12 hex digits over the text, and the texts of the files it names
    text: str
    beside: tuple[Path, ...]  # the files it names
    unread: tuple[tuple[str, bytes], ...] = ()  # of these, what is not in `file` yet
    file: PolicyFile
    presets: Mapping[tuple[str, bool | None], tuple[PresetRule, ...]]
    personal: frozenset[str]  # scenarios whose preset differs from one session to the next

    @property
    def scenarios(self) -> Mapping[str, Scenario]:
        return self.file.scenarios

    @property
    def default_scenario(self) -> str:
        return self.file.default_scenario

    def thinking_rule(self, scenario: str) -> Rule | None:
        for preset in self.presets[scenario, None]:
            if preset.name == "thinking":
                return preset.rule or preset.default
        return None


def load(path: Path, *, lightly: bool = False) -> Policy:
    """The policy in a file; raises FileFault with all that is wrong.

    `lightly`: files with examples are kept unread, for whoever learns from them.
    """
    return parse(tomlfile.read(path), str(path), path.parent, lightly=lightly)


def parse(
    text: str,
    name: str = "policy",
    folder: Path = Path(),
    *,
    lightly: bool = False,
    others: Collection[Path] | None = None,
) -> Policy:
    """The policy in a text; raises FileFault with all that is wrong.

    `folder` is where the files that it names are looked for. `others`: those that may be outside
    of it, for a text that came from elsewhere; None: any.
    """
    table = tomlfile.table(text, name)
    migration.upgrade(table, "policy", text, name)
    written = tomlfile.model(PolicyFile, table, text, name)
    mistakes = [
        tomlfile.mistake(text, key, message, known) for key, message, known in _faults(written)
    ]
    if mistakes:
        raise FileFault(name, mistakes)
    beside = tuple(folder / entry for entry in written.examples_files)
    for named in beside:
        is_inside = named.resolve().is_relative_to(folder.resolve())
        if others is not None and named not in others and not is_inside:
            message = f"{named} is outside of the policy's folder, and read for its own file alone"
            raise FileFault(name, [Mistake("examples_files", None, message)])
    unread = [(str(path), tomlfile.read_bytes(path)) for path in beside]
    if not lightly:
        for path, data in unread:
            written = with_examples(written, data, path)
    policy = of(written, name, text, _digest(text, (data for _, data in unread)), beside)
    return msgspec.structs.replace(policy, unread=tuple(unread)) if lightly else policy


def is_as_read(policy: Policy, path: Path) -> bool:
    """Whether the file, and those that it names, still say what the policy was read from."""
    try:
        data = map(tomlfile.read_bytes, policy.beside)
        return _digest(tomlfile.read(path), data) == policy.hash
    except FileFault:
        return False


def _digest(text: str, beside: Iterable[bytes]) -> str:
    found = hashlib.sha256(text.encode())
    for data in beside:
        found.update(data)
    return found.hexdigest()[:12]


def with_examples(written: PolicyFile, data: bytes, name: str) -> PolicyFile:
    """The policy with the examples of another file added; raises FileFault."""
    text = tomlfile.decoded(data, name)
    more = tomlfile.model(ExamplesFile, tomlfile.table(text, name), text, name)
    known = tuple(written.scenarios)
    mistakes = [
        tomlfile.mistake(
            text, ("examples", scenario), f"no such scenario{tomlfile.suggestion(scenario, known)}"
        )
        for scenario in more.examples
        if scenario not in written.scenarios
    ]
    if mistakes:
        raise FileFault(name, mistakes)
    examples = dict(written.examples)
    for scenario, added in more.examples.items():
        own = examples.get(scenario, Examples())
        examples[scenario] = Examples(
            direct=own.direct + added.direct, thinking=own.thinking + added.thinking
        )
    follow_ups = written.conversation.follow_ups + more.conversation.follow_ups
    return written.model_copy(
        update={"examples": examples, "conversation": Conversation(follow_ups=follow_ups)}
    )


def without_examples(policy: Policy) -> Policy:
    """The policy as it serves: what was learned from is no longer needed, and large."""
    scenarios = {
        name: scenario.model_copy(
            update={"match": scenario.match.model_copy(update={"examples": ()})}
        )
        for name, scenario in policy.scenarios.items()
    }
    update = {"examples": {}, "conversation": Conversation(), "scenarios": scenarios}
    return msgspec.structs.replace(policy, file=policy.file.model_copy(update=update), unread=())


def of(
    written: PolicyFile,
    name: str = "policy",
    text: str = "",
    digest: str = "",
    beside: tuple[Path, ...] = (),
) -> Policy:
    """A policy out of what was written, with all worked out that needs no request."""
    presets = _presets(written)
    return Policy(
        name=name,
        hash=digest,
        text=text,
        beside=beside,
        file=written,
        presets=presets,
        personal=frozenset(
            scenario for (scenario, _), entries in presets.items() if any(map(is_personal, entries))
        ),
    )


def is_personal(entry: PresetRule) -> bool:
    """Whether what the rule comes to may differ from one session to the next."""
    values = [
        value for rule in (entry.rule, entry.default) if rule for value in (rule.force, rule.fill)
    ]
    return entry.name.startswith("extra.") or (entry.name == "session_id" and "auto" in values)


def _presets(written: PolicyFile) -> dict[tuple[str, bool | None], tuple[PresetRule, ...]]:
    presets: dict[tuple[str, bool | None], tuple[PresetRule, ...]] = {}
    for scenario_id in written.scenarios:
        presets |= preset_rules(written, scenario_id)
    return presets


def preset_rules(
    written: PolicyFile, scenario_id: str, arm: Arm | None = None
) -> dict[tuple[str, bool | None], tuple[PresetRule, ...]]:
    """The rules of one scenario, by (scenario, thinking); those of an arm before its own."""
    scenario = written.scenarios[scenario_id]
    presets = {}
    for thinking in (None, False, True):
        below = {None: {}, False: written.defaults.direct, True: written.defaults.thinking}
        own: dict[str, Rule] = {}
        for told in (scenario, arm) if arm is not None else (scenario,):
            mode = {None: {}, False: told.direct, True: told.thinking}[thinking]
            own |= rules(told.preset) | rules(mode)
        default = rules(below[thinking], bare="fill")
        names = dict.fromkeys([*own, *default])
        presets[scenario_id, thinking] = tuple(
            PresetRule(name, own.get(name), default.get(name)) for name in names
        )
    return presets


def missing_pools(policy: Policy, there: Collection[str]) -> dict[str, str]:
    """Scenarios whose pool no backend belongs to, and that in words."""
    return {
        name: f"scenario {name!r} wants the pool {scenario.pool!r}, which has no backend"
        for name, scenario in policy.scenarios.items()
        if scenario.pool not in there
    }


def rules(table: Mapping[str, Any], bare: str = "force") -> dict[str, Rule]:
    """A preset table as rules by parameter; `extra.x` is the parameter "extra.x"."""
    found = {}
    for name, value in _flat(table):
        if _is_rule(value):
            found[name] = Rule(**value)
        else:
            found[name] = Rule(**{bare: value})
    return found


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if name == "extra" and isinstance(value, Mapping):
            yield from ((f"extra.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _is_rule(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(RULE_WORDS)


_Fault = tuple[tomlfile.Key, str, tuple[str, ...]]  # key, message, names known there


def _faults(written: PolicyFile) -> Iterator[_Fault]:
    """What a schema cannot say: names, ranges and contradictions."""
    known = tuple(written.scenarios)
    if written.default_scenario not in written.scenarios:
        hint = tomlfile.suggestion(written.default_scenario, known)
        yield ("default_scenario",), f"no such scenario{hint}", ()
    for name in written.examples:
        if name not in written.scenarios:
            yield ("examples", name), f"no such scenario{tomlfile.suggestion(name, known)}", ()
    for name, scenario in written.scenarios.items():
        continued = scenario.match.continues
        if continued is not None and (continued == name or continued not in written.scenarios):
            hint = tomlfile.suggestion(continued, [other for other in known if other != name])
            yield ("scenarios", name, "match", "continues"), f"no such other scenario{hint}", ()
    for number, test in enumerate(written.tests):
        if test.scenario not in written.scenarios:
            hint = tomlfile.suggestion(test.scenario, known)
            yield ("tests", number, "scenario"), f"{test.scenario}: no such scenario{hint}", ()
    tables: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [
        (("defaults", "direct"), written.defaults.direct),
        (("defaults", "thinking"), written.defaults.thinking),
    ]
    for scenario_id, scenario in written.scenarios.items():
        at: tuple[str, ...] = ("scenarios", scenario_id)
        if not _ID.match(scenario_id):
            yield at, "an id is lower-case ASCII letters, digits, - and _: it goes in a header", ()
        tables += [
            ((*at, "preset"), scenario.preset),
            ((*at, "direct"), scenario.direct),
            ((*at, "thinking"), scenario.thinking),
        ]
    yield from _experiment_faults(written)
    for name, experiment in written.experiments.items():
        for arm_name, arm in experiment.arms.items():
            at = ("experiments", name, "arms", arm_name)
            tables += [((*at, table), getattr(arm, table)) for table in TABLES]
    for at, table in tables:
        for name, value in _flat(table):
            key = (*at, *name.split(".", 1))
            for message in _rule_faults(name, value, mode=at[-1]):
                yield key, message, (*PARAMS, "extra")


def _experiment_faults(written: PolicyFile) -> Iterator[_Fault]:
    """Names that lead nowhere, and scenarios that two experiments want at once."""
    known = tuple(written.scenarios)
    owners: dict[str, str] = {}
    for name, experiment in written.experiments.items():
        at: tuple[str, ...] = ("experiments", name)
        ids = [(at, name), *(((*at, "arms", arm), arm) for arm in experiment.arms)]
        for key, given in ids:
            if not _ID.match(given):
                yield key, "a name is lower-case ASCII letters, digits, - and _: for headers", ()
        for scenario in experiment.scenarios:
            if scenario not in written.scenarios:
                hint = tomlfile.suggestion(scenario, known)
                yield (*at, "scenarios"), f"no such scenario{hint}", ()
            elif experiment.is_running and owners.setdefault(scenario, name) != name:
                message = (
                    f"{scenario} is in the experiment {owners[scenario]!r} already, and a request "
                    'is in one at most: give one of them state = "stopped"'
                )
                yield (*at, "scenarios"), message, ()


def _rule_faults(name: str, value: Any, mode: str) -> Iterator[str]:
    param = PARAMS.get(name)
    if param is None and not name.startswith("extra."):
        yield tomlfile.UNKNOWN
        return
    if name == "thinking" and mode in ("direct", "thinking"):
        yield "belongs in the preset: this table is chosen by it"
        return
    if isinstance(value, Mapping) and not _is_rule(value) and param is not None:
        unknown = next((word for word in value if word not in RULE_WORDS), None)
        yield f"unknown rule{tomlfile.suggestion(str(unknown), RULE_WORDS)}"
        return
    rule = value if _is_rule(value) else {"force": value}
    if len(rule) > 1 and ("force" in rule or rule.get("strip")):
        yield "force and strip stand alone: there is nothing left to fill, cap or floor"
    if "strip" in rule and not isinstance(rule["strip"], bool):
        yield "strip must be true or false"
    if param is None:
        for word, given in rule.items():
            if not is_sayable(given):
                yield f"{word} {given!r} cannot be sent as JSON"
            elif word in ("cap", "floor") and not is_number(given):
                yield f"{word} {given!r} must be a number"
        return
    for word in ("force", "fill", "cap", "floor"):
        if word in rule and (fault := _value_fault(param, word, rule[word])):
            yield f"{word} {rule[word]!r} {fault}"
    cap, floor, fill = (rule.get(word) for word in ("cap", "floor", "fill"))
    if _numbers(cap, floor) and floor > cap:  # type: ignore[operator]
        yield f"floor {floor} is above cap {cap}"
    if (_numbers(cap, fill) and fill > cap) or (_numbers(floor, fill) and fill < floor):  # type: ignore[operator]
        yield f"fill {fill} is outside its own bounds"


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _value_fault(param: Param, word: str, value: Any) -> str | None:
    if word in ("cap", "floor") and param.kind not in ("int", "float"):
        return "bounds something that is no number"
    if value == "auto" and param.name in ("thinking", "session_id"):
        return None
    return param.fault(value)
