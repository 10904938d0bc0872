"""An OpenID Connect provider on this machine, honest unless a test says otherwise.

`python -m tests.support.oidc_provider PORT` runs one whose page asks who is there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT_ID, CLIENT_SECRET = "virtualflow", "secret-of-the-site"
PEOPLE = {
    "s-ada": {"preferred_username": "ada", "email": "ada@lab.example", "groups": ["lab"]},
    "s-grace": {"preferred_username": "grace", "groups": ["lab", "admins"]},
    "s-mallory": {"preferred_username": "mallory", "groups": ["others"]},
}


def encoded(data: bytes) -> str:
    """Encode as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value: Any) -> str:
    return encoded(json.dumps(value).encode())


@cache
def signing_key(name: str) -> rsa.RSAPrivateKey:
    """Return the RSA key of this name, the same one for the whole process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def signed(claims: dict[str, Any], *, key: str = "honest", **header: Any) -> str:
    """Return a token with an RS256 signature, whatever its header says."""
    text = f"{part({'alg': 'RS256', 'kid': 'first', **header})}.{part(claims)}"
    signature = signing_key(key).sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{text}.{encoded(signature)}"


def public_jwk() -> dict[str, Any]:
    numbers = signing_key("honest").public_key().public_numbers()
    return {
        "kty": "RSA", "kid": "first", "use": "sig", "alg": "RS256",
        "n": encoded(numbers.n.to_bytes(256, "big")), "e": encoded(b"\x01\x00\x01"),
    }  # fmt: skip


@dataclass
class Provider:
    """A running provider, and the ways in which it lies.

    Attributes:
        subject: account that logs in at once; empty: a page asks for it.
        claims: replaced in ID tokens; None: left out.
        sign: makes a token of the claims.
        discovery: replaced in the discovery document; None: left out.
        userinfo: replaced in answers of the user info.
        answers: status and body by path, in place of the honest ones.
        slow: path whose answer never ends.
    """

    server: ThreadingHTTPServer
    address: str
    subject: str = "s-ada"
    claims: dict[str, Any] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] = signed
    discovery: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    slow: str = ""
    people: dict[str, dict[str, Any]] = field(default_factory=lambda: deepcopy(PEOPLE))
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the discovery document."""
        return _changed(
            {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "userinfo_endpoint": f"{self.address}/userinfo",
                "jwks_uri": f"{self.address}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            },
            self.discovery,
        )

    def authorize(self, query: dict[str, str], subject: str) -> str:
        """Return the address that a person is sent back to."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = {**query, "subject": subject}
        back = {"code": code, "state": query["state"], "iss": self.address}
        return f"{query['redirect_uri']}?{urlencode(back)}"

    def redeem(self, form: dict[str, str], login: str) -> tuple[int, dict[str, Any]]:
        """Answer a request for tokens."""
        wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if login != f"Basic {wanted}":
            return 401, {"error": "invalid_client"}
        begun = self.codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if (
            begun is None
            or encoded(verifier) != begun["code_challenge"]
            or form.get("redirect_uri") != begun["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        now, subject = int(time.time()), begun["subject"]
        access = secrets.token_urlsafe(16)
        self.tokens[access] = subject
        claims = {
            "iss": self.address, "aud": CLIENT_ID, "sub": subject, "nonce": begun["nonce"],
            "iat": now, "exp": now + 300,
        }  # fmt: skip
        token = self.sign(_changed(claims, self.claims))
        answer = {"access_token": access, "token_type": "Bearer", "expires_in": 300}
        return 200, answer | ({"id_token": token} if token else {})

    def user(self, login: str) -> tuple[int, dict[str, Any]]:
        """Answer a request for a user's claims."""
        subject = self.tokens.get(login.removeprefix("Bearer "))
        if subject is None:
            return 401, {"error": "invalid_token"}
        return 200, _changed({"sub": subject, **self.people[subject]}, self.userinfo)

    def stop(self) -> None:
        """Close the port."""
        self.server.shutdown()
        self.server.server_close()


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**values, **changes}.items() if value is not None}


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if self._lie(parts.path):
            return
        match parts.path:
            case "/.well-known/openid-configuration":
                self._json(200, self.provider.document())
            case "/keys":
                self._json(200, {"keys": [public_jwk()]})
            case "/userinfo":
                self._json(*self.provider.user(self.headers.get("Authorization", "")))
            case "/authorize":
                self._authorize(query)
            case _:
                self._send(404, b"", "text/plain")

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        form = dict(parse_qsl(self.rfile.read(length).decode()))
        if not self._lie(urlsplit(self.path).path):
            login = self.headers.get("Authorization", "")
            self._json(*self.provider.redeem(form, login))

    def _authorize(self, query: dict[str, str]) -> None:
        subject = query.pop("as", self.provider.subject)
        if not subject:
            links = "".join(
                f'<li><a href="?{html.escape(urlencode({**query, "as": name}))}">'
                f"{html.escape(person.get('preferred_username', name))}</a></li>"
                for name, person in self.provider.people.items()
            )
            page = f"<!doctype html><title>Lab login</title><h1>Lab login</h1><ul>{links}</ul>"
            self._send(200, page.encode(), "text/html")
            return
        self.send_response(302)
        self.send_header("Location", self.provider.authorize(query, subject))
        self.end_headers()

    def _lie(self, path: str) -> bool:
        """Answer what a test wants; return whether there was something."""
        self.provider.seen.append(path)
        if path == self.provider.slow:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while self.provider.slow == path:
                    self.wfile.write(b" ")
                    time.sleep(0.02)  # until the site gives up
            return True
        if path not in self.provider.answers:
            return False
        status, body = self.provider.answers[path]
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", body.decode())
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)
        return True

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Keep the terminal quiet."""


def start_provider(port: int = 0, *, tls: ssl.SSLContext | None = None) -> Provider:
    """Run a provider in a thread."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    provider = Provider(server, f"{scheme}://127.0.0.1:{server.server_address[1]}")
    handler.provider = provider  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return provider


if __name__ == "__main__":
    running = start_provider(int(sys.argv[1]))
    running.subject = ""
    sys.stdout.write(f"{running.address}\n")
    sys.stdout.flush()
    threading.Event().wait()
