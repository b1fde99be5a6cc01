// Ctrl-C as a flag, so that it stops an answer or a line of input and not the program.
#pragma once

namespace headrace::cli {

// From now on Ctrl-C sets the flag and nothing else.
void catch_interrupts();
bool is_interrupted();
void clear_interrupt();
// Until stdin has something to read (true) or Ctrl-C comes (false).
bool wait_for_input();

}  // namespace headrace::cli
