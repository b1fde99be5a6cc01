#include "model/convert.h"

#include <algorithm>
#include <vector>

#include "model/family.h"
#include "weights/dequantise.h"
#include "weights/gguf.h"
#include "weights/output_file.h"
#include "weights/quantise.h"
#include "weights/weight_source.h"

namespace headrace::model {
namespace {

using Shape = std::vector<std::int64_t>;

// "blk.3.attn_k.weight", "blk.3.attn_v.bias": rows are heads.
bool has_kv_heads(std::string_view name) {
  const auto end = [&](std::string_view text) { return name.ends_with(text); };
  return name.starts_with("blk.") && (end(".attn_k.weight") || end(".attn_v.weight") ||
                                      end(".attn_k.bias") || end(".attn_v.bias"));
}

Status check_options(const Config& config, const ConvertOptions& options) {
  const std::int64_t n = options.num_kv_heads;
  if (n < 1 || config.num_kv_heads % n != 0)
    return invalid_argument(
        "num_kv_heads={}: must divide the {} KV heads of the model; pass a divisor such as 1", n,
        config.num_kv_heads);
  if (options.type == WeightType::bf16 || options.type == WeightType::f16 ||
      options.type == WeightType::f32)
    return std::nullopt;
  return invalid_argument("weight_type=\"{}\": must be BF16, F16 or F32; pass BF16",
                          info_of(options.type).name);
}

// Integers are written as u32; -1 and 2^40 of other types do not fit.
Status check_metadata(const ModelFile& file) {
  for (const auto& [key, value] : file.metadata) {
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number != nullptr && (*number < 0 || *number > std::int64_t{UINT32_MAX}))
      return file.failure(
          ErrorCode::unsupported,
          format_text("'{}' is {}, supported: 0 to 2^32 - 1; use another model", key, *number));
    const auto* list = std::get_if<std::vector<std::int64_t>>(&value);
    if (list != nullptr && std::any_of(list->begin(), list->end(), [](std::int64_t x) {
          return x < INT32_MIN || x > INT32_MAX;
        }))
      return file.failure(ErrorCode::unsupported,
                          format_text("'{}' has numbers beyond 32 bits; use another model", key));
  }
  return std::nullopt;
}

// The metadata and tensors of the output, without offsets.
Result<ModelFile> describe(const ModelFile& input, const Config& config,
                           const ConvertOptions& options) {
  ModelFile file = input;
  file.metadata[config.architecture + ".attention.head_count_kv"] = options.num_kv_heads;
  file.metadata.erase("general.alignment");  // the writer's is the default
  for (TensorInfo& tensor : file.tensors) {
    if (!has_kv_heads(tensor.name) || options.num_kv_heads == config.num_kv_heads) continue;
    const std::size_t rank = tensor.shape.size();
    const std::int64_t rows = rank == 0 ? 0 : tensor.shape[0];
    if (rank == 0 || rank > 2 || rows % config.num_kv_heads != 0)
      return input.wrong(format_text("the rows of tensor '{}' are not those of {} KV heads",
                                     tensor.name, config.num_kv_heads));
    tensor.shape[0] = rows / config.num_kv_heads * options.num_kv_heads;
    tensor.type = rank == 2 ? options.type : WeightType::f32;
  }
  return file;
}

std::int64_t num_elements(const TensorInfo& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t n : tensor.shape) count *= n;
  return count;
}

// The mean of adjacent heads. values: [old heads, elements of a head]; the means take its first
// part.
void pool_heads(std::vector<float>& values, std::int64_t old_heads, std::int64_t new_heads) {
  const std::int64_t width = static_cast<std::int64_t>(values.size()) / old_heads;
  const std::int64_t group = old_heads / new_heads;
  for (std::int64_t head = 0; head < new_heads; ++head)
    for (std::int64_t i = 0; i < width; ++i) {
      float sum = 0;
      for (std::int64_t g = 0; g < group; ++g)
        sum += values[static_cast<std::size_t>((head * group + g) * width + i)];
      values[static_cast<std::size_t>(head * width + i)] = sum / static_cast<float>(group);
    }
}

Status write_tensor(const TensorInfo& from, const TensorInfo& to, const std::byte* data,
                    const Config& config, const ConvertOptions& options, const OutputFile& out) {
  if (from.shape == to.shape) return out.write(data, from.bytes, to.offset);
  std::vector<float> values(static_cast<std::size_t>(num_elements(from)));
  dequantise(from.type, data, num_elements(from), values.data());
  pool_heads(values, config.num_kv_heads, options.num_kv_heads);
  std::vector<std::byte> bytes(to.bytes);
  quantise(to.type, values.data(), num_elements(to), bytes.data());
  return out.write(bytes.data(), to.bytes, to.offset);
}

}  // namespace

Status convert_model(const std::string& input, const std::string& output,
                     const ConvertOptions& options) {
  Result<ModelFile> read = read_gguf(input);
  if (!read.ok()) return std::move(read.failure());
  const ModelFile& from = read.value();
  Result<Config> config = read_config(from);
  if (!config.ok()) return std::move(config.failure());
  HEADRACE_TRY(check_options(config.value(), options));
  HEADRACE_TRY(check_metadata(from));
  Result<ModelFile> described = describe(from, config.value(), options);
  if (!described.ok()) return std::move(described.failure());
  ModelFile& to = described.value();
  const std::string header = make_gguf_header(to);
  Result<WeightSource> source = WeightSource::open(from, false);
  if (!source.ok()) return std::move(source.failure());
  Result<OutputFile> out = OutputFile::create(output);
  if (!out.ok()) return std::move(out.failure());
  HEADRACE_TRY(out.value().write(header.data(), header.size(), 0));
  std::uint64_t done = 0, total = 0;
  for (const TensorInfo& tensor : to.tensors) total += tensor.bytes;
  for (std::size_t i = 0; i < to.tensors.size(); ++i) {
    Result<const std::byte*> data = source.value().read(from.tensors[i]);
    if (!data.ok()) return std::move(data.failure());
    HEADRACE_TRY(write_tensor(from.tensors[i], to.tensors[i], data.value(), config.value(), options,
                              out.value()));
    done += to.tensors[i].bytes;
    if (options.progress) HEADRACE_TRY(options.progress(done, total));
  }
  return out.value().commit();
}

}  // namespace headrace::model
