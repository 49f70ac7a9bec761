#!/bin/bash
# Makes a Debian package of what scripts/install.sh installs: programs, libraries, headers, pkg-config, CMake, man pages.
# (cargo-deb packages the files of one crate, by a list in its Cargo.toml. These are of five crates, and install.sh has
# the list already.)
#
#   scripts/deb.sh [FOLDER]      writes symrail_VERSION_ARCHITECTURE.deb into FOLDER (default: target/debian)
#
# SYMRAIL_INSTALL_FROM: the folder with the built files; without it a release is built. The package's maintainer is who
# makes it: DEBFULLNAME and DEBEMAIL as for Debian's own tools, or else git's user.name and user.email, or the user of this
# machine. Needs dpkg-deb.
set -euo pipefail
root=$(realpath "$(dirname "$(realpath "$0")")/..")
case ${1-} in -*) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
command -v dpkg-deb > /dev/null || { echo "deb: there is no dpkg-deb (Debian's package dpkg)" >&2; exit 1; }
out=$(realpath -m "${1:-${CARGO_TARGET_DIR:-$root/target}/debian}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/scripts/install.sh" --prefix "$work/usr" > /dev/null
# dpkg keeps the list of installed files itself.
rm -rf "$work/usr/share/symrail"
mkdir -p "$work/DEBIAN" "$work/usr/share/doc/symrail" "$out"
cp "$root"/LICENSE-* "$work/usr/share/doc/symrail/"
gzip -9n < "$root/CHANGELOG.md" > "$work/usr/share/doc/symrail/changelog.gz"
find "$work/usr/share/man" -type f -exec gzip -9n {} +
find "$work/usr/share/man" -type l | while read -r link; do
  ln -s "$(readlink "$link").gz" "$link.gz"
  rm "$link"
done
for file in "$work"/usr/bin/symrail "$work"/usr/lib/*.so* "$work"/usr/lib/symrail/*/*.so*; do
  [ -L "$file" ] || strip --strip-unneeded "$file"
done

# The newest version of glibc that a symbol of the package needs.
glibc=$(objdump -T "$work"/usr/bin/symrail "$work"/usr/lib/{,symrail/*/}*.so* 2> /dev/null | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)
version=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
architecture=$(dpkg --print-architecture)
name=${DEBFULLNAME:-$(git -C "$root" config user.name 2> /dev/null || id -un)}
address=${DEBEMAIL:-$(git -C "$root" config user.email 2> /dev/null || echo "$(id -un)@$(hostname)")}
chmod -R u=rwX,go=rX "$work"
cat > "$work/DEBIAN/control" <<CONTROL
Package: symrail
Version: $version
Architecture: $architecture
Maintainer: $name <$address>
Installed-Size: $(du -sk "$work/usr" | cut -f1)
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1
Recommends: libfabric1, openssh-client
Suggests: libibverbs1, ibverbs-providers, gcc
Section: libs
Priority: optional
Description: multi-rail one-sided transport for symmetric heaps
 OpenSHMEM for C and C++ over several NICs at once, by any provider of libfabric
 or by ibverbs; the launcher and its tools (symrail run, perf, info, top, tune,
 doctor); the transport as a C library; NCCL's network plugin; NCCL's and
 cuDecomp's interfaces; headers for CUDA kernels.
CONTROL
echo "activate-noawait ldconfig" > "$work/DEBIAN/triggers"
package=$out/symrail_${version}_$architecture.deb
dpkg-deb --root-owner-group -z3 --build "$work" "$package" > /dev/null
echo "deb: $package"
