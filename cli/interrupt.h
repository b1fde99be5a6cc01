// Ctrl-C sets a flag: it stops an answer or a line of input, not the program.
#pragma once

namespace headrace::cli {

// Installs the handler.
void catch_interrupts();
bool is_interrupted();
void clear_interrupt();
// Ends the program as Ctrl-C does without the handler, so that a shell sees the signal.
[[noreturn]] void end_by_interrupt();
// Blocks until stdin is readable (true) or Ctrl-C is pressed (false).
bool wait_for_input();

}  // namespace headrace::cli
