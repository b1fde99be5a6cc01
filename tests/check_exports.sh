#!/bin/sh
# check_exports.sh NM LIBRARY HEADER...: the library exports exactly the functions declared in the headers.
set -eu
nm=$1 library=$2
shift 2
exported=$("$nm" -D --defined-only "$library" | awk '{ print $3 }' | sort)
declared=$(cat "$@" | tr '\n' ' ' | grep -o 'HEADRACE_API[^;(]*(' | grep -o 'headrace_[a-z0-9_]*($' | tr -d '(' | sort)
if [ "$exported" != "$declared" ]; then
  echo "exported:"; echo "$exported"; echo "declared:"; echo "$declared"
  exit 1
fi
# The library never ends the host process.
if "$nm" -D --undefined-only "$library" | grep -wE 'abort|exit|_exit|quick_exit|__assert_fail'; then
  echo "the library can end the process"
  exit 1
fi
