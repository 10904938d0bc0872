# One image for every part: site, streams, Celery and node agents. docker-compose.yml says which
# command each container runs.
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 PIP_NO_CACHE_DIR=1
WORKDIR /srv/virtualflow

COPY requirements.txt .
RUN pip install --requirement requirements.txt

COPY manage.py ./
COPY controlplane controlplane
COPY jobs jobs
COPY frontend frontend
COPY agents agents

# Job code runs as this user too: no root, no write access outside the volumes.
RUN useradd --create-home --uid 10001 virtualflow \
    && mkdir -p /var/lib/virtualflow /enrolment \
    && chown virtualflow /var/lib/virtualflow /enrolment \
    && SECRET_KEY=only-for-collectstatic STATIC_ROOT=/srv/virtualflow/staticfiles \
       python manage.py collectstatic --noinput
USER virtualflow
