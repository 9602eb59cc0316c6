"""What the product itself must be and leave behind: its log, its process, its Redis keys."""

from __future__ import annotations

from tests.support.casefile import JsonObject, names_of
from tests.support.casejudge import compare, compare_times, judge_of, sent_of, short
from tests.support.casemap import (
    CLASS_HEADER,
    LIVE_PATH,
    field_matches,
    record_id,
    record_value,
    words_for,
)
from tests.support.caserun import Run, peak_rss_mb
from tests.support.rawclient import exchange, request_bytes

# --- log ---------------------------------------------------------------------------


@judge_of("log")
def log_record(run: Run, check: JsonObject) -> None:
    records = run.records()
    for sent in sent_of(run, check):
        # The id in the reply is the one in the log; a client that left never saw it.
        wanted = sent.reply.header("x-request-id") or f"case-{sent.label}"
        own = [record for record in records if record_id(record) == wanted]
        compare(len(own), {"equals": check["count"]}, f"{sent.label}: records of {wanted}")
        for record in own:
            for meaning, value in check.get("fields", {}).items():
                assert field_matches(record, meaning, value), (
                    f"{sent.label}: {meaning} is {record_value(record, meaning)!r}, not {value!r}"
                )


@judge_of("log")
def log_total(run: Run, check: JsonObject) -> None:
    compare(len(run.records()), check, "number of records")


@judge_of("log")
def log_contains(run: Run, check: JsonObject) -> None:
    levels = ("warn", "error") if check.get("level") == "warning_or_error" else ("",)
    lines = [line.lower() for line in _log_lines(run, check)]
    assert any(
        any(word in line for word in words_for(check["text"]))
        and any(level in line for level in levels)
        for line in lines
    ), f"no such line in {short(lines)}"


@judge_of("log")
def log_not_contains(run: Run, check: JsonObject) -> None:
    found = [line for line in _log_lines(run, check) if check["text"] in line]
    assert not found, short(found)


def _log_lines(run: Run, check: JsonObject) -> list[str]:
    """What the product wrote; with `after`, since the last save before that send."""
    lines: list[str] = []
    where = check.get("where", ("stdout", "stderr", "files"))
    for number, proxy in enumerate(run.started):
        if {"stdout", "stderr"} & set(where):
            skipped = run.output_before[check["after"]] if "after" in check and not number else 0
            lines += proxy.output[skipped:]
        if "files" in where:
            for path in sorted(proxy.log_dir.glob("*")):
                lines += path.read_text(encoding="utf-8").splitlines()
    return lines


# --- proxy -------------------------------------------------------------------------


@judge_of("proxy")
def proxy_alive(run: Run, check: JsonObject) -> None:
    for proxy in run.proxies:
        reply = exchange(proxy.port, request_bytes("GET", LIVE_PATH))
        compare(reply.status, {"equals": 200}, f"status of {LIVE_PATH}")


@judge_of("proxy")
def proxy_same_pid(run: Run, check: JsonObject) -> None:
    proxy_alive(run, check)
    compare(run.proxies[0].pid, {"equals": run.first_pid}, "process id")
    assert run.proxies[0].wait_exit(0) is None, "the process has ended"


@judge_of("proxy")
def proxy_exit(run: Run, check: JsonObject) -> None:
    for name in names_of(check, list(run.exits)):
        ended = run.exits[name]
        compare(ended.code, {"equals": check["code"]}, f"{name}: exit code")
        if "max_ms" in check:
            compare(ended.ms, {"max": check["max_ms"]}, f"{name}: ms after the signal")


@judge_of("proxy")
def proxy_health_ms(run: Run, check: JsonObject) -> None:
    compare_times(run.health_ms, check, LIVE_PATH)


@judge_of("proxy")
def proxy_rss_growth_mb(run: Run, check: JsonObject) -> None:
    growth = peak_rss_mb(run.first_pid) - run.base_rss_mb
    compare(growth, check, "growth of resident memory, MiB")


@judge_of("proxy")
def proxy_same_class(run: Run, check: JsonObject) -> None:
    classes = _classes(run, check)
    assert len(set(classes.values())) == 1, str(classes)


@judge_of("proxy")
def proxy_different_class(run: Run, check: JsonObject) -> None:
    classes = _classes(run, check)
    assert len(set(classes.values())) == len(classes), str(classes)


def _classes(run: Run, check: JsonObject) -> dict[str, str]:
    found = {sent.label: sent.reply.header(CLASS_HEADER) for sent in sent_of(run, check)}
    named = {label: name for label, name in found.items() if name}
    assert named.keys() == found.keys(), f"no class is named: {found}"
    return named


# --- redis -------------------------------------------------------------------------


@judge_of("redis")
def redis_keys_written(run: Run, check: JsonObject) -> None:
    assert run.redis is not None
    keys = set(run.redis.keys())
    if "of" in check:
        keys = run.keys_after[check["of"]] - run.keys_before[check["of"]]
    compare(len(keys), check, "number of keys")


@judge_of("redis")
def redis_every_key_has_ttl(run: Run, check: JsonObject) -> None:
    assert run.redis is not None
    keys = run.redis.keys()
    wrong = {name: ttl for name, ttl in keys.items() if not 0 <= ttl <= check["max_s"]}
    assert keys, "no key at all"
    assert not wrong, short(wrong)


@judge_of("redis")
def redis_key_names_not_contain(run: Run, check: JsonObject) -> None:
    assert run.redis is not None
    keys = run.redis.keys()
    found = [name for name in keys if check["text"] in name]
    assert not found, short(found)
