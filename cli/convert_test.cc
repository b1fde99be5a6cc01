// headrace convert, run from a shell: the file loads and generates, and errors leave none.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <utility>

#include "tests/support/program_json.h"

namespace {

using headrace::testing::json_of;
using headrace::testing::run_program;
using headrace::testing::TemporaryFolder;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

TEST(ConvertProgram, WritesAFileThatGenerates) {
  const TemporaryFolder folder;
  const auto heads = json_of("inspect " + kModel)["summary"][0]["num_kv_heads"];
  ASSERT_GT(heads, 1);
  for (const std::string type : {"bf16", "f16"}) {
    const std::string path = folder.file(type + ".gguf");
    const auto made =
        run_program("2>&1 convert " + kModel + ' ' + path + " --kv-heads 1 --type " + type);
    ASSERT_EQ(made.out, "");
    EXPECT_EQ(json_of("inspect " + path)["summary"][0]["num_kv_heads"], 1);
    const auto answer = run_program("generate -m " + path + " --raw Hi -n 8 --ignore-eos -q");
    EXPECT_EQ(answer.exit_code, 0);
    EXPECT_FALSE(answer.out.empty());
    const auto again = run_program("2>&1 convert " + kModel + ' ' + path + " --kv-heads 1");
    EXPECT_EQ(again.exit_code, 1);
    EXPECT_NE(again.out.find("exists; name another file or pass --overwrite"), std::string::npos);
  }
}

// The K and V matrices alone have the type that is asked for, bf16 without; --overwrite replaces.
TEST(ConvertProgram, TheTypeIsThatOfTheKeysAndValues) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.gguf");
  std::map<std::string, std::string> before;
  const auto whole = json_of("inspect " + kModel);
  for (const auto& row : whole["tensors"]) before[row["name"]] = row["type"];
  for (const auto& [option, type] : {std::pair<std::string, std::string>{"", "BF16"},
                                     {" --type f16", "F16"},
                                     {" --type bf16", "BF16"}}) {
    const auto made =
        run_program("2>&1 convert " + kModel + ' ' + path + " --kv-heads 1 --overwrite" + option);
    ASSERT_EQ(made.exit_code, 0) << made.out;
    int num_changed = 0;
    const auto json = json_of("inspect " + path);
    for (const auto& row : json["tensors"]) {
      const std::string name = row["name"];
      const bool is_changed = name.find("attn_k.weight") != std::string::npos ||
                              name.find("attn_v.weight") != std::string::npos;
      EXPECT_EQ(row["type"], is_changed ? type : before.at(name)) << name;
      num_changed += is_changed;
    }
    EXPECT_GT(num_changed, 0);
  }
}

TEST(ConvertProgram, ErrorsLeaveNoFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.gguf");
  const auto wrong = run_program("2>&1 convert " + kModel + ' ' + path + " --kv-heads 1000");
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_NE(wrong.out.find("must divide the"), std::string::npos) << wrong.out;
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
