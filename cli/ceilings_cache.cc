#include "ceilings_cache.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "call_bound.h"
#include "command.h"
#include "files.h"
#include "gpu.h"

namespace headrace::cli {
namespace {

using Json = nlohmann::ordered_json;

// Raised when a measurement changes its meaning.
constexpr int kSchema = 1;
constexpr std::size_t kMaxBytes = 1 << 20;
constexpr std::size_t kMaxCeilings = 1000;
constexpr std::size_t kMaxText = 100;  // characters of a name

// A short printable text.
bool is_text(const Json& json, const char* name) {
  if (!json.contains(name) || !json[name].is_string()) return false;
  const auto& text = json[name].get_ref<const std::string&>();
  return !text.empty() && text.size() <= kMaxText &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_between(const Json& json, const char* name, double least, double most) {
  if (!json.contains(name) || !json[name].is_number()) return false;
  const auto value = json[name].get<double>();
  return std::isfinite(value) && least <= value && value <= most;
}

bool is_count(const Json& json, const char* name, double least, double most) {
  return is_between(json, name, least, most) && json[name].is_number_integer();
}

bool is_ceiling(const Json& json) {
  constexpr double kMost = 1e18;
  return json.is_object() && is_count(json, "kind", 0, 2) &&
         is_count(json, "num_units", 1, 1 << 20) && is_text(json, "resource") &&
         is_text(json, "operation") && is_between(json, "value", 1e-12, kMost) &&
         is_between(json, "best", 1e-12, kMost) && is_between(json, "clock_hz", 0, 1e12) &&
         is_between(json, "watts", 0, 1e6) && is_count(json, "bytes", 0, kMost);
}

Ceiling ceiling_of(const Json& json) {
  return {.kind = static_cast<CeilingKind>(json["kind"].get<int>()),
          .num_units = json["num_units"].get<std::int32_t>(),
          .resource = json["resource"].get<std::string>(),
          .operation = json["operation"].get<std::string>(),
          .value = json["value"].get<double>(),
          .best = json["best"].get<double>(),
          .clock_hz = json["clock_hz"].get<double>(),
          .watts = json["watts"].get<double>(),
          .bytes = json["bytes"].get<std::int64_t>()};
}

Json key_json(const CeilingsKey& key) {
  return {{"device", key.device}, {"num_units", key.num_units}, {"software", key.software}};
}

// Discarded, with the reason, if the text is no object of a bounded size.
Json parse_object(const std::string& text, std::string& reason) {
  reason = "it is larger than 1 MiB";
  if (text.size() > kMaxBytes) return Json(Json::value_t::discarded);
  reason = "it is no JSON object";
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Json(Json::value_t::discarded);
  reason.clear();
  return json;
}

}  // namespace

CeilingsKey ceilings_key(const DeviceInfo& device) {
  CeilingsKey key{.device = device.name,
                  .num_units = device.num_units,
                  .software = std::string("headrace ") + version()};
  if (device.device_type == HEADRACE_CUDA) key.software += ", " + gpu_versions();
  return key;
}

std::string ceilings_path(const CeilingsKey& key) {
  return cache_path("ceilings", key.device, key.num_units, key.software, ".json");
}

std::string ceilings_text(const CeilingsKey& key, const MeasuredCeilings& measured) {
  Json json = {{"schema", kSchema}, {"key", key_json(key)}, {"date", measured.date}};
  for (const Ceiling& c : measured.ceilings)
    json["ceilings"].push_back({{"kind", static_cast<int>(c.kind)},
                                {"num_units", c.num_units},
                                {"resource", c.resource},
                                {"operation", c.operation},
                                {"value", c.value},
                                {"best", c.best},
                                {"clock_hz", c.clock_hz},
                                {"watts", c.watts},
                                {"bytes", c.bytes}});
  return json.dump(1) + '\n';
}

std::optional<MeasuredCeilings> parse_ceilings(const std::string& text, const CeilingsKey& key,
                                               std::string& reason) {
  const auto refuse = [&](const char* why) {
    reason = why;
    return std::nullopt;
  };
  const Json json = parse_object(text, reason);
  if (json.is_discarded()) return std::nullopt;
  if (!json.contains("schema") || json["schema"] != kSchema)
    return refuse("another version of Headrace wrote it");
  if (!json.contains("key") || json["key"] != key_json(key))
    return refuse("it is that of another device, driver or version");
  if (!is_text(json, "date")) return refuse("its date is damaged");
  if (!json.contains("ceilings") || !json["ceilings"].is_array() || json["ceilings"].empty() ||
      json["ceilings"].size() > kMaxCeilings)
    return refuse("its list of ceilings is damaged");
  MeasuredCeilings measured{.date = json["date"].get<std::string>(), .ceilings = {}};
  for (const Json& one : json["ceilings"]) {
    if (!is_ceiling(one)) return refuse("one of its ceilings is damaged");
    measured.ceilings.push_back(ceiling_of(one));
  }
  if (memory_roofs(measured.ceilings).empty() || compute_roofs(measured.ceilings).empty())
    return refuse("its list of ceilings has no memory or no peak");
  return measured;
}

std::optional<MeasuredCeilings> parse_report(const std::string& text, std::string& reason) {
  const auto refuse = [&](const char* why) {
    reason = why;
    return std::nullopt;
  };
  const Json json = parse_object(text, reason);
  if (json.is_discarded()) return std::nullopt;
  constexpr struct {
    const char *table, *value;
    CeilingKind kind;
  } kTables[] = {{"compute", "gops", CeilingKind::compute},
                 {"bandwidth", "gbytes", CeilingKind::bandwidth}};
  MeasuredCeilings measured;
  for (const auto& t : kTables) {
    if (!json.contains(t.table) || !json[t.table].is_array() || json[t.table].size() > kMaxCeilings)
      return refuse("it has no tables of compute and bandwidth");
    for (const Json& row : json[t.table]) {
      if (!row.is_object() || !is_text(row, "resource") || !is_text(row, "operation") ||
          !is_count(row, "num_units", 1, 1 << 20) || !is_between(row, t.value, 1e-12, 1e12) ||
          (row.contains("bytes") && !row["bytes"].is_null() && !is_between(row, "bytes", 0, 1e18)))
        return refuse("one of its ceilings is damaged");
      Ceiling c{.kind = t.kind,
                .num_units = row["num_units"].get<std::int32_t>(),
                .resource = row["resource"].get<std::string>(),
                .operation = row["operation"].get<std::string>(),
                .value = row[t.value].get<double>() * 1e9};
      if (row.contains("bytes") && row["bytes"].is_number())
        c.bytes = static_cast<std::int64_t>(row["bytes"].get<double>());
      measured.ceilings.push_back(std::move(c));
    }
  }
  return measured;
}

std::optional<MeasuredCeilings> read_ceilings(const std::string& path, const CeilingsKey& key,
                                              std::string& reason) {
  const auto text = read_start(path, kMaxBytes + 1, reason);
  return text ? parse_ceilings(*text, key, reason) : std::nullopt;
}

std::vector<Ceiling> cached_ceilings(const DeviceInfo& device) {
  const CeilingsKey key = ceilings_key(device);
  const std::string path = ceilings_path(key);
  std::string reason;
  auto cached = read_ceilings(path, key, reason);
  if (!reason.empty()) print_note(path + " is ignored: " + reason);
  return cached ? std::move(cached->ceilings) : std::vector<Ceiling>();
}

std::optional<MeasuredCeilings> read_report(const std::string& path, std::string& reason) {
  const auto text = read_start(path, kMaxBytes + 1, reason);
  if (text) return parse_report(*text, reason);
  if (reason.empty()) reason = "there is no such file";
  return std::nullopt;
}

}  // namespace headrace::cli
