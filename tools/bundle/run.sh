#!/usr/bin/env bash
# Tests and measures tenure on this machine's NVIDIA GPU. Needs Python 3.11 or newer with pytest; no compiler (but for the part
# cccl, which is skipped without nvcc), no network.
#
#   ./run.sh [OUTDIR] [PART...]      parts: info rust cpp python exit patterns handover mix replay bench peers check cccl
#                                  sanitizer training jobs frames steps cases rmm-tests bridge (default: all)
#
# Each part ends with one line, each program leaves a log in OUTDIR/logs, and a failure stops nothing.
# PATTERN_SECONDS says how long the part patterns takes (60), EXIT_PARALLEL how many processes the part exit runs at a time
# (as many as there are cores), REPEATS how often each of its scenes runs (100).
# TENURE_DEVICE=sim runs the same on the simulated device. PYTHON names the Python.
# Where the wheels of RMM (rmm, librmm, rapids-logger, for this Python) lie in the folder peers beside this file, they are
# measured in the same run, and with a C++20 compiler (CXX) and CUDA's headers (CUDA_HOME) RMM's C++ resources too; so are
# CuPy and PyTorch where this Python has them. Where a folder rmm-tests with RMM's own Python tests, or a folder cases with a suite
# and its run_cases.py, lies beside this file, it is run on tenure and, where the wheels are there, on RMM. NVCC and CUDA_ARCH are
# for the part cccl, MIX_SECONDS says how long each order of imports of the part mix takes (10). Nothing is installed outside
# OUTDIR. QUICK=--quick makes the measuring short.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/results}
[ $# -gt 0 ] && shift
mkdir -p "$out/logs"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
export TENURE_DEVICE=${TENURE_DEVICE:-cuda} TENURE_TEST_DEVICE=${TENURE_DEVICE:-cuda} TENURE_TEST_INSTALLED=1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
limit=${LIMIT:-240} # seconds for one program
wanted=" $* "
failed=0
# Whoever runs in the background has SIGINT ignored, and so has all that it starts; tests of the interrupt need it.
default=()
env --default-signal=INT true 2>/dev/null && default=(env --default-signal=INT)

wants() { [ "$wanted" = "  " ] || [[ $wanted == *" $1 "* ]]; }
# part NAME TEXT CODE SECONDS: the summary of a part.
part() {
    local word=passed
    [ "$3" = 0 ] || { word=FAILED && failed=$((failed + 1)); }
    printf '%-10s %-7s %4d s  %s\n' "$1" "$word" "$4" "$2" | tee -a "$out/summary.txt"
}
: >"$out/summary.txt"

site=$out/site
rm -rf "$site"
"$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$here"/wheel/*.whl \
    >"$out/logs/install.log" 2>&1 || { cat "$out/logs/install.log"; echo "the wheel cannot be installed"; exit 1; }
library=$site/tenure/lib/libtenure.so.0
export PYTHONPATH=$site MIX_LIBRARIES=$here/lib TENURE_HANDOVER_OUT=$here/actors TENURE_BINDINGS_OUT=$out/bindings

# The Rust programs come packed.
rust=$out/rust
if wants rust || wants patterns || wants check; then
    rm -rf "$rust"
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' "$here/rust.tar.xz" "$out" ||
        { echo "the Rust programs cannot be unpacked"; exit 1; }
fi

if wants info; then
    start=$SECONDS code=0
    { cat "$here/ABOUT"; uname -a; "$python" --version; nvidia-smi; "$python" -m tenure info; } >"$out/logs/info.log" 2>&1 || code=$?
    part info "$(sed -n 's/^ *name: //p' "$out/logs/info.log" | sort | uniq -c | xargs)" $code $((SECONDS - start))
fi

# skipped NAME REASON: the summary of a part that did not run.
skipped() { printf '%-10s skipped         %s\n' "$1" "$2" | tee -a "$out/summary.txt"; }

# programs NAME FOLDER: each program of a folder, by itself.
programs() {
    local name=$1 start=$SECONDS good=0 bad=() tests=0 file base code n place
    for file in "$2"/*; do
        base=$(basename "$file")
        [ -x "$file" ] && [ -f "$file" ] || continue
        place=(TENURE_LIBRARY="$library" LD_LIBRARY_PATH="$site/tenure/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
        set --
        # This one finds the library by itself, at the path that it is given.
        [ "$base" = header_only ] && place=(-u LD_LIBRARY_PATH) && set -- "$library"
        code=0
        (cd "$out" && env "${place[@]}" timeout "$limit" "$file" "$@") >"$out/logs/$name.$base.log" 2>&1 </dev/null || code=$?
        n=$(sed -n 's/^test result: [a-zA-Z]*\. \([0-9]*\) passed.*/\1/p; s/.*: \([0-9]*\) passed, [0-9]* failed$/\1/p' "$out/logs/$name.$base.log" |
            awk '{s += $1} END {print s + 0}')
        tests=$((tests + n))
        if [ $code = 0 ]; then good=$((good + 1)); else bad+=("$base($code)"); fi
    done
    part "$name" "$good programs passed, $tests tests; ${#bad[@]} failed ${bad[*]:-}" ${#bad[@]} $((SECONDS - start))
}
# Exits are repeated by the part of that name; here each scene runs once or twice.
export EXIT_REPEAT=${EXIT_REPEAT:-2}
wants rust && programs rust "$rust"
wants cpp && programs cpp "$here/cpp"

if wants python; then
    start=$SECONDS code=0
    (cd "$here/tree" && timeout $((limit * 2)) "${default[@]}" "$python" -m pytest -q -ra -p no:cacheprovider --ignore tests/python/test_exit.py tests/python) >"$out/logs/python.log" 2>&1 </dev/null || code=$?
    part python "$(tail -n 1 "$out/logs/python.log")" $code $((SECONDS - start))
fi

if wants exit; then
    # Each is a process that starts the driver, about a second on a GPU, and looks at nothing that it shares: beside each
    # other 1300 of them take some minutes there, one after the other an hour.
    start=$SECONDS code=0 parallel=() repeats=${REPEATS:-100}
    export EXIT_PARALLEL=${EXIT_PARALLEL:-$(nproc)}
    "$python" -c 'import xdist' 2>/dev/null && parallel=(-n "$EXIT_PARALLEL")
    (cd "$here/tree" && TENURE_EXIT_REPEATS=$repeats timeout $((limit * 6)) "${default[@]}" "$python" -m pytest -q -p no:cacheprovider "${parallel[@]}" tests/python/test_exit.py) >"$out/logs/exit.log" 2>&1 </dev/null || code=$?
    EXIT_REPEAT=$repeats LD_LIBRARY_PATH=$site/tenure/lib timeout $((limit * 6)) "$here/cpp/exit" >"$out/logs/exit-cpp.log" 2>&1 </dev/null || code=$?
    part exit "$repeats times each: $(tail -n 1 "$out/logs/exit.log"); C++: $(tail -n 1 "$out/logs/exit-cpp.log")" $code $((SECONDS - start))
fi

if wants patterns; then
    # A pattern in each block, by which its owner knows it: many threads and streams in a tight pool.
    start=$SECONDS code=0 seconds=${PATTERN_SECONDS:-60}
    (cd "$out" && PATTERN_SECONDS=$seconds timeout $((limit + ${seconds%.*})) "$rust/tenure-core.pool_patterns" --nocapture --exact every_block_keeps_its_owners_pattern) >"$out/logs/patterns.log" 2>&1 </dev/null || code=$?
    part patterns "$(sed -n 's/.*patterns: //p' "$out/logs/patterns.log" | tail -n 1)" $code $((SECONDS - start))
fi

if wants handover; then
    start=$SECONDS code=0
    (cd "$here/tree" && HANDOVER_LIBRARIES=$here/lib LD_LIBRARY_PATH=$site/tenure/lib timeout "$limit" "$python" examples/handover/run.py) >"$out/logs/handover.log" 2>&1 </dev/null || code=$?
    part handover "$(tail -n 1 "$out/logs/handover.log")" $code $((SECONDS - start))
fi

if wants mix; then
    # CuPy, PyTorch, Numba, a C++ library and tenure's buffers in one process, in every order of imports.
    start=$SECONDS code=0
    if [ "$TENURE_DEVICE" = sim ] || "$python" -c 'import cupy' 2>/dev/null; then
        (cd "$here/tree" && LD_LIBRARY_PATH=$site/tenure/lib timeout $((limit * 5)) "$python" tests/mix/mix.py --library "$here/lib/libmixed.so" --seconds "${MIX_SECONDS:-10}") >"$out/logs/mix.log" 2>&1 </dev/null || code=$?
        # Memory that is given away while a slow stream uses it must be found, else the patterns are worth nothing.
        if [ "$TENURE_DEVICE" != sim ]; then
            (cd "$here/tree" && LD_LIBRARY_PATH=$site/tenure/lib timeout "$limit" "$python" tests/mix/mix.py --library "$here/lib/libmixed.so" --one none --early) >"$out/logs/mix-early.log" 2>&1 </dev/null && code=1 && echo "nobody saw what was dropped early" >>"$out/logs/mix.log"
        fi
        part mix "$(tail -n 1 "$out/logs/mix.log")" $code $((SECONDS - start))
    else
        skipped mix "no CuPy, whose kernels write the patterns"
    fi
fi

if wants replay; then
    start=$SECONDS code=0
    for resource in cuda async pool; do
        timeout "$limit" "$python" -m tenure replay "$here"/tree/examples/data/*.csv --resource $resource --repeat 3 --json >"$out/replay-$resource.json" 2>"$out/logs/replay-$resource.log" </dev/null || code=$?
    done
    timeout "$limit" "$python" -m tenure replay "$here"/tree/examples/data/*.csv --smallest --json >"$out/replay-smallest.json" 2>"$out/logs/replay-smallest.log" </dev/null || code=$?
    timeout "$limit" "$python" -m tenure replay "$here"/tree/examples/data/*.csv --threads --repeat 3 --json >"$out/replay-threads.json" 2>"$out/logs/replay-threads.log" </dev/null || code=$?
    timeout "$limit" "$python" -m tenure replay "$here"/tree/examples/data/*.csv --smallest --html "$out/report.html" >"$out/replay.txt" 2>&1 </dev/null || code=$?
    part replay "tables in replay.txt, replay-*.json; the picture is report.html" $code $((SECONDS - start))
fi

if wants bench; then
    start=$SECONDS code=0
    timeout $((limit * 2)) "$python" -m tenure bench ${QUICK:-} --json >"$out/bench.json" 2>"$out/logs/bench.log" </dev/null || code=$?
    timeout $((limit * 2)) "$python" -m tenure bench ${QUICK:-} >"$out/bench.txt" 2>>"$out/logs/bench.log" </dev/null || code=$?
    part bench "bench.txt, bench.json" $code $((SECONDS - start))
fi

# The peers' packages, where their wheels are here.
if { wants peers || wants sanitizer || wants cases || wants rmm-tests || wants bridge || wants jobs || wants frames || wants steps; } && compgen -G "$here/peers/*.whl" >/dev/null; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$out/peers" "$here"/peers/*.whl >"$out/logs/peers-install.log" 2>&1
fi

# compile_peers: peers.cpp against RMM's headers and ours, or the reason why not.
compile_peers() {
    local rmm=$out/peers/librmm logger=$out/peers/rapids_logger cuda=${CUDA_HOME:-/usr/local/cuda} cxx=${CXX:-g++}
    command -v "$cxx" >/dev/null 2>&1 || { echo "no C++ compiler ($cxx)" && return 1; }
    [ -d "$rmm/include/rmm" ] || { echo "no headers of RMM (librmm) in $here/peers" && return 1; }
    [ -f "$cuda/include/cuda_runtime_api.h" ] || { echo "no headers of CUDA in $cuda/include (set CUDA_HOME)" && return 1; }
    "$cxx" -std=c++20 -O2 -DNDEBUG -I"$site/tenure/include" -isystem "$rmm/include/rapids" -isystem "$rmm/include" \
        -isystem "$logger/include" -isystem "$cuda/include" "$here/peers.cpp" -o "$out/peers.program" \
        -L"$site/tenure/lib" -l:libtenure.so.0 -L"$rmm/lib64" -lrmm -L"$logger/lib64" -lrapids_logger -L"$cuda/lib64" -lcudart -pthread -ldl \
        -Wl,-rpath,"$site/tenure/lib:$rmm/lib64:$logger/lib64:$cuda/lib64" >"$out/logs/peers-compile.log" 2>&1 ||
        { echo "peers.cpp did not compile: $(grep -m 1 error "$out/logs/peers-compile.log")" && return 1; }
}

if wants peers; then
    start=$SECONDS code=0 why="" beside=peers-cpp.txt
    PYTHONPATH=$site:$out/peers timeout $((limit * 4)) "$python" "$here/peers.py" ${QUICK:-} --json "$out/peers.json" >"$out/peers.txt" 2>"$out/logs/peers.log" </dev/null || code=$?
    if why=$(compile_peers); then
        timeout $((limit * 2)) "$out/peers.program" ${QUICK:-} --json "$out/peers-cpp.json" >"$out/peers-cpp.txt" 2>"$out/logs/peers-cpp.log" </dev/null || code=$?
    else
        beside="C++ left out: $why"
    fi
    part peers "peers.txt, $beside$([ $code = 0 ] || tail -qn 1 "$out/logs/peers.log" "$out/logs/peers-cpp.log" 2>/dev/null)" $code $((SECONDS - start))
fi

if wants check; then
    # The small C++ programs, and the patterns for a few seconds, under memcheck: nothing may be reported. Each launch ends
    # before the next call, since the tool takes a free for done when the call is made (docs/tools.md). Calls that the driver
    # refuses are no errors here: some tests ask for more than there is.
    start=$SECONDS good=() bad=()
    tool=${COMPUTE_SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
    if [ -z "$tool" ]; then
        skipped check "no compute-sanitizer: put it on PATH, or name it in COMPUTE_SANITIZER"
    elif [ "$TENURE_DEVICE" = sim ]; then
        skipped check "compute-sanitizer sees kernels of a GPU, and this is the simulated device"
    else
        # checked NAME COMMAND...: one program under the tool.
        checked() {
            local name=$1 code=0
            shift
            (cd "$out" && LD_LIBRARY_PATH="$site/tenure/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout "$limit" \
                "$tool" --tool memcheck --nvtx yes --force-blocking-launches --report-api-errors no --error-exitcode 99 "$@") >"$out/logs/check.$name.log" 2>&1 </dev/null || code=$?
            if [ $code = 0 ]; then good+=("$name"); else bad+=("$name($code)"); fi
        }
        for name in types rules threads; do checked $name "$here/cpp/$name"; done
        PATTERN_SECONDS=${CHECK_SECONDS:-10} PATTERN_BYTES=$((256 << 20)) checked patterns \
            "$rust/tenure-core.pool_patterns" --nocapture --exact every_block_keeps_its_owners_pattern
        part check "under memcheck without an error: ${good[*]:-none}; with one: ${bad[*]:-none}" ${#bad[@]} $((SECONDS - start))
    fi
fi

if wants cccl; then
    # Thrust and CUB over tenure's memory, compiled here: CCCL's headers are in the bundle, nvcc is this machine's. Before that,
    # what needs no nvcc, on this device.
    start=$SECONDS code=0 nvcc=${NVCC:-$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc)}
    if [ -z "$nvcc" ]; then
        skipped cccl "no nvcc: put it on PATH, or name it in NVCC"
    elif [ ! -f "$here/cccl.zip" ]; then
        skipped cccl "the bundle was made without CCCL's headers (no network then)"
    else
        "$python" -m zipfile -e "$here/cccl.zip" "$out/cccl" || code=$?
        for standard in c++17 c++20; do
            "$nvcc" -std=$standard -O2 ${CUDA_ARCH:+-arch=$CUDA_ARCH} -Xcompiler -Wall,-Wextra -I"$site/tenure/include" -I"$out/cccl/include" \
                "$here/tree/tests/cpp/foreign/cccl.cu" -o "$out/cccl.$standard" -L"$site/tenure/lib" -Xlinker -l:libtenure.so.0 \
                -Xlinker -rpath="$site/tenure/lib" -ldl >"$out/logs/cccl-compile.$standard.log" 2>&1 || { code=1 && continue; }
            timeout "$limit" "$out/cccl.$standard" >"$out/logs/cccl.$standard.log" 2>&1 </dev/null || code=1
        done
        cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
        "${CXX:-g++}" -std=c++17 -O2 -I"$site/tenure/include" -isystem "$out/cccl/include" -isystem "$cuda/include" \
            "$here/tree/tests/cpp/foreign/cccl.cpp" -o "$out/cccl.host" -L"$site/tenure/lib" -l:libtenure.so.0 \
            -Wl,-rpath,"$site/tenure/lib" -pthread -ldl >"$out/logs/cccl-compile.host.log" 2>&1 &&
            timeout "$limit" "$out/cccl.host" >"$out/logs/cccl.host.log" 2>&1 </dev/null || code=1
        part cccl "$(tail -qn 1 "$out"/logs/cccl.*.log 2>/dev/null | paste -sd ';')" $code $((SECONDS - start))
    fi
fi

if wants sanitizer; then
    # One wrong kernel, in memory of tenure's pool and of RMM's, under compute-sanitizer.
    start=$SECONDS code=0
    PYTHONPATH=$site:$out/peers timeout $((limit * 4)) "$python" "$here/sanitizer.py" >"$out/sanitizer.txt" 2>"$out/logs/sanitizer.log" </dev/null || code=$?
    if [ $code = 0 ] && grep -q ^skipped "$out/sanitizer.txt"; then
        skipped sanitizer "$(sed -n 's/^skipped: //p' "$out/sanitizer.txt")"
    else
        part sanitizer "sanitizer.txt, logs/sanitizer.log" $code $((SECONDS - start))
    fi
fi

if wants training; then
    # examples/training under both routes, with what torch.compile and graphs want of them.
    start=$SECONDS code=0 good=()
    if [ "$TENURE_DEVICE" = sim ] || ! "$python" -c 'import torch' 2>/dev/null; then
        skipped training "needs a GPU and PyTorch"
    else
        for way in "process default" "pool default" "pool reduce-overhead"; do
            set -- $way
            if (cd "$here/tree" && timeout $((limit * 2)) "$python" examples/training/train.py --route "$1" --compile "$2") >"$out/logs/training-$1-$2.log" 2>&1 </dev/null; then
                good+=("$1/$2")
            else
                code=1
            fi
        done
        part training "passed: ${good[*]:-none}" $code $((SECONDS - start))
    fi
fi

# Programs that are nobody's test, where a folder jobs with mixed_job.py and largest_batch.py lies beside this file.
if wants jobs && [ -d "$here/jobs" ] && [ "$TENURE_DEVICE" != sim ]; then
    start=$SECONDS code=0
    PYTHONPATH=$site:$out/peers timeout $((limit * 10)) "$python" "$here/jobs.py" "$here/jobs" >"$out/jobs.txt" 2>"$out/logs/jobs.log" </dev/null || code=$?
    part jobs "jobs.txt" $code $((SECONDS - start))
elif wants jobs; then
    skipped jobs "needs a GPU and a folder jobs with mixed_job.py and largest_batch.py beside this file"
fi

# A turn of pylibcudf's on tenure and on RMM's resources.
if wants frames; then
    start=$SECONDS code=0
    if [ "$TENURE_DEVICE" = sim ] || ! PYTHONPATH=$site:$out/peers "$python" -c 'import pylibcudf' 2>/dev/null; then
        skipped frames "needs a GPU, RMM and pylibcudf"
    else
        PYTHONPATH=$site:$out/peers timeout $((limit * 4)) "$python" "$here/frames.py" ${QUICK:-} >"$out/frames.txt" 2>"$out/logs/frames.log" </dev/null || code=$?
        part frames "frames.txt" $code $((SECONDS - start))
    fi
fi

# Where the time of cupy.empty goes, step by step.
if wants steps; then
    start=$SECONDS code=0
    if "$python" -c 'import cupy' 2>/dev/null; then
        PYTHONPATH=$site:$out/peers timeout $((limit * 4)) "$python" "$here/steps.py" >"$out/steps.txt" 2>"$out/logs/steps.log" </dev/null || code=$?
        part steps "steps.txt" $code $((SECONDS - start))
    else
        skipped steps "no CuPy"
    fi
fi

# An empty folder is no suite.
if wants cases && [ -f "$here/cases/run_cases.py" ]; then
    start=$SECONDS code=0 beside=
    timeout $((limit * 4)) "$python" "$here/cases/run_cases.py" --lib tenure --json "$out/cases-tenure.json" >"$out/cases-tenure.txt" 2>&1 </dev/null || code=$?
    if [ -d "$out/peers/rmm" ]; then
        PYTHONPATH=$site:$out/peers timeout $((limit * 4)) "$python" "$here/cases/run_cases.py" --lib rmm --json "$out/cases-rmm.json" >"$out/cases-rmm.txt" 2>&1 </dev/null
        beside="; RMM: $(tail -n 1 "$out/cases-rmm.txt")"
    fi
    part cases "tenure: $(tail -n 1 "$out/cases-tenure.txt")$beside" $code $((SECONDS - start))
elif wants cases; then
    skipped cases "no folder cases with run_cases.py beside this file"
fi

if wants rmm-tests && [ -f "$here/rmm-tests/conftest.py" ]; then
    start=$SECONDS code=0 beside=
    (cd "$here/tree" && timeout $((limit * 4)) "$python" tools/rmm-tests "$here/rmm-tests") >"$out/rmm-tests-tenure.txt" 2>&1 </dev/null || code=$?
    if [ -d "$out/peers/rmm" ]; then
        (cd "$here/rmm-tests" && PYTHONPATH=$site:$out/peers timeout $((limit * 4)) "$python" -m pytest -q -ra -p no:cacheprovider .) >"$out/rmm-tests-rmm.txt" 2>&1 </dev/null
        beside="; on RMM: $(tail -n 1 "$out/rmm-tests-rmm.txt")"
    fi
    part rmm-tests "on tenure: $(tail -n 1 "$out/rmm-tests-tenure.txt")$beside" $code $((SECONDS - start))
elif wants rmm-tests; then
    skipped rmm-tests "no folder rmm-tests with RMM's Python tests beside this file"
fi

# RMM's own wheel over the bridge: our tests of it, and RMM's with tenure's memory under them.
if wants bridge && [ ! -d "$out/peers/rmm" ]; then
    skipped bridge "no wheels of RMM in the folder peers beside this file"
elif wants bridge; then
    start=$SECONDS code=0 theirs="RMM's tests left out: no folder rmm-tests"
    (cd "$here/tree" && PYTHONPATH=$site:$out/peers timeout $((limit * 2)) "${default[@]}" "$python" -m pytest -q -ra -p no:cacheprovider tests/python/test_rmm_bridge.py tests/python/test_pylibcudf.py) >"$out/bridge.txt" 2>&1 </dev/null || code=$?
    # Skipped for want of RMM or of the bridge would be nothing tested at all.
    ! grep -Eq 'SKIPPED.*(RMM is not installed|no bridge was built)' "$out/bridge.txt" || code=1
    # The example of docs/libraries/rmm.md.
    (cd "$here/tree" && PYTHONPATH=$site:$out/peers timeout "$limit" "$python" -m pytest -q -ra -p no:cacheprovider tests/python/test_docs.py -k '[rmm.md:') >"$out/logs/bridge-docs.log" 2>&1 </dev/null || code=$?
    if [ -f "$here/rmm-tests/conftest.py" ]; then
        (cd "$here/rmm-tests" && PYTHONPATH=$site:$out/peers:$here timeout $((limit * 4)) "$python" -m pytest -q -ra -p no:cacheprovider -p rmm_base .) >"$out/bridge-rmm-tests.txt" 2>&1 </dev/null || code=$?
        theirs="RMM's tests: $(grep -E '^[0-9].* (passed|failed)|passed.* in ' "$out/bridge-rmm-tests.txt" | tail -n 1); $(sed -n 's/^tenure: //p' "$out/bridge-rmm-tests.txt" | tail -n 1)"
    fi
    part bridge "ours: $(tail -n 1 "$out/bridge.txt"); $theirs" $code $((SECONDS - start))
fi

[ -f "$out/bench.txt" ] && cat "$out/bench.txt"
[ -f "$out/peers.txt" ] && cat "$out/peers.txt"
[ -f "$out/sanitizer.txt" ] && cat "$out/sanitizer.txt"
[ -f "$out/peers-cpp.txt" ] && cat "$out/peers-cpp.txt"
[ -f "$out/steps.txt" ] && cat "$out/steps.txt"
[ -f "$out/frames.txt" ] && cat "$out/frames.txt"
[ -f "$out/jobs.txt" ] && cat "$out/jobs.txt"
echo "results in $out"
exit $((failed > 0))
