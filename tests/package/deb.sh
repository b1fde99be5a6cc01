#!/bin/sh
# deb.sh BUILD WORK: the .deb of a build contains library, headers, package files, program, man page and completions,
# and declares its dependencies.
set -eu
build=$1 work=$2
rm -rf "$work"
mkdir -p "$work"
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work" >"$work/cpack.log" || { cat "$work/cpack.log"; exit 1; }
deb=$(find "$work" -maxdepth 1 -name '*.deb')
dpkg-deb --contents "$deb" >"$work/contents"
for file in libheadrace.so libheadrace.a include/headrace/headrace.h headraceConfig.cmake headrace.pc bin/headrace \
  man/man1/headrace.1 bash-completion/completions/headrace zsh/site-functions/_headrace \
  fish/vendor_completions.d/headrace.fish; do
  grep -q "/$file\$\|/$file " "$work/contents" || { echo "$deb lacks $file"; exit 1; }
done
dpkg-deb --field "$deb" Depends | grep libc6
