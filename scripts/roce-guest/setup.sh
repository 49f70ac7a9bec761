#!/bin/bash
# Prepares the guest once: installs QEMU and the programs that the guest calls, fetches Debian's kernel (whose modules
# include rdma_rxe) without installing it, and packs an initramfs of busybox, the modules and `init`.
#
# Result, in $ROCE_GUEST_DIR (default: target/roce-guest): vmlinux, initrd.img. Running it again does nothing.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
dir=${ROCE_GUEST_DIR:-$(realpath "$here/../..")/target/roce-guest}
mkdir -p "$dir"
dir=$(realpath "$dir")

# `wire` (veth, bridge) and packet loss (netem) are for the rails; 9p and overlay mount the host's root in the guest.
# libfabric connects by rdma_ucm.
modules="virtio_pci 9pnet_virtio 9p overlay dummy veth bridge udp_tunnel ip6_udp_tunnel crc32_generic sch_netem
         ib_core ib_uverbs rdma_ucm rdma_rxe"

install_packages() {
  local missing=()
  have() { command -v "$1" >/dev/null || missing+=("$2"); }
  have qemu-system-x86_64 qemu-system-x86
  have busybox busybox-static
  have cpio cpio
  have depmod kmod
  have strip binutils
  have xz xz-utils
  have rdma iproute2
  have python3 python3-minimal
  ldconfig -p | grep 'libibverbs\.so\.1' >/dev/null || missing+=(libibverbs1)
  ls /etc/libibverbs.d/rxe.driver >/dev/null 2>&1 || missing+=(ibverbs-providers)
  [ ${#missing[@]} = 0 ] && return
  export DEBIAN_FRONTEND=noninteractive
  local apt="apt-get install -y -qq --no-install-recommends"
  apt-get update -qq
  # A qemu-utils that is newer than the distribution's QEMU conflicts with it; it is dropped only in that case.
  $apt "${missing[@]}" || $apt "${missing[@]}" qemu-utils-
}

fetch_kernel() {
  [ -e "$dir/vmlinux" ] && [ -d "$dir/kernel/lib/modules" ] && return
  local package
  package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
  rm -rf "$dir/kernel"
  mkdir -p "$dir/kernel"
  (cd "$dir/kernel" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x "$package"_*.deb . && rm -f ./*.deb)
  # QEMU boots the bare kernel faster than the compressed one, which it would have to unpack instruction by instruction.
  python3 - "$dir"/kernel/boot/vmlinuz-* "$dir/vmlinux.new" <<'PYTHON'
import lzma, struct, sys
image = open(sys.argv[1], "rb").read()
offset, length = struct.unpack_from("<II", image, 0x248)   # setup header: payload_offset, payload_length
start = (image[0x1F1] + 1) * 512 + offset                  # the payload follows the setup sectors
payload = image[start:start + length]
if payload.startswith(b"\xfd7zXZ\0"):
    payload = lzma.LZMADecompressor().decompress(payload)
    payload = payload[payload.find(b"\x7fELF"):]
else:
    payload = image                                        # another compression: boot the image as it is
open(sys.argv[2], "wb").write(payload)
PYTHON
  mv "$dir/vmlinux.new" "$dir/vmlinux"
}

pack_initramfs() {
  [ "$dir/initrd.img" -nt "$here/init" ] && [ "$dir/initrd.img" -nt "$here/setup.sh" ] && return
  local version root file name
  version=$(ls "$dir/kernel/lib/modules")
  [ -e "$dir/kernel/lib/modules/$version/modules.dep" ] || depmod -b "$dir/kernel" "$version"
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,proc,sys,dev,run,newroot,modules}
  cp "$(command -v busybox)" "$root/bin/busybox"
  install -m 755 "$here/init" "$root/init"
  for name in $modules; do
    modprobe -d "$dir/kernel" -S "$version" --show-depends "$name" 2>/dev/null || true
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    name=$(basename "$file" .xz)
    case $file in *.xz) xz -dc "$file" ;; *) cat "$file" ;; esac > "$root/modules/$name"
    strip --strip-debug "$root/modules/$name"
    echo "/modules/$name" >> "$root/modules.order"
  done
  # Not compressed: an emulated CPU unpacks slower than QEMU reads.
  (cd "$root" && find . | cpio -o -H newc --quiet) > "$dir/initrd.img.new"
  mv "$dir/initrd.img.new" "$dir/initrd.img"
  rm -rf "$root"
}

install_packages
fetch_kernel
pack_initramfs
