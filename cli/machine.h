// Notes on machine and date for the head of a report.
#pragma once

#include <cstdint>
#include <string>

#include "headrace/headrace.hpp"
#include "table.h"

namespace headrace::cli {

std::int64_t memory_bytes();
std::string bytes_text(std::int64_t bytes);   // "512 KiB"
std::string isa_text(std::uint32_t cpu_isa);  // "avx2 avx512", "scalar"
std::string operating_system_text();          // "Linux 6.1.0 x86_64"

std::string date_text();  // now, UTC: "2025-01-31T12:00:00Z"

// What repeating a run needs: benchmark, command, date, machine, operating system, build.
std::vector<Note> run_notes(const char* benchmark, const std::string& command_line,
                            const DeviceInfo& device);
// The number of threads or multiprocessors that a call may use.
Note units_note(const DeviceInfo& device);

}  // namespace headrace::cli
