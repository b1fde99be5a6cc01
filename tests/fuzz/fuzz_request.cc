// First byte: chat or completion. The rest is the body of a request, and text that may have calls.
#include "server/request.h"
#include "server/tool_calls.h"
#include "tests/fuzz/fuzz.h"

using namespace headrace;
using testing::require;

namespace {

// Cut into pieces anywhere, the text gives the same calls.
void check_calls(std::string_view text, server::CallFormat format, bool is_in_call) {
  const auto all = [&](std::size_t split) {
    server::ToolCallReader reader(format, is_in_call);
    std::string content;
    std::vector<std::string> calls;
    for (const bool is_last : {false, true}) {
      auto parts = reader.read(is_last ? text.substr(split) : text.substr(0, split), is_last);
      content += parts.content;
      for (const server::ToolCallDelta& call : parts.calls) {
        if (!call.name.empty()) calls.push_back(call.name + ' ');
        require(call.idx + 1 == std::ssize(calls), "a call begins with its name");
        calls.back() += call.arguments;
      }
    }
    calls.push_back(std::move(content));
    return calls;
  };
  require(all(text.size() / 2) == all(text.size()), "pieces change no call");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto form = (data[0] & 1) == 0 ? server::Form::chat : server::Form::completion;
  const auto format = static_cast<server::CallFormat>((data[0] >> 2) % 3);
  check_calls(testing::as_text(data + 1, size - 1), format, (data[0] & 2) != 0);
  try {
    const server::CompletionRequest parsed =
        server::parse_completion(form, testing::as_text(data + 1, size - 1), format);
    require(form == server::Form::chat ? !parsed.messages.empty() : !parsed.prompts.empty(),
            "an accepted request has a prompt");
    require(parsed.request.n >= 1 && parsed.request.n <= 128, "n is bounded");
    require(parsed.request.stop.size() <= 17, "stop strings are bounded");
    require(parsed.tool_use != server::ToolUse::forced || parsed.grammar, "a grammar forces calls");
  } catch (const server::ApiError& error) {
    require(error.status == 400, "a body that is refused is a bad request");
    require(server::Json::accept(server::error_body(error)), "an error is JSON");
  }
  return 0;
}
