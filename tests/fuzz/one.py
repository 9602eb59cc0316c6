"""One target under Atheris: `python -m tests.fuzz.one NAME [libFuzzer's options] [paths]`."""

from __future__ import annotations

import logging
import shlex
import sys

import atheris
import structlog

from tests.fuzz.targets import INSTRUMENTED, TARGETS, check_of


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"no target {name!r}; there are: {', '.join(TARGETS)}")
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        check = check_of(name)
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)  # what is logged of bad bytes is no news here
    # libFuzzer starts itself anew to merge corpora, by a shell and what stands first here.
    again = shlex.join([sys.executable, "-m", "tests.fuzz.one", name])
    atheris.Setup([again, *sys.argv[2:]], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
