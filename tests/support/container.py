"""A container without an engine: as much of one as the kernel gives to anybody.

    process = run_contained(["python", "-m", "router", …], etc={"scenario-router": folder}, …)

The program is the first process of its own, a numeric user that no file knows, without
capabilities, and all that it sees is read-only but the volumes. Its files are this machine's,
so it says nothing of an image's contents.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

USER = 10001
_APART = [
    "unshare",
    f"--map-user={USER}",
    f"--map-group={USER}",
    *("--keep-caps", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
]
_POWERLESS = [
    "setpriv",
    *("--ambient-caps=-all", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"),
]
_MOUNT_SETATTR = 442  # the same on every architecture
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1


def can_contain() -> bool:
    """Whether the kernel lets us."""
    tried = [*_APART, sys.executable, "-m", __name__, "", "", "true"]
    return subprocess.run(tried, capture_output=True, cwd=_ROOT).returncode == 0


def run_contained(
    command: Sequence[str],
    *,
    etc: Path,
    volumes: Sequence[str],
    env: Mapping[str, str],
) -> subprocess.Popen[str]:
    """Start it. `etc` is what it finds as /etc, `volumes` the folders that it may write to."""
    inner = [sys.executable, "-m", __name__, str(etc), os.pathsep.join(volumes), *command]
    return subprocess.Popen(
        [*_APART, *inner],
        cwd=_ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def first_process(process: subprocess.Popen[str]) -> int:
    """The id, as seen from here, of what the contained program knows as process 1."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


_ROOT = Path(__file__).resolve().parents[2]


class _Attributes(ctypes.Structure):
    """struct mount_attr of the kernel."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def _mount_tmpfs(at: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", at], check=True)


def _make_all_read_only() -> None:
    attributes = _Attributes(set=_MOUNT_ATTR_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    told = libc.syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        b"/",
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    if told:
        raise OSError(ctypes.get_errno(), "mount_setattr")


def _enter(etc: str, volumes: Sequence[str], command: Sequence[str]) -> None:
    """Within the namespaces, while we still may: mount, give up all rights, become the program."""
    if etc:
        copied = {path: path.read_bytes() for path in Path(etc).rglob("*") if path.is_file()}
        _mount_tmpfs("/etc")
        for path, content in copied.items():
            target = Path("/etc") / path.relative_to(etc)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for parent in {os.path.dirname(volume) for volume in volumes}:
        _mount_tmpfs(parent)
    for volume in volumes:
        os.mkdir(volume)
    _make_all_read_only()
    for volume in volumes:
        _mount_tmpfs(volume)
    setpriv = shutil.which(_POWERLESS[0]) or _POWERLESS[0]
    os.execv(setpriv, [*_POWERLESS, *command])


if __name__ == "__main__":
    _enter(sys.argv[1], [each for each in sys.argv[2].split(os.pathsep) if each], sys.argv[3:])
