#!/bin/bash
# Installs the program, libraries and headers for C (OpenSHMEM's, and the transport alone), NCCL's network plugin, the
# names that OpenSHMEM's users know such tools by (oshrun, oshcc, oshc++), files for pkg-config and CMake, and man pages.
# In folders of their own are the libraries that programs of NCCL and cuDecomp find in place of them if they look there
# first: lib/symrail/nccl and lib/symrail/cudecomp, the latter with headers and the Fortran module in
# include/symrail/cudecomp. Builds all of it first if need be.
#
#   scripts/install.sh --prefix DIR               installs, or installs anew
#   scripts/install.sh --prefix DIR --uninstall   removes what was installed there, and nothing else
#
# The prefix may be moved afterwards; programs that were compiled with it then need compiling again.
# SYMRAIL_INSTALL_FROM names a folder with symrail, libsymrail.so, libsymrail_transport.so, libsymrail_decomp_c.so,
# libsymrail_nccl.so, libsymrail_agent_c.so and libnccl_net_symrail.so that are built already.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")

# shellcheck source=scripts/install-options.sh
. "$root/scripts/install-options.sh"
take_options -- "$@"
list=$prefix/share/symrail/installed

# Removes the files of the list, then the folders that are empty without them.
uninstall() {
  local files file
  mapfile -t files < "$list"
  for file in "${files[@]}"; do rm -f "$prefix/$file"; done
  for file in "${files[@]}"; do
    file=$(dirname "$file")
    while [ "$file" != . ] && rmdir "$prefix/$file" 2>/dev/null; do file=$(dirname "$file"); done
  done
}

if [ $undo = 1 ]; then
  [ -e "$list" ] || { echo "install: nothing of Symrail is installed in $prefix" >&2; exit 1; }
  uninstall
  rmdir "$prefix" 2>/dev/null || true
  echo "install: removed from $prefix"
  exit 0
fi

build_or_take "$root" symrail-perftest symrail-c symrail-transport-c symrail-agent-c symrail-decomp-c symrail-nccl \
  symrail-nccl-net
version=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
[ ! -e "$list" ] || uninstall
mkdir -p "$(dirname "$list")"
echo share/symrail/installed > "$list"

# Writes to a separate file first: a program or library in use must not change under its users.
place() { # mode from to
  mkdir -p "$(dirname "$prefix/$3")"
  echo "$3" >> "$list"
  install -m "$1" "$2" "$prefix/$3.new"
  [ "$1" = 755 ] || sed -i "s/@VERSION@/$version/" "$prefix/$3.new"
  mv "$prefix/$3.new" "$prefix/$3"
}

alias_of() { # name-beside-it new
  mkdir -p "$(dirname "$prefix/$2")"
  echo "$2" >> "$list"
  ln -sfn "$1" "$prefix/$2"
}

place 755 "$built/symrail" bin/symrail
for name in oshrun oshcc oshc++ oshcxx symrailrun symrailcc symrailc++; do alias_of symrail "bin/$name"; done

# Each under its soname, which has the number of its binary interface, and for the linker under the name without it.
for name in libsymrail libsymrail_transport; do
  soname=$(grep -aoE "$name\.so\.[0-9]+" "$built/$name.so" | head -1)
  place 755 "$built/$name.so" "lib/$soname"
  alias_of "$soname" "lib/$name.so"
done
soname=$(grep -aoE 'libsymrail_agent\.so\.[0-9]+' "$built/libsymrail_agent_c.so" | head -1)
place 755 "$built/libsymrail_agent_c.so" "lib/$soname"
alias_of "$soname" lib/libsymrail_agent.so
place 644 "$root/agent/include/symrail_agent.h" include/symrail_agent.h
# By this name NCCL finds it for NCCL_NET_PLUGIN=symrail.
place 755 "$built/libnccl_net_symrail.so" lib/libnccl-net-symrail.so
place 644 "$root/transport/include/symrail_transport.h" include/symrail_transport.h
for header in shmem.h shmemx.h pshmem.h mpp/shmem.h; do place 644 "$root/shmem/include/$header" "include/$header"; done

# Never beside another libnccl.so.2 or libcudecomp.so, and not where ldconfig would make links with their names.
place 755 "$built/libsymrail_nccl.so" lib/symrail/nccl/libsymrail_nccl.so
alias_of libsymrail_nccl.so lib/symrail/nccl/libnccl.so.2
place 755 "$built/libsymrail_decomp_c.so" lib/symrail/cudecomp/libcudecomp.so.0
alias_of libcudecomp.so.0 lib/symrail/cudecomp/libcudecomp.so
for header in cudecomp.h cudecomp_version.h; do
  place 644 "$root/decomp/capi/include/$header" "include/symrail/cudecomp/$header"
done
place 644 "$root/decomp/capi/fortran/cudecomp.F90" include/symrail/cudecomp/cudecomp.F90

# Headers for kernels.
for header in symrail_device.cuh symrail_nvshmem.cuh symrail_layout.h; do place 644 "$root/kernels/include/$header" "include/$header"; done
for header in "$root"/kernels/include/symrail/*.cuh; do place 644 "$header" "include/symrail/$(basename "$header")"; done

place 644 "$root/shmem/capi/install/symrail.pc" lib/pkgconfig/symrail.pc
for file in SymrailConfig.cmake SymrailConfigVersion.cmake; do
  place 644 "$root/shmem/capi/install/$file" "lib/cmake/Symrail/$file"
done

for page in "$root"/docs/man/*.[1-8]; do
  place 644 "$page" "share/man/man${page##*.}/$(basename "$page")"
done
for name in oshrun symrailrun; do alias_of symrail-run.1 "share/man/man1/$name.1"; done
for name in oshcc oshc++ oshcxx symrailcc symrailc++; do alias_of symrail-cc.1 "share/man/man1/$name.1"; done

echo "install: $(wc -l < "$list") files in $prefix"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "install: add $prefix/bin to PATH" ;; esac
