# What a wheel holds beside python/headrace/: the library under one name, since a wheel has no links, with the C++
# runtime inside, so that it needs nothing of the machine but glibc. Included where scikit-build-core configures.
set_property(TARGET headrace PROPERTY VERSION)
set_property(TARGET headrace PROPERTY SOVERSION)
target_link_options(headrace PRIVATE -static-libstdc++ -static-libgcc)
install(TARGETS headrace LIBRARY DESTINATION . COMPONENT python)
