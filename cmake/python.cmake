# What a wheel holds beside python/headrace/: the library under one name, since a wheel has no links, with libstdc++
# inside and its unused parts left out (they would ask for a newer glibc); and the program, where what it is built with
# is found. Included where scikit-build-core configures.
set_property(TARGET headrace PROPERTY VERSION)
set_property(TARGET headrace PROPERTY SOVERSION)
target_link_options(headrace PRIVATE -static-libstdc++ LINKER:--gc-sections)
install(TARGETS headrace LIBRARY DESTINATION . COMPONENT python)
add_custom_target(headrace_python DEPENDS headrace)

find_package(CLI11 QUIET)
find_package(nlohmann_json QUIET)
if(CLI11_FOUND AND nlohmann_json_FOUND AND headrace_has_boost)
  set(HEADRACE_LIBEDIT OFF) # its library would have to be in the wheel
  add_subdirectory(cli)
  target_link_options(headrace_program PRIVATE -static-libstdc++ LINKER:--gc-sections)
  set_target_properties(headrace_program PROPERTIES INSTALL_RPATH "$ORIGIN/..")
  install(TARGETS headrace_program RUNTIME DESTINATION bin COMPONENT python)
  add_dependencies(headrace_python headrace_program)
else()
  message(STATUS "no program in the wheel: it needs CLI11, nlohmann_json and Boost.Beast "
    "(Debian's libcli11-dev, nlohmann-json3-dev, libboost-dev)")
endif()
