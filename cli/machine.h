// The machine and the moment, for the head of a report.
#pragma once

#include <cstdint>
#include <string>

#include "headrace/headrace.hpp"

namespace headrace::cli {

std::string date_text();              // UTC: "2025-01-31T12:00:00Z"
std::string operating_system_text();  // "Linux 6.1.0 x86_64"
std::int64_t memory_bytes();
std::string bytes_text(std::int64_t bytes);   // "512 KiB"
std::string isa_text(std::uint32_t cpu_isa);  // "avx2 avx512", "scalar"

}  // namespace headrace::cli
