#!/bin/sh
# check_exports.sh NM LIBRARY HEADER: the library exports exactly the functions that the header declares.
set -eu
exported=$("$1" -D --defined-only "$2" | awk '{ print $3 }' | sort)
declared=$(grep -o 'headrace_[a-z0-9_]*(' "$3" | tr -d '(' | sort -u |
           while read -r name; do grep -q "HEADRACE_API.*[ *]$name(" "$3" && echo "$name"; done)
if [ "$exported" != "$declared" ]; then
  echo "exported:"; echo "$exported"; echo "declared:"; echo "$declared"
  exit 1
fi
# Nothing in it ends the process of the host program.
if "$1" -D --undefined-only "$2" | grep -wE 'abort|exit|_exit|quick_exit|__assert_fail'; then
  echo "the library can end the process"
  exit 1
fi
