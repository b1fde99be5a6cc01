#!/bin/sh
# installed.sh BUILD SOURCE WORK: installs the build, moves the prefix, and builds and runs examples/ against it through
# find_package (shared library and archive) and pkg-config; also the programs of the documentation. No project sets a
# C++ standard: the package sets the one that its headers need.
set -eu
build=$1 source=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
prefix=$work/moved
for form in shared static; do
  cmake -S "$source/examples" -B "$work/$form" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -Dform=$form >"$work/$form.log"
  cmake --build "$work/$form"
  ctest --test-dir "$work/$form" --output-on-failure
done
if readelf -d "$work/static/errors" | grep -q 'NEEDED.*libheadrace'; then
  echo "the example linked with the archive needs the shared library" && exit 1
fi
mkdir -p "$work/c"
cat >"$work/c/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(without_cxx LANGUAGES C)
find_package(headrace CONFIG REQUIRED)
add_executable(explain $source/examples/explain.c)
target_link_libraries(explain PRIVATE headrace::headrace)
TEXT
cmake -S "$work/c" -B "$work/c/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$work/c.log"
cmake --build "$work/c/build"
"$work/c/build/explain"
pc=$(dirname "$(find "$prefix" -name headrace.pc)")
PKG_CONFIG_PATH=$pc
export PKG_CONFIG_PATH
for example in explain errors; do
  # shellcheck disable=SC2046
  cc -std=c99 -Wall -Werror "$source/examples/$example.c" -o "$work/$example" $(pkg-config --cflags --libs headrace)
  LD_LIBRARY_PATH=$(pkg-config --variable=libdir headrace) "$work/$example"
done
python3 -B "$source/tests/package/documented_programs.py" "$work/documented" "$source/README.md" \
  "$source/docs/api.md" "$source/docs/attention.md" "$source/docs/kv_cache.md"
"$prefix/bin/headrace" --version
for file in man/man1/headrace.1 bash-completion/completions/headrace zsh/site-functions/_headrace \
  fish/vendor_completions.d/headrace.fish; do
  [ -s "$prefix/share/$file" ] || { echo "share/$file is missing or empty"; exit 1; }
done
