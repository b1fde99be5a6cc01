// What the server answers: routes, requests under way, and the engine. Used on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine_thread.h"
#include "exchange.h"
#include "metrics.h"
#include "prepare_thread.h"
#include "response.h"

namespace headrace::server {

struct ServiceOptions {
  std::string model_name;                 // that requests and answers name
  std::string chat_template = {};         // empty: the model's own
  std::vector<std::string> api_keys;      // empty: none is asked for
  std::vector<std::string> cors_origins;  // other pages that may ask; "*": all
  std::uint64_t seed = 0;                 // of ids, and of requests without one
  std::int64_t max_requests = 1024;       // to the engine at once: of a prompt each
};

class Service {
 public:
  // The engine has the same max_requests.
  Service(const Model& model, const Engine& engine, std::int64_t max_tokens,
          const ServiceOptions& options);

  // Comes before handle().
  void start(EngineThread& engine, PrepareThread& prepare) {
    engine_thread_ = &engine;
    prepare_thread_ = &prepare;
  }

  // Returns an id for cancel(); 0: the request is answered.
  std::int64_t handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange);
  void cancel(std::int64_t id);
  void take_prepared(std::int64_t id, Prepared prepared);
  void deliver(StepOutputs outputs);

  // New completions are refused with 503.
  void drain() { is_draining_ = true; }
  bool is_idle() const { return jobs_.empty() && preparing_.empty(); }
  void abort_all();
  Metrics& metrics() { return metrics_; }

 private:
  // Where the answer goes.
  struct Caller {
    std::shared_ptr<Exchange> exchange;  // null: cancelled
    std::string headers;                 // of the reply
    Clock::time_point begin;
  };
  // A completion that the engine computes.
  struct Job {
    AnswerHead head;
    Caller caller;
    bool is_stream, has_logprobs;
    std::vector<ToolCallReader> readers;    // of each choice; empty: calls are text
    std::int64_t num_samples;               // of a prompt
    std::int64_t num_choices;               // of a prompt, in the answer
    std::vector<std::int64_t> requests;     // of the engine, by prompt
    std::vector<Choice> choices;            // [prompts, num_samples]
    std::vector<Clock::time_point> latest;  // token of each choice
    std::int64_t num_open;                  // choices
    Usage usage;
    std::string error;  // of a choice
  };

  // Empty: the request has to be prepared.
  std::optional<HttpReply> route(const HttpRequest& request);
  void check_origin(const HttpRequest& request) const;
  void check_key(const HttpRequest& request) const;
  std::string cors_headers(const HttpRequest& request) const;
  HttpReply get(const std::string& path);
  HttpReply health() const;
  Json model_json() const;
  HttpReply models() const;
  HttpReply model(const std::string& encoded_name) const;

  std::int64_t prepare_later(HttpRequest request, Caller caller);
  void check_capacity(std::int64_t num_prompts);
  [[noreturn]] void refuse_busy(const std::string& reason);
  void begin(std::int64_t id, const Caller& caller, Completion completion);
  // What comes before the first token of each choice.
  void begin_choices(Job& job, const Completion& completion);
  void add_prompts(Job& job, std::int64_t id, Request request,
                   std::vector<std::vector<std::int32_t>> prompts);
  void take(Output output, Clock::time_point now);
  Choice part_of(Job& job, std::size_t choice, Output& output);
  void measure(Job& job, std::size_t choice, const Output& output, Clock::time_point now);
  void finish(std::int64_t id, Job& job, Clock::time_point now);
  void abort(const Job& job);

  const Model& model_;
  const Engine& engine_;
  std::int64_t max_tokens_;
  ServiceOptions options_;
  EngineThread* engine_thread_ = nullptr;
  PrepareThread* prepare_thread_ = nullptr;
  std::int64_t started_ = 0;  // Unix time, s
  std::mt19937_64 random_;
  bool is_draining_ = false;
  std::string failure_;  // of the engine
  std::int64_t last_job_ = 0;
  std::unordered_map<std::int64_t, Caller> preparing_;
  std::unordered_map<std::int64_t, Job> jobs_;
  std::unordered_map<std::int64_t, std::int64_t> job_of_request_;
  Metrics metrics_;
};

}  // namespace headrace::server
