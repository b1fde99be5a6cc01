# shellcheck shell=bash
# ./dev run, ./dev serve and ./dev bench: the program, and other implementations beside it; with the functions of dev.

program=build/release/cli/headrace

build_program() { build_target headrace_program; }

# Models run on the CPU: without the CUDA kernels the first answer on 2 cores is there in 3 minutes instead of 11.
cpu_program=build/cpu-only/cli/headrace

# Splits the arguments of run and serve into model and options, fetches SmolLM2 if there is no --model, and builds.
prepare_model() {
  model="" options=()
  while (($#)); do
    if [[ $1 == --model || $1 == -m ]]; then
      model=${2:-}
      [[ -f $model ]] || usage "$command: --model takes a GGUF file, and '$model' is not a file"
      shift 2
    else
      options+=("$1")
      shift
    fi
  done
  build_target headrace_program cpu-only
  [[ -n $model ]] || model=$(fetch_model)
}

run() {
  local prompt="Why is the sky blue?" model options
  if (($#)) && [[ $1 != -* ]]; then
    prompt=$1
    shift
  fi
  prepare_model "$@"
  say "headrace generate -m $model '$prompt' ${options[*]}"
  "$cpu_program" generate -m "$model" "$prompt" "${options[@]}"
}

serve() {
  local model options
  prepare_model "$@"
  say "headrace serve -m $model ${options[*]}"
  "$cpu_program" serve -m "$model" "${options[@]}"
}

bench() {
  case ${1:-} in
    attention | decode | memory | model | softmax)
      build_program >&2
      "$program" bench "$@"
      ;;
    peers) peers "${@:2}" ;;
    python)
      python_ready
      if [[ ${2:-} == ablation ]]; then
        build/venv-python/bin/python bench/peers/host_ablation.py "${@:3}"
      else
        build/venv-python/bin/python bench/peers/host_time.py "${@:2}"
      fi
      ;;
    host)
      [[ ${2:-} =~ ^(cuda)?$ ]] || usage "bench host: say nothing more, or cuda, not '$2'"
      no_arguments "bench host" "${@:3}"
      build_target "headrace_bench_host${2:+_$2}" >&2
      "build/release/bench/host/headrace_bench_host${2:+_$2}"
      ;;
    *) usage "bench: name attention, decode, memory, model, softmax, host, peers or python, not '${1:-}'" ;;
  esac
}

# peers_venv NAME: the environment with what bench/peers/NAME.txt lists. llama.cpp is compiled for this machine.
peers_venv() {
  local wanted=bench/peers/$1.txt installed=build/venv-peers/$1.txt
  cmp -s "$wanted" "$installed" && return 0
  make_venv build/venv-peers
  CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release -DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
    pip_install build/venv-peers --no-binary llama-cpp-python -r "$wanted"
  cp "$wanted" "$installed"
}

peers() {
  local script=attention_cpu needs=requirements
  [[ -e bench/peers/requirements.txt ]] || fail "bench/peers is not in this tree: there are no peers to run"
  if [[ ${1:-} == model ]]; then
    script=model_cpu needs=requirements-models
    shift
  fi
  build release
  step peers peers_venv "$needs"
  build/venv-peers/bin/python "bench/peers/$script.py" "$@"
}
