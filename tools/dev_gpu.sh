# shellcheck shell=bash
# ./dev gpu: programs for a machine with a GPU, and what to do with them there; with the functions of dev.

shape=(--batch 1 --seqlen 1024 --heads 8 --head-dim 64 --dtype f32 --causal bottom-right)

gpu_build() {
  local file
  build release
  rm -rf build/gpu-binaries
  mkdir -p build/gpu-binaries
  for file in build/release/tests/headrace_capi_tests build/release/tests/cuda/headrace_cuda{,_capi}_tests \
    build/release/tests/conformance/headrace_conformance build/release/tests/stress/headrace_stress "$program"; do
    [[ ! -f $file || ! -x $file ]] || cp "$file" build/gpu-binaries
  done
  strip build/gpu-binaries/*
  cp -P build/release/src/libheadrace.so* build/gpu-binaries
  ldd build/gpu-binaries/libheadrace.so | awk '/libpcre2/ { print $3 }' | xargs -r cp -L -t build/gpu-binaries
  say build/gpu-binaries
  ls build/gpu-binaries
}

# The C API first: one of its tests must be the first call of a process on the device.
gpu_test() {
  local file suite arguments count=0 failed=0
  for file in capi_tests cuda_capi_tests cuda_tests; do
    [[ -x $1/headrace_$file ]] || continue
    count=$((count + 1))
    step "$file" "$1/headrace_$file" || failed=$((failed + 1))
  done
  for suite in oracle grid backward bits catalogue quantised; do
    [[ -x $1/headrace_conformance ]] || continue
    arguments=(--device cuda --suite "$suite")
    [[ $suite != grid ]] || arguments+=(--threads "$(nproc)")
    count=$((count + 1))
    step "conformance ${arguments[*]}" "$1/headrace_conformance" "${arguments[@]}" || failed=$((failed + 1))
  done
  count=$((count + 1))
  step stress gpu_stress "$1" || failed=$((failed + 1))
  ((count > 0)) || fail "$1 holds no test program: ./dev gpu build makes them"
  echo "$((count - failed)) passed, $failed failed"
  ((failed == 0))
}

# Equal calls give equal bits, on shapes with many tiles, for minutes; options of headrace_stress follow.
gpu_stress() {
  [[ -x $1/headrace_stress ]] || fail "$1 holds no headrace_stress: ./dev gpu build makes it"
  "$1/headrace_stress" "${@:2}"
}

# Mutants of CUDA kernels, as programs for such a machine; options of tools/gpu_mutants.py follow.
gpu_mutants() {
  local action=$1 binaries=build/gpu-mutants
  shift
  if [[ ${1:-} == --binaries ]]; then
    [[ -n ${2:-} ]] || usage "gpu $action --mutants: --binaries takes a folder"
    binaries=$2
    shift 2
  fi
  [[ $action != build ]] || build release >&2
  python3 -B tools/gpu_mutants.py "$action" "$binaries" "$@"
}

gpu() {
  local action=${1:-} binaries=build/gpu-binaries
  [[ $action =~ ^(build|test|stress|bench|sanitize)$ ]] ||
    usage "gpu: say build, test, stress, bench or sanitize, not '$action'"
  shift
  if [[ $action != bench && ${1:-} == --mutants ]]; then
    gpu_mutants "$action" "${@:2}"
    return
  fi
  if [[ $action != build && ${1:-} == --binaries ]]; then
    [[ -d ${2:-} ]] || usage "gpu $action: --binaries takes a folder, and '${2:-}' is none"
    binaries=$(cd "$2" && pwd)
    shift 2
  fi
  [[ $action =~ ^(sanitize|stress)$ ]] || no_arguments "gpu $action" "$@"
  if [[ $action == build || ! -d $binaries ]]; then
    gpu_build
  fi
  [[ $action != build ]] || return 0
  export LD_LIBRARY_PATH=$binaries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  if [[ $action == test ]]; then
    gpu_test "$binaries"
  elif [[ $action == stress ]]; then
    gpu_stress "$binaries" "$@"
  elif [[ $action == sanitize ]]; then
    python3 -B tools/gpu_sanitize.py "$binaries" "$@"
  else
    [[ -x $binaries/headrace ]] || fail "$binaries holds no headrace program"
    "$binaries/headrace" bench attention --device cuda "${shape[@]}"
  fi
}
