# The build's own options, beside HEADRACE_BUILD_TESTS and HEADRACE_BUILD_CLI. HEADRACE_SANITIZE: sanitizers.cmake.
# HEADRACE_CUDA, HEADRACE_CUDA_ARCHITECTURES: cuda.cmake.

# headrace_machine: what is built for, by the name that the compiler's macros have for it; empty where there are kernels
# for any machine alone.
set(headrace_machine "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(headrace_machine x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(headrace_machine aarch64)
endif()

# HEADRACE_DTYPES: the element types that kernels are built for; the library refuses the others at run time.
set(HEADRACE_DTYPES "f32;f16;bf16" CACHE STRING "Element types to build kernels for: any of f32, f16, bf16")
set(headrace_known_dtypes f32 f16 bf16)
if(NOT HEADRACE_DTYPES)
  message(FATAL_ERROR "HEADRACE_DTYPES is empty: name at least one of ${headrace_known_dtypes}")
endif()
foreach(dtype IN LISTS HEADRACE_DTYPES)
  if(NOT dtype IN_LIST headrace_known_dtypes)
    message(FATAL_ERROR "HEADRACE_DTYPES has '${dtype}': the element types are ${headrace_known_dtypes}")
  endif()
endforeach()
set(headrace_dtype_definitions "")
foreach(dtype IN LISTS headrace_known_dtypes)
  string(TOUPPER ${dtype} name)
  if(dtype IN_LIST HEADRACE_DTYPES)
    list(APPEND headrace_dtype_definitions HEADRACE_DTYPE_${name}=1)
  else()
    list(APPEND headrace_dtype_definitions HEADRACE_DTYPE_${name}=0)
  endif()
endforeach()

# HEADRACE_FUZZ: the harnesses of tests/fuzz/ as libFuzzer programs; needs clang.
option(HEADRACE_FUZZ "Build the fuzz harnesses with libFuzzer and sanitizers" OFF)

# ccache where it is found, unless the caller chose a launcher (an empty one turns it off).
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(HEADRACE_CCACHE ccache DOC "The compiler cache")
  mark_as_advanced(HEADRACE_CCACHE)
  if(HEADRACE_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
  endif()
endif()

# headrace_compile_fast(target): tests and the program, which compute nothing for long, took half of the time of a
# build; -O1 saves a quarter of that. Sources that compute references (tests/conformance) keep the build's flags.
function(headrace_compile_fast target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()
