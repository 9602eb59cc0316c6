"""What a Dockerfile says of the image, as far as our tests ask."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Image:
    """The last stage, and which files of the source all stages copy."""

    bases: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    exposed: list[int] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    healthcheck: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


def read(path: Path) -> Image:
    """The image of this file. An instruction in shell form where a list belongs raises."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.M)
    image = Image()
    arguments: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        word, rest = line.split(None, 1)
        match word:
            case "ARG":
                name, _, default = rest.partition("=")
                arguments[name] = default.strip('"')
            case "FROM":
                base = rest.split()[0]
                for name, value in arguments.items():
                    base = base.replace(f"${{{name}}}", value)
                # What one stage sets is not in the next, what all copy and run is of interest.
                image = Image(bases=[*image.bases, base], copied=image.copied, runs=image.runs)
            case "ENV" | "LABEL":
                given = image.env if word == "ENV" else image.labels
                for part in shlex.split(rest):
                    name, _, value = part.partition("=")
                    given[name] = value
            case "USER":
                image.user = rest.strip()
            case "EXPOSE":
                image.exposed += map(int, rest.split())
            case "VOLUME":
                image.volumes += json.loads(rest)
            case "HEALTHCHECK":
                image.healthcheck = json.loads(rest.split("CMD", 1)[1])
            case "ENTRYPOINT":
                image.entrypoint = json.loads(rest)
            case "CMD":
                image.command = json.loads(rest)
            case "COPY" if not rest.startswith("--from"):
                *sources, target = rest.split()
                image.copied.update(dict.fromkeys(sources, target))
            case "RUN":
                image.runs.append(rest)
    return image
