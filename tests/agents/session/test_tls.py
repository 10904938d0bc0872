"""TLS between an agent and a site whose certificate comes from a private authority."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from agents.session.client import ControlPlaneAwayError, ControlPlaneClient
from controlplane.core.protocol.node_messages import EnrolReply, EnrolRequest
from tests.agents.control_plane import AGENT_TOKEN, ENROLMENT_TOKEN, ControlPlane

AUTHORITY = trustme.CA()


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Give a control plane at 127.0.0.1 with a certificate for the name of the parameter."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert(request.param).configure_cert(tls)
    made = ControlPlane(tls)
    yield made
    made.close()


def enrol(plane: ControlPlane) -> EnrolReply:
    client = ControlPlaneClient(plane.address, timeout_s=30)
    try:
        return client.enrol(
            EnrolRequest(
                token=ENROLMENT_TOKEN, name="node-a", host="127.0.0.1", first_port=21000,
                last_port=21999, boot_id="b", accelerators=(),
            )
        )  # fmt: skip
    finally:
        client.close()


def trust(monkeypatch: pytest.MonkeyPatch, authority: trustme.CA, path: Path) -> None:
    authority.cert_pem.write_to_path(str(path))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))


@pytest.mark.parametrize("plane", ["127.0.0.1"], indirect=True)
def test_a_private_authority_is_named_by_a_variable(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trust(monkeypatch, AUTHORITY, tmp_path / "ca.pem")
    assert plane.address.startswith("https://")
    assert enrol(plane).agent_token == AGENT_TOKEN


@pytest.mark.parametrize(
    ("plane", "authority"),
    [("127.0.0.1", trustme.CA()), ("another.example", AUTHORITY)],
    ids=["another authority", "another name"],
    indirect=["plane"],
)
def test_no_token_is_sent_to_a_site_that_cannot_prove_its_name(
    plane: ControlPlane,
    authority: trustme.CA,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    trust(monkeypatch, authority, tmp_path / "ca.pem")
    with pytest.raises(ControlPlaneAwayError, match="CERTIFICATE_VERIFY_FAILED"):
        enrol(plane)
    assert not plane.enrolments
