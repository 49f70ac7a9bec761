#!/bin/bash
# Builds the Python package's wheel, for any Linux with glibc 2.28 or later and Python 3.10 or later, and checks its
# dependencies on other libraries, and in an otherwise empty environment, a ring, the program symrail, and that nothing
# remains when it is uninstalled.
#
#   scripts/wheel.sh [FOLDER]      into FOLDER, or target/wheel; a release build, which takes minutes
#
# Exit code 77, and SKIPPED with the reason, if the tools are not available.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$(realpath -m "${1:-$target/wheel}")
tools=$target/wheel-tools
# Zig has the C library's symbols of every version to link against.
needed=("maturin>=1.16,<2" "cargo-zigbuild>=0.20" ziglang "auditwheel>=6" numpy)
oldest_glibc=2_28
triple=$(uname -m)-unknown-linux-gnu

python=$(command -v python3) || { echo "SKIPPED: there is no python3"; exit 77; }
if [ ! -e "$tools/complete" ]; then
  rm -rf "$tools"
  "$python" -m venv "$tools" || { echo "SKIPPED: python3 -m venv fails"; exit 77; }
  "$tools/bin/pip" --quiet --disable-pip-version-check install "${needed[@]}" ||
    { echo "SKIPPED: pip cannot install ${needed[*]}"; exit 77; }
  touch "$tools/complete"
fi

# The device functions for Triton, in the package's folder.
if made=$(scripts/bitcode.sh); then :; else
  [ $? = 77 ] || exit 1
  echo "$made"
  exit 77
fi

# The libraries that programs load for NCCL's, NVSHMEM's and cuDecomp's, in the package's folder `lib`
# (python/symrail/_libraries.py has the functions that return their paths).
PATH=$tools/bin:$PATH cargo zigbuild --quiet --release --locked --target "$triple.${oldest_glibc/_/.}" \
  -p symrail-nccl-net -p symrail-nccl -p symrail-nvshmem -p symrail-decomp-c
libraries=$(mktemp -d)
trap 'rm -rf "$libraries"' EXIT
for name in nccl_net_symrail symrail_nccl symrail_nvshmem symrail_decomp_c; do
  strip --strip-unneeded -o "$libraries/lib$name.so" "$target/$triple/release/lib$name.so"
done
rm -rf python/symrail/lib
mkdir -p python/symrail/lib/cudecomp
cp "$libraries/libnccl_net_symrail.so" python/symrail/lib/libnccl-net-symrail.so
cp "$libraries/libsymrail_nccl.so" python/symrail/lib/
cp "$libraries/libsymrail_decomp_c.so" python/symrail/lib/cudecomp/libcudecomp.so.0
SYMRAIL_INSTALL_FROM=$libraries scripts/nvshmem-install.sh --prefix "$libraries/prefix" > /dev/null
cp "$libraries"/prefix/lib/symrail-nvshmem/*.so.* python/symrail/lib/

rm -rf "$out"
mkdir -p "$out"
(cd python && PATH=$tools/bin:$PATH maturin build --release --zig --locked --compatibility manylinux_$oldest_glibc --out "$out")
wheel=$(ls "$out"/symrail-*.whl)

fail() { echo "wheel: $1" >&2; exit 1; }

# Its dependencies on the system: only parts of the C library, of the version in the tag.
"$tools/bin/auditwheel" show "$wheel" | tee "$out/audit.txt"
grep -q "manylinux_${oldest_glibc}_$(uname -m)" "$out/audit.txt" || fail "auditwheel finds another tag"
checked=$(mktemp -d)
trap 'rm -rf "$checked" "$libraries"' EXIT
"$python" -m zipfile -e "$wheel" "$checked/wheel"
others=$(readelf -d "$checked"/wheel/symrail/*.so "$checked"/wheel/symrail/lib/{,*/}*.so* | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
  grep -vE '^(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux.*)\.so' || true)
[ -z "$others" ] || fail "it is linked with $others"

[ -s "$checked/wheel/symrail/libsymrail_device.bc" ] || fail "it lacks libsymrail_device.bc"
# Licences, and the list of components (CycloneDX) that maturin makes.
about=("$checked"/wheel/symrail-*.dist-info)
[ -s "$about/licenses/LICENSE-MIT" ] && [ -s "$about/licenses/LICENSE-APACHE" ] || fail "it lacks its licences"
[ -s "$about/sboms/symrail-python.cyclonedx.json" ] || fail "it lacks its list of components"

# In a separate environment, from another folder, without this source tree's settings.
"$python" -m venv "$checked/venv"
"$checked/venv/bin/pip" --quiet --disable-pip-version-check install "$wheel"
cd "$checked"
alone() { env -i HOME="$checked" PATH="$checked/venv/bin:/usr/bin:/bin" PYTHONDONTWRITEBYTECODE=1 "$@"; }
cat > ring.py << 'END'
import symrail

with symrail.init(heap_bytes=4 << 20):
    me, n = symrail.my_pe(), symrail.n_pes()
    box = symrail.array(3, "float64")
    symrail.put(box, me, (me + 1) % n)
    symrail.barrier_all()
    assert (box == (me - 1) % n).all() and symrail.info()["job"]["n_pes"] == n
    print("well\n", end="", flush=True)
END
[ "$(alone symrail run -n 4 -- python ring.py)" = "$(yes well | head -4)" ] || fail "the ring fails"
# No network library exists there.
missing=(SYMRAIL_LIBFABRIC_SO=/nonexistent/libfabric.so SYMRAIL_IBV_SO=/nonexistent/libibverbs.so)
[ "$(alone "${missing[@]}" symrail run -n 2 -- python ring.py)" = "$(yes well | head -2)" ] || fail "the ring needs libfabric"
alone "${missing[@]}" python -c 'import symrail; print(symrail.info())' | grep -q "libfabric *missing" || fail "info()"
# The other libraries are where the package says, and can be loaded.
alone python - << 'END' || fail "the libraries for other libraries' programs"
import ctypes
import symrail

assert ctypes.CDLL(symrail.nccl_plugin_path()).ncclNetPlugin_v10
assert ctypes.CDLL(symrail.nccl_path()).ncclAllReduce
assert ctypes.CDLL(symrail.cudecomp_path()).cudecompInit
for version in ("3.4", "3.5", "3.6", "3.7", "3.8"):
    assert ctypes.CDLL(symrail.nvshmem_path(version)).nvshmemt_init
END
alone symrail perf put-lat -e 8 -i 100 | grep -q "data at the target checked" || fail "symrail perf"
alone symrail info | grep -q "^chosen" || fail "symrail info"
alone python -m symrail --version | grep -q "^symrail " || fail "python -m symrail"
"$checked/venv/bin/pip" --quiet --disable-pip-version-check uninstall --yes symrail
left=$(find "$checked/venv" -iname '*symrail*')
[ -z "$left" ] || fail "pip uninstall leaves $left"
echo "wheel: $wheel: well"
