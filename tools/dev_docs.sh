# shellcheck shell=bash
# ./dev docs, with the functions of dev.

docs_venv() {
  local wanted=docs/requirements.txt installed=build/venv-docs/requirements.txt
  cmp -s "$wanted" "$installed" && return 0
  make_venv build/venv-docs
  pip_install build/venv-docs -r "$wanted" ||
    fail "the site wants MkDocs, which pip could not install; the pages of the headers are in build/docs-api"
  cp "$wanted" "$installed"
}

docs() {
  install_checkers
  command -v doxygen >/dev/null || fail "the pages of the headers want doxygen: apt-get install doxygen"
  rm -rf build/docs-api
  step headers python3 -B tools/check_doxygen.py --html build/docs-api
  step "MkDocs' environment" docs_venv
  NO_MKDOCS_2_WARNING=1 step site build/venv-docs/bin/python -B -m mkdocs build --strict --quiet
  say build/docs/index.html
}
