# What the scripts in tools/ and ci/ share. Sourced by bash, never run.
#
# Rules that hold everywhere: nothing is written outside the clone; a virtual environment or conda environment that is
# active in the caller's shell is neither used nor changed; a home directory that cannot be written is no obstacle.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Where cargo builds. Said aloud, so that a setting in somebody's ~/.cargo/config.toml cannot move it elsewhere.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
case $CARGO_TARGET_DIR in /*) ;; *) CARGO_TARGET_DIR=$root/$CARGO_TARGET_DIR ;; esac
unset CARGO_BUILD_TARGET CARGO_BUILD_TARGET_DIR
target=$CARGO_TARGET_DIR

# The module is built for the stable ABI of Python 3.11: no Python is needed to build it and none is linked.
export PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1

# The caller's environment for Python: an active environment must not decide what we build or test.
unset VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1

# writable DIR: whether DIR can be written, or made.
writable() {
    local dir=$1
    while [ ! -e "$dir" ]; do dir=$(dirname "$dir"); done
    [ -d "$dir" ] && { : >"$dir/.tenure-probe.$$"; } 2>/dev/null && rm -f "$dir/.tenure-probe.$$"
}

# Caches that live in the home directory move into the target directory where the home directory cannot be written.
# Cargo reads a home of its own that is read-only, as long as every crate is there; otherwise it gets one that can be filled.
roam() {
    local home=${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}
    if ! writable "$home"; then
        if ! cargo tree --workspace --locked --offline --quiet >/dev/null 2>&1; then
            mkdir -p "$target/cargo-home"
            [ -f "$home/config.toml" ] && cp "$home/config.toml" "$target/cargo-home/"
            export CARGO_HOME=$target/cargo-home
        fi
    fi
    if ! writable "${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}"; then
        export PIP_CACHE_DIR=$target/pip-cache
    fi
}

# release_flags: what every release build of these scripts has in common (one that differs would build everything again).
# The messages of panics hold the paths of source files; those of the machine that built a wheel are nobody's business.
release_flags() {
    export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$root=tenure --remap-path-prefix=${CARGO_HOME:-${HOME:-}/.cargo}=cargo"
}

# die SENTENCE: an error of the tool itself, or of the machine.
die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# A check ends with one of these: it was not run at all (exit code 77), or a part of it was not.
skip() {
    printf 'SKIP: %s\n' "$1"
    exit 77
}
skipped_part() {
    printf 'SKIP: %s\n' "$1"
}

# version: tenure's, which stands once, at the root of the workspace.
version() {
    sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml"
}

# found COMMAND: whether there is such a command.
found() {
    command -v "$1" >/dev/null 2>&1
}

# at_least HAVE WANT: whether version HAVE is WANT or newer.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# pythons: every CPython from 3.11 on, one per minor version and one line each: VERSION PATH VENV, where VENV is "venv" or
# "bare" (a distribution may leave out what venv needs). Free-threaded builds do not load abi3 modules and are left out.
# $PYTHON comes first and stands for its version. Looks at PATH and
# at pyenv's versions; pyenv's shims are not called, since they answer for versions that are not chosen and take a tenth of
# a second each.
pythons() {
    local candidate dir real versions="${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}/versions" paths=() seen=' ' kinds=' ' line
    [ -n "${PYTHON:-}" ] && paths+=("$(command -v "$PYTHON" || true)")
    local IFS=:
    for dir in $PATH $versions; do
        case $dir in
            */shims | "$versions") paths+=("$versions"/3.*/bin/python3) ;;
            *) paths+=("$dir"/python3 "$dir"/python3.1[1-9]) ;;
        esac
    done
    unset IFS
    for candidate in "${paths[@]}"; do
        [ -x "$candidate" ] || continue
        real=$(readlink -f "$candidate") # of an environment: the Python that it was made with
        case $seen in *" $real "*) continue ;; esac
        seen="$seen$real "
        case ${real##*/} in python2* | python3.[0-9] | python3.10) continue ;; esac
        line=$("$candidate" -I -S -c '
import sys, importlib.util as u
if sys.version_info >= (3, 11) and sys.implementation.name == "cpython" and "t" not in sys.abiflags:
    print("%d.%d" % sys.version_info[:2], "%d.%d.%d" % sys.version_info[:3], sys._base_executable,
          "venv" if u.find_spec("venv") and u.find_spec("ensurepip") else "bare")
' 2>/dev/null) || continue
        [ -n "$line" ] || continue
        case $kinds in *" ${line%% *} "*) continue ;; esac
        kinds="$kinds${line%% *} "
        printf '%s\n' "${line#* }"
    done
}
