// Measured ceilings of a device, kept in a file of the user's cache folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headrace/roofline.hpp"

namespace headrace::cli {

// What measured ceilings belong to. A file of another key is not used.
struct CeilingsKey {
  std::string device;          // its name
  std::int64_t num_units = 0;  // threads or multiprocessors
  std::string software;        // versions of the library, and of driver and runtime
  bool operator==(const CeilingsKey&) const = default;
};
CeilingsKey ceilings_key(const DeviceInfo& device);

// $XDG_CACHE_HOME/headrace/ceilings-....json, by default under ~/.cache; "" if HOME is unset.
std::string ceilings_path(const CeilingsKey& key);

struct MeasuredCeilings {
  std::string date;  // UTC
  std::vector<Ceiling> ceilings;
};

std::string ceilings_text(const CeilingsKey& key, const MeasuredCeilings& measured);

// The ceilings in the text of a file, which may be damaged or another program's: nothing is
// believed that is not checked. No value: `reason` says why not.
std::optional<MeasuredCeilings> parse_ceilings(const std::string& text, const CeilingsKey& key,
                                               std::string& reason);
// The same of a file; no value and no reason if there is none.
std::optional<MeasuredCeilings> read_ceilings(const std::string& path, const CeilingsKey& key,
                                              std::string& reason);

// Those in the cache of a device of this machine; none if there is no such file, or it is ignored
// with a note.
std::vector<Ceiling> cached_ceilings(const DeviceInfo& device);

// The ceilings in a report of headrace roofline --format json, of any device, which may be damaged.
// No value: `reason` says why not.
std::optional<MeasuredCeilings> parse_report(const std::string& text, std::string& reason);
std::optional<MeasuredCeilings> read_report(const std::string& path, std::string& reason);

}  // namespace headrace::cli
