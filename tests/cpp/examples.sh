#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The C and C++ examples of the documents, compiled and run: what a reader copies must work. An example is a block marked `c`
# or `cpp`; one without a main function is only compiled.
#
#     examples.sh OUT COMPILE_C COMPILE_CPP LINK       the last three are words of a command line
set -u
out=$1 compile_c=$2 compile_cpp=$3 link=$4
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out/examples"
rm -f "$out"/examples/*

for page in "$root"/README.md "$root"/docs/*.md; do
    [ -f "$page" ] || continue
    awk -v stem="$out/examples/$(basename "$page" .md)" '
        /^```(c|cpp)$/ { file = stem "-" (++count) "." substr($0, 4); next }
        /^```/ { if (file != "") close(file); file = "" }
        file != "" { print > file }
    ' "$page"
done

passed=0 failed=0
for source in "$out"/examples/*.c "$out"/examples/*.cpp; do
    [ -f "$source" ] || continue
    case $source in
    *.cpp) compile=$compile_cpp ;;
    *) compile=$compile_c ;;
    esac
    # What needs CCCL's or RMM's headers is compiled where they are: PACKAGES has the words for them (ci/cpp-packages).
    if grep -qE '<(tenure/(cccl|thrust|rmm)\.hpp|rmm/|cuda/|thrust/)' "$source"; then
        [ -n "${PACKAGES:-}" ] || continue
        compile="$compile $PACKAGES"
    elif [ -n "${PACKAGES:-}" ]; then
        continue
    fi
    if grep -q 'main(' "$source"; then
        # The words are meant to be split.
        # shellcheck disable=SC2086
        $compile "$source" -o "$source.run" $link && "$source.run" >"$source.out" 2>&1
    else
        # shellcheck disable=SC2086
        $compile -fsyntax-only "$source"
    fi
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $(basename "$source")" >&2
        [ -f "$source.out" ] && cat "$source.out" >&2
    fi
done
echo "examples: $passed passed, $failed failed"
# No example at all means that the marks of the blocks have changed.
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
