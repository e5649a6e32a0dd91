"""Credentials of stores that code of the job makes: the function that is given, and the thread that calls it.

The native loader starts the thread when it needs credentials for the first time. It is a thread of Python's own,
because the interpreter may end while the user's code runs.
"""

from __future__ import annotations

import atexit
import inspect
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from coprep import _coprep

Provider = Callable[[], Mapping[str, Any]]

_NEEDED: dict[str, list[tuple[str, ...]]] = {
    "s3": [("access_key_id", "secret_access_key")],
    "gs": [("token",)],
    "az": [("access_key",), ("sas_token",), ("token",)],
    "hf": [("token",)],
}
"""The keys that credentials of each kind of store must have. One of the groups is enough."""
_OPTIONAL = {"s3": ("token", "expires_at"), "gs": ("expires_at",), "az": ("expires_at",), "hf": ("expires_at",)}
_JOIN_TIMEOUT = 2.0
"""Seconds to wait for a thread when the interpreter ends. A thread that waits for the coordinator ends at once."""

_running: set[_Server] = set()


class WrongCredentialsError(ValueError):
    """What a provider has returned cannot be used. The message has none of it."""


def checked(provider: Any) -> Provider:
    """Returns a provider that can be called.

    Raises:
        TypeError: it cannot, or is a coroutine function.
    """
    if not callable(provider):
        kind = type(provider).__name__
        raise TypeError(f"credential_provider must be a function without arguments that returns a dict, not {kind}")
    call = provider if inspect.isroutine(provider) else type(provider).__call__
    if inspect.iscoroutinefunction(provider) or inspect.iscoroutinefunction(call):
        raise TypeError(
            "credential_provider must return credentials, and an async function returns a coroutine: give "
            "lambda: asyncio.run(provider())"
        )
    return provider  # type: ignore[no-any-return]


def read(scheme: str, given: Any) -> dict[str, Any]:
    """Returns the arguments of ``CredentialLink.give`` for what a provider has returned.

    Raises:
        WrongCredentialsError: it cannot be used.
    """
    if inspect.isawaitable(given):
        if inspect.iscoroutine(given):
            given.close()
        raise WrongCredentialsError("it returned an awaitable: give lambda: asyncio.run(provider())")
    if not isinstance(given, Mapping):
        raise WrongCredentialsError(f"it returned {type(given).__name__} instead of a dict: {_expected(scheme)}")
    groups = [group for group in _NEEDED[scheme] if all(given.get(key) is not None for key in group)]
    if not groups:
        raise WrongCredentialsError(f"the dict that it returned lacks credentials: {_expected(scheme)}")
    # A key that is misspelt must not be passed over: it may be the time at which the credentials expire.
    known = (*groups[0], *_OPTIONAL[scheme])
    if any(value is not None for key, value in given.items() if key not in known):
        raise WrongCredentialsError(f"the dict that it returned has other keys as well: {_expected(scheme)}")
    credentials = {key: given.get(key) for key in known if key != "expires_at"}
    for key, value in credentials.items():
        if key == "sas_token":
            credentials[key] = _query(value)
        elif value is not None:
            _check_text(key, value)
    return {**credentials, "expires_ms": _milliseconds(given.get("expires_at"))}


def _check_text(key: str, value: Any) -> None:
    if not isinstance(value, str):
        raise WrongCredentialsError(f"{key} is {type(value).__name__} instead of str")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Python keeps bytes of the environment that are no UTF-8 as such characters.
        raise WrongCredentialsError(f"{key} has characters that are no Unicode") from None


def _expected(scheme: str) -> str:
    groups = " or ".join(" and ".join(group) for group in _NEEDED[scheme])
    return f"for {scheme} URLs it must have {groups}, and may have {' and '.join(_OPTIONAL[scheme])}"


def _query(signature: Any) -> list[tuple[str, str]]:
    """Returns the names and values of a shared access signature, which is a query as text or as pairs."""
    pairs: list[tuple[Any, Any]]
    if isinstance(signature, str):
        parts = (part.partition("=") for part in signature.strip().lstrip("?").split("&") if part)
        # Not `parse_qsl`, which takes the plus signs of a signature for spaces.
        pairs = [(unquote(name), unquote(value)) for name, _, value in parts]
    else:
        try:
            pairs = [(name, value) for name, value in signature]
        except (TypeError, ValueError):
            pairs = [(None, None)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise WrongCredentialsError("sas_token must be a text such as 'sv=...&sig=...', or pairs of texts")
    for pair in pairs:
        for text in pair:
            _check_text("sas_token", text)
    return pairs


def _milliseconds(expires_at: Any) -> int | None:
    if expires_at is None:
        return None
    if not isinstance(expires_at, datetime):
        raise WrongCredentialsError(f"expires_at is {type(expires_at).__name__} instead of datetime or None")
    if expires_at.utcoffset() is None:
        raise WrongCredentialsError("expires_at has no time zone: give one, such as datetime.timezone.utc")
    if expires_at <= datetime.now(timezone.utc):
        raise WrongCredentialsError(f"the credentials have expired already: expires_at is {expires_at.isoformat()}")
    return int(expires_at.timestamp() * 1000)


class _Server(threading.Thread):
    """The thread that calls a provider whenever the coordinator wants credentials, until the link is closed."""

    def __init__(self, provider: Provider, scheme: str, link: _coprep.CredentialLink) -> None:
        super().__init__(name="coprep-credentials", daemon=True)
        self._provider = provider
        self._scheme = scheme
        self._link = link
        self._is_calling = False

    def run(self) -> None:
        _running.add(self)
        try:
            while self._link.wait():
                self._answer()
        finally:
            _running.discard(self)

    def _answer(self) -> None:
        self._is_calling = True
        try:
            credentials = read(self._scheme, self._provider())
        except BaseException as error:
            # The coordinator is told no text of the user's code, because that may hold a secret.
            is_own = isinstance(error, WrongCredentialsError)
            self._link.fail(error, str(error) if is_own else f"{type(error).__name__} was raised")
        else:
            self._link.give(**credentials)
        finally:
            self._is_calling = False

    def end(self) -> None:
        """Ends the thread, unless the user's code does not return."""
        self._link.close()
        if not self._is_calling:
            self.join(_JOIN_TIMEOUT)


def start(provider: Provider, scheme: str, link: _coprep.CredentialLink) -> None:
    """Starts the thread that serves a link. It ends when the link is closed."""
    _Server(provider, scheme, link).start()


@atexit.register
def _end_all() -> None:
    """Ends all threads before the interpreter does, because it would end them within native code."""
    for server in list(_running):
        server.end()
