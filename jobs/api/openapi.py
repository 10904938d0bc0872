"""What drf-spectacular cannot see by itself; imported by the routes."""

from __future__ import annotations

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class TokenScheme(OpenApiAuthenticationExtension):
    """Describes the tokens in the OpenAPI document."""

    target_class = "jobs.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, _auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
