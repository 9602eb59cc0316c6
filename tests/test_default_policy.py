"""The shipped policy keeps its promises: jobs are told apart, and each gets its numbers.

Every sentence here is our own. Decisions come from the code that serves, and are told
by the same function as `explain`; no backend is needed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from router import app, config, explain, policy
from router.chat import Endpoint
from router.classify import Classifier
from router.offline import Unconnected
from router.tables import Table
from router.verdict import Live, decide_for

ROOT = Path(__file__).resolve().parents[1]
POLICY = policy.load(ROOT / "policies" / "default.toml")
SCENARIOS = ("faq", "copywriting", "assistant", "code", "reasoning", "summary", "transform", "chat")
DIALECTS = ("vllm", "llamacpp", "transformers")


def live_on(dialect: str) -> Live:
    backend = {"name": "a", "url": "http://127.0.0.1:9", "dialect": dialect, "model": "qwen"}
    deployed = config.Config.model_validate({"backends": [backend]})
    return app.live_of(deployed, POLICY, app.slots_of(deployed, Unconnected))


LIVE = {dialect: live_on(dialect) for dialect in DIALECTS}


def told(
    *turns: str, dialect: str = "vllm", scenario: str = "", **members: object
) -> dict[str, Any]:
    """What `explain` says of a conversation whose user turns these are."""
    messages: list[dict[str, str]] = []
    for text in turns:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "好 / ok"}]
    body = {"model": "auto", "messages": messages[:-1], **members}
    headers = {b"x-router-scenario": scenario.encode()} if scenario else {}
    live = LIVE[dialect]
    verdict = decide_for(Endpoint.CHAT, json.dumps(body).encode(), headers, live)
    return explain.told(verdict, live, live.pools["default"])


def sent(*turns: str, **members: Any) -> dict[str, Any]:
    """The parameters that go out, by our names."""
    return {name: entry["sent"] for name, entry in told(*turns, **members)["params"].items()}


PLAIN = [
    ("faq", "我的包裹三天没更新物流了，能催一下吗？"),
    ("faq", "退款多久能到账？"),
    ("faq", "世界上最长的铁路在哪个国家？"),
    ("faq", "忘記密碼了，怎麼登錄帳戶？"),
    ("faq", "How long does a refund take?"),
    ("faq", "Where is my order? The tracking page shows nothing."),
    ("faq", "Can I change the delivery address after paying?"),
    ("faq", "What is the capital of Mongolia?"),
    ("copywriting", "给我们的手冲咖啡写一句广告语。"),
    ("copywriting", "寫一首關於雨天港口的詩。"),
    ("copywriting", "帮我起草一封给房东的感谢信。"),
    ("copywriting", "Write a short poem about a rainy harbour."),
    ("copywriting", "Draft a product description for a bamboo lamp."),
    ("code", "写一个函数判断闰年。"),
    ("code", "帮我写个爬虫，抓取招聘网站的标题。"),
    ("code", "How do I center a div in CSS?"),
    ("code", "Write a Python function that merges two dicts."),
    ("reasoning", "证明三角形内角和为180度。"),
    ("reasoning", "小明有12颗糖，给了弟弟三分之一，又买了5颗，现在有多少颗？"),
    ("reasoning", "為什麼冰會浮在水面上？"),
    ("reasoning", "A train travels 60 miles in 1.5 hours. How far does it go in 4 hours?"),
    ("reasoning", "Prove that the square root of 2 is irrational."),
    ("reasoning", "If all cats are animals and some animals are black, are all cats black?"),
    ("summary", "总结以下文章：昨天下午，社区举行了植树活动，两百人参加。"),
    ("summary", "用一句话概括这段话的主要内容：议会决定推迟表决。"),
    ("summary", "總結下面這段文字：今天的會議決定延後上線。"),
    ("summary", "Summarize the following article in two sentences: The council met on Monday."),
    ("summary", "The meeting was long and nothing was decided.\n\nTL;DR"),
    ("transform", "翻译成英文：今天天气很好。"),
    ("transform", "把这句话改写得更正式：你咋还没来"),
    ("transform", "翻譯成英文：風很大。"),
    ("transform", "Proofread this paragraph: She go to school every days."),
    ("transform", "Classify the sentiment of this review as positive or negative: great phone!"),
    ("chat", "推荐几本好看的科幻小说。"),
    ("chat", "周末去哪里玩比较好？"),
    ("chat", "你好"),
    ("chat", "Give me five tips for learning to swim."),
    ("chat", "Do you like music?"),
    ("chat", "東京"),
]

HARD = [
    ("code", "解释这段代码：\nfor x in rows:\n    print(x)"),
    ("reasoning", "解释一下这个原理：杠杆为什么省力？"),
    ("code", "Explain this code:\n```python\nx = [y * y for y in z]\n```"),
    ("reasoning", "Explain the principle of a heat pump."),
    ("copywriting", "以客服的口吻写一段促销文案，介绍我们的会员日。"),
    ("copywriting", "In the voice of customer support, write a marketing email for our members."),
    ("copywriting", "写一个关于数学家的小故事。"),
    ("copywriting", "Write a story about a girl who loves mathematics."),
    ("transform", "把下面的摘要翻译成日语：本文讨论了水资源。"),
    ("transform", "Translate the following summary into French: The team met on Monday."),
    ("transform", 'Translate "how do I get a refund?" into Spanish'),
    ("transform", "翻译成英文：为什么天空是蓝色的？"),
    ("summary", "Summarise our refund policy for me: items may be returned within 30 days."),
    ("code", "Write a program that prints a poem."),
    ("copywriting", "帮我写一首关于编程的诗。"),
    ("code", "Write a python script to summarize a csv file."),
    ("faq", "为什么我的卡被冻结了？"),
    ("reasoning", "为什么卡片会带静电？"),
]


@pytest.mark.parametrize(("scenario", "text"), PLAIN)
def test_a_plain_request_is_recognised(scenario: str, text: str) -> None:
    assert told(text)["scenario"] == scenario


@pytest.mark.parametrize(("scenario", "text"), HARD)
def test_a_word_of_another_trade_does_not_mislead(scenario: str, text: str) -> None:
    assert told(text)["scenario"] == scenario


def test_talk_becomes_the_assistants_at_its_third_turn() -> None:
    talk = ["你好", "嗯，今天有点冷", "那就这样吧"]

    assert told(*talk[:2])["scenario"] == "chat"
    assert told(*talk)["scenario"] == "assistant"


@pytest.mark.parametrize(
    ("scenario", "text"), [(s, t) for s, t in PLAIN if s not in ("chat", "assistant")]
)
def test_a_task_in_turn_five_is_still_that_task(scenario: str, text: str) -> None:
    assert told("hi", "nice", "really", "go on", text)["scenario"] == scenario


def test_a_long_text_is_no_customers_question() -> None:
    letter = "I paid for my order with my card and asked for a refund. " * 12

    assert told(letter)["scenario"] != "faq"


NUMBERS: dict[str, dict[str, Any]] = {
    "faq": {"temperature": 0.2, "top_p": 0.75, "max_new_tokens": 64, "thinking": False},
    "copywriting": {
        "temperature": 0.6,
        "top_p": 0.9,
        "repetition_penalty": 1.15,
        "max_new_tokens": 256,
        "thinking": False,
    },
    "assistant": {"temperature": 0.5, "max_new_tokens": 128, "thinking": False},
    "code": {"temperature": 0.3, "top_p": 0.85, "max_new_tokens": 256, "thinking": False},
    "reasoning": {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "max_new_tokens": 1024 + 2048,
        "thinking": True,
    },
    "summary": {"max_new_tokens": 128, "thinking": False},
    "transform": {"max_new_tokens": 256, "thinking": False},
    "chat": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "thinking": False},
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_presets_numbers_land(scenario: str) -> None:
    params = sent("好", scenario=scenario)

    assert {name: params.get(name) for name in NUMBERS[scenario]} == NUMBERS[scenario]


def test_the_policy_ships_these_scenarios_and_no_other() -> None:
    assert set(POLICY.scenarios) == set(SCENARIOS)
    assert POLICY.default_scenario == "chat"


def test_chat_is_never_cut() -> None:
    assert "max_new_tokens" not in sent("东京")
    assert sent("东京", max_tokens=5000)["max_new_tokens"] == 5000


def test_the_assistant_names_the_session() -> None:
    explained = told("a", "b", "c", scenario="assistant")

    assert explained["params"]["session_id"]["sent"] == explained["session"]["hash"]


def test_a_clients_own_sampling_holds() -> None:
    params = sent("退款多久能到账？", temperature=0.9, top_p=0.99)

    assert (params["temperature"], params["top_p"]) == (0.9, 0.99)


def test_a_larger_limit_is_capped_and_a_smaller_one_kept() -> None:
    assert sent("退款多久能到账？", max_tokens=900)["max_new_tokens"] == 64
    assert sent("退款多久能到账？", max_completion_tokens=16)["max_new_tokens"] == 16


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("asked", [True, False])
def test_a_client_decides_about_thinking_and_the_sampling_follows(
    scenario: str, asked: bool
) -> None:
    params = sent("好", scenario=scenario, chat_template_kwargs={"enable_thinking": asked})

    assert params["thinking"] is asked
    if asked:
        assert (params["temperature"], params["top_p"], params["top_k"]) == (0.6, 0.95, 20)
    else:
        assert params["temperature"] != 0.6 or scenario == "copywriting"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("temperature", "lifted"), [(0, 0.3), (0.0, 0.3), (None, 0.6)])
def test_thought_is_never_greedy(scenario: str, temperature: float | None, lifted: float) -> None:
    params = sent("好", scenario=scenario, enable_thinking=True, temperature=temperature)

    assert params["temperature"] == lifted


def test_greedy_is_the_clients_right_where_nothing_thinks() -> None:
    assert sent("写一个函数判断闰年。", temperature=0)["temperature"] == 0


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "chat"])
def test_thought_never_eats_the_answer(scenario: str) -> None:
    direct = sent("好", scenario=scenario, enable_thinking=False)
    thinking = sent("好", scenario=scenario, enable_thinking=True)
    budget = told("好", scenario=scenario, enable_thinking=True)["params"]["thinking_budget"]

    assert budget["origin"] in ("fill", "defaults")
    assert thinking["max_new_tokens"] >= direct["max_new_tokens"] + 1024


@pytest.mark.parametrize(
    "text",
    [
        "用动态规划求最长公共子序列，写出代码。",
        "Implement Dijkstra's shortest path in Go and give its time complexity.",
        "写一个程序，一步一步推导汉诺塔的解法。",
        "这段代码哪里错了？\n```\nx = 1\n```",
    ],
)
def test_hard_code_thinks(text: str) -> None:
    explained = told(text)

    assert (explained["scenario"], explained["thinking"]) == ("code", True)


@pytest.mark.parametrize(
    "text",
    [
        "写一个函数判断闰年。",
        "How do I center a div in CSS?",
        "Explain this code:\n```python\nx = [y * y for y in z]\n```",
        "用 Python 读取 csv 文件的代码。",
    ],
)
def test_small_code_does_not(text: str) -> None:
    explained = told(text)

    assert (explained["scenario"], explained["thinking"]) == ("code", False)


@pytest.mark.parametrize(
    "words",
    [
        *("为什么", "如何推导", "逐步", "证明", "解释原理", "数学题"),
        *("why", "how to derive", "step by step", "prove", "explain the principle", "math problem"),
    ],
)
def test_the_thinking_words_work_in_a_conversation(words: str) -> None:
    assert told("a", "b", words, scenario="assistant")["thinking"] is True
    assert told("a", "b", "c", scenario="assistant")["thinking"] is False


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    "members",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
    ids=["json", "tools"],
)
def test_json_and_tools_are_never_cut_or_penalised(
    scenario: str, members: dict[str, object]
) -> None:
    params = sent("好", scenario=scenario, **members)

    assert not {"max_new_tokens", "repetition_penalty", "stop"} & params.keys()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_asking_for_json_turns_thinking_off(scenario: str) -> None:
    assert (
        sent("好", scenario=scenario, response_format={"type": "json_object"})["thinking"] is False
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("thinking", [True, False])
def test_the_common_backends_can_be_told_all_of_it(
    dialect: str, scenario: str, thinking: bool
) -> None:
    warnings = told("好", dialect=dialect, scenario=scenario, enable_thinking=thinking)["warnings"]

    # Only vLLM has a place for a session; elsewhere the router alone keeps it together.
    assert [w for w in warnings if not w.startswith("session_id ")] == []
    assert not warnings or (scenario == "assistant" and dialect != "vllm")


# The assistant has none: it takes the place of chat within a conversation.
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "assistant"])
def test_every_scenario_has_examples_in_both_languages(scenario: str) -> None:
    known = POLICY.file.examples[scenario]
    examples = known.direct + known.thinking
    chinese = [text for text in examples if re.search("[\u4e00-\u9fff]", text)]

    assert len(examples) == len(set(examples))
    assert len(chinese) >= 150
    assert len(examples) - len(chinese) >= 150


def test_an_experts_choice_by_name_beats_every_word() -> None:
    assert told("写一首诗", scenario="summary")["scenario"] == "summary"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "policies").glob("*.toml")), ids=lambda path: path.name
)
def test_every_shipped_policy_loads_and_classifies(path: Path) -> None:
    loaded = policy.load(path)

    Classifier(loaded)
    assert loaded.default_scenario in loaded.scenarios


EXAMPLE = ROOT / "config.toml"


def test_the_example_deployment_loads_with_the_shipped_policy() -> None:
    deployed = config.load(EXAMPLE, environ={})
    shipped = policy.load(config.beside(EXAMPLE, deployed.policy.file))

    assert not policy.missing_pools(shipped, {backend.pool for backend in deployed.backends})
    assert [backend.name for backend in deployed.backends] == ["local"]
    launch = deployed.backends[0].launch
    assert launch is not None
    assert (launch.engine, launch.model) == ("auto", "Qwen/Qwen3-0.6B")


def keys() -> Iterator[tuple[str, str]]:
    for name, kind in get_type_hints(config.Config).items():
        if name not in config.Config.names():  # schema stands above the tables
            continue
        table = get_args(kind)[0] if get_origin(kind) is tuple else kind
        assert issubclass(table, Table)
        yield from ((name, key) for key in table.names())


@pytest.mark.parametrize(("table", "key"), list(keys()))
def test_the_example_shows_every_key(table: str, key: str) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^\[+{table}\]+(.*?)(?=^\[|\Z)", text)

    assert section is not None
    assert re.search(rf"(?m)^(# )?{key} = .+", section[1])


def test_the_example_shows_every_table() -> None:
    assert set(tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))) == set(config.Config.names())


def test_the_examples_values_are_the_defaults() -> None:
    deployed = config.load(EXAMPLE, environ={})
    bare = config.Config.model_validate({"backends": [{"name": "local", "url": "http://a:1"}]})
    chosen = {"url", "dialect", "launch"}

    assert deployed.model_dump(exclude={"backends"}) == bare.model_dump(exclude={"backends"})
    assert deployed.backends[0].model_dump(exclude=chosen) == bare.backends[0].model_dump(
        exclude=chosen
    )
