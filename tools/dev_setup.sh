# shellcheck shell=bash
# ./dev setup: what the build and the checks need, and environments of Python; with the functions of dev.

# For every build, and for the part of the setup that is named.
missing_packages() {
  local tool
  for tool in g++ cmake ccache git python3 clang-format; do command -v "$tool" >/dev/null || echo "$tool"; done
  command -v ninja >/dev/null || echo ninja-build
  command -v pkg-config >/dev/null || echo pkgconf
  command -v dpkg-shlibdeps >/dev/null || echo dpkg-dev
  command -v file >/dev/null || echo file
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  [[ -e /usr/include/gtest/gtest.h ]] || echo libgtest-dev
  [[ -e /usr/include/nlohmann/json.hpp ]] || echo nlohmann-json3-dev
  [[ -e /usr/include/CLI/CLI.hpp ]] || echo libcli11-dev
  [[ -e /usr/include/boost/beast/http.hpp ]] || echo libboost-dev
  [[ -e /usr/include/pcre2.h ]] || echo libpcre2-dev
  [[ -e /usr/include/histedit.h ]] || echo libedit-dev
  [[ $1 == --aarch64 ]] || return 0
  command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
  command -v qemu-aarch64 >/dev/null || echo qemu-user
}

install_missing() {
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$1")
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || as_root=(sudo)
  command -v apt-get >/dev/null ||
    fail "missing: ${missing[*]} (Debian 12's names). Install them with this system's package manager."
  if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
    fail "missing: ${missing[*]}. Run: sudo apt-get update && sudo apt-get install ${missing[*]}"
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
  mapfile -t missing < <(missing_packages "$1")
  ((${#missing[@]} == 0)) || fail "still missing after the installation: ${missing[*]}"
}

# What single checks want, which are skipped without it: installed where that asks for no password.
install_checkers() {
  local missing=() as_root=()
  command -v abidiff >/dev/null || missing+=(abigail-tools)
  command -v codespell >/dev/null || missing+=(codespell)
  command -v doxygen >/dev/null || missing+=(doxygen)
  python3 -c 'import jsonschema, yaml' 2>/dev/null || missing+=(python3-jsonschema python3-yaml)
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || as_root=(sudo -n)
  { "${as_root[@]}" apt-get update -qq && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}"; } ||
    echo "without ${missing[*]} (Debian 12's names) their checks are skipped"
}

# Puts the nvcc of build/cuda, or of the usual place, on PATH where PATH has none.
find_nvcc() {
  local folder
  command -v nvcc >/dev/null && return 0
  for folder in "$root"/build/cuda/lib/python3*/site-packages/nvidia/cu13/bin /usr/local/cuda/bin; do
    [[ ! -x $folder/nvcc ]] || { PATH=$folder:$PATH && return 0; }
  done
  return 1
}

# The same for cuobjdump, which is fetched where nvcc is and it is not: a check reads what nvcc made.
find_cuobjdump() {
  local folder
  command -v cuobjdump >/dev/null && return 0
  for folder in "$root"/build/cuda/lib/python3*/site-packages/nvidia/cu13/bin /usr/local/cuda/bin; do
    [[ ! -x $folder/cuobjdump ]] || { PATH=$PATH:$folder && return 0; }
  done
  return 1
}
fetch_cuobjdump() {
  ! find_cuobjdump || return 0
  make_venv build/cuda
  pip_install build/cuda 'nvidia-cuda-cuobjdump>=13,<14' 'nvidia-cuda-nvdisasm>=13,<14' && find_cuobjdump ||
    echo "cuobjdump: not available; main loops are not checked for spills"
}

make_venv() { [[ -x $1/bin/python ]] || python3 -m venv "$1"; }

pip_install() { "$1/bin/python" -m pip install -q --disable-pip-version-check "${@:2}"; }

install_cuda() {
  local name
  if ! find_nvcc; then
    make_venv build/cuda
    pip_install build/cuda 'nvidia-cuda-nvcc>=13,<14' ||
      fail "no nvcc could be installed: the CUDA part stays out, the CPU part needs none of it"
    for name in nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt nvidia-nvvm; do
      pip_install build/cuda "$name>=13,<14" || echo "$name: not available"
    done
    find_nvcc || fail "nvidia-cuda-nvcc is installed under build/cuda and holds no nvcc"
  fi
  echo "nvcc: $(command -v nvcc)"
}

setup() {
  local part=${1:-}
  [[ ! $part =~ ^--(cuda|aarch64)$ ]] || shift
  no_arguments setup "$@"
  install_missing "$part"
  case $part in
    --cuda) install_cuda ;;
    --aarch64) tools/fetch_aarch64_packages.sh build/aarch64-packages ;;
  esac
}
