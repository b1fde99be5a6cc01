# headrace_set_warnings(target): warnings are errors everywhere in this tree.
function(headrace_set_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Werror)
endfunction()
