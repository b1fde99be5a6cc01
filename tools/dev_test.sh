# shellcheck shell=bash
# ./dev test: configures, builds and runs the tests of a tier; with the functions of dev.

configure() {
  [[ $1 == cpu-only ]] || ! find_nvcc || fetch_cuobjdump
  cmake --preset "$1"
}

build() {
  step setup setup
  step "configure $1" configure "$1"
  step "build $1" cmake --build "build/$1" -j "$jobs"
}

# One target of the release build, or of the preset that is named, and what it needs.
build_target() {
  local preset=${2:-release}
  step setup setup
  step "configure $preset" configure "$preset"
  step "build $1" cmake --build "build/$preset" -j "$jobs" --target "$1"
}

# Last in its tier, so that the closing lines of the output are ctest's; it prints its own time.
run_ctest() {
  build "$1"
  say "test $1"
  ctest --test-dir "build/$1" -j "$jobs" --output-on-failure --no-tests=error "${@:2}"
}

test_sanitizers() {
  local preset
  export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
  export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:allocator_may_return_null=1
  for preset in asan tsan; do
    run_ctest "$preset" -L '^(unit|small)$' -LE '^slow$'
  done
}

# What NEON computes; neither how fast, nor what a weak memory order allows: an emulator on x86 shows none of it.
test_neon() {
  step "setup --aarch64" setup --aarch64
  # qemu itself fails an assertion where a process with threads forks, as two tests do.
  run_ctest aarch64 -L '^(unit|small)$' -LE '^slow$' -E '[.]WorksInAForkedChild$'
  run_ctest aarch64 -R '^Conformance[.]Fuzz$'
}

# The path of the model file alone on stdout.
fetch_model() {
  make_venv build/venv-fetch >&2
  build/venv-fetch/bin/python python/headrace/_fetch_model.py
}

# SmolLM2 for tests: HEADRACE_TEST_MODEL, or fetched into the cache folder once.
export_test_model() {
  [[ -n ${HEADRACE_TEST_MODEL:-} ]] || HEADRACE_TEST_MODEL=$(fetch_model) || return 1
  export HEADRACE_TEST_MODEL
}

# Tokenizer, grammars, chat templates and models beside Python's, Hugging Face's and llama.cpp; the fixtures of the
# models are made again and compared with those of the tree.
peers_models() {
  local python=build/venv-peers/bin/python
  step peers peers_venv requirements-models
  export_test_model
  step tokenizer "$python" -B tests/peers/tokenizer.py --tool build/release/tests/headrace_tokenizer_pipe \
    --model "$HEADRACE_TEST_MODEL"
  step SentencePiece "$python" -B tests/peers/sentencepiece_peer.py --llama-cpp \
    --tool build/release/tests/headrace_tokenizer_pipe
  step "Mistral's tokenizers" "$python" -B tests/peers/mistral.py --tool build/release/tests/headrace_tokenizer_pipe
  step grammars "$python" -B tests/peers/grammar.py --tool build/release/tests/headrace_grammar_pipe
  step "chat templates" "$python" -B tests/peers/chat_template.py
  step models "$python" tests/peers/check_models.py --model "$HEADRACE_TEST_MODEL" --program "$program"
}

test_peers() {
  peers --check
  peers_models
}

# Without a network the tests of the real model are skipped, and say so.
test_gate() {
  export_test_model || say "the model could not be fetched: its tests are skipped"
  install_checkers
  # Conformance.Small*, for builds with sanitizers, are a part of Conformance.*.
  run_ctest release -LE '^slow$' -E '^Conformance[.]Small'
}

# build/venv-python has PyTorch and what else python/tests wants; with -oldest the oldest that the package takes.
python_venv() {
  local venv=build/venv-python${1:-} wanted=python/tests/requirements${1:-}.txt
  local installed=$venv/requirements.txt
  cat "$wanted" bench/peers/requirements.txt | cmp -s - "$installed" && return 0
  make_venv "$venv"
  pip_install "$venv" -r "$wanted"
  cat "$wanted" bench/peers/requirements.txt >"$installed"
}

# The program with the library, and Python so that it finds the package of this tree with them.
python_ready() {
  build_target headrace_program
  step "Python's environment" python_venv "${1:-}"
  export HEADRACE_PROGRAM=$root/$program
  export HEADRACE_LIBRARY=$root/build/release/src/libheadrace.so PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
}

test_python() {
  local end=""
  if [[ ${1:-} == --oldest ]]; then
    end=-oldest
    shift
  fi
  python_ready "$end"
  say "test --python"
  "build/venv-python$end/bin/python" -m pytest "$@"
}

# The page of headrace serve, against a server that the tests bring along: it needs no build.
test_web() {
  local venv=build/venv-web wanted=tests/web/requirements.txt
  [[ -x /usr/bin/chromium && -x /usr/bin/chromedriver ]] ||
    fail "the page's tests need a browser (Debian's names): apt-get install chromium chromium-driver"
  if ! cmp -s "$wanted" "$venv/requirements.txt"; then
    make_venv "$venv"
    step "Python's environment" pip_install "$venv" -r "$wanted"
    cp "$wanted" "$venv/requirements.txt"
  fi
  say "test --web"
  "$venv/bin/python" -B -m pytest tests/web "$@"
}

# headrace serve beside its description, and as a fuzzer and a client of OpenAI's API see it.
test_server() {
  local venv=build/venv-server wanted=tests/server/requirements.txt model=tests/golden/tiny/tiny_llama3_f16.gguf
  build_target headrace_program
  if ! cmp -s "$wanted" "$venv/requirements.txt"; then
    make_venv "$venv"
    step "Python's environment" pip_install "$venv" -r "$wanted"
    cp "$wanted" "$venv/requirements.txt"
  fi
  export PYTHONDONTWRITEBYTECODE=1
  step "openapi.yaml" "$venv/bin/python" tests/server/check_openapi.py "$program" "$model"
  step "the openai package" "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/server \
    --program "$program" --model "$model"
  step "malformed requests" "$venv/bin/python" tests/server/fuzz_socket.py "$program" "$model" 20000
  step schemathesis "$venv/bin/python" tests/server/schemathesis_run.py "$program" "$model" "$@"
}

# Each harness of tests/fuzz/ for so many seconds. What it learns stays in build/fuzz/corpus, an input that fails in
# build/fuzz/found.
fuzz() {
  local seconds=$1 harness missing=()
  command -v clang++ >/dev/null || missing+=(clang)
  compgen -G "$(clang++ -print-runtime-dir 2>/dev/null)/libclang_rt.fuzzer*.a" >/dev/null ||
    missing+=(libclang-rt-14-dev)
  ((${#missing[@]} == 0)) || fail "fuzzing needs ${missing[*]} (Debian 12's names): apt-get install ${missing[*]}"
  step setup setup
  step "configure fuzz" configure fuzz
  step "build fuzz" cmake --build --preset fuzz -j "$jobs"
  mkdir -p build/fuzz/found
  for harness in gguf tokenizer template grammar; do
    mkdir -p "build/fuzz/corpus/$harness"
    step "fuzz $harness, $seconds s" "build/fuzz/tests/fuzz/headrace_fuzz_$harness" -max_total_time="$seconds" \
      -max_len=4096 -timeout=60 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/found/$harness-" "build/fuzz/corpus/$harness" "tests/fuzz/corpus/$harness"
  done
}

# In a copy of the tree, so that this one stays as it is.
test_mutants() {
  step setup setup >&2
  find_nvcc || true
  say "test --mutants" >&2
  python3 -B tools/run_mutants.py --jobs "$jobs" "$@"
}

run_tests() {
  local tier=${1:-}
  if [[ $tier == --fuzz ]]; then
    [[ ${2:-60} =~ ^[1-9][0-9]*$ ]] || usage "test --fuzz: '$2' is no number of seconds"
    no_arguments "test --fuzz ${2:-60}" "${@:3}"
    fuzz "${2:-60}"
    return
  fi
  if [[ $tier == --python ]]; then
    test_python "${@:2}"
    return
  fi
  if [[ $tier == --web ]]; then
    test_web "${@:2}"
    return
  fi
  if [[ $tier == --server ]]; then
    test_server "${@:2}"
    return
  fi
  if [[ $tier == --mutants ]]; then
    test_mutants "${@:2}"
    return
  fi
  no_arguments "test $tier" "${@:2}"
  case $tier in
    "") test_gate ;;
    --slow) run_ctest release -L '^slow$' ;;
    --sanitizers) test_sanitizers ;;
    --neon) test_neon ;;
    --peers) test_peers ;;
    *) usage "test: unknown argument '$tier'" ;;
  esac
}
