// Every field of a struct that is copied field by field into another one: each is set alone, to a
// value that is not its default, and must arrive, and no other one may change. A field that is
// forgotten, or copied to a neighbour, is found without a test of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "headrace/headrace.hpp"

namespace headrace::testing {

// ---- how many fields a struct has ----

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

// Becomes a value of any type. std::optional has a constructor for such.
struct Anything {
  template <class T>
  requires(!is_optional<T>) operator T() const;
};

template <class T, class... Fields>
consteval std::size_t num_fields() {
  if constexpr (requires { T{Fields{}..., Anything{}}; })
    return num_fields<T, Fields..., Anything>();
  else
    return sizeof...(Fields);
}

// ---- what arrived, as text by name ----

using Shown = std::map<std::string, std::string>;

inline std::string show(const std::string& text) { return text; }
inline std::string show(const char* text) { return text; }
inline std::string show(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}
template <class T>
requires(std::is_integral_v<T> || std::is_enum_v<T>) std::string show(T number) {
  return std::to_string(static_cast<std::int64_t>(number));
}
inline std::string show(const void* address) {
  return show(reinterpret_cast<std::uintptr_t>(address));
}
inline std::string show(const headrace_tensor& tensor) { return show(tensor.data); }
inline std::string show(const Shown& all) {
  std::string text;
  for (const auto& [name, value] : all) text += name + '=' + value + ' ';
  return text;
}
template <class T, class Size>
std::string show(const T* elements, Size count) {
  std::string text;
  for (Size i = 0; i < count; ++i) text += show(elements[i]) + ' ';
  return text;
}

// A field of T, a value that is not its default, and what arrives of it.
template <class T>
struct Change {
  std::string name;
  std::function<void(T&)> set;
  std::string arrives;
};

template <class T, class Field, class Value>
Change<T> change(const char* name, Field T::*field, const Value& value) {
  return {name, [field, value](T& object) { object.*field = value; }, show(value)};
}
// The address stands for the tensor.
template <class T>
Change<T> change(const char* name, TensorView T::*field) {
  static int next = 0;
  const auto address = reinterpret_cast<void*>(static_cast<std::uintptr_t>(4096 + 64 * ++next));
  const TensorView view(address, DType::f32, {1});
  return {name, [field, view](T& object) { object.*field = view; }, show(view)};
}

#define SHOW(field) \
  { #field, ::headrace::testing::show(c.field) }
#define CHANGE(type, field, value) ::headrace::testing::change(#field, &type::field, value)
#define TENSOR(type, field) ::headrace::testing::change(#field, &type::field)

// The address of an object that no function looks into.
template <class T>
T* handle() {
  static std::max_align_t memory;
  return reinterpret_cast<T*>(&memory);
}

// arrive(object) shows the struct that the library is given.
template <class T>
void expect_every_field(const std::function<Shown(const T&)>& arrive,
                        const std::vector<Change<T>>& changes, const T& defaults = {}) {
  EXPECT_EQ(changes.size(), num_fields<T>()) << "a field is missing in this test";
  const Shown without = arrive(defaults);
  for (const Change<T>& one : changes) {
    SCOPED_TRACE(one.name);
    const auto found = without.find(one.name);
    ASSERT_NE(found, without.end());
    EXPECT_NE(found->second, one.arrives) << "the value is the default";
    T changed = defaults;
    one.set(changed);
    Shown expected = without;
    expected[one.name] = one.arrives;
    EXPECT_EQ(arrive(changed), expected);
  }
}

// The same of a struct that has to_c().
template <class T>
void expect_every_field_of_to_c(Shown (*show_c)(const decltype(std::declval<T>().to_c())&),
                                const std::vector<Change<T>>& changes, const T& defaults = {}) {
  expect_every_field<T>([&](const T& object) { return show_c(object.to_c()); }, changes, defaults);
}

}  // namespace headrace::testing
