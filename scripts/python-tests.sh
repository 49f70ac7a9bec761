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
if [ ! -e "$venv/complete" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv" || { echo "SKIPPED: python3 -m venv fails"; exit 77; }
  "$venv/bin/pip" --quiet --disable-pip-version-check install numpy ml-dtypes pytest hypothesis mypy markdown ||
    { echo "SKIPPED: pip cannot install numpy, ml-dtypes, pytest, hypothesis, mypy and markdown"; exit 77; }
  touch "$venv/complete"
fi

# The features of `cargo test --workspace`, so that nothing is compiled again.
cargo build --quiet --workspace --lib --bins --examples || exit 1
# The package in its installed form, without the time to build a wheel.
mkdir -p "$staged"
ln -sfn "$PWD/python/symrail" "$staged/symrail"
ln -sf "$target/debug/lib_symrail.so" python/symrail/_symrail.abi3.so

export PYTHONPATH=$staged SYMRAIL_TEST_PROGRAM=$target/debug/symrail PYTHONDONTWRITEBYTECODE=1
(cd python && "$venv/bin/mypy" --cache-dir "$target/mypy") || exit 1
"$venv/bin/python" -m pytest -q -p no:cacheprovider -ra python/tests "$@"
