"""Reading the headers of models behind URLs: in threads, once a source, and with growing gaps where it fails.

What is read ends up in the pool's status, so that a restarted operator reads nothing again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from decodepool_sizing.errors import BadModelFile
from decodepool_sizing.facts import ModelFacts, fault_reason, read_facts
from decodepool_sizing.readers import model_reader

from decodepool_operator.api.faults import ApiFault, Refusal
from decodepool_operator.names import PoolKey
from decodepool_operator.planner.resolution import LONGEST_RETRY, SHORTEST_RETRY, known_facts, source_key, source_text
from decodepool_operator.planner.state import Object, Resolution, Resolved, Resolving, Unresolved
from decodepool_operator.texts import is_one_word

FIRST_RETRY_SECONDS = SHORTEST_RETRY.total_seconds()
LONGEST_RETRY_SECONDS = LONGEST_RETRY.total_seconds()
READ_LIMIT_SECONDS = 180.0
"""For a whole header. What lasts longer is given up, whatever the server drips."""
READS_AT_ONCE = 16
READS_AT_ONCE_IN_A_NAMESPACE = 2
"""So that a namespace full of slow servers keeps no other from being read."""
KEPT_ANSWERS = 1000

log = logging.getLogger(__name__)

ReadSecret = Callable[[str, str], Awaitable[Object]]
"""Namespace and name of a Secret to the Secret; ApiFault where there is none."""
LookAgain = Callable[[PoolKey], None]
ReadModel = Callable[[str, Mapping[str, str], "str | None"], ModelFacts]
"""URL, headers and known digest to facts; BadModelFile. Runs in a thread."""


@dataclass
class _Source:
    """One source in one namespace: what was read of it, and when it may be tried again."""

    pools: set[PoolKey] = field(default_factory=set)
    answer: Resolution | None = None
    task: asyncio.Task[None] | None = None
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True)
class _Reading:
    """What is to be read. `told` is the URL for people: without what may be secret in it."""

    namespace: str
    key: str
    http: Mapping[str, Any]
    told: str


class Resolver:
    """Answers what is known of `http` sources, and reads what is not."""

    def __init__(self, read_secret: ReadSecret, look_again: LookAgain, read: ReadModel | None = None) -> None:
        self._read_secret = read_secret
        self._look_again = look_again
        self._read = read or read_model
        self._sources: dict[tuple[str, str], _Source] = {}
        self._limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="header")

    def resolution(self, pool: Object) -> Resolution | None:
        """Return what is known of the pool's source, at once. A reading that is due is begun; the pool is looked at
        again when it ends. None for other sources, and for one whose facts are in the status.
        """
        http = pool["spec"]["model"]["source"].get("http")
        if not http or known_facts(pool) is not None:
            return None
        namespace, key = pool["metadata"]["namespace"], source_key(pool)
        source = self._source(namespace, key)
        source.pools.add((namespace, pool["metadata"]["name"]))
        self._begin_if_due(source, _Reading(namespace, key, http, source_text(pool)))
        return source.answer

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _source(self, namespace: str, key: str) -> _Source:
        source = self._sources.setdefault((namespace, key), _Source())
        idle = [name for name, known in self._sources.items() if known.task is None and known is not source]
        for name in idle[: max(0, len(self._sources) - KEPT_ANSWERS)]:
            del self._sources[name]
        return source

    def _begin_if_due(self, source: _Source, reading: _Reading) -> None:
        due = asyncio.get_running_loop().time() >= source.retry_at
        if source.task is not None or isinstance(source.answer, Resolved) or not due:
            return
        source.answer = source.answer or Resolving(f"reading the header behind {reading.told}")
        source.task = asyncio.create_task(self._resolve(source, reading))

    async def _resolve(self, source: _Source, reading: _Reading) -> None:
        limit = self._limits.setdefault(reading.namespace, asyncio.Semaphore(READS_AT_ONCE_IN_A_NAMESPACE))
        try:
            async with limit:
                source.answer = await self._answer(reading)
        finally:
            source.task = None
        delay = 0.0
        if isinstance(source.answer, Unresolved):
            delay = min(FIRST_RETRY_SECONDS * 2.0**source.failures, LONGEST_RETRY_SECONDS)
            source.failures += 1
            source.retry_at = asyncio.get_running_loop().time() + delay
        for pool in source.pools:
            self._look_again(pool)
            if delay:  # asked for now it would be lost: a pool is due once, at the earliest time asked for
                asyncio.get_running_loop().call_later(delay, self._look_again, pool)
        source.pools.clear()

    async def _answer(self, reading: _Reading) -> Resolution:
        http, key, headers = reading.http, reading.key, dict[str, str]()
        if http.get("secretRef"):
            try:
                headers["Authorization"] = f"Bearer {await self._token(reading.namespace, http['secretRef'])}"
            except _NoToken as fault:
                return Unresolved(fault.reason, str(fault), key)
        loop = asyncio.get_running_loop()
        try:
            read = loop.run_in_executor(self._threads, self._read, http["url"], headers, http.get("sha256"))
            return Resolved(await read, key)
        except BadModelFile as fault:
            return Unresolved(fault_reason(fault), str(fault), key)
        except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
            log.exception("a header broke its reader", extra={"fields": {"url": reading.told}})
            return Unresolved("BadModelFile", f"the header cannot be made sense of ({type(error).__name__})", key)

    async def _token(self, namespace: str, reference: Mapping[str, str]) -> str:
        name, key = reference["name"], reference.get("key", "token")
        try:
            secret = await self._read_secret(namespace, name)
        except ApiFault as fault:
            if fault.refusal is Refusal.NOT_FOUND:
                raise _NoToken("SecretNotFound", f"there is no Secret {name} in this namespace") from None
            raise _NoToken("SecretUnreadable", f"Secret {name}: {fault.message}") from None
        return token_of(secret, key)


class _NoToken(Exception):  # noqa: N818 - says what there is not
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def token_of(secret: Object, key: str) -> str:
    """Return the token in a Secret. It must be one printable word, since an error about a header would show it."""
    name = secret["metadata"]["name"]
    encoded = (secret.get("data") or {}).get(key)
    if encoded is None:
        raise _NoToken("SecretNotFound", f"Secret {name} has no key {key}")
    try:
        token = base64.b64decode(encoded).decode("ascii").strip()
    except (binascii.Error, UnicodeDecodeError):
        token = ""
    if not is_one_word(token):
        raise _NoToken("SecretInvalid", f"Secret {name}, key {key}: not a token of printable characters")
    return token


def read_model(
    url: str, headers: Mapping[str, str], sha256: str | None, *, local_addresses: bool = False
) -> ModelFacts:
    """Read a model's facts from the header behind a URL; BadModelFile says why there are none. Blocks, for
    `READ_LIMIT_SECONDS` at most and the time that names take to be looked up.
    """
    terms: dict[str, Any] = {"total_seconds": READ_LIMIT_SECONDS, "local_addresses": local_addresses}
    with model_reader(url, headers, **terms) as reader:
        return read_facts(reader, sha256)
