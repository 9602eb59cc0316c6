"""What redaction finds, and what it leaves alone, in Chinese and English."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.redaction import KINDS, redact

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nq83v\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

#: text, with what is to be replaced between « and »; the kinds in their order
FOUND = [
    ("我的邮箱是«zhang.san@example.com»，请回复", "email"),
    ("Write to «jo+news@mail.example.co.uk».", "email"),
    ("联系«wang@corp.cn»和«li＠corp.cn»", "email email"),
    ("电话«13812345678»，谢谢", "phone"),
    ("手机：«138 1234 5678»", "phone"),
    ("手机：«138-1234-5678»或«+86 139 8765 4321»", "phone phone"),
    ("打«１３８１２３４５６７８»找我", "phone"),
    ("座机«010-12345678»，分机另问", "phone"),
    ("座机«0755 8123 4567»", "phone"),
    ("«(021) 5555 1234»", "phone"),
    ("«0086 13812345678»", "phone"),
    ("名单：«13812345678»,«13912345678»", "phone phone"),
    ("call «+1 (415) 555-2671» now", "phone"),
    ("call «(415) 555-2671» or «415.555.2671»", "phone phone"),
    ("London: «+44 20 7946 0958», «020 7946 0958»", "phone phone"),
    ("Berlin «+4930123456789»", "phone"),
    ("身份证«11010519491231002X»", "id_card"),
    ("身份证«１１０１０５１９４９１２３１００２Ｘ»", "id_card"),
    ("身份证号 «110105 19491231 002X» 有效", "id_card"),
    ("id«11010519491231002x»", "id_card"),
    ("卡号«6222 0212 3456 7890 128»，户名王五", "bank_card"),
    ("card «4111-1111-1111-1111», 12/27, CVV 123", "bank_card"),
    ("«5 5 5 5 5 5 5 5 5 5 5 5 4 4 4 4»", "bank_card"),
    ("amex «3782 822463 10005»", "bank_card"),
    ("IBAN «DE89 3704 0044 0532 0130 00» und «GB29NWBK60161331926819»", "iban iban"),
    ("key «sk-proj-abcdefgh1234567890ABCDEF»", "api_key"),
    ("«AKIAIOSFODNN7EXAMPLE» «ghp_16C7e42F292c6912E7710c838347Ae178B4a»", "api_key api_key"),
    ("«LTAI5tFakeFakeFake12»和«AIzaSyA1234567890abcdefghijklmnopqrstuv»", "api_key api_key"),
    (f"cookie «{JWT}»", "token"),
    ("Authorization: Bearer «abcDEF123456»", "token"),
    ('"authorization": "Basic «dXNlcjpwYXNz»"', "token"),
    ("access_token=«abcdefghijklmnop1234»&x=1", "token"),
    (f"这是私钥：{'«' + PEM + '»'} 请保密", "private_key"),
    ("cut off: «-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA»", "private_key"),
    ("redis://:«s3cr3tpw»@localhost:6379/0", "password"),
    ("postgres://me:«hunter2»@db/app", "password"),
    ("password=«hunter2»", "password"),
    ('{"password": "«correct horse»"}', "password"),
    ("我的密码是«abc12345»，帮我记住", "password"),
    ("密码：«letmein»", "password"),
    ("https://x/y?user=a&password=«letmein»&z=1", "password"),
    ("DB_PASSWORD=«letmein»", "password"),
    ("password: «$ecret@123»", "password"),
    ("aws_secret_access_key = «wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY»", "password"),
]  # fmt: skip

LEFT = [
    "订单号 20240115138123456789 已发货",
    "订单号：2024011500012345，物流单号 SF1234567890123",
    "时间 2024-01-15 10:20:30，至 2024-02-15",
    "时间戳 1700000000000 毫秒，1700000000 秒",
    "版本 1.2.3 升到 10.11.12，内核 5.15.0-1053",
    "共 12345678 人，金额 1,234,567.89 元，涨了 +12345678",
    "π ≈ 3.14159265358979323846",
    "经纬度 39.90469199, 116.40717",
    "身份证 110105194912310021 的校验位不对",
    "卡号 6222021234567890120 的校验位不对",
    "股票 600519 000858 300750",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
    "id 550e8400-e29b-41d4-a716-446655440000 and 41111111-1111-1111-1234-123456789012",
    "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "ISBN 978-7-111-12345-6",
    "ip 192.168.100.200:8088",
    "DE00 3704 0044 0532 0130 00 fails its check",
    "a sk-this-is-a-long-css-class-name and sk-learn",
    "def login(user: str, password: str) -> None: token = tokens[0]",
    "password = get_password()",
    "password = os.environ['PASSWORD1']",
    "password: ${DB_PASSWORD1}",
    "client(password=password, api_key=None, secret=self.secret)",
    'parser.add_argument("--password", required=True)',
    "const apiKey = process.env.KEY1;",
    "the secret is to mix well; a basic understanding of bearer certificates",
    "密码是什么时候改的？口令为空怎么办",
    "max_tokens: 1024, token: 5, {\"token\": \"Paris\"}",
    "git clone git@github.com:owner/repo.git",
    "y = x@self.weight(3); @decorator.method",
    "1+1=2，房间 0571，分机 8001",
]  # fmt: skip


@pytest.mark.parametrize(("marked", "kinds"), FOUND)
def test_what_is_found(marked: str, kinds: str) -> None:
    names = iter(kinds.split())
    text = marked.replace("«", "").replace("»", "")
    wanted = re.sub("«[^»]*»", lambda match: f"[{next(names)}]", marked, flags=re.S)
    found: dict[str, int] = {}

    assert redact(text, found) == wanted
    assert found == {kind: kinds.split().count(kind) for kind in found}
    assert set(kinds.split()) == set(found) <= set(KINDS)


@pytest.mark.parametrize("text", LEFT)
def test_what_is_left_alone(text: str) -> None:
    found: dict[str, int] = {}

    assert redact(text, found) == text
    assert found == {}


def test_what_was_replaced_is_not_found_again() -> None:
    once = redact("\n".join(marked for marked, _ in FOUND), {})
    found: dict[str, int] = {}

    assert redact(once, found) == once
    assert found == {}


@given(st.text())
def test_any_text_can_be_read_and_keeps_its_lines_of_words(text: str) -> None:
    found: dict[str, int] = {}
    after = redact(text, found)

    if not found:
        assert after == text.encode("utf-8", "replace").decode()


# --- numbers with a checksum, in any spacing ---------------------------------------------------

_AROUND = st.sampled_from(
    [("", ""), ("卡号", "，谢谢"), ("no. ", " please"), ("（", "）"), ("：", "\n")]
)
_SPACES = st.sampled_from(["", " ", "-", "  ", "\u00a0", "\u3000", " - "])


def luhn(body: str) -> str:
    total = 0
    for index, digit in enumerate(reversed(body)):
        value = int(digit) * (1 if index % 2 else 2)
        total += value - 9 if value > 9 else value
    return body + str(-total % 10)


@st.composite
def cards(draw: st.DrawFn) -> str:
    prefix, length = draw(
        st.sampled_from(
            [("4", 16), ("51", 16), ("55", 16), ("2221", 16), ("34", 15), ("37", 15), ("62", 16),
             ("62", 17), ("62", 19), ("6011", 16), ("35", 16), ("9558", 19)]
        )
    )  # fmt: skip
    if prefix == "35":
        prefix += "3"
    rest = length - len(prefix) - 1
    body = prefix + draw(st.text("0123456789", min_size=rest, max_size=rest))
    return luhn(body)


@st.composite
def id_cards(draw: st.DrawFn) -> str:
    region = draw(st.sampled_from(["110105", "310101", "440304", "510104", "650102"]))
    year, month = draw(st.integers(1900, 2025)), draw(st.integers(1, 12))
    day, number = draw(st.integers(1, 28)), draw(st.integers(0, 999))
    body = f"{region}{year}{month:02}{day:02}{number:03}"
    total = sum(int(d) * (2 ** (17 - at) % 11) for at, d in enumerate(body))
    return body + "10X98765432"[total % 11]


def spaced(text: str, marks: Sequence[str]) -> str:
    return "".join(sign + mark for sign, mark in zip(text, [*marks, ""], strict=True))


def wide(text: str) -> str:
    return text.translate({0x30 + n: 0xFF10 + n for n in range(10)} | {ord("X"): "Ｘ"})


@given(data=st.data(), number=st.one_of(cards(), id_cards()), around=_AROUND, full=st.booleans())
def test_a_valid_number_is_found_in_any_spacing(
    data: st.DataObject, number: str, around: tuple[str, str], full: bool
) -> None:
    size = len(number) - 1
    marks = data.draw(st.lists(_SPACES, min_size=size, max_size=size))
    before, after = around
    found: dict[str, int] = {}

    told = redact(before + spaced(wide(number) if full else number, marks) + after, found)

    assert sum(found.values()) == 1
    assert not re.search(r"\d", told)
    assert (told.startswith(before), told.endswith(after)) == (True, True)


@given(number=id_cards(), wrong=st.integers(1, 10))
def test_an_identity_number_with_a_wrong_check_is_none(number: str, wrong: int) -> None:
    signs = "0123456789X"
    other = number[:-1] + signs[(signs.index(number[-1]) + wrong) % 11]
    found: dict[str, int] = {}
    redact(f"号码{other}。", found)

    assert "id_card" not in found


@pytest.mark.parametrize(
    "unit",
    ["1", "1 ", "123 ", "6222 ", "138 1234 ", "(1", "a", "a.", "a@", "a@b.cc ", "eyJaaaaaaaa.",
     "-----BEGIN PRIVATE KEY-----", "password=", "password   ", "bearer ", "a://", "DE89", "sk-",
     "A1 ", "-", "１", "550e8400-", "密码是", "@", "x://:@"],
)  # fmt: skip
def test_a_megabyte_of_what_might_be_one_takes_time_by_its_length_alone(unit: str) -> None:
    """Were any rule quadratic, this would go on for hours: it is a test that ends."""
    redact(unit * ((1 << 20) // len(unit.encode())), {})
