"""What `launch` asks of engines that cannot do it, and flags that defeat the presets.

In: a configuration, the policy, and what this machine is like. Out: findings, each with its
place in the configuration. What an engine cannot do is asked of `launch.plan`, which starts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from router.config import Backend, Config, Launch
from router.launch import options, plan
from router.launch.plan import Findings
from router.policy import Policy, PresetRule, Rule
from router.policycheck.finding import Finding, placed
from router.tomlfile import Mistake

_TITLES = {
    "existing": "a server that runs already",
    "vllm": "vLLM",
    "transformers": "transformers serve",
    "llamacpp": "llama.cpp",
    "demo": "the demo",
}


class _Said(NamedTuple):
    option: str
    message: str


def findings(
    config: Config, policy: Policy, machine: Mapping[str, Findings], text: str, file: str
) -> list[Finding]:
    """`machine`: what was found here, by model. `text`: the configuration as it is written."""
    found = []
    for number, backend in enumerate(config.backends):
        if backend.launch is None:
            continue
        there = machine[backend.launch.model]
        able = _able(backend.launch, there)
        faults = _refused(backend.launch, there, able)
        notes = [
            *_absent(backend.launch, there),
            *_passed_over(backend.launch, there, able),
            *_defeats(backend, policy, there, able),
        ]

        def place(said: _Said, number: int = number) -> Mistake:
            return placed(text, ("backends", number, "launch", said.option), said.message)

        found += [Finding("fault", place(fault), file) for fault in faults]
        found += [Finding("note", place(note), file) for note in notes]
    return found


def _chain(launch: Launch) -> tuple[str, ...]:
    """The engines that may be started; a server that runs already needs none of it."""
    return plan.ORDER[1:] if launch.engine == "auto" else (launch.engine,)


def _able(launch: Launch, there: Findings) -> list[str]:
    return [name for name in _chain(launch) if not any(plan.refusals(name, launch, there))]


def _refused(launch: Launch, there: Findings, able: list[str]) -> Iterator[_Said]:
    """Options that leave no engine to start."""
    if able:
        return
    reasons: dict[str, list[str]] = {}
    for name in _chain(launch):
        for option, reason in plan.refusals(name, launch, there):
            reasons.setdefault(option, []).append(f"{_TITLES[name]}: {reason}")
    for option, told in reasons.items():
        value = options.written(launch.asked.get(option))
        yield _Said(option, f"{value} cannot be done here: " + "; ".join(dict.fromkeys(told)))


def _missing(name: str, there: Findings) -> str:
    """Why an engine is not here; empty where it is."""
    lacks = {
        "vllm": there.vllm,
        "transformers": there.transformers,
        "llamacpp": there.llamacpp,
        "demo": there.llamacpp or there.demo,
    }.get(name)
    return lacks if isinstance(lacks, str) else ""


def _absent(launch: Launch, there: Findings) -> Iterator[_Said]:
    """An engine that is asked for by name and is not here."""
    if reason := _missing(launch.engine, there):
        yield _Said("engine", f"{reason}: `up` starts nothing on this machine")


def _passed_over(launch: Launch, there: Findings, able: list[str]) -> Iterator[_Said]:
    """Options that some engines of the chain cannot do, so that others are started."""
    out = [name for name in _chain(launch) if name not in able]
    if not able or not out:
        return
    reasons: dict[str, list[str]] = {}
    for name in out:
        for option, reason in plan.refusals(name, launch, there):
            reasons.setdefault(option, []).append(f"{_TITLES[name]} ({reason})")
    rest = " or ".join(
        _TITLES[name] + (" (not installed here)" if _missing(name, there) else "") for name in able
    )
    for option, told in reasons.items():
        passed = ", ".join(dict.fromkeys(told))
        yield _Said(option, f"leaves {rest} to be started and passes over {passed}")


# --- flags that defeat the presets ------------------------------------------------------------


def _defeats(backend: Backend, policy: Policy, there: Findings, able: list[str]) -> Iterator[_Said]:
    launch = backend.launch
    assert launch is not None
    yield from _frozen_sampling(launch, able)
    yield from _no_reuse(backend.pool, launch, policy, able)
    yield from _no_parser(backend.pool, launch, policy, there, able)
    yield from _too_short(backend.pool, launch, policy)
    yield from _coarse(launch, there, able)
    yield from _slow(launch, there, able)


def _frozen_sampling(launch: Launch, able: list[str]) -> Iterator[_Said]:
    if launch.continuous_batching and "transformers" in able:
        yield _Said(
            "continuous_batching",
            "transformers serve then samples every request as the first one asked, which is the "
            "warm-up with the default scenario's preset: temperature, top_p, top_k, penalties and "
            "stop of all other presets do nothing there, only limits and thinking land",
        )


def _no_reuse(pool: str, launch: Launch, policy: Policy, able: list[str]) -> Iterator[_Said]:
    against = [
        name for name in _in_pool(pool, policy) if _bound(policy.presets[name, None], "use_cache")
    ]
    if launch.prefix_caching is False and against and {"llamacpp", "demo"} & set(able):
        yield _Said(
            "prefix_caching",
            "llama.cpp leaves it to each request, and the use_cache of "
            f"{', '.join(against)} switches it on again",
        )
    if launch.prefix_caching is False and set(able) - {"transformers"}:
        yield _Said(
            "prefix_caching",
            "every turn of a conversation is then read from its beginning, and keeping a session "
            "on its replica gains nothing",
        )
    if launch.prompt_token_details is False and "vllm" in able:
        yield _Said(
            "prompt_token_details", "cached_tokens of the records stay empty: no hit can be seen"
        )


def _no_parser(
    pool: str, launch: Launch, policy: Policy, there: Findings, able: list[str]
) -> Iterator[_Said]:
    is_off = launch.reasoning_parser == "none"
    is_unset = launch.reasoning_parser is None and launch.engine == "vllm" and not there.is_qwen3
    if not is_off and not is_unset:
        return
    why = "" if is_off else f"{launch.model} is no Qwen3, so no parser is set for it: "
    if "vllm" in able and _budgets(pool, policy):
        yield _Said(
            "reasoning_parser",
            f"{why}without one vLLM refuses thinking_token_budget, so the thinking_budget of "
            f"{', '.join(_budgets(pool, policy))} only widens the limit of the whole answer",
        )
    elif is_off:
        yield _Said("reasoning_parser", "thought arrives as tags in the text of the answer")


def _budgets(pool: str, policy: Policy) -> list[str]:
    """The scenarios whose thought has a budget."""
    return [
        name
        for name in _in_pool(pool, policy)
        if _bound(policy.presets[name, True], "thinking_budget")
    ]


def _in_pool(pool: str, policy: Policy) -> list[str]:
    return [name for name, scenario in policy.scenarios.items() if scenario.pool == pool]


def _too_short(pool: str, launch: Launch, policy: Policy) -> Iterator[_Said]:
    if launch.max_model_len is None:
        return
    needs = {name: _longest(policy, name) for name in _in_pool(pool, policy)}
    if not needs:
        return
    name = max(needs, key=lambda each: needs[each])
    if needs[name] >= launch.max_model_len:
        yield _Said(
            "max_model_len",
            f"{launch.max_model_len} tokens are for prompt and answer together, and the preset of "
            f"{name} alone lets an answer and its thought be {needs[name]:g}: it is cut before, or "
            "refused",
        )


def _longest(policy: Policy, scenario: str) -> float:
    """The most tokens that a preset lets an answer have, its thought included."""
    longest = 0.0
    for thinking in (False, True):
        entries = policy.presets[scenario, thinking]
        answer = _bound(entries, "max_new_tokens")
        thought = _bound(entries, "thinking_budget") if thinking else 0
        longest = max(longest, answer + thought if answer else 0)
    return longest


def _bound(entries: tuple[PresetRule, ...], name: str) -> float:
    """What the rules let a number be at most, as far as they say; 0 where they say nothing."""
    entry = next((entry for entry in entries if entry.name == name), None)
    if entry is None:
        return 0
    rules = [rule for rule in (entry.rule, entry.default) if rule is not None]
    caps = [rule.cap for rule in rules if rule.cap is not None]
    return min(caps) if caps else next(filter(None, map(_value, rules)), 0)


def _value(rule: Rule) -> float:
    value = rule.force if rule.force is not None else rule.fill
    return value if isinstance(value, (int, float)) else 0


def _coarse(launch: Launch, there: Findings, able: list[str]) -> Iterator[_Said]:
    kept = launch.kv_cache_dtype or "auto"
    if kept.startswith(("q", "fp8")) and able:
        yield _Said(
            "kv_cache_dtype",
            "a coarser cache moves the likelihoods of tokens a little: what presets promise of a "
            "fixed seed or of greedy decoding holds against itself, not against a finer cache",
        )
    if (launch.quantization or "").startswith("bnb") and able and not there.has_gpu:
        yield _Said(
            "quantization",
            "on a processor bitsandbytes works, but made nothing faster where it was tried: "
            "measure it",
        )


def _slow(launch: Launch, there: Findings, able: list[str]) -> Iterator[_Said]:
    """Flags that make requests wait for each other."""
    wait = "requests wait for each other inside the engine, where the router cannot help"
    if launch.max_num_seqs == 1 and able:
        yield _Said("max_num_seqs", f"{wait}; max_inflight = 1 makes them wait here")
    if launch.continuous_batching is False and {"llamacpp", "demo"} & set(able):
        yield _Said("continuous_batching", wait)
    if launch.chunked_prefill is False and "vllm" in able:
        yield _Said("chunked_prefill", "a long prompt holds up the tokens of all other streams")
    wanted = (launch.threads or 0) * launch.replicas
    if wanted > there.threads + 1:
        yield _Said(
            "threads",
            f"{wanted} threads on what looks like {there.threads + 1} processors: engines wait by "
            "spinning, and each becomes much slower",
        )
