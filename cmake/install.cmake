# What `cmake --install` gives: libheadrace (shared and static) with its headers, find_package(headrace CONFIG),
# headrace.pc and the program with its man page and completions; and CPack's .deb of it. Included at top level only.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
install(TARGETS headrace headrace_static EXPORT headraceTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT headraceTargets NAMESPACE headrace:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/headraceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/headraceConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the ABI.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/headraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/package/headraceConfig.cmake
  ${PROJECT_BINARY_DIR}/package/headraceConfigVersion.cmake
  DESTINATION ${package_dir})

configure_file(${CMAKE_CURRENT_LIST_DIR}/headrace.pc.in ${PROJECT_BINARY_DIR}/package/headrace.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/headrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(HEADRACE_BUILD_CLI)
  # The program finds the library beside it, wherever the prefix is moved.
  file(RELATIVE_PATH from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(headrace_program PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin}")
  install(TARGETS headrace_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET headrace_shell_files)
    set(folder ${PROJECT_BINARY_DIR}/cli)
    install(FILES ${folder}/headrace.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${folder}/headrace.bash RENAME headrace
      DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${folder}/_headrace DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${folder}/headrace.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME headrace)
set(CPACK_PACKAGE_CONTACT "The Headrace authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "exact, IO-aware attention: library, headers and program")
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
include(CPack)
