"""Everything that `manage.py demo` runs on one machine without any server being installed."""
