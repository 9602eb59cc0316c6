"""What the upstreams must have received, and which of them."""

from __future__ import annotations

from collections import defaultdict

from tests.support.casefile import SEND_HEADER, JsonObject
from tests.support.casejudge import (
    compare,
    judge_of,
    led_to,
    or_missing,
    seen_of,
    sent_of,
    short,
)
from tests.support.casemap import SESSION_KEY
from tests.support.caserun import Run, Sent, label_of
from tests.support.paths import MISSING, lookup, same
from tests.support.scripted import Seen


def _pairs(run: Run, check: JsonObject) -> list[tuple[Sent, Seen]]:
    pairs = [(sent, seen) for sent in sent_of(run, check) for seen in seen_of(run, sent)]
    return pairs


def _header_sources(run: Run, check: JsonObject) -> list[tuple[str, Seen]]:
    """As `_pairs`; a send for which a backend's model list was asked counts as well.

    The router's own checks carry no label and are nobody's.
    """
    probes = [probe for node in run.nodes.values() for probe in node.probes]
    everything = [*run.seen, *(probe for probe in probes if probe.all(SEND_HEADER))]
    found = [
        (sent.label, seen) for sent in sent_of(run, check) for seen in led_to(everything, sent)
    ]
    assert found, "nothing reached a backend"
    return found


@judge_of("backend")
def backend_requests(run: Run, check: JsonObject) -> None:
    compare(len(run.seen), check, "number of requests at the backends")


@judge_of("backend")
def backend_req_json(run: Run, check: JsonObject) -> None:
    for sent, seen in _pairs(run, check):
        value = lookup(seen.json, check["path"])
        compare(value, check, f"{sent.label}: {check['path']} of {short(seen.body)}")


@judge_of("backend")
def backend_req_json_same(run: Run, check: JsonObject) -> None:
    for sent, seen in _pairs(run, check):
        for path in check["paths"]:
            was, now = lookup(sent.request.json, path), lookup(seen.json, path)
            assert same(was, now), f"{sent.label}: {path} was {short(was)}, is {short(now)}"


@judge_of("backend")
def backend_req_json_equal_across(run: Run, check: JsonObject) -> None:
    values = {sent.label: lookup(seen.json, check["path"]) for sent, seen in _pairs(run, check)}
    first = next(iter(values.values()))
    assert all(same(first, value) for value in values.values()), f"{check['path']}: {values}"


@judge_of("backend")
def backend_req_json_length(run: Run, check: JsonObject) -> None:
    for sent, seen in _pairs(run, check):
        value = lookup(seen.json, check["path"])
        compare(len(value), check, f"{sent.label}: length of {check['path']}")


@judge_of("backend")
def backend_req_body_len_matches(run: Run, check: JsonObject) -> None:
    for sent, seen in _pairs(run, check):
        assert not seen.framing_fault, f"{sent.label}: {seen.framing_fault}"
        assert seen.json is not MISSING, f"{sent.label}: no JSON: {short(seen.body)}"


@judge_of("backend")
def backend_req_header(run: Run, check: JsonObject) -> None:
    hosts = {id(s): f"127.0.0.1:{n.port}" for n in run.nodes.values() for s in n.requests}
    for label, seen in _header_sources(run, check):
        wanted = dict(check)
        if wanted.get("equals") == "{backend_host}":
            wanted["equals"] = hosts[id(seen)]
        value = or_missing(seen.header(check["name"]))
        compare(value, wanted, f"{label}: {check['name']}")


@judge_of("backend")
def backend_req_header_count(run: Run, check: JsonObject) -> None:
    for label, seen in _header_sources(run, check):
        compare(len(seen.all(check["name"])), check, f"{label}: number of {check['name']}")


@judge_of("backend")
def backend_req_headers_not_contain(run: Run, check: JsonObject) -> None:
    for node in run.nodes.values():
        for seen in (*node.requests, *node.probes):
            head = seen.head.decode("latin-1")
            assert check["text"] not in head, f"{seen.method} {seen.path}: {head}"


@judge_of("backend")
def backend_peer_closed(run: Run, check: JsonObject) -> None:
    for sent in sent_of(run, check):
        seen = seen_of(run, sent)[-1]
        closed_at = seen.wait_peer_closed(check["max_ms"] / 1000 + 1)
        assert closed_at is not None, f"{sent.label}: the upstream connection is still open"
        since = sent.reply.left_at or seen.arrived
        took = (closed_at - since) * 1000
        compare(took, {"max": check["max_ms"]}, f"{sent.label}: ms until it was closed")


@judge_of("backend")
def backend_share(run: Run, check: JsonObject) -> None:
    counts = {name: len(run.nodes[name].requests) for name in check["nodes"]}
    total = sum(counts.values())
    assert total, "nothing reached a backend"
    for name, count in counts.items():
        compare(count / total, check, f"share of {name} in {counts}")


@judge_of("backend")
def backend_one_node_per(run: Run, check: JsonObject) -> None:
    nodes = _nodes_by_session(run, check, key=check["key"])
    split = {session: used for session, used in nodes.items() if len(used) > 1}
    assert nodes, "no session reached a backend"
    assert not split, f"{len(split)} of {len(nodes)} sessions are spread: {short(split)}"


@judge_of("backend")
def backend_same_node_across(run: Run, check: JsonObject) -> None:
    backend_one_node_per(run, {**check, "key": SESSION_KEY})


def _nodes_by_session(run: Run, check: JsonObject, *, key: str) -> dict[str, set[str]]:
    kind, _, name = key.partition(":")
    if kind != "header":
        raise ValueError(f"a session is told by a header, not by {key}")
    sessions = {sent.label: sent.request.header(name) for sent in sent_of(run, check)}
    used: dict[str, set[str]] = defaultdict(set)
    for node_id, node in run.nodes.items():
        for seen in node.requests:
            session = sessions.get(label_of(seen) or "")
            if session is not None:
                used[session].add(node_id)
    return used
