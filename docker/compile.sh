#!/bin/sh
# Makes /packhorse, the files of a release, in the stage that compiles. Does nothing where they are already.
set -eu
if [ -d /packhorse ]; then
    exit 0
fi
apt-get update
apt-get install -y --no-install-recommends python3-venv
# The context has no history: the times in the archive, which is not made, do not matter.
cargo xtask dist --no-archive --output /tmp/dist
mv /tmp/dist/packhorse-*-unknown-linux-gnu /packhorse
