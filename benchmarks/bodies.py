"""The chat requests that the load consists of: bytes of JSON, always the same ones.

A short request is about 1 KB, one for each kind of job. A long one is a history of 100
messages and 200 KB. No request says temperature or max_tokens, as most apps do not.
"""

from __future__ import annotations

import json
from itertools import cycle, islice

SYSTEM = (
    "You are the assistant on the website of a small company that sells and repairs bicycles. "
    "Answer in the language of the question, in plain words and without flattery. When you are "
    "not sure, say so and ask one short question instead of guessing. Prices are in euros and "
    "include tax. The workshop is open from Tuesday to Saturday, nine to six; deliveries leave "
    "every working day at noon and take two or three days. Never promise a refund yourself: say "
    "which form to fill in. Keep names and addresses of customers out of your answers. Use a "
    'list only when there are three things or more, and call the company "we".'
)

ASKS = (
    "Hello, I ordered a rear light and two brake cables last Friday and the page still says "
    '"being packed". Could you tell me when the parcel will leave, and whether I can still '
    "change the address?",
    "Please write a short announcement for our spring sale: helmets and children's bicycles are "
    "twenty percent off until the end of April. It should sound friendly, not loud, and fit on "
    "one postcard.",
    "Next Thursday I have to be at the workshop by ten, at the dentist at noon and back home "
    "before the courier comes at two. In which order should I do the rest: shopping, bank, "
    "library? Make me a small plan.",
    "Write a Python function that takes a list of rides, each with a start time, an end time "
    "and a distance in metres, and returns the average speed in km/h for every weekday. Rides "
    "that last less than a minute are left out.",
    "Two cyclists start 90 km apart and ride towards each other, one at 18 km/h and the other "
    "at 27 km/h. The faster one rests for twenty minutes after the first hour. After how long "
    "do they meet? Show each step.",
    "请把下面的会议记录整理成三条要点：上周一共维修了四十七辆车，其中有九辆因为缺少零件推迟到本周；"
    "两位新同事已经开始培训，预计月底可以独立接待顾客；仓库的空调坏了，师傅说星期三下午来修，"
    "费用大约三百元。另外，店长希望大家在每天下班之前核对一次库存，把缺货的型号写在白板上，"
    "方便第二天一早统一订购。",
    "Translate into Chinese, keeping the tone polite: we are sorry that the frame arrived with a "
    "scratch. Please send us a photo of it and of the box, and we will offer you either a new "
    "frame or a part of the price back.",
    "我最近刚开始骑车上下班，单程大概十二公里，路上有一段很陡的坡，每次骑到那里都要停下来喘口气。"
    "昨天下班还淋了雨，鞋子全湿了，心情有点低落。你觉得我应该换一辆电动自行车，"
    "还是再坚持一段时间，把体力慢慢练上去？顺便也想听听你对雨天骑车的建议，比如穿什么衣服、"
    "怎么保养链条，还有车筐里的电脑怎样才不会被打湿。",
)

QUESTIONS = (
    "That helped, thank you, but I still do not see how the second part follows from the first.",
    "Let me describe it once more: the noise only comes when I pedal hard and the road goes up.",
    "我按照你说的方法试了一遍，前半段没有问题，到最后一步还是卡住了。",
    "Is there a cheaper way that would last at least through the winter?",
    "My neighbour says the opposite, and she has been doing this for thirty years.",
    "如果我只有周末才有时间，是不是应该先做最重要的那一项？",
    "I measured it twice: the first time it was 42 millimetres, the second time a little less.",
    "昨天店里的师傅看了一眼，说链条已经拉长了，可是我才换了半年。",
    "Could you also tell me what you would check first if it were yours?",
    "另外，我想把旧的零件留下来，以后也许还能用。",
    'The label says "do not grease", which I only noticed after I had greased it.',
    "请不要讲得太专业，我是第一次自己动手。",
)

ANSWERS = (
    "The short answer is yes, as long as the bearing turns freely and shows no play.",
    "Hold the wheel at the top and push it gently from side to side; you should feel nothing.",
    "先把车子倒过来放稳，再用手慢慢转动后轮，仔细听声音是从哪个位置传出来的。",
    "A cable stretches most in its first month, which is why the gears were fine at the start.",
    "If you hear one click a turn, look at the pedals; if you hear many, look at the chain.",
    "这种情况很常见，多数时候并不是零件坏了，而是安装的时候少拧了半圈。",
    "Clean the old grease off first, because new grease on top of sand makes a grinding paste.",
    "Your neighbour is right about older frames, and you are right about this one.",
    "建议您先记下现在的位置，拍一张照片，这样即使装错了也能恢复原样。",
    "Half a turn of the small screw moves the changer by about one tenth of a millimetre.",
    "The difference between your two measurements is within what a ruler can show.",
    "下雨之后把链条擦干，再滴上少量的油，可以让它的寿命延长将近一倍。",
    "I would spend the money on tyres before anything else, since you notice them every day.",
    'Some makers print "left" and "right" on the shoes, and swapping them squeals.',
    "如果手边没有扭力扳手，就拧到手感变硬为止，不要再继续用力。",
    "Ride around the block, brake hard twice, and then check the bolts once more.",
    "It is not urgent, but it will not get better by itself, and spring is the busy season.",
    "总的来说，先检查便宜的部分，再决定要不要更换贵的部分。",
    "The part costs about twelve euros, and the work takes a quarter of an hour.",
)

LAST_QUESTION = (
    "Then let us come to an end: which of these things should I do this weekend, which can wait "
    "until spring, and what should I buy before I start? 预算最好不要超过一百欧元。"
)

#: stands in each text; the load puts a running number in its place, so that no two are alike
NUMBER = "No. 00000000"

HISTORY_MESSAGES = 100
QUESTION_BYTES = 640
ANSWER_BYTES = 3350


def short_requests(*, model: str, stream: bool) -> list[bytes]:
    """One request of about 1 KB for each kind of job."""
    return [
        encode(
            model,
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"{ask} ({NUMBER})"},
            ],
            stream=stream,
        )
        for ask in ASKS
    ]


def long_requests(*, model: str, count: int = 4) -> list[bytes]:
    """Requests of about 200 KB: the history of a conversation, the last word the user's."""
    return [encode(model, history(seed), stream=False) for seed in range(count)]


def history(seed: int) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}]
    for number in range(HISTORY_MESSAGES - 2):
        if number % 2 == 0:
            text = prose(QUESTIONS, QUESTION_BYTES, start=seed + number // 2)
            messages.append({"role": "user", "content": text})
        else:
            text = prose(ANSWERS, ANSWER_BYTES, start=seed + number)
            messages.append({"role": "assistant", "content": text})
    messages.append({"role": "user", "content": f"{LAST_QUESTION} ({NUMBER})"})
    return messages


def prose(sentences: tuple[str, ...], size: int, *, start: int) -> str:
    """At least `size` bytes of text: the sentences in turn, four to a paragraph."""
    words: list[str] = []
    length = 0
    first = start % len(sentences)
    for index, sentence in enumerate(islice(cycle(sentences), first, None), start=1):
        gap = "\n\n" if index % 4 == 0 else " "
        words.append(sentence + gap)
        length += len(sentence.encode()) + len(gap)
        if length >= size:
            break
    return "".join(words).rstrip()


def encode(model: str, messages: list[dict[str, str]], *, stream: bool) -> bytes:
    body: dict[str, object] = {"model": model, "messages": messages}
    if stream:
        body["stream"] = True
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
