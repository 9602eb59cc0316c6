"""`suggest`: keywords and examples that would cure a policy's mistakes, measured beforehand.

The policy file is never written, since its comments are its operator's. What rows say goes
to the screen and to the file that was asked for, nowhere else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from router import app as apps
from router import config as configs
from router import evaluation, report_text, suggestion, trained
from router import policy as policies
from router.classify import Classifier
from router.classify.learned import Learned
from router.commands import labelled, offline, options
from router.config import Config
from router.evaluation import BadRows
from router.offline import Unconnected
from router.policy import Policy
from router.suggestion import Effect, Suggestions, Total, quoted
from router.tomlfile import FileFault
from router.verdict import Live

_PROMPTS_TOLD = 5
_PROMPT_CHARS = 72
_CONFUSIONS_TOLD = 8

_HOW = """
FILE is read as `eval` reads it; right rows in it are worth having too, since they show what
a proposal would break. Nothing is written without --write, and the policy file never is.
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _HOW
    offline.add(parser, "improve this policy file in place of the configured one")
    labelled.add_file(parser)
    parser.add_argument(
        "--check",
        metavar="FILE",
        help="rows that nothing is learned from: what would the proposals do to them?",
    )
    parser.add_argument(
        "--examples",
        type=labelled.count,
        default=suggestion.EXAMPLES,
        metavar="N",
        help=f"so many new examples of one label at most (default: {suggestion.EXAMPLES})",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="OUT.toml",
        help="write the proposed examples there, for the policy's examples_files",
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT.toml")


def run(args: argparse.Namespace) -> int:
    config = options.load(args)
    if config is None:
        return 1
    path = configs.policy_path(args.config, config)
    try:
        policy = policies.load(path)
        if args.write is not None and (why := _unwritable(args, path, policy)):
            print(f"{args.write}: {why}", file=sys.stderr)
            return 2
        found = _found(args, config, policy)
        written = _write(found, args.write)
    except (FileFault, trained.FitFailed) as fault:
        print(fault, file=sys.stderr)
        return 1
    except BadRows as bad:
        labelled.tell_faults(bad)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    name = "standard input" if args.file == "-" else Path(args.file).name
    if args.json:
        told = _document(name, policy, found, written)
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return 0
    print(f"{report_text.plain(name)} under policy {policy.hash}")
    for line in [*_findings(found), *_how_to(found, policy, path, args.write, written)]:
        print(line)
    return 0


def _found(args: argparse.Namespace, config: Config, policy: Policy) -> Suggestions:
    rows = evaluation.rows_of(labelled.read(args.file))
    held_out = evaluation.rows_of(labelled.read(args.check)) if args.check else []
    # Where nothing can be learned the router serves all the same, and what was proposed then
    # would be for a policy that nobody wants: so it is found out here.
    trained.weights(policy)
    live = apps.live_of(config, policy, apps.slots_of(config, Unconnected))
    # Only so many weights are kept: trials must not push out those that serve.
    with tempfile.TemporaryDirectory() as trials:
        return suggestion.of(
            rows,
            policy,
            live,
            rebuild=lambda changed: _rebuilt(changed, live, Path(trials)),
            held_out=held_out,
            examples=args.examples,
        )


def _rebuilt(policy: Policy, live: Live, trials: Path) -> Live:
    """What would serve under a changed policy, learned anew."""
    weights = trained.weights(policy, trials)
    served = policies.without_examples(policy)
    classifier = Classifier(served, None if weights is None else Learned(weights))
    return msgspec.structs.replace(live, policy=served, classifier=classifier, plans={})


# ------------------------------------------------------------------------------ the file


def _unwritable(args: argparse.Namespace, policy_path: Path, policy: Policy) -> str | None:
    """Why the file must not be written, if so: known before the work is done."""
    out: Path = args.write
    used = [
        args.config,
        policy_path,
        *policy.beside,
        *map(Path, filter(None, [args.file, args.check])),
    ]
    if out.resolve() in [path.resolve() for path in used]:
        return "is in use: choose another name"
    if out.is_dir() or not out.parent.is_dir():
        return "is no file that could be written"
    if out.exists() and not args.force:
        return "exists: --force overwrites it"
    return None


def _write(found: Suggestions, out: Path | None) -> bool:
    if out is None or not found.examples:
        return False
    out.write_text(suggestion.examples_toml(found.examples), encoding="utf-8")
    return True


# ------------------------------------------------------------------------------ what is told


def _document(name: str, policy: Policy, found: Suggestions, written: bool) -> dict[str, object]:
    return {
        "file": name,
        "policy": policy.hash,
        **msgspec.to_builtins(found),
        "examples_toml": suggestion.examples_toml(found.examples) if found.examples else None,
        "written": written,
    }


def _findings(found: Suggestions) -> Iterator[str]:
    yield f"{found.mistakes} mistakes in {found.rows} rows"
    for label, got, count in found.confusions[:_CONFUSIONS_TOLD]:
        yield f"  {count:>5}  {report_text.plain(label)} > {got}"
    if (more := len(found.confusions) - _CONFUSIONS_TOLD) > 0:
        yield f"         and {more} other pairs"
    if found.unknown:
        yield f"note: {found.unknown} of them have a label that is no scenario of the policy"
    for note in found.notes:
        yield f"note: {note}"
    yield ""
    if not found.keywords and not found.examples:
        yield "nothing to propose" + (": no change was found that helps" if found.mistakes else "")
        return
    yield from _keywords(found)
    yield from _examples(found)
    yield from _totals(found)


def _keywords(found: Suggestions) -> Iterator[str]:
    if not found.keywords:
        return
    yield "keywords (each on top of those before it; approximate: nothing is learned anew)"
    for keyword in found.keywords:
        yield (
            f"  {keyword.label}: {quoted(keyword.text)} {_effect(keyword.effect)}"
            f"{_checked(keyword.check)}; in {keyword.mistakes} mistakes of {keyword.label}, in "
            f"{keyword.others} texts of other labels"
        )
        yield from _prompts(keyword.effect)
    yield ""


def _examples(found: Suggestions) -> Iterator[str]:
    if not found.examples:
        return
    yield "examples (all learned together; what is learned is nearly always right afterwards,"
    yield "so look at the cross-check for what they do for other prompts)"
    for new in found.examples:
        unsaid = f" ({new.unsaid} say nothing of thinking)" if new.unsaid else ""
        yield (
            f"  {new.label}: {len(new.direct)} direct{unsaid}, {len(new.thinking)} thinking, "
            f"{_effect(new.effect)}{_checked(new.check)}"
        )
        yield from _prompts(new.effect)
    yield ""


def _effect(effect: Effect) -> str:
    return f"fixes {len(effect.fixed)}, breaks {len(effect.broken)}"


def _checked(effect: Effect | None) -> str:
    return "" if effect is None else f" (held out: {_effect(effect)})"


def _prompts(effect: Effect) -> Iterator[str]:
    for mark, texts in (("+", effect.fixed), ("-", effect.broken)):
        for text in texts[:_PROMPTS_TOLD]:
            yield f"      {mark} {_cut(text)}"
        if (more := len(texts) - _PROMPTS_TOLD) > 0:
            yield f"      {mark} and {more} more"


def _cut(text: str) -> str:
    line = report_text.plain(text)
    return line if len(line) <= _PROMPT_CHARS else line[: _PROMPT_CHARS - 1] + "…"


def _totals(found: Suggestions) -> Iterator[str]:
    yield f"all together, learned anew   {_total(found.total)}"
    if found.check is not None:
        left_out = f"; {found.shared} that are in both files left out" if found.shared else ""
        yield f"held-out rows                {_total(found.check)}{left_out}"
    crossed = found.cross_check
    if crossed is None:
        yield "cross-check                  too few mistakes to halve them"
        return
    yield (
        f"cross-check                  {crossed.fixed} of {crossed.mistakes} mistakes fixed, "
        f"{crossed.broken} of {crossed.right} right rows broken"
    )
    yield "                             (learned from one half, counted on the other, both ways)"
    if crossed.fixed <= crossed.broken:
        yield "note: prompts that nothing was learned from do not gain, as far as so few can tell"


def _total(total: Total) -> str:
    return (
        f"{total.before} of {total.rows} right → {total.after} "
        f"(fixed {total.fixed}, broken {total.broken})"
    )


def _how_to(
    found: Suggestions, policy: Policy, path: Path, out: Path | None, written: bool
) -> Iterator[str]:
    """What to paste where."""
    words: dict[str, list[str]] = defaultdict(list)
    for keyword in found.keywords:
        words[keyword.label].append(quoted(keyword.text))
    for label, texts in words.items():
        yield ""
        place, listed = f"in {path}, [scenarios.{label}.match]", ", ".join(texts)
        if policy.scenarios[label].match.keywords:
            yield f"{place}, at the end of keywords (after a comma):"
            yield f"  {listed},"
        else:
            yield f"{place}:"
            yield f"  keywords = [{listed}]"
    if found.examples:
        yield ""
        if written:
            yield f"written to {out}"
        else:
            yield "as a file of its own (--write OUT.toml writes it):"
            yield suggestion.examples_toml(found.examples).rstrip("\n")
        here = (
            "in place of its examples_files"
            if policy.file.examples_files
            else "above the first [table]"
        )
        yield f"in {path}, {here}:"
        yield f"  examples_files = [{', '.join(map(quoted, _files(policy, path, out)))}]"
    elif out is not None:
        yield ""
        yield f"{out} was not written: no examples are proposed"


def _files(policy: Policy, path: Path, out: Path | None) -> Sequence[str]:
    """What the policy names, and the new file as seen from it."""
    new = "OUT.toml"
    if out is not None:
        try:
            new = Path(os.path.relpath(out.resolve(), path.resolve().parent)).as_posix()
        except ValueError:  # on another drive
            new = out.resolve().as_posix()
    return [*policy.file.examples_files, new]
