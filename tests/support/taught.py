"""A small policy with examples, learned from in milliseconds, for tests of the learned stage.

Three scenarios in two languages, one of them with examples that call for thinking, and turns
that say nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import tomli_w

from router import fit, policy
from router.chat import ChatRequest, Classification
from router.classify import Classifier, Recall
from router.classify.learned import Learned
from router.classify.weights import Weights
from router.policy import Policy
from tests.support.journey import asked

EXAMPLES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "support": {
        "direct": [
            "我的快递三天没动了，能帮我查一下吗？",
            "退款什么时候能到账？",
            "订单付完款还能改收货地址吗？",
            "发票开错了抬头，怎么重开？",
            "收到的杯子碎了，可以换货吗？",
            "会员到期以后会自动扣费吗？",
            "优惠券为什么用不了？",
            "账号被锁了，怎么解锁？",
            "Where is my parcel? The tracking page has not moved for days.",
            "How long does a refund take to reach my card?",
            "Can I still change the delivery address of my order?",
            "The invoice has the wrong name on it, can you issue a new one?",
            "My mug arrived broken, can I exchange it?",
            "Will my membership renew and charge me by itself?",
            "Why does my coupon not work at checkout?",
            "My account is locked, how do I unlock it?",
        ]
    },
    "code": {
        "direct": [
            "写一个函数判断字符串是不是回文。",
            "用 Python 读取 csv 文件，打印第一列。",
            "这个正则表达式匹配什么？",
            "给这个类加上类型注解。",
            "怎么用 git 撤销上一次提交？",
            "写一条 SQL 查询每个部门的人数。",
            "Write a function that checks whether a string is a palindrome.",
            "Read a csv file in Python and print the first column.",
            "What does this regular expression match?",
            "Add type annotations to this class.",
            "How do I undo the last commit in git?",
            "Write an SQL query that counts people in each department.",
        ],
        "thinking": [
            "用动态规划求最长递增子序列，并证明复杂度。",
            "设计一个无锁队列，说明为什么线程安全。",
            "证明这个排序算法是稳定的，并分析最坏情况。",
            "优化这个图算法的时间复杂度，一步一步推导。",
            "Solve longest increasing subsequence by dynamic programming and prove its bound.",
            "Design a lock-free queue and argue why it is thread safe.",
            "Prove that this sorting algorithm is stable and analyse its worst case.",
            "Optimise the time complexity of this graph algorithm, derive it step by step.",
        ],
    },
    "chat": {
        "direct": [
            "你好呀，今天过得怎么样？",
            "最近有什么好看的电影？",
            "周末去哪里玩比较好？",
            "我有点难过，陪我聊聊天吧。",
            "你喜欢猫还是狗？",
            "讲个笑话给我听。",
            "今晚吃什么好呢？",
            "你叫什么名字？",
            "Hello, how are you doing today?",
            "Have you seen any good films lately?",
            "Where should I go this weekend?",
            "I feel a bit sad, let us talk for a while.",
            "Do you like cats or dogs better?",
            "Tell me a joke.",
            "What should I have for dinner tonight?",
            "What is your name?",
        ]
    },
}
FOLLOW_UPS: Sequence[str] = (
    *("继续", "继续写", "然后呢", "接着说", "再来一个", "换一种说法", "短一点", "不对，再试试"),
    *(
        "go on",
        "continue",
        "and then?",
        "one more",
        "say it differently",
        "shorter",
        "no, try again",
    ),
)


def table(**changes: Any) -> dict[str, Any]:
    """The policy as its file says it; each change takes a top-level table's place."""
    return {
        "schema": 1,
        "default_scenario": "chat",
        "scenarios": {"support": {}, "code": {}, "chat": {}},
        "examples": {name: dict(kinds) for name, kinds in EXAMPLES.items()},
        "conversation": {"follow_ups": list(FOLLOW_UPS)},
        **changes,
    }


def policy_of(**changes: Any) -> Policy:
    return policy.parse(tomli_w.dumps(table(**changes)))


@cache
def taught() -> Weights:
    """What is learned from the examples as they stand."""
    return weights_of(policy_of())


def weights_of(taken: Policy) -> Weights:
    weights = fit.fit(taken)
    assert weights is not None
    return weights


def classifier(weights: Weights | None = None, **changes: Any) -> Classifier:
    """A classifier of the changed policy, fitted to it, or with weights that were made before."""
    taken = policy_of(**changes)
    return Classifier(taken, Learned(weights_of(taken) if weights is None else weights))


def said(
    reader: Classifier, *turns: str, recall: Recall | None = None, hint: str = "", **request: Any
) -> Classification:
    """What the last of these user turns is taken for."""
    return reader.scenario(talk(*turns, **request), hint, recall)


def talk(*turns: str, session: str = "", **body: Any) -> ChatRequest:
    """A conversation of these user turns, each but the last of them answered."""
    messages: list[dict[str, Any]] = []
    for text in turns:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "好 / ok"}]
    headers = {b"x-session-id": session.encode()} if session else {}
    return asked({"model": "auto", "messages": messages[:-1], **body}, headers=headers)
