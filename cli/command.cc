#include "command.h"

#include <iostream>
#include <map>

namespace headrace::cli {

void add_bench(CLI::App& app, Action& action, const std::string& command_line) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed and memory");
  bench->require_subcommand(1);
  add_bench_attention(*bench, action, command_line);
  add_bench_decode(*bench, action, command_line);
  add_bench_engine(*bench, action, command_line);
  add_bench_kv(*bench, action, command_line);
  add_bench_memory(*bench, action, command_line);
  add_bench_model(*bench, action, command_line);
  add_bench_serve(*bench, action, command_line);
  add_bench_softmax(*bench, action, command_line);
  add_bench_sparq(*bench, action, command_line);
}

void add_format_option(CLI::App& app, Format& format) {
  static const std::map<std::string, Format> kFormats = {
      {"text", Format::text}, {"csv", Format::csv}, {"json", Format::json}, {"md", Format::md}};
  app.add_option_function<std::string>(
         "--format", [&format](const std::string& name) { format = kFormats.at(name); },
         "output format")
      ->check(CLI::IsMember({"text", "csv", "json", "md"}))
      ->option_text("text|csv|json|md [text]");
}

void print_report(const Report& report, Format format) {
  print(report, {.format = format, .is_styled = is_stdout_styled()}, std::cout, std::cerr);
}

void print_note(const std::string& text) { std::cerr << "headrace: " << text << '\n'; }

}  // namespace headrace::cli
