# The build's own options, beside HEADRACE_BUILD_TESTS and HEADRACE_BUILD_CLI. HEADRACE_SANITIZE: sanitizers.cmake.
#
# HEADRACE_HEAD_DIMS will choose the head dimensions of the CUDA kernels. The CPU kernels take any head dimension at run
# time, so there is no such option while there are no CUDA kernels.

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

# HEADRACE_CUDA: AUTO takes the CUDA part where nvcc is found, ON insists on it, OFF leaves it out.
set(HEADRACE_CUDA AUTO CACHE STRING "The CUDA part: AUTO, ON or OFF")
set_property(CACHE HEADRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT HEADRACE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "HEADRACE_CUDA is '${HEADRACE_CUDA}': it takes AUTO, ON or OFF")
endif()
if(HEADRACE_CUDA STREQUAL "OFF")
  message(STATUS "Headrace: the CUDA part is skipped: HEADRACE_CUDA=OFF")
else()
  find_program(HEADRACE_NVCC nvcc PATHS /usr/local/cuda/bin DOC "The CUDA compiler")
  mark_as_advanced(HEADRACE_NVCC)
  if(HEADRACE_NVCC AND HEADRACE_CUDA STREQUAL "ON")
    message(WARNING "Headrace: HEADRACE_CUDA=ON, but this version has no CUDA kernels: the CUDA part is skipped")
  elseif(HEADRACE_NVCC)
    message(STATUS "Headrace: the CUDA part is skipped: this version has no CUDA kernels (nvcc: ${HEADRACE_NVCC})")
  elseif(HEADRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEADRACE_CUDA=ON, and no nvcc is on PATH or in /usr/local/cuda/bin "
                        "(./dev setup --cuda installs one under build/cuda)")
  else()
    message(STATUS "Headrace: the CUDA part is skipped: no nvcc was found, and this version has no CUDA kernels")
  endif()
endif()

# ccache where it is found, unless the caller chose a launcher (an empty one turns it off).
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(HEADRACE_CCACHE ccache DOC "The compiler cache")
  mark_as_advanced(HEADRACE_CCACHE)
  if(HEADRACE_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${HEADRACE_CCACHE})
  endif()
endif()
