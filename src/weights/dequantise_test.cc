#include "weights/dequantise.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace headrace {
namespace {

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Bit-identical to the `gguf` package (tests/golden/make_dequantise.py).
TEST(Dequantise, EqualsTheGgufPackage) {
  std::ifstream file(HEADRACE_GOLDEN_DIR "/dequantise.json");
  const auto golden = nlohmann::json::parse(file);
  std::set<std::string> seen;
  for (const auto& test_case : golden["cases"]) {
    const auto name = test_case["type"].get<std::string>();
    const auto expected = test_case["values"].get<std::vector<float>>();
    const auto data = from_hex(test_case["data"].get<std::string>());
    for (const WeightTypeInfo& info : weight_types()) {
      if (info.name != name) continue;
      seen.insert(name);
      ASSERT_EQ(static_cast<std::int64_t>(data.size()) / info.block_bytes * info.block_elements,
                static_cast<std::int64_t>(expected.size()));
      std::vector<float> got(expected.size());
      dequantise(info.type, data.data(), static_cast<std::int64_t>(got.size()), got.data());
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], expected[i]) << name << " element " << i;
    }
  }
  EXPECT_EQ(seen.size(), weight_types().size());
}

TEST(Dequantise, TableIsInOrder) {
  for (const WeightTypeInfo& info : weight_types()) {
    EXPECT_EQ(&info_of(info.type), &info);
    EXPECT_EQ(weight_type_from_gguf(info.gguf_id), info.type);
  }
  EXPECT_FALSE(weight_type_from_gguf(4).has_value());
}

}  // namespace
}  // namespace headrace
