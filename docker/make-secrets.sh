#!/bin/sh
# Makes the secrets of docker/compose.yaml where there are none yet: docker/secrets, which only its owner may enter. Each file is mounted by
# itself, and readable for the user of the containers.
set -eu
secrets=${1:-$(dirname "$0")/secrets}
mkdir -p "$secrets"
chmod 700 "$secrets"
for name in admin-token agent-token link-secret; do
    if [ ! -s "$secrets/$name" ]; then
        od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$secrets/$name"
        chmod 644 "$secrets/$name"
    fi
done
