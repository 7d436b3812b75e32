#!/usr/bin/env bash
# gpu.sh - what make test-gpu and make bench-gpu run, on a machine with a GPU and maybe no network.
#
#   tests/bench/gpu.sh test|bench [options of lockstep bench gpu]
#
# With a folder gpu-kit (make gpu-kit, copied here) python3 runs from its wheels alone, and only the
# C extension is built; else .venv does, with a PyCUDA in it. PYTHON and OUT may be given.
set -euo pipefail
cd "$(dirname "$0")/../.."
task=${1:?test or bench}
shift

if [ -d gpu-kit ]; then
    python=${PYTHON:-python3}
    site=$PWD/build/gpu-site
    if [ ! -e "$site/.whole" ]; then
        "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" \
            --disable-pip-version-check gpu-kit/*.whl
        touch "$site/.whole"
    fi
    export PYTHONPATH=$PWD:$site
    mkdir -p build/cuda
    cp -n gpu-kit/*.fatbin build/cuda/ 2> /dev/null || true
    [ -n "$(ls kernels/cpu/_cpu.*.so 2> /dev/null)" ] && "$python" -c 'import kernels.cpu._cpu' \
        2> /dev/null || PURE=1 "$python" setup.py --quiet build_ext --inplace > build/gpu.log 2>&1 \
        || { tail -20 build/gpu.log; exit 1; }
else
    python=.venv/bin/python
    "$python" -c 'import pycuda' 2> /dev/null \
        || { echo "PyCUDA is missing: .venv/bin/pip install pycuda"; exit 1; }
fi

case $task in
test)
    # every op and golden model, random inputs, bit by bit; faults are the emulated driver's
    export LOCKSTEP_TEST_GPU=${LOCKSTEP_TEST_GPU:-real}
    exec "$python" -m pytest -m 'not slow' -p no:cacheprovider tests/kernels \
        -k 'gpu-real or test_device or test_graphs or (test_shapes and device)' "$@"
    ;;
bench)
    exec "$python" -m ingest.command.main bench gpu ${OUT:+--out "$OUT/gpu.json"} "$@"
    ;;
*)
    echo "usage: $0 test|bench"
    exit 2
    ;;
esac
