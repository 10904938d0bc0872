"""Django's PostgreSQL backend with fewer health checks; the engine of `DATABASES`."""
