#include "text/grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "text/grammar/json.h"
#include "text/grammar/json_text.h"
#include "text/grammar/schema_keywords.h"

namespace headrace::text {
namespace {

// A schema and its place, for messages: "#/properties/name".
struct Place {
  const Json* schema;
  std::string path;

  Place child(const Json* value, std::string_view key) const {
    return {value, path + '/' + std::string(key)};
  }
};

class Compiler {
 public:
  explicit Compiler(const Json& root) : root_(root) {}

  Result<Nfa> run() {
    static_cast<void>(rule_of({&root_, "#"}));
    while (!pending_.empty() && !nfa_.is_full()) {
      const std::function<Status()> build = std::move(pending_.front());
      pending_.pop_front();
      if (Status failed = build()) return std::move(*failed);
    }
    return std::move(nfa_);
  }

 private:
  // A rule whose body is built later, so that schemas may refer to each other.
  RuleId later(std::string name, std::function<Status(StateId, StateId)> build) {
    const RuleId rule = nfa_.add_rule(std::move(name));
    pending_.push_back(
        [this, rule, build = std::move(build)] { return build(nfa_.start(rule), nfa_.end(rule)); });
    return rule;
  }
  RuleId rule_of(const Place& place) {
    const auto known = rules_.find(place.schema);
    if (known != rules_.end()) return known->second;
    return rules_[place.schema] = later(place.path, [this, place](StateId from, StateId to) {
             return any(from, to, place);
           });
  }
  // A rule that schemas share, such as a string without constraints.
  RuleId shared(const std::string& name, void (Compiler::*build)(StateId, StateId)) {
    const auto known = shared_.find(name);
    if (known != shared_.end()) return known->second;
    return shared_[name] = later(name, [this, build](StateId from, StateId to) -> Status {
             (this->*build)(from, to);
             return std::nullopt;
           });
  }
  StateId literal(StateId from, std::string_view text) {
    const StateId to = nfa_.add_state();
    nfa_.literal(from, to, text);
    return to;
  }
  StateId space(StateId from) {
    const StateId to = nfa_.add_state();
    nfa_.call(from, to, shared("space", &Compiler::build_blank));
    return to;
  }
  void build_blank(StateId from, StateId to) { build_space(nfa_, from, to); }

  // ---- any schema ----

  Status any(StateId from, StateId to, const Place& place) {
    const Json& schema = *place.schema;
    if (nfa_.is_full()) return std::nullopt;  // Automaton::make() reports it
    if (schema.is(Json::Kind::boolean) && schema.text == "true") return value(from, to);
    if (schema.is(Json::Kind::boolean))
      return unsupported("json_schema: {}: false matches nothing; remove it", place.path);
    if (!schema.is(Json::Kind::object))
      return invalid_argument("json_schema: {}: must be an object or true; pass a schema",
                              place.path);
    HEADRACE_TRY(check_keywords(schema, place.path));
    if (const Json* ref = schema.find("$ref")) return reference(from, to, place, *ref);
    if (schema.find("enum") != nullptr || schema.find("const") != nullptr)
      return values(from, to, place);
    for (const std::string_view key : {"anyOf", "allOf"})
      if (const Json* choices = schema.find(key)) {
        const Place list = place.child(choices, key);
        HEADRACE_TRY(check_list(*choices, list.path));
        for (std::size_t i = 0; i < choices->elements.size(); ++i)
          HEADRACE_TRY(any(from, to, list.child(&choices->elements[i], std::to_string(i))));
        return std::nullopt;
      }
    Result<std::vector<std::string>> types = types_of(schema, place.path);
    if (!types.ok()) return std::move(types.failure());
    if (types.value().empty()) return value(from, to);
    for (const std::string& type : types.value()) HEADRACE_TRY(typed(from, to, place, type));
    return std::nullopt;
  }

  Status typed(StateId from, StateId to, const Place& place, std::string_view type) {
    if (type == "object" && !place.schema->find("properties") &&
        !place.schema->find("additionalProperties") && !place.schema->find("required")) {
      nfa_.call(from, to, shared("object", &Compiler::build_any_object));
      return std::nullopt;
    }
    if (type == "object" || type == "array") {
      const auto body = type == "object" ? &Compiler::object : &Compiler::array;
      nfa_.call(from, to, later(place.path, [this, place, body](StateId begin, StateId end) {
                  return (this->*body)(begin, end, place);
                }));
      return std::nullopt;
    }
    if (type == "string") return string(from, to, place);
    if (type == "null") {
      nfa_.literal(from, to, "null");
      return std::nullopt;
    }
    if (type == "boolean") {
      for (const std::string_view text : {"true", "false"}) nfa_.literal(from, to, text);
      return std::nullopt;
    }
    return number(from, to, place, type == "integer");
  }

  Status reference(StateId from, StateId to, const Place& place, const Json& ref) {
    Result<const Json*> target = resolve_reference(root_, ref, place.path);
    if (!target.ok()) return std::move(target.failure());
    nfa_.call(from, to, rule_of({target.value(), ref.text}));
    return std::nullopt;
  }

  // ---- values ----

  // Of any type.
  Status value(StateId from, StateId to) {
    nfa_.call(from, to, shared("value", &Compiler::build_any_value));
    return std::nullopt;
  }
  void build_any_value(StateId from, StateId to) {
    for (const std::string_view text : {"null", "true", "false"}) nfa_.literal(from, to, text);
    nfa_.call(from, to, shared("object", &Compiler::build_any_object));
    nfa_.call(from, to, shared("array", &Compiler::build_any_array));
    nfa_.call(from, to, shared("string", &Compiler::build_any_string));
    nfa_.call(from, to, shared("number", &Compiler::build_any_number));
  }
  void build_any_object(StateId from, StateId to) {
    const StateId open = space(literal(from, "{")), key = nfa_.add_state();
    nfa_.literal(open, to, "}");
    nfa_.link(open, key);
    const StateId after = member(key, [&](StateId begin, StateId end) {
      nfa_.call(begin, end, shared("string", &Compiler::build_any_string));
    });
    const StateId end = nfa_.add_state();
    static_cast<void>(value(after, end));
    const StateId next = space(end);
    nfa_.literal(next, to, "}");
    nfa_.link(space(literal(next, ",")), key);
  }
  void build_any_array(StateId from, StateId to) {
    build_items(from, to, 0, kUnbounded,
                [&](StateId begin, StateId end) { static_cast<void>(value(begin, end)); });
  }
  void build_any_character(StateId from, StateId to) { build_string_character(nfa_, from, to); }
  void build_any_string(StateId from, StateId to) {
    const StateId end = nfa_.add_state();
    nfa_.repeat(literal(from, "\""), end, 0, kUnbounded,
                [&](StateId begin, StateId next) { build_string_character(nfa_, begin, next); });
    nfa_.literal(end, to, "\"");
  }
  void build_any_number(StateId from, StateId to) {
    static_cast<void>(build_number(nfa_, from, to, {}));
  }
  void build_any_integer(StateId from, StateId to) {
    static_cast<void>(build_integer(nfa_, from, to, {}));
  }

  // Those of enum and const that have the type.
  Status values(StateId from, StateId to, const Place& place) {
    const Json* list = place.schema->find("enum");
    const Json* single = place.schema->find("const");
    if (list != nullptr) HEADRACE_TRY(check_list(*list, place.path + "/enum"));
    Result<std::vector<std::string>> types = types_of(*place.schema, place.path);
    if (!types.ok()) return std::move(types.failure());
    bool has_any = false;
    const auto add = [&](const Json& value) {
      if (!has_type(value, types.value())) return;
      has_any = true;
      constant(from, to, value);
    };
    if (single != nullptr) add(*single);
    if (list != nullptr)
      for (const Json& value : list->elements) add(value);
    if (has_any) return std::nullopt;
    return invalid_argument("json_schema: {}: no value of enum or const has the type; change type",
                            place.path);
  }
  void constant(StateId from, StateId to, const Json& value) {
    if (value.is(Json::Kind::string)) return nfa_.literal(from, to, quoted(value.text));
    const bool is_object = value.is(Json::Kind::object);
    if (!is_object && !value.is(Json::Kind::array)) return nfa_.literal(from, to, value.text);
    StateId at = space(literal(from, is_object ? "{" : "["));
    for (std::size_t i = 0; i < value.elements.size(); ++i) {
      if (i > 0) at = space(literal(at, ","));
      if (is_object)
        at = member(at, [&](StateId begin, StateId end) {
          nfa_.literal(begin, end, quoted(value.keys[i]));
        });
      const StateId end = nfa_.add_state();
      constant(at, end, value.elements[i]);
      at = space(end);
    }
    nfa_.literal(at, to, is_object ? "}" : "]");
  }

  Status string(StateId from, StateId to, const Place& place) {
    Result<StringRule> rule = string_rule(*place.schema, place.path);
    if (!rule.ok()) return std::move(rule.failure());
    const StringRule& r = rule.value();
    if (!r.pattern && r.min == 0 && r.max == kUnbounded) {
      nfa_.call(from, to, shared("string", &Compiler::build_any_string));
      return std::nullopt;
    }
    const StateId begin = literal(from, "\""), end = nfa_.add_state();
    if (r.pattern)
      build(nfa_, begin, end, *r.pattern, build_string_characters);
    else
      nfa_.repeat(begin, end, r.min, r.max, [&](StateId b, StateId e) {
        nfa_.call(b, e, shared("character", &Compiler::build_any_character));
      });
    nfa_.literal(end, to, "\"");
    return std::nullopt;
  }

  Status number(StateId from, StateId to, const Place& place, bool is_integer) {
    Result<Range> range = range_of(*place.schema, place.path, is_integer);
    if (!range.ok()) return std::move(range.failure());
    if (!range.value().min && !range.value().max) {
      nfa_.call(from, to,
                is_integer ? shared("integer", &Compiler::build_any_integer)
                           : shared("number", &Compiler::build_any_number));
      return std::nullopt;
    }
    const auto build_range = is_integer ? build_integer : build_number;
    if (build_range(nfa_, from, to, range.value())) return std::nullopt;
    return invalid_argument("json_schema: {}: no number lies in its range; widen it", place.path);
  }

  // ---- arrays and objects ----

  Status array(StateId from, StateId to, const Place& place) {
    Result<Counts> counts = counts_of(*place.schema, "minItems", "maxItems", place.path);
    if (!counts.ok()) return std::move(counts.failure());
    const Json* items = place.schema->find("items");
    const RuleId item = items != nullptr ? rule_of(place.child(items, "items"))
                                         : shared("value", &Compiler::build_any_value);
    build_items(from, to, counts.value().min, counts.value().max,
                [&](StateId begin, StateId end) { nfa_.call(begin, end, item); });
    return std::nullopt;
  }

  void build_items(StateId from, StateId to, std::int64_t min, std::int64_t max,
                   const Nfa::Fragment& item) {
    const StateId open = space(literal(from, "[")), close = nfa_.add_state();
    nfa_.literal(close, to, "]");
    if (min == 0) nfa_.link(open, close);
    if (max == 0) return;
    const auto spaced_item = [&](StateId begin) {
      const StateId end = nfa_.add_state();
      item(begin, end);
      return space(end);
    };
    nfa_.repeat(spaced_item(open), close, std::max<std::int64_t>(min - 1, 0),
                max == kUnbounded ? kUnbounded : max - 1, [&](StateId begin, StateId end) {
                  nfa_.link(spaced_item(space(literal(begin, ","))), end);
                });
  }

  // A key, a colon and blanks; returns where the value begins.
  StateId member(StateId from, const Nfa::Fragment& key) {
    const StateId end = nfa_.add_state();
    key(from, end);
    return space(literal(space(end), ":"));
  }

  // `first`: no property came before. `next`: some did, and the blanks after the last.
  Status object(StateId from, StateId to, const Place& place) {
    Result<ObjectRule> rule = object_rule(*place.schema, place.path);
    if (!rule.ok()) return std::move(rule.failure());
    const StateId begin = space(literal(from, "{"));
    StateId first = begin, next = nfa_.add_state();
    for (const Property& property : rule.value().properties) {
      const StateId key = nfa_.add_state(), end = nfa_.add_state();
      nfa_.link(first, key);
      nfa_.link(space(literal(next, ",")), key);
      const StateId at =
          member(key, [&](StateId b, StateId e) { nfa_.literal(b, e, quoted(property.name)); });
      HEADRACE_TRY(any(at, end, {property.schema, place.path + "/properties/" + property.name}));
      const StateId after_first = nfa_.add_state(), after = space(end);
      if (!property.is_required) {
        nfa_.link(first, after_first);
        nfa_.link(next, after);
      }
      first = after_first;
      next = after;
    }
    nfa_.literal(first, to, "}");
    nfa_.literal(next, to, "}");
    if (!rule.value().has_others) return std::nullopt;
    const StateId key = nfa_.add_state(), end = nfa_.add_state();
    nfa_.link(first, key);
    nfa_.link(space(literal(next, ",")), key);
    std::vector<std::string> names;
    for (const Property& property : rule.value().properties) names.push_back(property.name);
    const StateId at =
        member(key, [&](StateId b, StateId e) { build_other_key(nfa_, b, e, names); });
    const Json* others = rule.value().others;
    HEADRACE_TRY(others != nullptr ? any(at, end, place.child(others, "additionalProperties"))
                                   : value(at, end));
    nfa_.link(space(end), next);
    return std::nullopt;
  }

  const Json& root_;
  Nfa nfa_;
  std::map<const Json*, RuleId> rules_;
  std::map<std::string, RuleId> shared_;
  std::deque<std::function<Status()>> pending_;
};

}  // namespace

Result<Nfa> parse_json_schema(std::string_view schema) {
  Result<Json> root = parse_json(schema);
  if (!root.ok()) return std::move(root.failure());
  return Compiler(root.value()).run();
}

}  // namespace headrace::text
