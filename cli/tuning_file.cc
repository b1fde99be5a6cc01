#include "tuning_file.h"

#include "command.h"
#include "files.h"

namespace headrace::cli {

std::string tuning_path(const DeviceInfo& device) {
  return cache_path("tuning", device.name, device.num_units, std::string("headrace ") + version(),
                    ".txt");
}

Tuning read_tuning(const DeviceInfo& device, const std::string& path) {
  constexpr std::size_t kMostBytes = (4 << 20) + 1;  // the library refuses longer ones
  std::string reason;
  const auto text = read_start(path, kMostBytes, reason);
  if (!reason.empty()) print_note(path + " is ignored: " + reason);
  if (!text) return Tuning(device);
  try {
    return Tuning(device, *text, path);
  } catch (const Error& error) {
    if (error.code() != HEADRACE_INVALID_ARGUMENT) throw;
    print_note(std::string("ignored: ") + error.what());
    return Tuning(device);
  }
}

std::string use_tuning(const DeviceInfo& device) {
  const std::string path = tuning_path(device);
  const Tuning tuning = read_tuning(device, path);
  if (tuning.calls().empty()) return {};
  tuning.use();
  return path;
}

}  // namespace headrace::cli
