"""TLS at our edge and towards backends: contexts made of the files that config.toml names.

In: settings, and the folder that their paths are relative to. Out: contexts of the standard
library in holders, so that a certificate that is renewed can be taken while connections are open.
Whatever is wrong with a file is told with the key that names it; the context before stays.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from router import config as configs
from router.config import Backend, Config, Server
from router.files import Signature, signature_of
from router.programlog import Seldom
from router.tomlfile import FileFault, Mistake, read_bytes

log = structlog.get_logger(__name__)

#: a handshake is two round trips; who has not got there by then holds a socket for nothing
HANDSHAKE_S = 10.0
#: how long a closing connection waits for the other side's goodbye
SHUTDOWN_S = 2.0
#: a certificate that ends sooner is worth a note: most are renewed a month ahead
SOON_S = 14 * 86_400.0
_PROTOCOLS = ["http/1.1"]
_WRONG_PROTOCOL = b"This port speaks TLS: use https://\n"
_WRONG_PROTOCOL_REPLY = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_WRONG_PROTOCOL), _WRONG_PROTOCOL)
)
#: OpenSSL's reasons in words that say who has to do what
_REASONS = {
    "HTTP_REQUEST": "plain HTTP was spoken to the TLS port: the client must use https://",
    "HTTPS_PROXY_REQUEST": "a proxy's request was spoken to the TLS port",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, which tls_client_ca asks "
    "for",
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate is not one of tls_client_ca's",
    "UNSUPPORTED_PROTOCOL": "the client is too old: TLS 1.2 is the least",
    "NO_SHARED_CIPHER": "the client knows none of our ciphers",
    "WRONG_VERSION_NUMBER": "what came is not TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust who issued our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds our certificate expired",
}
#: X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
_OTHER_NAME = (62, 64)
_seldom = Seldom(10.0)


class _Files(NamedTuple):
    """What a context is made of, and how the configuration calls it."""

    ca: Path | None
    cert: Path | None
    key: Path | None
    names: tuple[str, str, str]  # of these three

    @property
    def there(self) -> tuple[Path, ...]:
        return tuple(path for path in self[:3] if path is not None)


class Holder:
    """A context, and the one after it: whoever opens a connection takes `context` anew."""

    __slots__ = ("_files", "_make", "_taken", "context")

    def __init__(self, files: _Files, make: Callable[[_Files], ssl.SSLContext]) -> None:
        """Raises FileFault."""
        self._files = files
        self._make = make
        self._taken: Signature = signature_of(files.there)
        self.context = make(files)

    @property
    def files(self) -> tuple[Path, ...]:
        return self._files.there

    @property
    def pair(self) -> tuple[Path, Path | None]:
        """A server's certificate and its key."""
        assert self._files.cert is not None
        return self._files.cert, self._files.key

    def renew(self) -> bool:
        """Take the files as they are now, if they have changed. Raises FileFault."""
        now = signature_of(self.files)
        if now == self._taken:
            return False
        self.context = self._make(self._files)
        self._taken = now
        return True


class Contexts:
    """All that one process uses. What a worker is forked with, it has as its own."""

    def __init__(self, config_path: Path) -> None:
        """Relative paths are relative to this file."""
        self._config_path = config_path
        self._edge: tuple[tuple[str | None, ...], Holder] | None = None
        self._backends: dict[tuple[Path | None, ...], Holder] = {}
        self._lock = threading.Lock()
        self.last_error: str | None = None
        #: of the edge's certificate that is in force, since the epoch; 0: no client takes it
        self.edge_ends_at: float | None = None

    def for_edge(self, server: Server) -> Holder | None:
        """None where the edge speaks plain HTTP. Raises FileFault."""
        if server.tls_cert is None:
            return None
        told = (server.tls_client_ca, server.tls_cert, server.tls_key)
        if self._edge is None or self._edge[0] != told:
            names = ("server.tls_client_ca", "server.tls_cert", "server.tls_key")
            self._edge = told, Holder(self._found(told, names), _edge_context)
            self._note_end(self._edge[1])
        return self._edge[1]

    def _note_end(self, edge: Holder) -> None:
        try:
            found = certificate_in(*edge.pair)
        except (ssl.SSLError, OSError):  # changed once more in this moment: it is looked at again
            return
        self.edge_ends_at = 0.0 if isinstance(found, str) else found.ends_at

    def for_backend(self, backend: Backend) -> Holder | None:
        """Shared by backends of the same files; None for plain HTTP. Raises FileFault."""
        if not backend.is_tls:
            return None
        names = tuple(
            f"backends.{backend.name}.{key}" for key in ("ca_file", "client_cert", "client_key")
        )
        told = (backend.ca_file, backend.client_cert, backend.client_key)
        files = self._found(told, names)
        with self._lock:
            holder = self._backends.get(files[:3])
            if holder is None:
                holder = self._backends[files[:3]] = Holder(files, _backend_context)
            return holder

    def prepare(self, config: Config) -> None:
        """Make what its backends need. Raises FileFault; takes some 20 ms, so not on the loop."""
        for backend in config.backends:
            self.for_backend(backend)

    def keep_only(self, config: Config) -> None:
        """Forget what no backend of this configuration needs."""
        used = {id(self.for_backend(backend)) for backend in config.backends}
        with self._lock:
            self._backends = {
                files: holder for files, holder in self._backends.items() if id(holder) in used
            }

    def _found(self, told: tuple[str | None, ...], names: tuple[str, ...]) -> _Files:
        ca, cert, key = (
            None if name is None else configs.beside(self._config_path, name) for name in told
        )
        return _Files(ca, cert, key or cert, names)  # type: ignore[arg-type]  # three of three

    @property
    def files(self) -> tuple[Path, ...]:
        """All that are to be watched, each once."""
        return tuple(dict.fromkeys(path for holder in self._holders for path in holder.files))

    @property
    def _holders(self) -> list[Holder]:
        edge = [self._edge[1]] if self._edge is not None else []
        return [*edge, *self._backends.values()]

    def renew(self) -> bool:
        """Take what has changed; whether the edge's has. What cannot be taken stays as it was.

        Reads files and parses certificates, so not on the loop.
        """
        faults = []
        with self._lock:
            is_new_edge = False
            for holder in self._holders:
                try:
                    has_changed = holder.renew()
                except FileFault as fault:
                    faults.append(str(fault))
                    continue
                if has_changed:
                    log.info("certificates in force", files=[str(path) for path in holder.files])
                    if self._edge is not None and holder is self._edge[1]:
                        is_new_edge = True
                        self._note_end(holder)
            self.last_error = "\n".join(faults) or None
        if faults:
            log.error("certificates not taken, those before stay in force", error=self.last_error)
        return is_new_edge


# --- contexts ---------------------------------------------------------------------------------


def _edge_context(files: _Files) -> ssl.SSLContext:
    context = _EdgeContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could have us compute without an end
    context.sslobject_class = _Handshake
    _load_chain(context, files)
    if files.ca is not None:
        _load_ca(context, files)
        context.verify_mode = ssl.CERT_REQUIRED
    return _spoken(context)


def _backend_context(files: _Files) -> ssl.SSLContext:
    """Verified always: by `ca_file` alone, or by what this system trusts."""
    if files.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies, and checks the name
        _load_ca(context, files)
        # So that a server's own certificate can be named, without the one who issued it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if files.cert is not None:
        _load_chain(context, files)
    return _spoken(context)


def asking(ca_file: Path | None, cert: Path | None = None) -> ssl.SSLContext:
    """For commands, which ask from outside; `cert` holds its key, too. Raises FileFault."""
    names = ("--ca-file", "--client-cert", "--client-cert")
    return _backend_context(_Files(ca_file, cert, cert, names))


def pinned(certificate: Path) -> ssl.SSLContext:
    """For asking ourselves, by whatever address: this certificate and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return _spoken(context)


def _spoken(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    return context


def _load_ca(context: ssl.SSLContext, files: _Files) -> None:
    assert files.ca is not None
    name, path = files.names[0], files.ca
    _readable(name, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError):
        raise _fault(name, path, "holds no certificate in PEM") from None


def _load_chain(context: ssl.SSLContext, files: _Files) -> None:
    assert files.cert is not None
    assert files.key is not None
    _, cert_name, key_name = files.names
    _readable(cert_name, files.cert)
    _readable(key_name, files.key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(files.cert)
    except (ssl.SSLError, OSError):
        raise _fault(cert_name, files.cert, "holds no certificate in PEM") from None

    def password() -> str:
        # OpenSSL would ask for it on the terminal, which nobody sits at.
        raise _Encrypted

    try:
        context.load_cert_chain(files.cert, files.key, password)
    except _Encrypted:
        text = "is encrypted, and nobody is here to type its password: store it without"
        raise _fault(key_name, files.key, text) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = f"is not the key of the certificate in {files.cert}"
        elif error.reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"):
            text = "is too weak to be used (its key or its signature)"
            raise _fault(cert_name, files.cert, text) from None
        else:
            text = "holds no private key in PEM"
        raise _fault(key_name, files.key, text) from None


class _Encrypted(Exception):
    pass


def _readable(name: str, path: Path) -> None:
    try:
        read_bytes(path)
    except FileFault as fault:
        raise _fault(name, path, fault.mistakes[0].message) from None


def _fault(name: str, path: Path, text: str) -> FileFault:
    return FileFault(str(path), [Mistake(name, None, text)])


# --- what went wrong with a connection --------------------------------------------------------


class _EdgeContext(ssl.SSLContext):
    """Tells of handshakes that fail, of which asyncio says nothing."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        made = super().wrap_bio(*args, **options)
        assert isinstance(made, _Handshake)
        made.outgoing = args[1]
        return made


class _Handshake(ssl.SSLObject):
    outgoing: ssl.MemoryBIO
    _fault: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._fault is not None:
            raise self._fault
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._fault = error
            _tell(error)
            if error.reason == "HTTP_REQUEST":
                self.outgoing.read()
                self.outgoing.write(_WRONG_PROTOCOL_REPLY)
            if not self.outgoing.pending:
                raise
            # An event loop drops the connection with what OpenSSL has to say to the client still
            # unsent. Asked to wait, it sends that; the client goes, or the deadline comes.
            raise ssl.SSLWantReadError(*error.args) from error


def _tell(error: ssl.SSLError) -> None:
    reason = error.reason or "UNKNOWN"
    if (others := _seldom.due(reason)) is not None:
        log.warning(
            "TLS handshake failed",
            reason=_REASONS.get(reason, reason.lower().replace("_", " ")),
            not_told_since=others,
        )


def why_untrusted(error: BaseException) -> str | None:
    """What of TLS went wrong with a connection to a backend, in words; None if that is not it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:  # OpenSSL names the address, which is not for clients
            return "its certificate is for another name"
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "unknown"
        if reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS there: is it http://?"
        if "ALERT" in reason:
            said = reason.rpartition("ALERT_")[2].lower().replace("_", " ")
            return f"it refuses our side of TLS: {said}"
        return f"TLS fails: {reason.lower().replace('_', ' ')}"
    return None


# --- until when -------------------------------------------------------------------------------


class Certificate(NamedTuple):
    """What a server's certificate says of itself."""

    names: tuple[str, ...]
    ends_at: float  # since the epoch


def certificate_in(cert: Path, key: Path | None) -> Certificate | str:
    """The certificate of a pair that works; in words why a client would not accept it today.

    Found out by a handshake with ourselves, in memory: the standard library reads certificates
    only there.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = pinned(cert)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking, answering = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    for _ in range(10):
        try:
            asking.do_handshake()
            break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        with contextlib.suppress(ssl.SSLWantReadError):
            answering.do_handshake()
    found = asking.getpeercert() or {}
    names: Any = found.get("subjectAltName", ())
    ends: Any = found.get("notAfter")
    return Certificate(tuple(value for _, value in names), ssl.cert_time_to_seconds(ends))


def _edge_certificate(server: Server, config_path: Path) -> Certificate | str:
    assert server.tls_cert is not None
    cert = configs.beside(config_path, server.tls_cert)
    key = configs.beside(config_path, server.tls_key) if server.tls_key is not None else None
    try:
        return certificate_in(cert, key)
    except (ssl.SSLError, OSError):
        return "the files on the disk are no pair; what was read before is in force"


def told(server: Server, config_path: Path) -> dict[str, Any]:
    """What there is to know of the edge's certificate, as its file is now."""
    found = _edge_certificate(server, config_path)
    if isinstance(found, str):
        return {"names": [], "ends_at": None, "fault": found}
    return {"names": list(found.names), "ends_at": found.ends_at, "fault": None}


def remark(server: Server, config_path: Path, now: float | None = None) -> tuple[bool, str] | None:
    """What an operator should do something about, and whether it is a fault already."""
    if server.tls_cert is None:
        return None
    found = _edge_certificate(server, config_path)
    if isinstance(found, str):
        return True, f"no client will accept this certificate: {found}"
    left_s = found.ends_at - (time.time() if now is None else now)
    if left_s < SOON_S:
        return False, f"this certificate ends in {max(0, left_s) / 86_400:.1f} days"
    return None
