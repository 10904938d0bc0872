"""Requests to a site: time limits, bounded repetition, and errors as one exception type."""

from __future__ import annotations

import math
import random
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from virtualflow.errors import VirtualFlowError

#: Longest pause before a repeated request, as `Retry-After` of a rate limit per minute asks for.
PAUSE_LIMIT_S = 65.0
_FIRST_PAUSE_S = 0.5
_LAST_PAUSE_S = 8.0
#: Longest absence of a site, such as for its upgrade, that does not end the watch of a job.
AWAY_LIMIT_S = 300.0
#: Time limits of parts of an answer within which a whole one has come that is no stream.
_WHOLE_ANSWER = 20
_API_PATH = "/api/v1"
_TOKEN = re.compile(r"[\x21-\x7e]{1,500}")
_ERROR_LIMIT_BYTES = 256 * 1024
#: Answers of proxies while the site itself restarts.
_PASSING = frozenset({502, 503, 504})
#: Errors before the request was sent: to repeat it is always safe.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def server_read(server: str) -> str:
    """Check a site's address; return it without a slash or the path of the API at the end.

    Raises:
        VirtualFlowError: it is no address of a site.
    """
    try:
        parts = urlsplit(server.strip())
        is_good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        # Names that httpx or the resolver would refuse later: "a..example", "☃.example".
        httpx.URL(server.strip()).raw_host.decode().encode("idna")
    except (ValueError, httpx.InvalidURL):
        is_good = False
    if not is_good or parts.scheme not in ("http", "https") or not server.isprintable():
        raise bad_input("server", "Give an address such as https://site.example.")
    if parts.username is not None or parts.query or parts.fragment:
        raise bad_input("server", "Give the address without user name, query or fragment.")
    path = parts.path.rstrip("/").removesuffix(_API_PATH).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def token_read(token: str) -> str:
    """Check that a token can be sent; return it without surrounding space.

    Raises:
        VirtualFlowError: it is empty or has characters that no token has.
    """
    if not _TOKEN.fullmatch(token.strip()):
        raise bad_input("token", "Give a token of the account page; it begins with vfp_.")
    return token.strip()


def bad_input(field: str, message: str) -> VirtualFlowError:
    """Return the error of one wrong value, found before anything was sent."""
    return VirtualFlowError("The input is not valid.", code="bad_input", fields={field: [message]})


def finite_check(value: Any, field: str = "") -> None:
    """Refuse numbers that JSON does not have, by their place, such as "scenarios.0.hours".

    Raises:
        VirtualFlowError: a number is nan or infinite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise bad_input(field, "Give a finite number.")
    rows: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        rows = value.items()
    elif isinstance(value, list | tuple):
        rows = enumerate(value)
    for name, one in rows:
        finite_check(one, f"{field}.{name}".lstrip("."))


@cache
def _tls_context() -> ssl.SSLContext:
    """Return httpx's default context; reading its certificates takes longer than many requests.

    Raises:
        VirtualFlowError: the file or folder of authorities that is set cannot be read.
    """
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise bad_input(
            "SSL_CERT_FILE", f"Name a file of certificates: {error.strerror}."
        ) from None


class _TimedStream(httpx.SyncByteStream):
    """Body of an answer that has to be complete within a time, however small its parts are."""

    def __init__(self, stream: Any, limit_s: float) -> None:
        self._stream = stream
        self._limit_s = limit_s

    def __iter__(self) -> Iterator[bytes]:
        until = time.monotonic() + self._limit_s
        for part in self._stream:
            if time.monotonic() >= until:
                text = f"The site's answer is not complete after {self._limit_s:g} s."
                raise VirtualFlowError(text, code="unreachable")
            yield part

    def close(self) -> None:
        self._stream.close()


class Transport:
    """Connections to one site, with its token in every request.

    Args:
        timeout_s: limit for connecting, and for each part of an answer; a whole one that is not
            streamed has 20 times as long.
        retries: repetitions of a request that may be repeated.
        sleep: replaced by tests.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_s: float = 15.0,
        retries: int = 3,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.server = server_read(server)
        self.sleep = sleep
        self._timeout_s = timeout_s
        self._retries = retries
        # Redirects are not followed: the token is for this address alone.
        headers = {"Authorization": f"Bearer {token_read(token)}", "Accept": "*/*"}
        try:
            # As many connections as threads ask: the 101st would wait for the end of a long poll.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._http = httpx.Client(
                base_url=f"{self.server}{_API_PATH}/",
                headers=headers,
                timeout=timeout_s,
                follow_redirects=False,
                verify=_tls_context(),
                limits=limits,
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            # Of a SOCKS proxy without its package, another scheme, an odd entry of NO_PROXY.
            raise bad_input(
                "proxy", f"Correct HTTPS_PROXY, HTTP_PROXY, ALL_PROXY or NO_PROXY: {error}"
            ) from None

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        is_repeatable: bool | None = None,
        wait_s: float = 0.0,
        away_s: float = 0.0,
        **content: Any,
    ) -> httpx.Response:
        """Send a request; return the answer, which is a success or 304.

        Args:
            is_repeatable: whether doing it twice does no harm; by default for reads.
            wait_s: how long the site may keep the request waiting.
            away_s: about how long to go on beyond `retries` while the site does not answer.
            content: as for httpx: `params`, `json`, `data`, `files`, `headers`.

        Raises:
            VirtualFlowError: a number is not finite, a name in the path is . or .., the site
                refused the request, or there was no usable answer.
        """
        finite_check(content.get("json"))
        if {".", ".."} & {*path.split("/")}:  # would be a request for what is above
            raise bad_input("name", "The site has nothing of the name . or ..")
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + wait_s)

        def send() -> httpx.Response:
            with self._http.stream(method, path, timeout=timeout, **content) as response:
                limit_s = _WHOLE_ANSWER * self._timeout_s
                response.stream = _TimedStream(response.stream, limit_s)
                response.read()
            return response

        may_repeat = method == "GET" if is_repeatable is None else is_repeatable
        return self._answered(send, may_repeat, self._retries + int(away_s / _LAST_PAUSE_S))

    @contextmanager
    def stream(
        self, path: str, *, wait_s: float = 0.0, away_s: float = 0.0, **content: Any
    ) -> Iterator[httpx.Response]:
        """Read an answer of any length piece by piece; once it has begun, nothing is repeated.

        Args:
            wait_s: how long the site may be silent.
            away_s: as of `request`.
            content: as for httpx: `params`, `headers`.

        Raises:
            VirtualFlowError: as by `request`.
        """
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + wait_s)
        request = self._http.build_request("GET", path, timeout=timeout, **content)
        retries = self._retries + int(away_s / _LAST_PAUSE_S)
        response = self._answered(lambda: self._http.send(request, stream=True), True, retries)
        try:
            yield response
        except httpx.RequestError as error:
            raise self._unreachable(error) from None
        finally:
            response.close()

    def _answered(
        self, send: Callable[[], httpx.Response], is_repeatable: bool, retries: int
    ) -> httpx.Response:
        for attempt in range(retries + 1):
            pause_s = min(_FIRST_PAUSE_S * 2**attempt, _LAST_PAUSE_S) * random.uniform(0.5, 1)  # noqa: S311
            try:
                response = send()
            except httpx.TransportError as error:
                failure = self._unreachable(error)
                may_repeat = is_repeatable or isinstance(error, _NOT_SENT)
            except UnicodeEncodeError:
                raise bad_input("text", "Give text that is valid in UTF-8.") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._unreachable(error) from None
            else:
                if _is_success(response):
                    return response
                failure = _refusal(response)
                is_throttled = response.status_code == httpx.codes.TOO_MANY_REQUESTS
                pause_s = max(pause_s, failure.retry_after_s or 0.0)
                may_repeat = is_throttled or (is_repeatable and response.status_code in _PASSING)
            if not may_repeat or attempt == retries or pause_s > PAUSE_LIMIT_S:
                raise failure
            self.sleep(pause_s)
        raise AssertionError

    def _unreachable(self, error: Exception) -> VirtualFlowError:
        reason = str(error) or type(error).__name__
        advice = _advice(error, urlsplit(self.server))
        return VirtualFlowError(
            f"{self.server} does not answer: {reason}. {advice}", code="unreachable"
        )


def _advice(error: Exception, server: SplitResult) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "For a certificate of your own authority set SSL_CERT_FILE to the authority's file."
    if {server.scheme, "all"} & getproxies().keys() and not proxy_bypass(server.netloc):
        return (
            "Is the proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY up, and does it lead there? "
            "NO_PROXY names sites that need none."
        )
    return "Is this the address, and is the site up?"


def _is_success(response: httpx.Response) -> bool:
    """Return whether it is a success of a site, or the 304 that was asked for.

    A page is none, as of a network that asks for a login first.
    """
    if response.status_code == httpx.codes.NOT_MODIFIED:
        return "If-None-Match" in response.request.headers
    return response.is_success and "text/html" not in response.headers.get("Content-Type", "")


def _refusal(response: httpx.Response) -> VirtualFlowError:
    """Read the problem of an answer (RFC 9457), whatever a proxy in between made of it."""
    status = response.status_code
    if response.is_redirect:
        place = response.headers.get("Location", "")
        detail = f"The site sends requests elsewhere ({place}): use its final address as server."
        response.close()
        return VirtualFlowError(detail, code="redirected", status=status)
    problem: Any = None
    try:
        problem = _short_json(response)
    except (httpx.HTTPError, ValueError, RecursionError):
        pass
    finally:
        response.close()
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return VirtualFlowError(
            f"The answer is {status} {response.reason_phrase}, and no answer of a VirtualFlow "
            "site. Is this its address?",
            code="unexpected_answer",
            status=status,
        )
    errors = problem.get("errors")
    fields = errors if isinstance(errors, dict) else {}
    return VirtualFlowError(
        str(problem.get("detail") or problem.get("title") or problem["code"]),
        code=problem["code"],
        status=status,
        fields={str(name): _sentences(messages) for name, messages in fields.items()},
        retry_after_s=_seconds(response.headers.get("Retry-After")),
    )


def _short_json(response: httpx.Response) -> Any:
    text = b""
    for piece in response.iter_bytes():
        text += piece
        if len(text) > _ERROR_LIMIT_BYTES:
            raise ValueError
    return httpx.Response(200, content=text).json()


def _sentences(messages: Any) -> list[str]:
    return [str(text) for text in messages] if isinstance(messages, list) else [str(messages)]


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdecimal() and len(text) < 8 else None
