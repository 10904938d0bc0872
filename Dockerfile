# Two images: `site` (pages, event streams, Celery) without TensorFlow, `agent` without Django.
# docker-compose.yml says which command each container runs.
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 PATH=/opt/venv/bin:$PATH
WORKDIR /srv/virtualflow
# No root, and no write access outside the volumes, which start as copies of these folders.
RUN useradd --create-home --uid 10001 virtualflow \
    && install --directory --owner virtualflow --mode 700 \
       /var/lib/virtualflow /enrolment /enrolment/node-a /enrolment/node-b

FROM base AS site-packages
COPY requirements/site.txt ./
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --require-hashes --requirement site.txt

FROM base AS site
COPY --from=site-packages /opt/venv /opt/venv
COPY manage.py ./
COPY controlplane controlplane
COPY jobs jobs
COPY frontend frontend
USER virtualflow

FROM base AS agent-packages
COPY requirements/agent.txt ./
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --require-hashes --requirement agent.txt

FROM base AS agent
# The firewall of jobs. Users of jobs pass through the folder of state, which they cannot list.
RUN apt-get update && apt-get install --yes --no-install-recommends nftables \
    && rm -rf /var/lib/apt/lists/* && chmod 711 /var/lib/virtualflow
COPY --from=agent-packages /opt/venv /opt/venv
COPY controlplane/__init__.py controlplane/
COPY controlplane/core controlplane/core
COPY agents agents
# Root, with the few capabilities of docker-compose.yml, to give each job a user of its own.
CMD ["python", "-m", "agents"]
