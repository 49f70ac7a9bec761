#!/bin/bash
# Tests of the Python package: pytest and mypy, in a separate environment.
#
#   scripts/python-tests.sh [ARGUMENTS OF PYTEST]
#
# Exit code 77, and SKIPPED with the reason, if the environment cannot be made.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit 1
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$target/python-venv
staged=$target/python

python=$(command -v python3) || { echo "SKIPPED: there is no python3"; exit 77; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "SKIPPED: $("$python" -V) is older than 3.10"; exit 77; }
packages="numpy ml-dtypes pytest pytest-xdist hypothesis mypy markdown"
if [ "$(cat "$venv/complete" 2> /dev/null)" != "$packages" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv" || { echo "SKIPPED: python3 -m venv fails"; exit 77; }
  # shellcheck disable=SC2086
  "$venv/bin/pip" --quiet --disable-pip-version-check install $packages ||
    { echo "SKIPPED: pip cannot install $packages"; exit 77; }
  echo "$packages" > "$venv/complete"
fi

# The features of `cargo test --workspace`, so that nothing is compiled again.
cargo build --quiet --workspace --lib --bins --examples || exit 1
# The package in its installed form, without the time to build a wheel.
mkdir -p "$staged"
ln -sfn "$PWD/python/symrail" "$staged/symrail"
ln -sf "$target/debug/lib_symrail.so" python/symrail/_symrail.abi3.so

# Jobs start hundreds of interpreters: they find compiled modules, which are not kept beside the sources.
export PYTHONPATH=$staged SYMRAIL_TEST_PROGRAM=$target/debug/symrail PYTHONPYCACHEPREFIX=$target/pycache
(cd python && "$venv/bin/mypy" --cache-dir "$target/mypy") || exit 1
# Two at a time: jobs wait for processes to start, and for time-outs, two thirds of their time.
"$venv/bin/python" -m pytest -q -p no:cacheprovider -n 2 --dist worksteal -ra python/tests "$@"
