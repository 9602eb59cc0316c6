"""Is the router in this container alive? `python healthcheck.py CONFIG`: exit code 0 or 1.

Asked where its configuration, and the environment over that, has it listen; by TLS if it speaks
that. Nothing but the standard library: it runs every ten seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import tomllib
from pathlib import Path
from typing import Any

TIMEOUT_S = 2
#: to reach what listens everywhere
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def main(config: Path) -> int:
    server = tomllib.loads(config.read_text(encoding="utf-8")).get("server", {})

    def said(key: str, default: str) -> Any:
        return os.environ.get(f"SCENARIO_ROUTER_SERVER__{key.upper()}") or server.get(key, default)

    host, port = str(said("host", "127.0.0.1")), int(said("port", "8088"))
    at = (_HERE.get(host, host), port)
    asked = http.client.HTTPConnection(*at, timeout=TIMEOUT_S)
    if said("tls_cert", ""):
        # Whether it lives is asked, by its own container: whose certificate it has is no matter.
        trust = ssl._create_unverified_context()
        asked = http.client.HTTPSConnection(*at, timeout=TIMEOUT_S, context=trust)
    try:
        asked.request("GET", "/health")
        return int(asked.getresponse().status != 200)
    except ssl.SSLError:
        return 0  # it answers, and wants a certificate that is its clients' alone
    except (OSError, http.client.HTTPException):
        return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
