#!/bin/sh
# Collects a root file system that runs one program: `collect-root.sh PROGRAM FOLDER`. It has the program, the loader, the libraries that
# the loader finds for it, certificate authorities, and the user that it runs as with its state folder.
set -eu
program=$1
root=$2
copy() {
    # With the path under which it is looked for, but the content that a link leads to.
    mkdir -p "$root$(dirname "$1")"
    cp -L "$1" "$root$1"
}
copy "$program"
if ldd "$program" | grep 'not found' >&2; then
    exit 1
fi
ldd "$program" | awk '$2 == "=>" { print $3 } $1 ~ /^\// { print $1 }' | while read -r library; do
    copy "$library"
done
copy /etc/ssl/certs/ca-certificates.crt
mkdir -p "$root/etc"
echo 'packhorse:x:10001:10001::/var/lib/packhorse:/' > "$root/etc/passwd"
echo 'packhorse:x:10001:' > "$root/etc/group"
install -d -o 10001 -g 10001 -m 700 "$root/var/lib/packhorse"
install -d -m 1777 "$root/tmp"
