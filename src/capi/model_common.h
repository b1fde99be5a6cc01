// Shared by the functions of model.h.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "capi/capi_common.h"
#include "engine/language_model.h"
#include "headrace/model.h"
#include "text/grammar/grammar.h"

struct headrace_model {
  headrace::engine::LanguageModel model;
  // For grammars: made with the first one.
  mutable std::once_flag has_vocabulary = {};
  mutable std::shared_ptr<const headrace::text::VocabularyTrie> vocabulary = {};
};

struct headrace_grammar {
  std::shared_ptr<headrace::text::Grammar> grammar;
};

namespace headrace::capi {

// Returns a list through (capacity, count). Writes no elements if they do not fit.
template <class List, class T>
headrace_status give_list(const List& list, const char* name, T* to, std::size_t capacity,
                          std::size_t* count) {
  if (count == nullptr) return fail(null_argument("count", "pass the address of a count"));
  *count = list.size();
  if (to == nullptr && capacity == 0) return HEADRACE_OK;
  if (to == nullptr)
    return fail(null_argument(name, "pass an array, or capacity 0 to get the count"));
  if (capacity < list.size())
    return fail(
        invalid_argument("capacity={}: {} has {} elements; pass capacity 0 to get the count",
                         capacity, name, list.size()));
  if (!list.empty()) std::memcpy(to, list.data(), list.size() * sizeof(T));
  return HEADRACE_OK;
}

// invalid_argument, unsupported: threads or device.
Result<engine::LoadOptions> load_options(const headrace_model_options& options);

// Reads a caller's size-prefixed struct over the defaults; null: the defaults.
template <class T>
Status read_struct(const char* name, const T* theirs, T& ours) {
  if (theirs == nullptr) return std::nullopt;
  return copy_versioned(name, theirs, sizeof(std::size_t), &ours, sizeof ours);
}

}  // namespace headrace::capi
