# HEADRACE_CUDA: AUTO takes the CUDA part where nvcc is found, ON insists on it, OFF leaves it out. Sets
# headrace_has_cuda; headrace_cuda_target(target) gives a target with .cu files what it needs.
set(HEADRACE_CUDA AUTO CACHE STRING "The CUDA part: AUTO, ON or OFF")
set_property(CACHE HEADRACE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT HEADRACE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "HEADRACE_CUDA is '${HEADRACE_CUDA}': it takes AUTO, ON or OFF")
endif()

# One entry for each -gencode: sm_NN is machine code, compute_NN is PTX, which the driver of a newer chip compiles.
# The whole set: machine code for 8.x and for Hopper with its own instructions (the a), PTX for what came later.
set(HEADRACE_CUDA_ARCHITECTURES "sm_80;sm_90a;compute_80" CACHE STRING "What CUDA kernels are compiled for")

set(headrace_has_cuda OFF)
if(HEADRACE_CUDA STREQUAL "OFF")
  message(STATUS "Headrace: the CUDA part is skipped: HEADRACE_CUDA=OFF")
elseif(HEADRACE_SANITIZE)
  message(STATUS "Headrace: the CUDA part is skipped: HEADRACE_SANITIZE=${HEADRACE_SANITIZE} is for code of the CPU")
else()
  find_program(HEADRACE_NVCC nvcc PATHS /usr/local/cuda/bin DOC "The CUDA compiler")
  mark_as_advanced(HEADRACE_NVCC)
  if(HEADRACE_NVCC)
    set(headrace_has_cuda ON)
  elseif(HEADRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEADRACE_CUDA=ON, and no nvcc is on PATH or in /usr/local/cuda/bin "
                        "(./dev setup --cuda installs one under build/cuda)")
  else()
    message(STATUS "Headrace: the CUDA part is skipped: no nvcc was found")
  endif()
endif()
if(NOT headrace_has_cuda)
  return()
endif()

# headrace_gencode(variable architectures...): the flags that nvcc wants for them.
function(headrace_gencode variable)
  set(flags "")
  foreach(architecture IN LISTS ARGN)
    if(NOT architecture MATCHES "^(sm|compute)_([0-9]+a?)$")
      message(FATAL_ERROR "HEADRACE_CUDA_ARCHITECTURES has '${architecture}': entries are sm_NN (machine code) or "
                          "compute_NN (PTX), for example sm_80;sm_90a;compute_80")
    endif()
    list(APPEND flags "-gencode=arch=compute_${CMAKE_MATCH_2},code=${architecture}")
  endforeach()
  set(${variable} "${flags}" PARENT_SCOPE)
endfunction()
headrace_gencode(headrace_checked ${HEADRACE_CUDA_ARCHITECTURES})

# CMake's own flags for architectures and device linking stay out: the list above says it all.
set(CMAKE_CUDA_COMPILER ${HEADRACE_NVCC})
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -DNDEBUG" CACHE STRING "Flags of a release build")
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake before 3.26 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
find_package(CUDAToolkit REQUIRED)
message(STATUS "Headrace: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${HEADRACE_CUDA_ARCHITECTURES} (${HEADRACE_NVCC})")

# The launcher fails a file for which ptxas says that it serialises wgmma or ignores setmaxnreg: it calls that
# information, and -Werror does not see it.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(headrace_cuda_launcher ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tools/run_nvcc.py)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  list(APPEND headrace_cuda_launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# headrace_cuda_target(target architectures...): what .cu files of a target need. Without architectures the files have
# theirs by headrace_cuda_sources(). Kernels are packed for size, in a third of the bytes: a process uses few of them,
# and the driver unpacks one where it is first launched.
function(headrace_cuda_target target)
  headrace_gencode(gencode ${ARGN})
  set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${headrace_cuda_launcher}")
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  foreach(option IN LISTS gencode ITEMS
      --compress-mode=size --expt-relaxed-constexpr --Werror=all-warnings -Xptxas=--warning-as-error
      -Xcompiler=-Wall,-Wextra,-Wshadow,-Wnon-virtual-dtor,-Wcast-qual,-Werror)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${option}>")
  endforeach()
endfunction()

# headrace_cuda_sources(files...): kernels of Hopper's own instructions are machine code of sm_90a alone, whatever
# HEADRACE_CUDA_ARCHITECTURES says: for other GPUs they would be empty. The other .cu files have the whole list.
function(headrace_cuda_sources)
  set(hopper ${ARGN})
  list(FILTER hopper INCLUDE REGEX "/sm90/.*[.]cu$|/gemm/(stream|tiles_.*|wide_.*)[.]cu$")
  set(others ${ARGN})
  list(FILTER others INCLUDE REGEX "[.]cu$")
  list(REMOVE_ITEM others ${hopper})
  headrace_gencode(gencode sm_90a)
  set_property(SOURCE ${hopper} APPEND PROPERTY COMPILE_OPTIONS ${gencode})
  headrace_gencode(gencode ${HEADRACE_CUDA_ARCHITECTURES})
  set_property(SOURCE ${others} APPEND PROPERTY COMPILE_OPTIONS ${gencode})
endfunction()
