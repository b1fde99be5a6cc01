#!/bin/sh
# subdirectory.sh SOURCE WORK: a project that uses Headrace with add_subdirectory, as FetchContent does, builds and runs
# without Headrace's tests, program and installation.
set -eu
source=$1 work=$2
rm -rf "$work"
mkdir -p "$work/app"
cat >"$work/app/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C CXX)
add_subdirectory($source headrace)
add_executable(views $source/examples/views.cc)
target_link_libraries(views PRIVATE headrace::headrace)
if(TARGET headrace_unit_tests OR TARGET headrace_program)
  message(FATAL_ERROR "Headrace's tests or program are part of the build")
endif()
TEXT
# The flags of Headrace's release build, so that ccache hits.
cmake -S "$work/app" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADRACE_CUDA=OFF \
  -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DCMAKE_C_FLAGS_RELEASE="-O2 -DNDEBUG"
cmake --build "$work/build" --target views
"$work/build/views"
