// First byte: chat or completion. The rest is the body of a request.
#include "server/request.h"
#include "tests/fuzz/fuzz.h"

using namespace headrace;
using testing::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto form = (data[0] & 1) == 0 ? server::Form::chat : server::Form::completion;
  try {
    const server::CompletionRequest parsed =
        server::parse_completion(form, testing::as_text(data + 1, size - 1));
    require(form == server::Form::chat ? !parsed.messages.empty() : !parsed.prompts.empty(),
            "an accepted request has a prompt");
    require(parsed.request.n >= 1 && parsed.request.n <= 128, "n is bounded");
    require(parsed.request.stop.size() <= 16, "stop strings are bounded");
  } catch (const server::ApiError& error) {
    require(error.status == 400, "a body that is refused is a bad request");
    require(server::Json::accept(server::error_body(error)), "an error is JSON");
  }
  return 0;
}
