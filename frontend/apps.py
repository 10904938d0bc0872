from django.apps import AppConfig


class FrontendConfig(AppConfig):
    """The pages that people use; holds no state of its own."""

    name = "frontend"
    verbose_name = "VirtualFlow pages"
