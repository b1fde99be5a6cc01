// Runs a fuzz harness on every file below the given folders, and on every prefix of the small ones:
// the part of fuzzing that is fast enough for each test run.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  constexpr std::size_t kSmall = 512;
  std::size_t files = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      ++files;
      std::printf("%s\n", entry.path().filename().c_str());
      std::fflush(stdout);
      for (std::size_t size = bytes.size() <= kSmall ? 0 : bytes.size(); size <= bytes.size();
           ++size) {
        // An exact copy, so that a sanitizer sees reads past the end.
        const std::vector<std::uint8_t> input(bytes.begin(),
                                              bytes.begin() + static_cast<std::ptrdiff_t>(size));
        LLVMFuzzerTestOneInput(input.data(), input.size());
      }
    }
  std::printf("%zu files\n", files);
  return files == 0;
}
