# Sourced by the scripts that install something: their options, and the source of the files.

# Prints the script's own head, from the first line with its name on.
usage() { sed -n '/^#   scripts\//,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2; }

# Sets `prefix` (an absolute path), `undo` (1 for --uninstall) and a variable for each of the script's own options.
take_options() { # own-option… -- argument…
  local with_value=' prefix ' name
  prefix='' undo=0
  while [ "$1" != -- ]; do
    printf -v "$1" ''
    with_value+="$1 "
    shift
  done
  shift
  while [ $# -gt 0 ]; do
    name=${1#--}
    name=${name%%=*}
    case $1 in
      --uninstall) undo=1 ;;
      --*=*) [[ $with_value == *" $name "* ]] || usage; printf -v "$name" %s "${1#*=}" ;;
      --*) [[ $with_value == *" $name "* ]] && [ $# -ge 2 ] || usage; printf -v "$name" %s "$2"; shift ;;
      *) usage ;;
    esac
    shift
  done
  [ -n "$prefix" ] || usage
  prefix=$(realpath -m "$prefix")
}

# Sets `built` to the folder of the files to install: SYMRAIL_INSTALL_FROM, or the folder where cargo builds these
# packages now.
build_or_take() { # root package…
  built=${SYMRAIL_INSTALL_FROM:-}
  [ -z "$built" ] || return 0
  local target root=$1 quiet=--quiet
  target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
  shift
  # On a terminal cargo shows its progress.
  [ ! -t 2 ] || quiet=
  CARGO_TARGET_DIR=$target cargo build $quiet --release --manifest-path "$root/Cargo.toml" "${@/#/--package=}"
  built=$target/release
}
