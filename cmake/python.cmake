# What a wheel holds beside python/headrace/: the library under one name, since a wheel has no links, with libstdc++
# inside and its unused parts left out (they would ask for a newer glibc). Included where scikit-build-core configures.
set_property(TARGET headrace PROPERTY VERSION)
set_property(TARGET headrace PROPERTY SOVERSION)
target_link_options(headrace PRIVATE -static-libstdc++ LINKER:--gc-sections)
install(TARGETS headrace LIBRARY DESTINATION . COMPONENT python)
