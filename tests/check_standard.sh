#!/bin/sh
# check_standard.sh COMPILER INCLUDE: each C++ header compiles with C++20, and with older standards its first error
# names the requirement.
set -eu
compiler=$1 include=$2
for header in "$include"/headrace/*.hpp; do
  "$compiler" -std=c++20 -fsyntax-only -w -I"$include" -x c++ "$header"
  for standard in c++11 c++14 c++17; do
    first=$("$compiler" -std=$standard -fsyntax-only -I"$include" -x c++ "$header" 2>&1 | grep -m 1 error || true)
    case $first in
      *"Headrace's C++ headers need C++20"*) ;;
      *) echo "$header with $standard: the first error is: $first" && exit 1 ;;
    esac
  done
done
