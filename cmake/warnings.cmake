# headrace_set_warnings(target): warnings are errors everywhere in this tree. For nvcc: cuda.cmake.
function(headrace_set_warnings target)
  target_compile_options(${target} PRIVATE $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Werror>)
endfunction()
