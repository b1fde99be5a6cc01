// Structs of programs compiled with an older header: fields past struct_size are not read and have
// their defaults. Tests every struct and every size.
#include "support/older_structs.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"
#include "headrace/model.hpp"

namespace {

using namespace headrace;
using namespace headrace::testing;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";

// ---- attention ----

// All tensors of a call; inputs overlap, outputs do not.
struct Tensors {
  Numbers in;
  std::vector<float> out[8];
  std::vector<std::uint8_t> keep = std::vector<std::uint8_t>(16, 1);
  std::vector<std::uint32_t> tree = std::vector<std::uint32_t>(16, 0xFFFFFFFF);
  headrace_attention_tensors t{};
  headrace_attention_gradients g{};

  explicit Tensors(bool is_backward = false) {
    for (auto& x : out) x.assign(4096, 0.25f);
    headrace_attention_tensors_init(&t);
    headrace_attention_gradients_init(&g);
    const auto view = [](std::vector<float>& x, std::initializer_list<std::int64_t> shape) {
      return TensorView(x.data(), DType::f32, shape);
    };
    keep[1] = 0;
    t.q = t.k = t.v = view(in.values, {1, 4, 2, 8});
    t.out = view(out[0], {1, 4, 2, 8});
    t.lse = view(out[1], {1, 2, 4});
    t.alibi_slopes = view(in.values, {2});
    t.bias = view(in.values, {1, 1, 4, 4});
    t.mask = TensorView(keep.data(), DType::boolean, {1, 1, 1, 4});
    t.tree_mask = TensorView(tree.data(), DType::u32, {1, 4, 1});
    tree[3] = 1;
    t.sinks = view(in.values, {2});
    if (!is_backward) t.probs = view(out[2], {1, 2, 4, 4});
    g.dout = view(in.values, {1, 4, 2, 8});
    g.dlse = view(in.values, {1, 2, 4});
    g.dq = view(out[3], {1, 4, 2, 8});
    g.dk = view(out[4], {1, 4, 2, 8});
    g.dv = view(out[5], {1, 4, 2, 8});
    g.dbias = view(out[6], {1, 1, 4, 4});
    g.dsinks = view(out[7], {2});
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  // All bytes that a call wrote.
  std::string written() const {
    std::string bytes;
    for (const auto& x : out)
      bytes.append(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
    return bytes;
  }
};

TEST(OlderStructs, OfAttentionOptions) {
  headrace_attention_options full, defaults;
  headrace_attention_options_init(&defaults);
  full = defaults;
  full.softmax_scale = 0.9;
  full.softcap = 3;
  full.dropout_p = 0.5;
  full.dropout_seed = 5;
  full.dropout_offset = 6;
  full.window_left = 2;
  full.window_right = 1;
  full.max_seqlen_q = 7;
  full.max_seqlen_k = 8;
  full.causal = HEADRACE_CAUSAL_TOP_LEFT;
  full.num_splits = 2;
  full.strict_fallback = full.strict_rows = full.checked = full.deterministic = 1;
  full.max_shared_prefix = 512;  // an error without pages
  // A dense batch, and a ragged one, which uses the max_seqlen bounds.
  const auto outcome = [](const headrace_attention_options& options) {
    std::string text;
    std::int32_t lengths[] = {0, 3, 8};
    for (const bool is_ragged : {false, true}) {
      Tensors call;
      call.t.tree_mask = call.t.probs = {};
      if (is_ragged) {
        call.t.q = call.t.k = call.t.v = TensorView(call.in.values.data(), DType::f32, {8, 2, 8});
        call.t.out = TensorView(call.out[0].data(), DType::f32, {8, 2, 8});
        call.t.lse = call.t.bias = call.t.mask = {};
        call.t.cu_seqlens_q = call.t.cu_seqlens_k = TensorView(lengths, DType::i32, {3});
      }
      Problem problem;
      headrace_status status = headrace_attention_problem(&call.t, &options, &problem);
      if (status == HEADRACE_OK)
        status = headrace_attention_forward(&call.t, &options, nullptr, 0, nullptr);
      if (status != HEADRACE_OK) {
        text += failed(status);
        continue;
      }
      const headrace_problem& c = problem;
      text.append(reinterpret_cast<const char*>(&c), sizeof c) += call.written();
    }
    return text;
  };
  // Steps of 8 bytes: the int32 fields at the end are added in pairs.
  expect_older_structs<headrace_attention_options>("attention_options", full, defaults,
                                                   offsetof(headrace_attention_options, softcap),
                                                   12, outcome);
}

TEST(OlderStructs, OfAttentionTensors) {
  const Tensors full;
  headrace_attention_tensors defaults;
  headrace_attention_tensors_init(&defaults);
  // Older headers end between tensors.
  const std::size_t oldest = offsetof(headrace_attention_tensors, lse);
  std::string before;
  for (std::size_t size = oldest; size <= sizeof defaults; size += sizeof(headrace_tensor)) {
    SCOPED_TRACE(size);
    const auto outcome = [&full](headrace_attention_tensors t) {
      Tensors call;
      // The same views in this call's memory.
      headrace_tensor* const written[] = {&t.out, &t.lse, &t.probs};
      const headrace_tensor own[] = {call.t.out, call.t.lse, call.t.probs};
      const headrace_tensor theirs[] = {full.t.out, full.t.lse, full.t.probs};
      for (int i = 0; i < 3; ++i)
        if (written[i]->data == theirs[i].data) *written[i] = own[i];
      const headrace_status status = headrace_attention_forward(&t, nullptr, nullptr, 0, nullptr);
      return status == HEADRACE_OK ? call.written() : failed(status);
    };
    headrace_attention_tensors whole = cut(full.t, size, defaults);
    whole.struct_size = sizeof whole;
    // cu_seqlens, block_table and seqused_k are absent here: paged_test.cc has the last two.
    const std::string got = outcome(cut(full.t, size, garbage<headrace_attention_tensors>()));
    EXPECT_EQ(got, outcome(whole));
    const bool is_length = size == offsetof(headrace_attention_tensors, cu_seqlens_k) ||
                           size == offsetof(headrace_attention_tensors, alibi_slopes) ||
                           size > offsetof(headrace_attention_tensors, block_table);
    EXPECT_TRUE(size == oldest || (got == before) == is_length);
    before = got;
  }
  headrace_attention_tensors small = cut(full.t, oldest - 8, defaults);
  EXPECT_EQ(headrace_attention_forward(&small, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
}

TEST(OlderStructs, OfAttentionGradients) {
  const Tensors full(true);
  headrace_attention_gradients defaults;
  headrace_attention_gradients_init(&defaults);
  const std::size_t oldest = offsetof(headrace_attention_gradients, dbias);
  std::string before;
  for (std::size_t size = oldest; size <= sizeof defaults; size += sizeof(headrace_tensor)) {
    SCOPED_TRACE(size);
    const auto outcome = [size](const headrace_attention_gradients& rest, bool is_whole) {
      Tensors call(true);
      EXPECT_EQ(headrace_attention_forward(&call.t, nullptr, nullptr, 0, nullptr), HEADRACE_OK)
          << headrace_last_error();
      headrace_attention_gradients g = cut(call.g, size, rest);
      if (is_whole) g.struct_size = sizeof g;
      const headrace_status status =
          headrace_attention_backward(&call.t, &g, nullptr, nullptr, 0, nullptr);
      return status == HEADRACE_OK ? call.written() : failed(status);
    };
    const std::string got = outcome(garbage<headrace_attention_gradients>(), false);
    EXPECT_EQ(got, outcome(defaults, true));
    EXPECT_NE(got, before);
    before = got;
  }
}

TEST(OlderStructs, OfProblems) {
  headrace_problem full, defaults;
  headrace_problem_init(&defaults);
  full = defaults;
  full.batch = 2;
  full.seqlen_q = 3;
  full.seqlen_k = 9;
  full.total_q = 5;
  full.total_k = 11;
  full.num_heads = 4;
  full.num_kv_heads = 2;
  full.head_dim = 16;
  full.head_dim_v = 24;
  full.window_left = 2;
  full.window_right = 1;
  full.softmax_scale = 0.5;
  full.softcap = 3;
  full.dropout_p = 0.5;
  full.dtype = HEADRACE_BF16;
  full.bias_dtype = HEADRACE_F32;
  full.causal = HEADRACE_CAUSAL_TOP_LEFT;
  full.num_splits = 2;
  full.is_ragged = full.has_alibi = full.has_mask = full.has_sinks = full.has_lse = 1;
  full.strict_rows = full.checked = full.has_negative_strides = full.deterministic = 1;
  full.alignment = 4;
  full.phase = HEADRACE_BACKWARD;
  full.has_dlse = full.has_dbias = full.has_dsinks = 1;
  full.max_shared_prefix = 512;  // an error without pages
  const DeviceInfo device = device_from_text("cpu:avx2:2");
  const auto outcome = [&device](const headrace_problem& problem) {
    headrace_plan* plan = nullptr;
    const headrace_status status = headrace_plan_attention(&problem, &device, &plan);
    if (status != HEADRACE_OK) return failed(status);
    const Plan owner(plan);
    return std::string(owner.explain());
  };
  // Totals are refused until is_ragged follows, seven steps of 8 bytes later. Of the later ones,
  // has_probs with strict_fallback is unset.
  expect_older_structs<headrace_problem>("problem", full, defaults,
                                         offsetof(headrace_problem, window_left), 9, outcome);
  full.total_q = full.total_k = full.is_ragged = 0;
  full.phase = full.has_dlse = full.has_dbias = full.has_dsinks = full.deterministic = 0;
  expect_older_structs<headrace_problem>("problem of a forward", full, defaults,
                                         offsetof(headrace_problem, window_left), 13, outcome);
}

// ---- models ----

TEST(OlderStructs, OfModelOptions) {
  headrace_model_options full, defaults;
  headrace_model_options_init(&defaults);
  full = defaults;
  full.num_threads = 3;
  full.exact = 1;
  full.use_mmap = 1;
  int num_calls = 0;
  full.progress = [](void* user, std::uint64_t, std::uint64_t) {
    if (user != nullptr) ++*static_cast<int*>(user);
  };
  full.progress_user = &num_calls;
  full.device_type = HEADRACE_CUDA;  // with exact = 1 an error, with and without a GPU
  full.device_id = 1;
  full.fast = 1;  // on the CPU an error
  const auto outcome = [&num_calls](const headrace_model_options& options) {
    num_calls = 0;
    headrace_model* model = nullptr;
    const headrace_status status = headrace_model_load(kFile.c_str(), &options, &model);
    if (status != HEADRACE_OK) return failed(status);
    headrace_model_info info{};
    info.struct_size = sizeof info;
    headrace_model_get_info(model, &info);
    headrace_model_destroy(model);
    return std::to_string(info.num_threads) + ' ' + std::to_string(info.exact) + ' ' +
           std::to_string(info.num_layers) + ' ' + std::to_string(num_calls);
  };
  expect_older_structs<headrace_model_options>("model_options", full, defaults, sizeof(std::size_t),
                                               3, outcome);
  full.vocab_only = 1;
  expect_older_structs<headrace_model_options>("model_options without weights", full, defaults,
                                               sizeof(std::size_t), 3, outcome);
}

const std::vector<std::int32_t> kPrompt = {89, 271, 200, 103, 38, 103, 103};

TEST(OlderStructs, OfSessionOptions) {
  const Model model(kFile);
  headrace_session_options full, defaults;
  headrace_session_options_init(&defaults);
  full = defaults;
  full.max_tokens = 9;
  full.batch_tokens = 1;
  full.cache_dtype = HEADRACE_BF16;
  full.page_size = 5;
  full.num_pages = 1;
  full.sparq_components = 2;
  full.sparq_keys = 3;
  const auto outcome = [&model](const headrace_session_options& options) {
    headrace_session* session = nullptr;
    const headrace_status status = headrace_session_create(model.get(), &options, &session);
    if (status != HEADRACE_OK) return failed(status);
    headrace_session_append(session, kPrompt.data(), kPrompt.size(), nullptr);
    std::string text(reinterpret_cast<const char*>(headrace_session_logits(session)),
                     288 * sizeof(float));
    text += failed(headrace_session_append(session, kPrompt.data(), 3, nullptr));
    headrace_session_destroy(session);
    return text;
  };
  // batch_tokens and page_size need not change bits; num_pages is too small; sparq_components
  // without sparq_keys is an error of its own.
  expect_older_structs<headrace_session_options>("session_options", full, defaults,
                                                 sizeof(std::size_t), 5, outcome);
}

TEST(OlderStructs, OfBeamOptions) {
  const Model model(kFile);
  Session session(model, {.max_tokens = 20, .num_pages = 20});
  session.append(kPrompt);
  headrace_beam_options full, defaults;
  headrace_beam_options_init(&defaults);
  full = defaults;
  full.beam_width = 3;
  full.length_penalty = 0.25;
  full.max_new_tokens = 4;
  full.ignore_end = 1;
  const auto outcome = [&session](const headrace_beam_options& options) {
    headrace_completions* list = nullptr;
    const headrace_status status = headrace_session_beam_search(session.get(), &options, &list);
    if (status != HEADRACE_OK) return failed(status);
    std::string text;
    for (std::int64_t i = 0; i < headrace_completions_count(list); ++i) {
      headrace_completion completion{};
      completion.struct_size = sizeof completion;
      headrace_completions_get(list, i, &completion);
      text += std::to_string(completion.num_tokens) + ' ' + std::to_string(completion.score) + ' ';
    }
    headrace_completions_destroy(list);
    return text;
  };
  // No end token is likely here, so that ignore_end changes nothing.
  expect_older_structs<headrace_beam_options>("beam_options", full, defaults, sizeof(std::size_t),
                                              3, outcome);
}

TEST(OlderStructs, OfSamplingOptions) {
  const Model model(kFile);
  Session session(model);
  session.append(kPrompt);
  headrace_sampling_options full, defaults;
  headrace_sampling_options_init(&defaults);
  full = defaults;
  full.temperature = 5;
  full.top_p = 0.9;
  full.min_p = 0.3;
  full.repetition_penalty = 3;
  full.presence_penalty = 2;
  full.frequency_penalty = -4;
  full.top_k = 40;
  full.repetition_window = 2;
  full.seed = 17;
  full.sequence = 3;
  const headrace_logit_bias bias[] = {{200, 4.0f}, {11, 3.0f}};
  full.logit_bias = bias;
  full.num_logit_bias = 2;
  full.order = HEADRACE_ORDER_LLAMA_CPP;
  // All fields have an effect except the pointer to biases, whose count is then 0. Sampling many
  // tokens distinguishes the distributions.
  const auto outcome = [&](const headrace_sampling_options& options) {
    std::string text;
    session.truncate(static_cast<std::int64_t>(kPrompt.size()));
    session.truncate(0);
    session.append(kPrompt);
    for (int i = 0; i < 30; ++i) {
      headrace_token_logprob token{};
      const headrace_status status =
          headrace_session_sample(session.get(), &options, 3, &token, nullptr, 0);
      if (status != HEADRACE_OK) return failed(status);
      text += std::to_string(token.token) + ' ';
      session.append({&token.token, 1});
    }
    return text;
  };
  expect_older_structs<headrace_sampling_options>("sampling_options", full, defaults,
                                                  sizeof(std::size_t), 12, outcome);
}

TEST(OlderStructs, OfGenerationOptions) {
  const Model model(kFile);
  Session session(model);
  headrace_sampling_options sampling;
  headrace_sampling_options_init(&sampling);
  sampling.temperature = 3;
  std::vector<std::string> heard;
  headrace_generation_options full, defaults;
  headrace_generation_options_init(&defaults);
  full = defaults;
  full.sampling = &sampling;
  full.max_new_tokens = 5;
  full.ignore_end = 1;
  full.on_text = [](void* user, const char* text, std::size_t num_bytes) {
    if (user != nullptr && num_bytes > 0)
      static_cast<std::vector<std::string>*>(user)->emplace_back(text, num_bytes);
    return 0;
  };
  full.user = &heard;
  const auto outcome = [&](const headrace_generation_options& options) {
    heard.clear();
    session.truncate(0);
    session.append(kPrompt);
    headrace_generation result{};
    result.struct_size = sizeof result;
    const headrace_status status = headrace_session_generate(session.get(), &options, &result);
    if (status != HEADRACE_OK) return failed(status);
    return std::to_string(result.num_tokens) + ' ' + std::to_string(result.finish) + ' ' +
           std::to_string(session.length()) + ' ' + (heard.empty() ? "" : heard.front());
  };
  // The stop string is the second generated text.
  static_cast<void>(outcome(full));
  ASSERT_GE(heard.size(), 2u);
  ASSERT_NE(heard[0], heard[1]);
  const std::string second = heard[1];
  const char* const stop[] = {second.c_str()};
  full.stop = stop;
  full.num_stop = 1;
  const Grammar grammar = Grammar::regex(model, "a*");
  full.grammar = grammar.get();  // refused beside ignore_end
  // Steps: sampling, max_new_tokens, num_stop, user, grammar; stop and on_text need their
  // successors.
  expect_older_structs<headrace_generation_options>("generation_options", full, defaults,
                                                    sizeof(std::size_t), 5, outcome);
  // The model ends immediately, so sampling and ignore_end have an effect.
  const headrace_logit_bias end[] = {{model.info().eos_token, 1000.0f}};
  sampling.logit_bias = end;
  sampling.num_logit_bias = 1;
  full.stop = nullptr;
  full.num_stop = 0;
  full.user = nullptr;
  expect_older_structs<headrace_generation_options>("generation_options at the end", full, defaults,
                                                    sizeof(std::size_t), 3, outcome);
}

// ---- structs with a single size so far ----

TEST(OlderStructs, WithOneValidSizeRejectAllOthers) {
  const DeviceInfo cpu = device_from_text("cpu");
  const Problem problem;
  expect_one_size<headrace_device_info>("device_info", cpu, [&](const auto& device) {
    return headrace_attention_supports(&problem, &device);
  });
  std::vector<float> x(6), y(6), dx(6);
  const auto view = [](std::vector<float>& of) {
    return TensorView(of.data(), DType::f32, {2, 3});
  };
  headrace_softmax_tensors tensors;
  headrace_softmax_tensors_init(&tensors);
  tensors.x = view(x);
  tensors.y = view(y);
  headrace_softmax_backward_tensors gradients;
  headrace_softmax_backward_tensors_init(&gradients);
  gradients.y = view(x);
  gradients.dy = view(y);
  gradients.dx = view(dx);
  headrace_softmax_options options;
  headrace_softmax_options_init(&options);
  expect_one_size<headrace_softmax_options>("softmax_options", options, [&](const auto& o) {
    return headrace_softmax_forward(&tensors, &o, nullptr);
  });
  expect_one_size<headrace_softmax_tensors>("softmax_tensors", tensors, [&](const auto& t) {
    return headrace_softmax_forward(&t, nullptr, nullptr);
  });
  expect_one_size<headrace_softmax_backward_tensors>(
      "softmax_backward_tensors", gradients,
      [&](const auto& t) { return headrace_softmax_backward(&t, nullptr, nullptr); });
  const headrace_tensor state = TensorView(x.data(), DType::f32, {1, 1, 6});
  const headrace_tensor state_lse = TensorView(y.data(), DType::f32, {1, 1});
  headrace_merge_states_tensors merge;
  headrace_merge_states_tensors_init(&merge);
  merge.num_states = 1;
  merge.outs = &state;
  merge.lses = &state_lse;
  merge.out = TensorView(dx.data(), DType::f32, {1, 1, 6});
  expect_one_size<headrace_merge_states_tensors>("merge_states_tensors", merge, [&](const auto& t) {
    return headrace_merge_states(&t, nullptr);
  });
  const TensorView element(x.data(), DType::f32, {1, 1, 1, 1});
  headrace_attention_tensors call =
      AttentionTensors{
          .q = element, .k = element, .v = element, .out = {y.data(), DType::f32, {1, 1, 1, 1}}}
          .to_c();
  const Plan plan = plan_attention(Problem(), cpu_info());
  std::vector<char> workspace(plan.workspace_bytes());
  headrace_run_options run;
  headrace_run_options_init(&run);
  expect_one_size<headrace_run_options>("run_options", run, [&](const auto& o) {
    return headrace_plan_run(plan.get(), &call, &o, workspace.data(), workspace.size(), nullptr);
  });
}

}  // namespace
