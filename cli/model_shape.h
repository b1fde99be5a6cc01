// Shapes of models for --like and --random: a published model's name, or a config.json of Hugging
// Face.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <string>

#include "headrace/model.hpp"

namespace headrace::cli {

// A shape and the strings that it points into.
class ModelShape {
 public:
  // text: a name, or the path of a .json file. Throws Error: an unknown name
  // (HEADRACE_INVALID_ARGUMENT), a file that is not a supported config.json (HEADRACE_IO_ERROR,
  // HEADRACE_UNSUPPORTED).
  explicit ModelShape(const std::string& text);

  const headrace_model_shape& get() const { return shape_; }
  // The file of the shape; empty: a published model.
  const std::string& path() const { return path_; }
  // Runs body(); what is wrong with the shape is wrong with its file.
  template <class Body>
  auto blaming_the_file(Body body) const {
    try {
      return body();
    } catch (const Error& error) {
      if (path_.empty() || std::string(error.what()).rfind("shape.", 0) != 0) throw;
      throw Error(HEADRACE_IO_ERROR, path_ + ": " + error.what());
    }
  }

  ModelShape(const ModelShape&) = delete;
  ModelShape& operator=(const ModelShape&) = delete;

 private:
  std::string path_, name_, architecture_;
  headrace_model_shape shape_{};
};

// --type.
CLI::Option* add_weight_type(CLI::App& app, std::string& weight_type);
// --type and --seed of random weights.
std::array<CLI::Option*, 2> add_random_options(CLI::App& app, RandomModel& random,
                                               const char* group);

}  // namespace headrace::cli
