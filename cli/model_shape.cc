#include "model_shape.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "files.h"
#include "options.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::json;

// Reads keys of a config.json. Errors name the file and the key.
class ConfigReader {
 public:
  ConfigReader(const std::string& path, const Json& json) : path_(path), json_(json) {}

  [[noreturn]] void fail(headrace_status code, const std::string& text) const {
    throw Error(code, path_ + ": " + text);
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& rule) const {
    fail(HEADRACE_IO_ERROR,
         '\'' + key + "' is " + json_.at(key).dump() + ", expected " + rule + "; correct the file");
  }

  bool has(const std::string& key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const std::string& key) const {
    if (!has(key))
      fail(HEADRACE_IO_ERROR, '\'' + key +
                                  "' is missing; pass a config.json of a causal language "
                                  "model");
    return json_.at(key);
  }

  std::int64_t integer(const std::string& key) const {
    const Json& value = at(key);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}))
      wrong(key, "a whole number");
    return value.get<std::int64_t>();
  }
  std::int64_t integer_or(const std::string& key, std::int64_t fallback) const {
    return has(key) ? integer(key) : fallback;
  }
  double number(const std::string& key) const {
    if (!at(key).is_number()) wrong(key, "a number");
    return at(key).get<double>();
  }
  double number_or(const std::string& key, double fallback) const {
    return has(key) ? number(key) : fallback;
  }
  bool flag_or(const std::string& key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!at(key).is_boolean()) wrong(key, "true or false");
    return at(key).get<bool>();
  }
  std::string text(const std::string& key) const {
    if (!at(key).is_string()) wrong(key, "a string");
    return at(key).get<std::string>();
  }
  std::string text_or(const std::string& key, const std::string& fallback) const {
    return has(key) ? text(key) : fallback;
  }
  // A token, or the first of a list.
  std::int64_t token(const std::string& key) const {
    if (!has(key)) return -1;
    const Json& value = at(key);
    if (value.is_array() && !value.empty() && value.front().is_number_integer())
      return value.front().get<std::int64_t>();
    return integer(key);
  }
  ConfigReader section(const std::string& key) const {
    if (!at(key).is_object()) wrong(key, "an object");
    return {path_, at(key)};
  }

 private:
  const std::string& path_;
  const Json& json_;
};

Json parse(const std::string& path) {
  try {
    Json json = Json::parse(read_text(path));
    if (json.is_object()) return json;
  } catch (const Json::parse_error& error) {
    throw Error(HEADRACE_IO_ERROR, path + ": not JSON at byte " + std::to_string(error.byte) +
                                       "; pass a config.json of a model");
  }
  throw Error(HEADRACE_IO_ERROR, path + ": not a JSON object; pass a config.json of a model");
}

std::string architecture_of(const ConfigReader& config) {
  const std::string type = config.text("model_type");
  if (type == "llama" || type == "qwen2") return type;
  if (type == "mistral") return "llama";
  config.fail(HEADRACE_UNSUPPORTED, "'model_type' is \"" + type +
                                        "\", supported: llama, mistral, qwen2; pass another model");
}

void check_features(const ConfigReader& config) {
  const std::string activation = config.text_or("hidden_act", "silu");
  if (activation != "silu")
    config.fail(HEADRACE_UNSUPPORTED,
                "'hidden_act' is \"" + activation + "\", supported: silu; pass another model");
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (config.flag_or(key, false))
      config.fail(HEADRACE_UNSUPPORTED,
                  '\'' + std::string(key) + "' is true, supported: false; pass another model");
}

void read_rope_scaling(const ConfigReader& scaling, headrace_model_shape& shape) {
  const std::string type = scaling.text_or("rope_type", scaling.text_or("type", "default"));
  if (type == "default") return;
  if (type == "linear") {
    shape.rope_linear_factor = scaling.number("factor");
  } else if (type == "llama3") {
    shape.rope_llama3_factor = scaling.number("factor");
    shape.rope_low_freq_factor = scaling.number("low_freq_factor");
    shape.rope_high_freq_factor = scaling.number("high_freq_factor");
    shape.rope_original_context_length = scaling.number("original_max_position_embeddings");
  } else {
    scaling.fail(HEADRACE_UNSUPPORTED, "the RoPE scaling is \"" + type +
                                           "\", supported: linear, llama3; pass another model");
  }
}

// transformers 5 has rope_theta beside the scaling, in rope_parameters.
void read_rope(const ConfigReader& config, headrace_model_shape& shape) {
  shape.rope_linear_factor = 1;
  if (config.has("rope_parameters")) {
    const ConfigReader rope = config.section("rope_parameters");
    shape.rope_base = rope.number_or("rope_theta", 10000);
    read_rope_scaling(rope, shape);
    return;
  }
  shape.rope_base = config.number_or("rope_theta", 10000);
  if (config.has("rope_scaling")) read_rope_scaling(config.section("rope_scaling"), shape);
}

// Fills all but the strings.
void read_sizes(const ConfigReader& config, headrace_model_shape& shape) {
  shape.num_layers = config.integer("num_hidden_layers");
  shape.hidden_size = config.integer("hidden_size");
  shape.ffn_size = config.integer("intermediate_size");
  shape.vocab_size = config.integer("vocab_size");
  shape.num_heads = config.integer("num_attention_heads");
  shape.num_kv_heads = config.integer_or("num_key_value_heads", shape.num_heads);
  if (shape.num_heads < 1) config.wrong("num_attention_heads", "at least 1");
  if (!config.has("head_dim") && shape.hidden_size % shape.num_heads != 0)
    config.wrong("hidden_size", "a multiple of 'num_attention_heads', " +
                                    std::to_string(shape.num_heads) + ", or a 'head_dim'");
  shape.head_dim = config.integer_or("head_dim", shape.hidden_size / shape.num_heads);
  shape.context_length = config.integer("max_position_embeddings");
  if (config.flag_or("use_sliding_window", true))
    shape.window = config.integer_or("sliding_window", 0);
  shape.rms_eps = config.number("rms_norm_eps");
  shape.tied_embeddings = config.flag_or("tie_word_embeddings", false) ? 1 : 0;
  shape.bos_token = config.token("bos_token_id");
  shape.eos_token = config.token("eos_token_id");
}

}  // namespace

ModelShape::ModelShape(const std::string& text) {
  if (!text.ends_with(".json")) {
    shape_ = find_model_shape(text);
    return;
  }
  path_ = text;
  shape_.struct_size = sizeof shape_;
  const Json json = parse(path_);
  const ConfigReader config(path_, json);
  architecture_ = architecture_of(config);
  check_features(config);
  read_sizes(config, shape_);
  read_rope(config, shape_);
  name_ = config.text_or("_name_or_path", path_);
  shape_.name = name_.c_str();
  shape_.architecture = architecture_.c_str();
}

CLI::Option* add_weight_type(CLI::App& app, std::string& weight_type) {
  const auto set = [&weight_type](const std::string& type) {
    weight_type.clear();
    for (const char c : type)
      weight_type += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  };
  return app
      .add_option_function<std::string>("--type", set,
                                        "weight type of the matrices; vectors are F32")
      ->option_text("F32|F16|BF16|Q8_0|Q6_K|Q5_K|Q4_K|Q4_0|... [BF16]");
}

std::array<CLI::Option*, 2> add_random_options(CLI::App& app, RandomModel& random,
                                               const char* group) {
  CLI::Option* seed = app.add_option("--seed", random.seed, "random seed of the weights")
                          ->transform(whole_number({0, INT64_MAX}))
                          ->option_text("N [0]")
                          ->group(group);
  return {add_weight_type(app, random.weight_type)->group(group), seed};
}

}  // namespace headrace::cli
