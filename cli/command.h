// Shared by the subcommands. Parsing only chooses an action; main() runs it afterwards, so that
// usage errors (exit code 2) and failures (1) stay apart.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "table.h"

namespace headrace::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

using Action = std::function<int()>;  // returns the exit code

void add_bench(CLI::App& app, Action& action, const std::string& command_line);
void add_explain(CLI::App& app, Action& action);
void add_roofline(CLI::App& app, Action& action, const std::string& command_line);
void add_tune(CLI::App& app, Action& action, const std::string& command_line);
void add_kernels(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_batch(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_perplexity(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_make_model(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
// These two print descriptions of `app` and all its commands.
void add_completion(CLI::App& app, Action& action);
void add_man(CLI::App& app, Action& action);

// bench attention, decode, engine, kv, memory, model, serve, softmax, sparq
void add_bench_attention(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_decode(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_engine(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_kv(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_memory(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_model(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_serve(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_softmax(CLI::App& bench, Action& action, const std::string& command_line);
void add_bench_sparq(CLI::App& bench, Action& action, const std::string& command_line);

void add_explain_model(CLI::App& explain, Action& action);

// --format text|csv|json|md
void add_format_option(CLI::App& app, Format& format);
// Prints to stdout; the notes of CSV go to stderr.
void print_report(const Report& report, Format format);
// Prints a line to stderr: "headrace: ...".
void print_note(const std::string& text);

}  // namespace headrace::cli
