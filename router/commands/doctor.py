"""`doctor`: tiny requests to a backend; what it honours, and what of the policy is lost on it.

What it found is kept in a file that `dialect = "auto"` goes by.
Exit codes: 0 all that the policy wants lands, 1 something is lost, 2 usage or no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from router import capabilities, dialects, discovery, doctor, report_text, tls, trained
from router import config as configs
from router import policy as policies
from router.commands import options
from router.config import Backend
from router.doctor import DoctorError, Loss, Report
from router.policy import Policy
from router.tomlfile import FileFault

_WIDTH = 100
_NAME, _VERDICT = 28, 9


class _Target(NamedTuple):
    label: str
    url: str
    model: str | None
    dialect: str | None  # None: asked
    key_env: str | None
    pool: str | None  # None: all scenarios are for it
    trust: ssl.SSLContext | None = None
    tls_name: str | None = None


def add(parser: argparse.ArgumentParser) -> None:
    options.add_config(parser)
    parser.add_argument(
        "url", nargs="?", metavar="URL", help="the backend (default: each of the configuration)"
    )
    parser.add_argument("--policy", help="say what is lost of this policy file")
    parser.add_argument("--model", help="the model to ask (default: the first that it serves)")
    parser.add_argument(
        "--dialect",
        choices=sorted(dialects.DIALECTS),
        help="speak to it like this (default: as the router would)",
    )
    parser.add_argument(
        "--key-env", metavar="NAME", help="environment variable with the key that it wants"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="for each question (default: 30)",
    )
    parser.add_argument(
        "--limit",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="for all questions to a backend; what is not asked by then is unknown (default: 120)",
    )
    parser.add_argument(
        "--no-write",
        action="store_true",
        help='do not keep what it can do in the file that dialect = "auto" goes by',
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE.json", help="write the whole report there, too"
    )


def run(args: argparse.Namespace) -> int:
    try:
        targets, policy = _wanted(args)
    except FileFault as fault:
        print(fault, file=sys.stderr)
        return 2
    told: list[dict[str, Any]] = []
    code = 0
    for target in targets:
        try:
            report = _examined(args, target)
        except DoctorError as fault:
            print(f"{target.label}: {report_text.plain(str(fault))}", file=sys.stderr)
            code = 2
            continue
        lost = () if policy is None else doctor.losses(report, policy, target.pool)
        kept_in = None if args.no_write else _keep(report)
        told.append(
            {
                **msgspec.to_builtins(report),
                "losses": msgspec.to_builtins(lost),
                "capabilities_file": str(kept_in) if kept_in else None,
            }
        )
        code = max(code, 1 if lost else 0)
        if not args.json:
            print("\n".join(_readable(report, lost, policy)))
            if kept_in:
                print(f"what it can do is kept in {kept_in}")
    # One backend is one report; several are a list of them.
    document: Any = told[0] if len(targets) == 1 and told else told
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if args.json:
        print(text)
    if args.write is not None and told:
        try:
            args.write.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            print(f"{error.filename}: {error.strerror}", file=sys.stderr)
            return 2
    return code


def _keep(report: Report) -> Path | None:
    """Keep what the backend can do. A report is no worse for not being kept."""
    if not report.is_whole:
        print(f"{report.url}: too slow for all to be asked: not kept", file=sys.stderr)
        return None
    path = capabilities.path_for(report.url, trained.folder())
    try:
        capabilities.write(path, doctor.capabilities(report))
    except OSError as error:
        print(f"{error.filename or path}: {error.strerror}: not kept", file=sys.stderr)
        return None
    return path


def _wanted(args: argparse.Namespace) -> tuple[list[_Target], Policy | None]:
    """Whom to ask, and the policy in force; raises FileFault."""
    if args.url is not None and not args.config.exists():
        # A server can be looked at before there is any configuration.
        path = Path(args.policy) if args.policy else _shipped(args.config)
        return [_given(args)], policies.load(path, lightly=True) if path is not None else None
    config = configs.load(args.config, flags=options.given(args))
    policy = policies.load(configs.policy_path(args.config, config), lightly=True)
    if args.url is not None:
        # The router itself asks like this, for a backend that it knows how to speak to.
        known = next((b for each in config.backends if (b := _as(each, args.url))), None)
        return [_given(args)._replace(**_trust(args, known))], policy
    return [_configured(args, backend) for backend in config.backends], policy


def _shipped(config: Path) -> Path | None:
    """The policy of a configuration that says nothing of one, where there is one."""
    nothing = configs.Config(backends=(Backend(name="none", url="http://127.0.0.1"),))
    path = configs.policy_path(config, nothing)
    return path if path.exists() else None


def _given(args: argparse.Namespace) -> _Target:
    return _Target(args.url, args.url, args.model, args.dialect, args.key_env, None)


def _configured(args: argparse.Namespace, backend: Backend) -> _Target:
    dialect = None if backend.dialect == "auto" else backend.dialect
    return _Target(
        f"{backend.name} ({backend.url})",
        backend.url,
        args.model or backend.model,
        args.dialect or dialect,
        args.key_env or backend.api_key_env,
        backend.pool,
        **_trust(args, backend),
    )


def _as(backend: Backend, url: str) -> Backend | None:
    """This backend, or the one at an address of its name, if that is what the url leads to."""
    if backend.discover and _is_url(url):
        backend = discovery.at(backend, str(urlsplit(url).hostname))
    return backend if backend.url == url else None


def _trust(args: argparse.Namespace, backend: Backend | None) -> dict[str, Any]:
    """How TLS is spoken to it, as the configuration says. Raises FileFault."""
    holder = tls.Contexts(args.config).for_backend(backend) if backend is not None else None
    if backend is None or holder is None:
        return {}
    return {"trust": holder.context, "tls_name": backend.tls_name}


def _examined(args: argparse.Namespace, target: _Target) -> Report:
    if not _is_url(target.url):
        raise DoctorError("is no URL: http://host:port is wanted")
    key = None
    if target.key_env is not None and not (key := os.environ.get(target.key_env)):
        raise DoctorError(f"the environment variable {target.key_env} is not set")
    limits = {"timeout_s": args.timeout, "limit_s": args.limit}
    with doctor.Asker(
        target.url, key=key, trust=target.trust, tls_name=target.tls_name, **limits
    ) as asker:
        return doctor.examine(asker, model=target.model, dialect=target.dialect)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  # looking is what finds a port that is none
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


# --- for people ------------------------------------------------------------------------------


def _readable(report: Report, lost: tuple[Loss, ...], policy: Policy | None) -> Iterator[str]:
    version = f" {report.version}" if report.version else ", which tells no version"
    yield from _wrapped("server", f"{report.engine}{version}, at {report.url}")
    yield from _wrapped("model", report.model)
    yield from _wrapped("dialect", f"{report.dialect} ({_standing(report)})")
    context = f"{report.context} tokens" if report.context else "not told"
    yield from _wrapped("context", f"{context} for one conversation")
    yield from _wrapped("thought", _thought(report))
    if report.signs:
        yield from _wrapped("known by", "; ".join(report.signs))
    for note in report.notes:
        yield from _wrapped("note", note)
    yield ""
    for knob in report.knobs:
        spelling = "" if knob.said_as in (None, knob.name) else f" [as {knob.said_as}]"
        unproven = "" if knob.verdict != "unknown" else _unproven(report)
        yield from _wrapped(knob.name[:_NAME], f"{unproven}{knob.evidence}{spelling}", knob.verdict)
    yield ""
    if policy is None:
        yield "there is no policy here to say what is lost of it (--policy FILE)"
        return
    if not lost:
        yield f"all that policy {policy.hash} wants lands, as far as can be seen"
        return
    yield f"what policy {policy.hash} loses here:"
    for loss in lost:
        values = ", ".join(
            f"{scenario} {' '.join(json.dumps(v, ensure_ascii=False) for v in wanted)}"
            for scenario, wanted in loss.wanted.items()
        )
        yield from _wrapped(loss.param[:_NAME], f"{loss.because}: {values}")


def _standing(report: Report) -> str:
    proven = sum(knob.verdict == "honoured" for knob in report.knobs)
    return f"{report.proven}; {proven} of {len(report.knobs)} proven just now"


def _thought(report: Report) -> str:
    match report.thought:
        case None:
            return "where one would arrive could not be seen"
        case "none":
            return "none: this model does not think"
        case "inline":
            begun = ", begun in the prompt" if report.opens_in_prompt else ""
            return f"arrives in tags inside the answer{begun}"
        case member:
            return f"arrives as {member}"


def _unproven(report: Report) -> str:
    """A mark where neither a probe nor anybody before has seen it work."""
    return "" if report.proven.startswith(("observed", "by definition")) else "unproven: "


def _wrapped(name: str, text: str, verdict: str = "") -> Iterator[str]:
    """One entry, its text in as many lines as it takes."""
    indent = _NAME + 1 + (_VERDICT + 1 if verdict else 0)
    first = f"{name:<{_NAME}} " + (f"{verdict:<{_VERDICT}} " if verdict else "")
    yield from textwrap.wrap(
        report_text.plain(text) or "-",
        width=_WIDTH,
        initial_indent=first,
        subsequent_indent=" " * indent,
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time")
    return value
