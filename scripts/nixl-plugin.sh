#!/bin/bash
# Builds libplugin_SYMRAIL.so, the back end that NIXL loads, against the headers of a NIXL release.
#
#     scripts/nixl-plugin.sh NIXL_SOURCES OUT [FOLDER_OF_LIBSYMRAIL_AGENT]
#
# NIXL_SOURCES is an unpacked release of NIXL with src/api/cpp and src/utils, of the version that will load the plugin.
# OUT is the folder for the plugin: NIXL_PLUGIN_DIR. libsymrail_agent.so is taken from target/release or target/debug,
# or from a folder, such as lib/ of scripts/install.sh, and is copied beside the plugin.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
sources=$1 out=$2
[ -f "$sources/src/api/cpp/backend/backend_engine.h" ] ||
  { echo "$sources has no src/api/cpp/backend/backend_engine.h: give the sources of a NIXL release" >&2; exit 1; }
folders=("$root/target/release" "$root/target/debug")
[ $# -lt 3 ] || folders=("$3")
library=
for folder in "${folders[@]}"; do
  # As cargo names it, and as scripts/install.sh does.
  for name in libsymrail_agent_c.so libsymrail_agent.so; do
    [ -n "$library" ] || [ ! -f "$folder/$name" ] || library=$folder/$name
  done
done
[ -n "$library" ] ||
  { echo "no libsymrail_agent.so in ${folders[*]}: cargo build --release -p symrail-agent-c, or give the folder" >&2; exit 1; }
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
soname=$(grep -aoE 'libsymrail_agent\.so\.[0-9]+' "$library" | head -1)
mkdir -p "$out"
install -m 755 "$library" "$out/$soname"
# NIXL needs C++20 (docs/BackendGuide.md there).
${CXX:-c++} -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -Wall -DSYMRAIL_VERSION="\"$version\"" \
  -I "$root/agent/include" -I "$sources/src/api/cpp" -I "$sources/src/utils" -I "$sources/src/core/telemetry" \
  -I "$sources/src/infra" "$root/agent/nixl/symrail_nixl.cpp" -o "$out/libplugin_SYMRAIL.so" \
  "$out/$soname" -Wl,-rpath,'$ORIGIN' -Wl,-soname,libplugin_SYMRAIL.so
echo "$out/libplugin_SYMRAIL.so"
