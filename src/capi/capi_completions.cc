// Several completions of one sequence.
#include <memory>
#include <utility>
#include <vector>

#include "base/callback.h"
#include "capi/session_common.h"
#include "engine/beam_search.h"

struct headrace_completions {
  std::vector<headrace::engine::Completion> list;
};

namespace headrace::capi {
namespace {

engine::OnSampleText sample_callback(headrace_sample_text_fn fn, void* user) {
  if (fn == nullptr) return {};
  return [fn, user](std::int64_t idx, std::string_view text) -> Result<bool> {
    bool may_continue = false;
    if (auto bad = call_back("on_text",
                             [&] { may_continue = fn(user, idx, text.data(), text.size()) == 0; }))
      return std::move(*bad);
    return may_continue;
  };
}

headrace_beam_options default_beam_options() {
  const engine::BeamOptions defaults;
  headrace_beam_options options{};
  options.beam_width = defaults.beam_width;
  options.length_penalty = defaults.length_penalty;
  return options;
}

headrace_completion completion_of(const engine::Completion& from) {
  headrace_completion completion{};
  completion.tokens = from.tokens.data();
  completion.num_tokens = static_cast<std::int64_t>(from.tokens.size());
  completion.text = from.text.c_str();
  completion.num_bytes = from.text.size();
  completion.logprob = from.logprob;
  completion.score = from.score;
  completion.finish = static_cast<std::int32_t>(from.finish);
  return completion;
}

headrace_status give_completions(Result<std::vector<engine::Completion>> made,
                                 headrace_completions** completions) {
  if (!made.ok()) return fail(std::move(made.failure()));
  *completions = new headrace_completions{std::move(made.value())};
  return HEADRACE_OK;
}

}  // namespace
}  // namespace headrace::capi

using namespace headrace::capi;  // the functions below are the C face of this namespace

extern "C" {

int64_t headrace_completions_count(const headrace_completions* completions) {
  return completions == nullptr ? 0 : static_cast<int64_t>(completions->list.size());
}

headrace_status headrace_completions_get(const headrace_completions* completions, int64_t index,
                                         headrace_completion* completion) {
  return guarded([&] {
    if (completions == nullptr) return fail(null_argument("completions", "generate some first"));
    const int64_t count = headrace_completions_count(completions);
    if (index < 0 || index >= count)
      return fail(headrace::invalid_argument(
          "index={}: must be 0 to below {}, the number of completions; pass one of them", index,
          count));
    return give("completion", completion_of(completions->list[static_cast<size_t>(index)]),
                completion);
  });
}

void headrace_completions_destroy(headrace_completions* completions) { delete completions; }

headrace_status headrace_session_generate_n(headrace_session* session,
                                            const headrace_generation_options* options, int64_t n,
                                            headrace_sample_text_fn on_text, void* user,
                                            headrace_completions** completions) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    if (completions == nullptr)
      return fail(null_argument("completions", "pass the address of a pointer to completions"));
    *completions = nullptr;
    auto wanted = generation_options(options);
    if (!wanted.ok()) return fail(std::move(wanted.failure()));
    if (wanted.value().on_text)
      return fail(headrace::invalid_argument(
          "options.on_text: must be NULL, because it does not name the sample; pass on_text of "
          "headrace_session_generate_n()"));
    return give_completions(headrace::engine::generate_n(
                                session->session, session->model->model.tokenizer, wanted.value(),
                                n, sample_callback(on_text, user), session->sampler),
                            completions);
  });
}

headrace_status headrace_beam_options_init_sized(headrace_beam_options* options,
                                                 size_t struct_size) {
  return init("options", default_beam_options(), options, struct_size);
}

headrace_status headrace_session_beam_search(headrace_session* session,
                                             const headrace_beam_options* options,
                                             headrace_completions** completions) {
  return guarded([&] {
    if (session == nullptr) return fail(null_argument("session", "create one first"));
    if (completions == nullptr)
      return fail(null_argument("completions", "pass the address of a pointer to completions"));
    *completions = nullptr;
    headrace_beam_options c = default_beam_options();
    if (auto bad = read_struct("options", options, c)) return fail(std::move(*bad));
    return give_completions(
        headrace::engine::beam_search(session->session, session->model->model.tokenizer,
                                      {.beam_width = c.beam_width,
                                       .length_penalty = c.length_penalty,
                                       .max_new_tokens = c.max_new_tokens,
                                       .ignore_end = c.ignore_end != 0},
                                      session->sampler),
        completions);
  });
}

}  // extern "C"
