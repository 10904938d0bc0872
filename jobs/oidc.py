"""Logins by OpenID Connect at one provider, `settings.OIDC_ISSUER` (docs/decisions/0037).

Authlib keeps state, nonce and code verifier and checks the ID token. This module bounds the
requests to the provider, takes from its discovery document what is needed and nothing else, and
turns each failure into a `LoginRefusedError`.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from authlib.integrations.base_client import OAuthError
from authlib.integrations.django_client.apps import DjangoOAuth2App
from authlib.integrations.django_client.integration import DjangoIntegration
from authlib.integrations.requests_client import OAuth2Session
from django.conf import settings
from django.http import HttpRequest
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError

logger = logging.getLogger(__name__)

#: With public keys only: the client secret, or a public key taken for one, signs nothing.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519",
    "EdDSA",
)  # fmt: skip
#: Difference of the clocks that is tolerated.
LEEWAY_S = 60
#: Time for a login at the provider; logins of one session that may wait for their end.
PENDING_S, PENDING_LIMIT = 600, 5
SUBJECT_CHARACTERS, CODE_CHARACTERS = 255, 4096
_ANSWER_LIMIT_BYTES = 1024**2
#: Age at which discovery document and keys are read again.
_DISCOVERY_S = 300
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
#: Requests to the provider at once in one process. Each holds a thread while it is slow.
_CALLS = threading.BoundedSemaphore(4)
_CALL_WAIT_S = 1


class LoginRefusedError(Exception):
    """A login that was refused, with a machine-readable reason.

    Attributes:
        is_guess: the failure counts like that of a wrong password.
        name: name that the provider gives the person, if one is known.
        subject: account at the provider, if one is known.
    """

    def __init__(self, reason: str, *, name: str = "", subject: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.name = name
        self.subject = subject

    @property
    def is_guess(self) -> bool:
        return self.reason in ("state", "denied", "code", "token", "clock")

    @property
    def is_fault(self) -> bool:
        """Return whether the provider or the settings are at fault, not the visitor."""
        return self.reason in ("unavailable", "misconfigured", "busy")

    @property
    def status(self) -> HTTPStatus:
        """Status of the page about it."""
        if self.reason == "busy":
            return HTTPStatus.SERVICE_UNAVAILABLE
        if self.is_fault:
            return HTTPStatus.BAD_GATEWAY
        return HTTPStatus.BAD_REQUEST if self.reason == "state" else HTTPStatus.FORBIDDEN


@dataclass(frozen=True, slots=True)
class LoginPurpose:
    """Purpose of a login, kept while the visitor is at the provider.

    Attributes:
        next_address: page of this site to show after it.
        links_user: user to whom the account is linked; None: it logs somebody in.
        is_repeated: the provider asks for the password again.
    """

    next_address: str
    links_user: int | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An account of the provider whose owner has logged in, with all its claims."""

    subject: str
    claims: dict[str, Any]
    start: LoginPurpose

    @property
    def authenticated_at(self) -> float:
        """Time at which the owner gave the password there: now, if the provider does not say."""
        now, told = time.time(), self.claims.get("auth_time")
        return min(now, told) if isinstance(told, int | float) else now


class PendingLogins(DjangoIntegration):
    """Logins that have begun in a session, by their `state`; each is found once."""

    _KEY = "oidc_pending"

    def get_state_data(self, session: MutableMapping[str, Any], state: str | None) -> Any:
        entry = session.get(self._KEY, {}).get(state)
        return entry["data"] if entry and entry["until"] > time.time() else None

    def set_state_data(self, session: MutableMapping[str, Any], state: str, data: Any) -> None:
        kept = list(session.get(self._KEY, {}).items())[-(PENDING_LIMIT - 1) :]
        session[self._KEY] = dict(kept) | {state: {"data": data, "until": time.time() + PENDING_S}}

    def clear_state_data(self, session: MutableMapping[str, Any], state: str | None) -> None:
        entries = session.get(self._KEY, {})
        session[self._KEY] = {key: entries[key] for key in entries if key != state}


class ProviderSession(OAuth2Session):
    """Requests to the provider: bounded in time and size, without redirects, TLS checked."""

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        """Return the answer, read to its end.

        Raises:
            requests.RequestException: it is late, too large, a redirect or a server's error.
        """
        options |= {
            "timeout": settings.OIDC_TIMEOUT_S,
            "verify": settings.OIDC_CA_FILE or True,
            "allow_redirects": False,
            "stream": True,
        }
        try:
            with super().request(method, url, **options) as response:
                content = _read(response)
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError(str(error)) from None
        response.raw = io.BytesIO(content)
        if response.is_redirect or response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise requests.HTTPError(f"{url} answered {response.status_code}")
        return response


class Provider(DjangoOAuth2App):
    """The provider as described by its discovery document."""

    client_cls = ProviderSession


_PENDING = PendingLogins("oidc")
#: Newest provider of this process: the settings that it was made of, its time, itself.
_newest: tuple[tuple[str, ...], float, Provider] | None = None


def authorization_start(request: HttpRequest, callback: str, start: LoginPurpose) -> str:
    """Return the address at the provider to send a visitor to; the session remembers `start`.

    Raises:
        LoginRefusedError: the provider is away or not what the settings say.
    """
    with _failures():
        more = {"prompt": "login"} if start.is_repeated else {}
        begun = _provider().create_authorization_url(callback, **more)
    data = {
        "redirect_uri": callback,
        "nonce": begun["nonce"],
        "code_verifier": begun["code_verifier"],
        "start": [start.next_address, start.links_user, start.is_repeated],
    }
    _PENDING.set_state_data(request.session, begun["state"], data)
    return str(begun["url"])


def authorization_finish(request: HttpRequest) -> Answer:
    """Redeem the code of a request that the provider has sent back, and check its ID token.

    Raises:
        LoginRefusedError: the request or the answer of the provider is not sound.
    """
    given, state = request.GET, request.GET.get("state")
    pending = _PENDING.get_state_data(request.session, state)
    if pending is None:
        raise LoginRefusedError("state")
    code = given.get("code", "")
    is_text = 0 < len(code) <= CODE_CHARACTERS and code.isascii() and code.isprintable()
    is_ours = given.get("iss", settings.OIDC_ISSUER) == settings.OIDC_ISSUER
    if "error" in given or not is_text or not is_ours:
        _PENDING.clear_state_data(request.session, state)
        raise LoginRefusedError("denied" if "error" in given else "token")
    with _failures():
        claims = _claims(_provider(), request)
    return Answer(claims["sub"], claims, LoginPurpose(*pending["start"]))


def _claims(provider: Provider, request: HttpRequest) -> dict[str, Any]:
    token = provider.authorize_access_token(
        request,
        claims_options={
            "iss": {"essential": True, "value": settings.OIDC_ISSUER},
            "aud": {"essential": True, "value": settings.OIDC_CLIENT_ID},
            "sub": {"essential": True},
        },
        leeway=LEEWAY_S,
    )
    if "userinfo" not in token:
        raise LoginRefusedError("token")
    claims = dict(token["userinfo"])
    subject = claims["sub"]
    if not 0 < len(subject) <= SUBJECT_CHARACTERS or not subject.isprintable():
        raise LoginRefusedError("token")
    wanted = {settings.OIDC_NAME_CLAIM}
    if settings.OIDC_USER_GROUP or settings.OIDC_ADMIN_GROUP:
        wanted.add(settings.OIDC_GROUPS_CLAIM)
    if wanted <= claims.keys() or not provider.server_metadata.get("userinfo_endpoint"):
        return claims
    more = dict(provider.userinfo(token=token))
    if more.get("sub") != subject:  # of somebody else: OpenID Connect Core, section 5.3.2
        raise LoginRefusedError("token", subject=subject)
    return more | claims


def _provider() -> Provider:
    """Return the provider, its discovery document at most five minutes old."""
    global _newest
    made_of = (
        settings.OIDC_ISSUER, settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET,
        settings.OIDC_SCOPES,
    )  # fmt: skip
    newest = _newest
    if newest and newest[0] == made_of and time.monotonic() - newest[1] < _DISCOVERY_S:
        return newest[2]
    document = _discover()
    scopes = dict.fromkeys(["openid", *settings.OIDC_SCOPES.split()])
    provider = Provider(
        _PENDING,
        "oidc",
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=settings.OIDC_CLIENT_SECRET,
        client_kwargs={
            "scope": " ".join(scopes),
            "code_challenge_method": "S256",
            "token_endpoint_auth_method": _client_login(document),
        },
        authorize_url=document["authorization_endpoint"],
        access_token_url=document["token_endpoint"],
        issuer=settings.OIDC_ISSUER,
        jwks_uri=document["jwks_uri"],
        userinfo_endpoint=document.get("userinfo_endpoint"),
        id_token_signing_alg_values_supported=_algorithms(document),
    )
    _newest = (made_of, time.monotonic(), provider)
    return provider


def _discover() -> dict[str, Any]:
    """Read the discovery document.

    Raises:
        ValueError: it is not one, or of another issuer, or has an address without TLS.
    """
    address = settings.OIDC_ISSUER.rstrip("/") + "/.well-known/openid-configuration"
    with ProviderSession() as session:
        response = session.request("GET", address, withhold_token=True)
    response.raise_for_status()
    document = response.json()
    if not isinstance(document, dict) or document.get("issuer") != settings.OIDC_ISSUER:
        raise ValueError(f"{address} is not of the issuer {settings.OIDC_ISSUER}")
    schemes = {"https", urlsplit(settings.OIDC_ISSUER).scheme}
    for name in (*_ENDPOINTS, "userinfo_endpoint"):
        value = document.get(name)
        if value is None and name not in _ENDPOINTS:
            continue
        if not isinstance(value, str) or urlsplit(value).scheme not in schemes:
            raise ValueError(f"{address} has no https address as {name}")
    return document


def _algorithms(document: dict[str, Any]) -> list[str]:
    offered = document.get("id_token_signing_alg_values_supported", ["RS256"])
    usable = [name for name in ALGORITHMS if name in offered]
    if not usable:
        raise ValueError(f"the provider signs with {offered}, not with one of {ALGORITHMS}")
    return usable


def _client_login(document: dict[str, Any]) -> str:
    offered = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    for method in ("client_secret_basic", "client_secret_post"):
        if method in offered:
            return method
    raise ValueError(f"the provider takes no client secret, only {offered}")


def _read(response: requests.Response) -> bytes:
    deadline = time.monotonic() + settings.OIDC_TIMEOUT_S
    content = b""
    while part := response.raw.read1(65536, decode_content=True):
        content += part
        if len(content) > _ANSWER_LIMIT_BYTES or time.monotonic() > deadline:
            raise requests.ConnectionError("the answer is too large or too slow")
    return content


@contextmanager
def _failures() -> Iterator[None]:
    """Turn the failures of requests to the provider into refusals, and bound their number."""
    if not _CALLS.acquire(timeout=_CALL_WAIT_S):
        raise LoginRefusedError("busy")
    try:
        yield
    except requests.JSONDecodeError as error:
        raise _fault("misconfigured", error) from error
    except requests.RequestException as error:
        raise _fault("unavailable", error) from error
    except JoseError as error:
        logger.warning("An ID token was refused: %s", error)
        raise LoginRefusedError(_reason_of(error)) from error
    except OAuthError as error:
        if error.error == "invalid_grant":
            raise LoginRefusedError("code") from error
        raise _fault("misconfigured", error) from error
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise _fault("misconfigured", error) from error
    finally:
        _CALLS.release()


def _reason_of(error: JoseError) -> str:
    of_time = isinstance(error, ClaimError) and error.claim in ("iat", "nbf")
    return "clock" if of_time or isinstance(error, ExpiredTokenError) else "token"


def _fault(reason: str, error: Exception) -> LoginRefusedError:
    logger.warning("OpenID Connect is %s: %s", reason, error)
    return LoginRefusedError(reason)
