"""For a router whose wall clock is to jump: `time.time` off by the seconds that a file holds.

Python imports this by itself where the folder is in PYTHONPATH, before anything of the router.
"""

import mmap
import os
import struct
import time

_machine = time.time
with open(os.environ["CHAOS_CLOCK"], "r+b") as _file:
    _offset = mmap.mmap(_file.fileno(), 8)


def _shifted() -> float:
    shift: float = struct.unpack("d", _offset[:8])[0]
    return _machine() + shift


time.time = _shifted
