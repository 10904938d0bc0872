#!/usr/bin/env bash
# Stand-ins for the base images, for a machine that cannot pull any.
set -euo pipefail

if [ "${1:-}" = "--help" ]; then
    cat <<'HELP'
Usage: tests/containers/base_images.sh [DIRECTORY]

Makes images under the names that Dockerfile and docker-compose.yml use, out of Debian's packages
(debootstrap, apt-get), and loads them into the container engine of DOCKER_HOST. They are stand-ins
for tests on a machine that cannot pull images: PostgreSQL has Debian's version, and the start
scripts do only what docker-compose.yml needs. Do not run a site on them. Images that exist already
are kept: on a machine that has pulled the real ones nothing is done.

The stand-in of Python takes over this machine's certificates and pip configuration, so that a
build reaches the package index as this machine does. DIRECTORY (default: a temporary one) keeps
the root file system from which the images are made.
HELP
    exit 0
fi

directory="${1:-$(mktemp -d)}"
root="$directory/bookworm"
repository="$(cd "$(dirname "$0")/../.." && pwd)"

image_of() { # the tag of an image in the repository's files
    grep -hoE "(image:|FROM) $1:[^ ]+" "$repository/Dockerfile" "$repository/docker-compose.yml" \
        | head -1 | cut -d' ' -f2
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

build() { # NAME: builds the folder $context, whose Dockerfile comes from standard input
    has_image "$1" && return
    cat >"$context/Dockerfile"
    docker build --quiet --tag "$1" "$context"
}

context="$(mktemp -d)"
trap 'rm -rf "$context"' EXIT

if ! has_image virtualflow-standin-debian; then
    [ -e "$root/etc/debian_version" ] \
        || debootstrap --variant=minbase --include=ca-certificates bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
    tar --directory "$root" --create . | docker import - virtualflow-standin-debian
fi

cp /etc/ssl/certs/ca-certificates.crt "$context/"
python3 -m pip config list 2>/dev/null \
    | sed -nE "s/^global\.(index-url|trusted-host)='(.*)'$/\1 = \2/p" >"$context/pip.options"

build "$(image_of python)" <<'EOF2'
FROM virtualflow-standin-debian
RUN apt-get update && apt-get install -y --no-install-recommends python3.11 python3.11-venv \
        python3-pip && rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/EXTERNALLY-MANAGED \
    && ln -s python3.11 /usr/bin/python
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.options /tmp/
RUN (echo "[global]"; echo "cert = /etc/ssl/certs/ca-certificates.crt"; cat /tmp/pip.options) \
        >/etc/pip.conf
EOF2

cat >"$context/postgres-start" <<'EOF2'
#!/bin/sh
# First start: a cluster, the role and its database, as the real image makes them.
set -e
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-local trust \
        --auth-host scram-sha-256 --encoding UTF8 --locale C.UTF-8
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait --options "-c listen_addresses=" start
    createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --wait --mode fast stop
fi
[ "$1" != postgres ] || set -- "$@" -c "listen_addresses=*"
exec "$@"
EOF2
chmod 755 "$context/postgres-start"
build "$(image_of postgres)" <<'EOF2'
FROM virtualflow-standin-debian
RUN apt-get update && apt-get install -y --no-install-recommends postgresql \
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* \
    && install --directory --owner postgres --group postgres --mode 700 /var/lib/postgresql/data
ENV PGDATA=/var/lib/postgresql/data \
    PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY postgres-start /usr/local/bin/
RUN chmod 3777 /run/postgresql
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["postgres-start"]
CMD ["postgres"]
EOF2

build "$(image_of redis)" <<'EOF2'
FROM virtualflow-standin-debian
RUN apt-get update && apt-get install -y --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* && install --directory --owner redis --group redis /data
WORKDIR /data
VOLUME /data
EOF2

build "$(image_of nginx)" <<'EOF2'
FROM virtualflow-standin-debian
RUN apt-get update && apt-get install -y --no-install-recommends nginx curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --shell /usr/sbin/nologin nginx
EOF2
docker image ls
