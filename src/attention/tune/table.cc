#include "attention/tune/table.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <mutex>
#include <vector>

#include "attention/select.h"
#include "attention/validate.h"

namespace headrace::tune {
namespace {

// Raised when a field or a choice changes its meaning.
constexpr std::string_view kHeading = "headrace-tuning 1";

std::string version_line() {
  return format_text("version {}.{}.{}", HEADRACE_VERSION_MAJOR, HEADRACE_VERSION_MINOR,
                     HEADRACE_VERSION_PATCH);
}
std::string device_line(std::string_view device_key) {
  return format_text("device {}", device_key);
}

// Names of choices. (Not in core/tuning.h: nvcc prints pointers to members so that g++ warns of
// them.)
struct TuningField {
  const char* name;
  std::int32_t TuningConfig::*value;
};
constexpr TuningField kTuningFields[] = {
    {"num_threads", &TuningConfig::num_threads},
    {"tile_m", &TuningConfig::tile_m},
    {"heads_per_task", &TuningConfig::heads_per_task},
    {"backward_tasks", &TuningConfig::backward_tasks},
    {"packed_heads", &TuningConfig::packed_heads},
    {"tile_order", &TuningConfig::tile_order},
    {"section_heads", &TuningConfig::section_heads},
    {"cluster_size", &TuningConfig::cluster_size},
    {"run_groups", &TuningConfig::run_groups},
};

// -1: the dtype of q, however the problem says it.
std::int64_t key_dtype(const Problem& p, std::int32_t dtype) {
  return dtype == p.dtype ? -1 : dtype;
}

struct KeyField {
  const char* name;
  std::int64_t (*value)(const Problem&);
};
#define HEADRACE_FIELD(name)                                                  \
  {                                                                           \
#name, [](const Problem& p) { return static_cast<std::int64_t>(p.name); } \
  }
constexpr KeyField kKeyFields[] = {
    HEADRACE_FIELD(phase),
    HEADRACE_FIELD(dtype),
    HEADRACE_FIELD(batch),
    HEADRACE_FIELD(seqlen_q),
    HEADRACE_FIELD(seqlen_k),
    HEADRACE_FIELD(num_heads),
    HEADRACE_FIELD(num_kv_heads),
    HEADRACE_FIELD(head_dim),
    HEADRACE_FIELD(head_dim_v),
    HEADRACE_FIELD(causal),
    HEADRACE_FIELD(window_left),
    HEADRACE_FIELD(window_right),
    {"has_positive_scale", [](const Problem& p) { return std::int64_t{p.softmax_scale > 0}; }},
    {"has_softcap", [](const Problem& p) { return std::int64_t{has_softcap(p)}; }},
    {"has_dropout", [](const Problem& p) { return std::int64_t{has_dropout(p)}; }},
    HEADRACE_FIELD(bias_dtype),
    HEADRACE_FIELD(has_alibi),
    HEADRACE_FIELD(has_mask),
    HEADRACE_FIELD(has_tree_mask),
    HEADRACE_FIELD(has_sinks),
    HEADRACE_FIELD(has_lse),
    HEADRACE_FIELD(has_dlse),
    HEADRACE_FIELD(has_dbias),
    HEADRACE_FIELD(has_dsinks),
    HEADRACE_FIELD(deterministic),
    HEADRACE_FIELD(num_splits),
    HEADRACE_FIELD(strict_rows),
    HEADRACE_FIELD(is_ragged),
    HEADRACE_FIELD(total_q),
    HEADRACE_FIELD(total_k),
    HEADRACE_FIELD(has_seqused_k),
    HEADRACE_FIELD(page_size),
    {"k_dtype", [](const Problem& p) { return key_dtype(p, p.k_dtype); }},
    {"v_dtype", [](const Problem& p) { return key_dtype(p, p.v_dtype); }},
    HEADRACE_FIELD(k_scaling),
    HEADRACE_FIELD(v_scaling),
    HEADRACE_FIELD(recent_group),
    {"has_shared_prefix", [](const Problem& p) { return std::int64_t{p.max_shared_prefix > 0}; }},
    HEADRACE_FIELD(alignment),
    HEADRACE_FIELD(has_negative_strides),
};
#undef HEADRACE_FIELD
static_assert(std::size(kKeyFields) == kNumKeyFields);

const CallKey& default_key() {
  static const CallKey key = [] {
    Problem p = default_problem();
    p.softmax_scale = 1;
    p.alignment = kWholeAlignment;
    return key_of(p);
  }();
  return key;
}

// ---- reading

std::string_view take_until(std::string_view& text, char end) {
  const std::size_t size = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, size);
  text.remove_prefix(std::min(size + 1, text.size()));
  return part;
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

const Kernel* kernel_named(std::string_view name, std::int32_t device_type) {
  for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD})
    for (const Kernel& kernel : kernels_of(device_type, phase))
      if (kernel.name == name) return &kernel;
  return nullptr;
}

struct Words {
  std::string_view name, value;
};
// "name=value"; false at the end of the line.
bool take_word(std::string_view& line, Words& word) {
  if (line.empty()) return false;
  std::string_view both = take_until(line, ' ');
  word.name = take_until(both, '=');
  word.value = both;
  return true;
}

// "KERNEL key fields : choices : us=.. own_us=.."; false: damaged. The kernel is null where this
// build has none of that name.
bool read_call(std::string_view line, std::int32_t device_type, Table::Key& key, TunedCall& call) {
  key = {kernel_named(take_until(line, ' '), device_type), default_key()};
  std::string_view fields = take_until(line, ':'), choices = take_until(line, ':');
  constexpr double kMicrosecond = 1e-6, kMostMicroseconds = 1e12;
  Words word;
  while (take_word(fields, word)) {
    std::size_t i = 0;
    while (i < kNumKeyFields && kKeyFields[i].name != word.name) ++i;
    if (i == kNumKeyFields || !read_number(word.value, key.second[i])) return false;
  }
  while (take_word(choices, word)) {
    const TuningField* field = nullptr;
    for (const TuningField& f : kTuningFields)
      if (f.name == word.name) field = &f;
    if (field == nullptr || !read_number(word.value, call.config.*field->value) ||
        call.config.*field->value < 1)
      return false;
  }
  for (const auto& [name, seconds] :
       {std::pair<std::string_view, double*>{"us", &call.seconds}, {"own_us", &call.own_seconds}}) {
    double us = 0;
    if (!take_word(line, word) || word.name != name || !read_number(word.value, us) || !(us > 0) ||
        us > kMostMicroseconds)
      return false;
    *seconds = us * kMicrosecond;
  }
  return line.empty();
}

}  // namespace

CallKey key_of(const Problem& checked) {
  CallKey key{};
  for (std::size_t i = 0; i < kNumKeyFields; ++i) key[i] = kKeyFields[i].value(checked);
  return key;
}

std::string call_text(const CallKey& key) {
  std::string text;
  for (std::size_t i = 0; i < kNumKeyFields; ++i)
    if (key[i] != default_key()[i])
      text += format_text("{}{}={}", text.empty() ? "" : " ", kKeyFields[i].name, key[i]);
  return text;
}

std::string config_text(const TuningConfig& config) {
  std::string text;
  for (const TuningField& field : kTuningFields)
    if (config.*field.value != 0)
      text += format_text("{}{}={}", text.empty() ? "" : " ", field.name, config.*field.value);
  return text;
}

std::string device_key(const DeviceInfo& device) {
  return format_text("{} sm={} isa={} units={} l2={} smem={} name={}",
                     device.device_type == HEADRACE_CUDA ? "cuda" : "cpu", device.sm,
                     device.cpu_isa, device.num_units, device.l2_bytes, device.smem_bytes,
                     device.name);
}

const TunedCall* Table::find(const Kernel& kernel, const Problem& checked) const {
  const auto found = calls_.find({&kernel, key_of(checked)});
  return found == calls_.end() ? nullptr : &found->second;
}

void Table::choose(Plan& plan) const {
  const TunedCall* call = find(*plan.kernel, plan.problem);
  if (call == nullptr) return;
  const std::string text = config_text(call->config);
  const std::vector<TuningConfig> offered = configs_of(*plan.kernel, plan.problem, plan.device);
  if (text.empty()) {
    plan.tuning = "the kernel's own choices are fastest; ";
  } else if (std::find(offered.begin(), offered.end(), call->config) == offered.end()) {
    plan.tuning = format_text("ignores {}, which the kernel does not offer; ", text);
  } else {
    plan.config = call->config;
    plan.tuning = format_text("{}: {} % faster than the kernel's own choices; ", text,
                              std::round(1000 * call->gain()) / 10);
  }
  plan.tuning += source_;
}

Status Table::set(const Kernel& kernel, const Problem& checked, const TunedCall& call) {
  const Key key{&kernel, key_of(checked)};
  if (calls_.size() >= kMaxCalls && !calls_.contains(key))
    return invalid_argument("tuning: has {} calls, the most of a table; create a new one",
                            kMaxCalls);
  calls_[key] = call;
  return std::nullopt;
}

std::string Table::text() const {
  std::string text =
      format_text("{}\n{}\n{}\n", kHeading, version_line(), device_line(device_key_));
  for (const auto& [key, call] : calls_)
    text += format_text("{} {}:{}:us={} own_us={}\n", key.first->name, call_text(key.second),
                        config_text(call.config), call.seconds * 1e6, call.own_seconds * 1e6);
  return text + format_text("end {}\n", calls_.size());
}

Result<Table> Table::parse(const DeviceInfo& device, std::string_view text, std::string source) {
  Table table(device, std::move(source));
  const std::string& name = table.source_;
  if (text.size() > kMaxBytes)
    return invalid_argument("{}: it has {} bytes, a table has at most {}; tune again", name,
                            text.size(), kMaxBytes);
  if (take_until(text, '\n') != kHeading)
    return invalid_argument("{}: its first line is not \"{}\"; tune again", name, kHeading);
  if (take_until(text, '\n') != version_line())
    return invalid_argument("{}: it is not of this Headrace, {}; tune again", name, version_line());
  if (take_until(text, '\n') != device_line(table.device_key_))
    return invalid_argument("{}: it is not of this device, [{}]; tune again on it", name,
                            table.device_key_);
  std::size_t line_number = 4;
  for (; text.find('\n') != text.npos; ++line_number) {
    const std::string_view line = take_until(text, '\n');
    if (text.empty() && line == format_text("end {}", table.calls_.size())) return table;
    Key key;
    TunedCall call;
    if (!read_call(line, device.device_type, key, call) || table.calls_.size() >= kMaxCalls ||
        table.calls_.contains(key))
      return invalid_argument("{}: line {} is damaged; tune again", name, line_number);
    if (key.first == nullptr)
      return invalid_argument("{}: line {} names a kernel that this build lacks; tune again", name,
                              line_number);
    table.calls_.emplace(key, call);
  }
  return invalid_argument("{}: its end is missing; tune again", name);
}

namespace {

constexpr std::size_t kMaxTables = 64;

struct ActiveTables {
  std::mutex mutex;
  std::vector<std::shared_ptr<const Table>> tables;
  std::atomic<bool> has_any = false;  // so that a plan without tables takes no lock
};
ActiveTables& active() {
  static ActiveTables tables;
  return tables;
}

}  // namespace

Status use_table(std::shared_ptr<const Table> table) {
  ActiveTables& all = active();
  const std::lock_guard lock(all.mutex);
  if (table == nullptr)
    all.tables.clear();
  else
    std::erase_if(all.tables, [&](const auto& old) { return old->is_of_device_of(*table); });
  if (all.tables.size() == kMaxTables)
    return invalid_argument("tuning: tables of {} devices are in use; pass NULL to forget them",
                            kMaxTables);
  if (table != nullptr) all.tables.push_back(std::move(table));
  all.has_any = !all.tables.empty();
  return std::nullopt;
}

std::shared_ptr<const Table> table_of(const DeviceInfo& device) {
  ActiveTables& all = active();
  if (!all.has_any) return nullptr;
  const std::lock_guard lock(all.mutex);
  for (const auto& table : all.tables)
    if (table->is_of(device)) return table;
  return nullptr;
}

}  // namespace headrace::tune
