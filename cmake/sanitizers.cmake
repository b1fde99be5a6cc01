# HEADRACE_SANITIZE: what goes to -fsanitize= for every target of the tree, for example "address,undefined" or "thread".
set(HEADRACE_SANITIZE "" CACHE STRING "Sanitizers of every target, comma-separated; empty for none")
if(HEADRACE_SANITIZE)
  if(HEADRACE_SANITIZE MATCHES "thread" AND HEADRACE_SANITIZE MATCHES "address")
    message(FATAL_ERROR "HEADRACE_SANITIZE: address and thread exclude each other")
  endif()
  add_compile_options(-fsanitize=${HEADRACE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${HEADRACE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 raises these falsely in the standard library once instrumentation has changed its control flow.
    add_compile_options(-Wno-maybe-uninitialized $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict> -Wno-tsan)
  endif()
endif()
