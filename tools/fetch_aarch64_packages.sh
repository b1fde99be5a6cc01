#!/usr/bin/env bash
# fetch_aarch64_packages.sh FOLDER: unpacks Debian's arm64 libraries for the preset aarch64 there, once. To install them
# beside the machine's own would ask for Arm's C library and for another architecture in dpkg; here even apt's lists are
# files of the folder.
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
[[ ! -e $folder/complete ]] || exit 0
mkdir -p "$folder"/{lists,archives}/partial
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
  -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder")
"${apt[@]}" update
(cd "$folder" && "${apt[@]}" download libgtest-dev libpcre2-dev)
for package in "$folder"/*.deb; do dpkg-deb -x "$package" "$folder"; done
touch "$folder/complete"
