#!/bin/bash
# Installs the remote transport that NVSHMEM 3.4 to 3.8 loads, one file for each version, and prints what a user has to
# set. Builds it first if need be. NVSHMEM itself is not touched.
#
#   scripts/nvshmem-install.sh --prefix DIR [--nvshmem FOLDER]   installs, or installs anew
#   scripts/nvshmem-install.sh --prefix DIR --uninstall          removes what was installed there, and nothing else
#
# FOLDER holds libnvshmem_host.so.3. With it, only what that version needs is printed, and a folder is made that can go
# into LD_LIBRARY_PATH where LD_PRELOAD cannot be used.
# SYMRAIL_INSTALL_FROM names a folder with libsymrail_nvshmem.so that is built already.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")

# shellcheck source=scripts/install-options.sh
. "$root/scripts/install-options.sh"
take_options nvshmem -- "$@"
place=$prefix/lib/symrail-nvshmem
name=nvshmem_transport_libfabric.so

# Our files by name, links that lead elsewhere, and folders that are empty without them.
uninstall() {
  rm -f "$place/$name".[3-7]
  [ ! -d "$place/beside" ] || { find "$place/beside" -maxdepth 1 -type l -delete; rmdir "$place/beside"; }
  local folder
  for folder in "$place" "$prefix/lib" "$prefix"; do rmdir "$folder" 2>/dev/null || break; done
}

if [ $undo = 1 ]; then
  [ -d "$place" ] || { echo "nvshmem-install: nothing is installed in $prefix" >&2; exit 1; }
  uninstall
  echo "nvshmem-install: removed from $prefix"
  exit 0
fi

wanted=''
if [ -n "$nvshmem" ]; then
  [ -e "$nvshmem/libnvshmem_host.so.3" ] || { echo "nvshmem-install: no libnvshmem_host.so.3 in $nvshmem" >&2; exit 1; }
  nvshmem=$(realpath "$nvshmem")
  # NVSHMEM's own transports show the version of the interface.
  wanted=$(find "$nvshmem" -maxdepth 1 -name 'nvshmem_transport_*.so.[0-9]*' | sed -n 's/.*\.so\.\([0-9]*\)$/\1/p' | sort -n | tail -1)
  case $wanted in [3-7]) ;; *) echo "nvshmem-install: $nvshmem has transports of version '$wanted'; known are 3 to 7 (NVSHMEM 3.4 to 3.8)" >&2; exit 1 ;; esac
fi

build_or_take "$root" symrail-nvshmem
[ "$(grep -c "$name\.0" "$built/libsymrail_nvshmem.so")" -ge 1 ] || { echo "nvshmem-install: $built/libsymrail_nvshmem.so is something else" >&2; exit 1; }
[ ! -d "$place" ] || uninstall
mkdir -p "$place"
# The loader accepts the file as NVSHMEM's own by the name in it, whose last digit is a placeholder.
for version in 3 4 5 6 7; do
  sed "s/$name\.0/$name.$version/g" "$built/libsymrail_nvshmem.so" > "$place/$name.$version.new"
  chmod 755 "$place/$name.$version.new"
  mv "$place/$name.$version.new" "$place/$name.$version"
done

echo "export NVSHMEM_REMOTE_TRANSPORT=libfabric"
if [ -z "$wanted" ]; then
  echo "export LD_PRELOAD=$place/$name.3    # NVSHMEM 3.4; 3.5: .4, 3.6: .5, 3.7: .6, 3.8: .7"
  exit 0
fi
mkdir "$place/beside"
find "$nvshmem" -maxdepth 1 \( -name 'libnvshmem*' -o -name 'nvshmem_*' \) ! -name "$name*" -exec ln -s -t "$place/beside" {} +
ln -s "../$name.$wanted" "$place/beside/$name.$wanted"
echo "export LD_PRELOAD=$place/$name.$wanted"
echo "# or, instead of the second line: export LD_LIBRARY_PATH=$place/beside\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
