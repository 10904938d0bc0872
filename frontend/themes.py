"""Themes of the pages: chosen by a browser, kept in its cookie."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

#: Cookie of the choice, and how long a browser keeps it.
COOKIE, COOKIE_S = "virtualflow_theme", 366 * 86_400


@dataclass(frozen=True, slots=True)
class Theme:
    """A theme.

    Attributes:
        scheme: what the browser's own controls look like.
        dark_media: for which screens the dark colours count.
    """

    name: str
    label: str
    scheme: str
    dark_media: str

    @property
    def all(self) -> tuple[Theme, ...]:
        """All themes, in the order of the menu."""
        return tuple(THEMES.values())


SYSTEM = Theme("system", "System", "light dark", "screen and (prefers-color-scheme: dark)")
THEMES = {
    theme.name: theme
    for theme in (
        SYSTEM,
        Theme("light", "Light", "light", "not all"),
        Theme("dark", "Dark", "dark", "screen"),
    )
}


def theme_of(request: HttpRequest) -> Theme:
    """Return the theme that a browser has chosen; the system's without a known choice."""
    return THEMES.get(request.COOKIES.get(COOKIE, ""), SYSTEM)
