from django.apps import AppConfig


class FrontendConfig(AppConfig):
    """The web pages; without persisted state."""

    name = "frontend"
    verbose_name = "VirtualFlow pages"
