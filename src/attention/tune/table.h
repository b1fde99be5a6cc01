// Tuned choices of one device: what headrace tune measured, by call. Plans read them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "core/kernel.h"

namespace headrace::tune {

// What a call's time depends on, except the values of its numbers: sizes, dtypes, features.
inline constexpr std::size_t kNumKeyFields = 40;
using CallKey = std::array<std::int64_t, kNumKeyFields>;
// `checked`: a problem that validate() or check_problem() returned.
CallKey key_of(const Problem& checked);

struct TunedCall {
  TuningConfig config{};   // default: none is faster than the kernel's own choices
  double seconds = 0;      // of a call with `config`
  double own_seconds = 0;  // of a call with the kernel's own choices, measured in turn
  double gain() const { return own_seconds / seconds - 1; }
};

// What a table belongs to beside the version.
std::string device_key(const DeviceInfo& device);
// "tile_m=96 num_threads=1"; "" for the default config.
std::string config_text(const TuningConfig& config);

class Table {
 public:
  // A call and its kernel.
  using Key = std::pair<const Kernel*, CallKey>;
  static constexpr std::size_t kMaxCalls = 2048;
  static constexpr std::size_t kMaxBytes = 4 << 20;  // of a text

  // `source`: where the choices come from, for explain(): a file's name.
  Table(const DeviceInfo& device, std::string source)
      : device_key_(device_key(device)), source_(std::move(source)) {}
  // From a text that may be damaged, of another device or of another version: nothing is believed
  // that is not checked. The failure says why the text is no table of this device.
  static Result<Table> parse(const DeviceInfo& device, std::string_view text, std::string source);
  std::string text() const;

  bool is_of(const DeviceInfo& device) const { return device_key_ == device_key(device); }
  bool is_of_device_of(const Table& other) const { return device_key_ == other.device_key_; }
  const std::map<Key, TunedCall>& calls() const { return calls_; }
  const TunedCall* find(const Kernel& kernel, const Problem& checked) const;  // null: none
  // Sets plan.config, and what explain() says of it. A table may have been written by anybody: only
  // choices that the plan's kernel offers count.
  void choose(Plan& plan) const;
  // Adds or replaces. Fails if the table is full.
  Status set(const Kernel& kernel, const Problem& checked, const TunedCall& call);

 private:
  std::string device_key_, source_;
  std::map<Key, TunedCall> calls_;
};

// "batch=8 seqlen_q=1 ...": the fields that differ from those of a default problem.
std::string call_text(const CallKey& key);

// The tables that plans of this process read: one for each device. Adding one replaces that of the
// same device; null removes all. Fails if there are tables of 64 devices.
Status use_table(std::shared_ptr<const Table> table);
std::shared_ptr<const Table> table_of(const DeviceInfo& device);  // null: none

}  // namespace headrace::tune
