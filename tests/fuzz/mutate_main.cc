// Runs a fuzz harness on mutations of the files below a folder: where there is no libFuzzer, and
// with a fixed sequence of inputs. mutate_main FOLDER COUNT [SEED]
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::size_t kMaxBytes = 4096;
constexpr const char* kPieces[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\"",
                                   "\\",
                                   "\\u0000",
                                   "null",
                                   "true",
                                   "false",
                                   "-1",
                                   "1e999",
                                   "0.5",
                                   "1e-400",
                                   "{}",
                                   "[]",
                                   "\"\"",
                                   "[[[[[",
                                   "\xff",
                                   "\xed\xa0",
                                   "\\ud800",
                                   "99999999999999999999",
                                   "<tool_call>",
                                   "</tool_call>",
                                   "{\"$ref\": \"#\"}"};

using Bytes = std::istreambuf_iterator<char>;
using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t bound) {
  return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
}

std::string mutated(const std::vector<std::string>& corpus, Random& random) {
  std::string text = corpus[below(random, corpus.size())];
  for (std::size_t left = 1 + below(random, 6); left > 0; --left) {
    const std::size_t at = below(random, text.size() + 1);
    const std::size_t count = below(random, 16);
    switch (below(random, 6)) {
      case 0:
        text.insert(at, kPieces[below(random, std::size(kPieces))]);
        break;
      case 1:
        text.replace(at, count, kPieces[below(random, std::size(kPieces))]);
        break;
      case 2:
        text.erase(at, count);
        break;
      case 3:
        text.insert(at, text.substr(below(random, text.size() + 1), 4 * count));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(below(random, 256));
        break;
      default: {  // the end of another file
        const std::string& other = corpus[below(random, corpus.size())];
        text = text.substr(0, at) + other.substr(below(random, other.size() + 1));
      }
    }
  }
  return text.substr(0, kMaxBytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::vector<std::string> corpus;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[1])) {
    std::ifstream in(entry.path(), std::ios::binary);
    if (entry.is_regular_file()) corpus.emplace_back(Bytes(in), Bytes());
  }
  const std::size_t count = std::strtoull(argv[2], nullptr, 10);
  Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  for (std::size_t i = 0; i < count && !corpus.empty(); ++i) {
    const std::string text = mutated(corpus, random);
    // An exact copy, so that a sanitizer sees reads past the end.
    const std::vector<std::uint8_t> input(text.begin(), text.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu files, %zu inputs\n", corpus.size(), count);
  return corpus.empty();
}
