# headrace_pcre2: PCRE2 with 8-bit code units, for the pre-tokenizers (src/text/pre_tokenizer.cc).
find_path(HEADRACE_PCRE2_INCLUDE pcre2.h DOC "Folder of pcre2.h")
# The static one first, so that libheadrace needs nothing at run time that it does not bring along.
find_library(HEADRACE_PCRE2_LIBRARY NAMES libpcre2-8.a pcre2-8 DOC "The PCRE2 library, 8-bit")
mark_as_advanced(HEADRACE_PCRE2_INCLUDE HEADRACE_PCRE2_LIBRARY)
if(NOT HEADRACE_PCRE2_INCLUDE OR NOT HEADRACE_PCRE2_LIBRARY)
  message(FATAL_ERROR "PCRE2 was not found: install libpcre2-dev (Debian's name; ./dev setup does it), "
                      "or set HEADRACE_PCRE2_INCLUDE and HEADRACE_PCRE2_LIBRARY")
endif()
add_library(headrace_pcre2 INTERFACE)
target_include_directories(headrace_pcre2 SYSTEM INTERFACE ${HEADRACE_PCRE2_INCLUDE})
target_link_libraries(headrace_pcre2 INTERFACE ${HEADRACE_PCRE2_LIBRARY})
