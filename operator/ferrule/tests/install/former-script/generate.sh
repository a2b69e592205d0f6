#!/usr/bin/env bash
# Writes the folders beside this script with the former install.sh, whose path is the argument. It is in the history:
#   git show 647d9b2:install.sh
# Needs folders v1 and v2 as tests/install/fixture.rs makes them, in the working directory.
set -euo pipefail
script=$(realpath "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
run() { "$script" --bin-dir bin --plugins "bridge host-local loopback" "$@"; }

rm -rf bin old "$here/old" "$here/installed" "$here/interrupted"
mkdir bin
sed 's/v1.0.0/vold/' v1/bridge >bin/bridge
chmod 0755 bin/bridge
ln -s nowhere bin/loopback
cp -a bin old
run --from v1

# Kills the script when it replaces host-local, the second of the three.
mkdir -p faults
cat >faults/mv <<'END'
#!/bin/sh
case $* in */bin/host-local) kill -KILL $PPID ;; esac
exec /bin/mv "$@"
END
chmod 0755 faults/mv
cp -a bin start
PATH=$PWD/faults:$PATH run --from v2 || true
mv bin interrupted

mv start bin
run --from v2
mv bin installed
cp -a old installed interrupted "$here"
