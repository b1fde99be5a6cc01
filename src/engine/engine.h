// Serves many requests with one model: continuous batching over a paged KV cache.
//
// The tokens of a request depend on the request alone: not on others beside it, on chunks, hits in
// the prefix cache or preemption. A request that fails ends with FinishReason::error and harms no
// other one; a device error ends all of them and the engine. If an allocation throws in a step, the
// requests that steps have taken end, and the engine goes on.
//
// On a GPU a step is enqueued before the tokens of the step before it are read, where the device
// draws them alone (DeviceSampler::begin()). A sequence that ends with such a token has been
// computed once too often.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/id_map.h"
#include "engine/beam_ranking.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "ops/device_sampler.h"
#include "ops/host_sampler.h"
#include "text/stop_matcher.h"

namespace headrace::engine {

struct EngineOptions {
  std::int64_t max_tokens = 0;        // context of a sequence; 0: the model's
  std::int64_t max_batch_tokens = 0;  // of a step; 0: by the device
  // Of a step in which sequences decode; 0: by the device.
  std::int64_t max_prompt_tokens = 0;
  std::int64_t max_num_seqs = 0;     // running sequences; 0: by the device
  std::int64_t max_requests = 1024;  // that have not ended, or whose outputs were not polled
  DType cache_dtype = DType::f16;
  std::optional<DType> k_dtype = {}, v_dtype = {};  // of codes; empty: cache_dtype
  std::int64_t page_size = 16;
  // 0: on a CPU those of four sequences of max_tokens; on a GPU those of max_num_seqs, or as many
  // as fit (cache_pages.h).
  std::int64_t num_pages = 0;
  std::int64_t num_host_pages = 0;  // for preempted sequences; 0: they are computed anew
  bool has_prefix_cache = true;
  // For tests. A failure is that of the step, or of the sample.
  std::function<Status(std::span<const Chunk>)> before_step = {};
  std::function<Status(std::int64_t request, std::int64_t sample, std::span<const float>)>
      on_logits = {};
};

struct EngineStats {
  SchedulerStats sequences;
  std::int64_t num_requests;  // as max_requests counts them
  std::int64_t num_finished_requests;
  std::int64_t num_generated_tokens;
  std::int64_t num_pages, num_free_pages;
  // Of the steps, without waits for a GPU, or the forward of a model on a CPU.
  double host_seconds;
};

// One thread calls step() or run(); any thread calls the other functions.
class Engine {
 public:
  // The model must have weights and outlive the engine. invalid_argument, out_of_memory.
  static Result<std::unique_ptr<Engine>> make(const LanguageModel& model,
                                              const EngineOptions& options);

  // Queues a request and returns its id. invalid_argument. busy: there are max_requests.
  Result<std::int64_t> add(Request request);
  // The samples that have not ended end in the next step. Has no effect on a request that has
  // ended. invalid_argument: add() has not returned the id.
  Status abort(std::int64_t id);
  // What samples gained, the earliest first; empty: nothing. What is not polled is collected.
  std::optional<Output> poll();
  EngineStats stats() const;

  // Computes one step. False: there was nothing to do. device_error: the engine has ended. Throws
  // std::bad_alloc: the requests that were taken have ended with an error.
  Result<bool> step();
  // Steps until there is nothing to do.
  Status run();

 private:
  struct ActiveSample {
    std::int64_t idx;
    SamplingOptions options;
    text::StreamDecoder decoder;
    text::StopMatcher stops;
    std::optional<text::Matcher> matcher;  // of the request's grammar
    std::int64_t sequence = 0;             // of the scheduler; 0: the prompt is not computed yet
    std::int64_t num_tokens = 0;
    bool has_finished = false;
  };
  // What a sample gained and was not polled. poll() reserves memory for as many tokens again, so
  // that steps rarely allocate.
  struct Gain {
    Output output;
    bool is_listed = false;
    Gain* next = nullptr;  // in the order of poll()
  };
  // Exists as long as a sample has not ended or was not polled, so that its end needs no memory.
  struct Record {
    std::vector<Gain> samples;  // never resized
    std::int64_t num_open, num_unpolled;
  };
  struct Queued {
    std::int64_t id;
    Request request;
    Record* record = nullptr;
  };
  struct ActiveRequest {
    std::int64_t id;
    Request request;
    Record* record = nullptr;                 // guarded by the mutex
    std::vector<ActiveSample> samples;        // of a search: its beams, then its completions
    std::int64_t num_open = 0;                // samples
    std::unique_ptr<BeamRanking> beams = {};  // null: no beam search
  };
  // A sample that a sequence of the scheduler belongs to.
  struct Owner {
    ActiveRequest* request = nullptr;
    ActiveSample* sample = nullptr;
  };

  // A token that is to be drawn from a row of the step's logits.
  struct Draw {
    Owner owner;
    std::int64_t row;
    std::span<const std::uint64_t> mask = {};  // of tokens that the grammar allows
    std::int64_t row_draw = -1;                // of row_draws_; -1: by draw()
    bool is_appended = false;                  // before the token is known
  };

  Engine(const LanguageModel& model, const EngineOptions& options,
         std::unique_ptr<ModelRunner> runner, Scheduler scheduler, Sampler sampler,
         std::optional<HostSampler> host_sampler, std::optional<DeviceSampler> device_sampler,
         Buffer logits);

  Status check(const Request& request) const;
  // Takes what other threads have queued.
  void take_queued();
  void start(Queued queued);
  Result<bool> compute_step();
  Status compute();
  Status forward();
  // Draws the next token of each sequence whose tokens are all computed.
  Status draw_all();
  // Another sample of a prompt that is computed. True: its first token is to be drawn.
  bool fork(std::int64_t parent, Owner owner);
  // Drops draws of samples that end here.
  void find_masks();
  // Draws that need no look at the logits, to row_draws_.
  void list_row_draws();
  Result<bool> draw_rows();
  // Draws while the host goes on: the next step reads the tokens where the device puts them. False:
  // it cannot.
  Result<bool> draw_later();
  // The tokens of draw_later(), which the next step already computes.
  Status take_drawn();
  // Without logits.
  SamplingInput input_of(const Draw& draw) const;
  void take(const Draw& draw, const RowDraw& drawn);
  // Of beam searches (engine_beams.cc).
  Status check_beams(const Request& request) const;
  void start_beams(ActiveRequest& active);
  Status rank(Owner owner, std::span<const float> logits);
  // Of the requests that have ranked in this step, where all beams are computed.
  void advance_beams();
  Status continue_beams(ActiveRequest& active);
  void release_beam(std::int64_t sequence);
  void finish_beams(ActiveRequest& active);
  Status draw(const Draw& draw);
  // Of a row, in memory of the host.
  Result<std::span<const float>> logits_of(std::int64_t row);
  bool ends_with_next(Owner owner, std::int64_t length) const;
  // is_appended: the scheduler has the token.
  void accept(Owner owner, const Sample& drawn, bool is_appended = false);
  void finish(Owner owner, Output&& gained, FinishReason reason, const std::string& error = {});
  void finish_all(ActiveRequest& active, FinishReason reason, const std::string& error);
  // The sample, or the search that the beam is part of.
  void fail(Owner owner, const std::string& error);
  void fail_step(const Failure& failure);
  void end(const Failure& failure);  // of the engine
  void update_stats();
  // Ends all that steps have taken, after an exception that left it incomplete.
  void drop_taken() noexcept;

  // Adds to what poll() gives.
  void deliver(Owner owner, Output&& gained);
  // With the mutex.
  void close(Record& record, Gain& gain, FinishReason reason, std::string error) noexcept;
  void list(Gain& gain) noexcept;

  const LanguageModel& model_;
  EngineOptions options_;

  // Of the thread that steps.
  std::unique_ptr<ModelRunner> runner_;  // the scheduler refers to its cache
  Scheduler scheduler_;
  Sampler sampler_;                              // of what the next two leave
  std::optional<HostSampler> host_sampler_;      // on a CPU
  std::optional<DeviceSampler> device_sampler_;  // on a GPU
  std::vector<Draw> draws_;                      // of the step
  std::vector<Draw> drawn_later_;                // of the step before
  std::vector<RowDraw> row_draws_;
  std::vector<std::int32_t> drawn_tokens_;  // of drawn_later_
  // In memory of the host: float [max_num_seqs, vocab_size]; on a GPU one row that a draw asked
  // for.
  Buffer logits_;
  std::int64_t read_row_ = -1;
  std::vector<std::vector<std::uint64_t>> masks_;  // of draws_
  std::unordered_map<std::int64_t, ActiveRequest> active_;
  IdMap<Owner> owners_;  // by sequence
  std::vector<ModelRunner::Part> parts_;
  std::vector<std::int64_t> ended_;  // requests, in this step
  std::vector<ActiveRequest*> ranked_;
  Output gained_;               // by accept()
  bool has_delivered_ = false;  // in this step
  std::int64_t num_generated_tokens_ = 0;
  std::chrono::steady_clock::duration host_time_{};  // EngineStats::host_seconds

  mutable std::mutex mutex_;  // guards what follows
  std::list<Queued> queued_;
  std::vector<std::int64_t> aborted_;
  std::map<std::int64_t, Record> records_;                // by request
  Gain *polled_next_ = nullptr, *polled_last_ = nullptr;  // a list
  std::int64_t last_request_ = 0, last_taken_ = 0, num_finished_requests_ = 0;
  Status failure_;  // that has ended the engine
  EngineStats stats_{};
};

}  // namespace headrace::engine
