#!/usr/bin/env bash
# All that needs a GPU, in at most a quarter of an hour: tests/gpu, then `smcprog bench gpu`.
#
#     tests/gpu/check.sh [FOLDER]      (default: $OUT, else gpu-check)
#
# FOLDER gets machine.txt, tests.xml (JUnit), tests.log, bench.json (rewritten after every step) and
# bench.txt.
# Either part runs whatever became of the other; the exit code is 0 if both went well.
#
# PYTHON      interpreter with smcprog's test extra            (python)
# ONLY        tests or bench, to run one part                  (both)
# TESTS_S     seconds after which the tests are cut off        (300)
# BENCH_S     budget of the benchmark in seconds               (480)
# BENCH_ARGS  more of its options, such as "--shapes llama"
set -u
cd "$(dirname "$0")/../.."
out=${1:-${OUT:-gpu-check}}
python=${PYTHON:-python}
tests_s=${TESTS_S:-300}
bench_s=${BENCH_S:-480}
mkdir -p "$out"
failed=0

{
    nvidia-smi
    "$python" -c "
import importlib.metadata as m, sys, torch
print(sys.version, torch.__version__, torch.version.cuda, torch.cuda.is_available())
for name in ('transformers', 'flashinfer-python', 'flashinfer-jit-cache', 'triton'):
    print(name, next((d.version for d in m.distributions() if d.name == name), 'not installed'))"
} >"$out/machine.txt" 2>&1

if [ "${ONLY:-tests}" = tests ]; then
    # An interrupt, not a kill: results so far are written.
    timeout --signal=INT --kill-after=20 "$tests_s" \
        "$python" -m pytest -p no:cacheprovider --durations=10 --junitxml="$out/tests.xml" tests/gpu \
        2>&1 | tee "$out/tests.log"
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
fi

if [ "${ONLY:-bench}" = bench ]; then
    # shellcheck disable=SC2086  # several options in one variable
    timeout --signal=INT --kill-after=20 $((bench_s + 45)) \
        "$python" -c "from smcprog.cli import main; main()" \
        bench gpu --budget "$bench_s" --out "$out/bench.json" ${BENCH_ARGS:-} \
        2>&1 | tee "$out/bench.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
fi
exit $failed
