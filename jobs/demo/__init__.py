"""`manage.py demo`: the whole product on one machine, without installed servers."""
