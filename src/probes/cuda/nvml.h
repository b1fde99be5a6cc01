// The power of a GPU, by NVML if the driver's library can be loaded at run time.
#pragma once

#include <string>

namespace headrace::probes::gpu {

class PowerMeter {
 public:
  // `bus_id`: of the PCI bus, as cudaDeviceGetPCIBusId() writes it.
  explicit PowerMeter(const std::string& bus_id);
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;
  ~PowerMeter();
  // Watts, which NVML averages over up to a second; 0: not known.
  double watts() const;

 private:
  void* library_ = nullptr;
  void* handle_ = nullptr;  // nvmlDevice_t
};

}  // namespace headrace::probes::gpu
