// The values a template works with: Python's, as far as JSON and Jinja need them. Immutable, except
// for namespaces and for how far a generator was read; shared by reference.
#pragma once

#include <boost/json/value.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/chat_template/budget.h"

namespace convoy::jinja {

/// Python's integers have no limit; these end at 2^127 - 1, and arithmetic beyond is an error.
using Integer = __int128;

struct MacroStatement;
class Scope;
struct LoopState;
class Value;
struct List;
struct Dict;
struct Namespace;
struct Method;

/// A name, attribute or item that is not there. `why` is what Jinja says when it is used all the
/// same.
struct Undefined {
  std::shared_ptr<const std::string> why;
};

struct None {};

struct Text {
  std::string bytes;  ///< UTF-8
  MemoryCharge charge;
};

/// What is callable by its name.
enum class Function { range, namespace_, dict, raise_exception, strftime_now };

/// A macro, or the body of a call block, with the scope it was defined in.
struct Macro {
  const MacroStatement* statement;
  Scope* scope;
};

using TextPointer = std::shared_ptr<const Text>;
using ListPointer = std::shared_ptr<const List>;
using DictPointer = std::shared_ptr<const Dict>;
using NamespacePointer = std::shared_ptr<Namespace>;
using MethodPointer = std::shared_ptr<const Method>;
using MacroPointer = std::shared_ptr<const Macro>;

template <typename T, typename Variant>
struct IsAlternative;
template <typename T, typename... Types>
struct IsAlternative<T, std::variant<Types...>> : std::disjunction<std::is_same<T, Types>...> {};

class Value {
 public:
  using State =
      std::variant<Undefined, None, bool, Integer, double, TextPointer, ListPointer, DictPointer,
                   NamespacePointer, MethodPointer, MacroPointer, Function, const LoopState*>;

  Value() : state_(None{}) {}
  /// `state` has exactly one of the types above: nothing is converted on the way in.
  template <typename T>
  requires IsAlternative<T, State>::value explicit Value(T state)
      : state_(std::in_place_type<T>, std::move(state)) {}

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&state_);
  }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(state_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  /// nullptr when it is no text.
  const std::string* text() const {
    const auto* pointer = as<TextPointer>();
    return pointer != nullptr ? &(*pointer)->bytes : nullptr;
  }
  const List* list() const {
    const auto* pointer = as<ListPointer>();
    return pointer != nullptr ? pointer->get() : nullptr;
  }
  const Dict* dict() const {
    const auto* pointer = as<DictPointer>();
    return pointer != nullptr ? pointer->get() : nullptr;
  }
  const State& state() const { return state_; }

 private:
  State state_;
};

/// Python's sequence types and views; they differ in how they print, compare and index.
enum class ListKind { list, tuple, range, keys, values, items, generator };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::list;
  int nesting = 1;                ///< levels of lists and dicts, at most kMaxNesting
  mutable size_t items_read = 0;  ///< generators only: a generator can be read once
  MemoryCharge charge;
};

/// Keys are none, booleans, numbers and texts, in order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int nesting = 1;
  MemoryCharge charge;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  MemoryCharge charge;
};

/// A method that was named but not called yet.
struct Method {
  Value receiver;
  std::string name;
};

/// Bounds the recursion of printing, comparing and destroying values.
inline constexpr int kMaxNesting = 100;

/// What `loop` refers to.
struct LoopState {
  const std::vector<Value>* items = nullptr;
  size_t index0 = 0;
  mutable std::vector<Value> last_changed;
  mutable bool changed_called = false;
};

Value undefined(std::string why);
Value make_text(Budget& budget, std::string bytes);
Value make_text(TextBuilder builder, Budget& budget);
/// Without a budget: for values that live as long as the template.
Value make_constant_text(std::string bytes);
/// RenderFailure for items that must not outlive their scope (macros, methods, loop, namespaces)
/// and beyond kMaxNesting.
Value make_list(Budget& budget, std::vector<Value> items, ListKind kind = ListKind::list);
/// RenderFailure as make_list. Later entries replace earlier ones of an equal key.
Value make_dict(Budget& budget, std::vector<std::pair<Value, Value>> entries);
/// RenderFailure when the value must not be kept beyond its scope.
void check_storable(const Value& value, std::string_view where);

/// `json` with its order of keys. Not counted: it is the caller's. RenderFailure beyond
/// kMaxNesting.
Value from_json(const boost::json::value& json);

/// nullptr when there is none.
const Value* find_key(Budget& budget, const Dict& dict, const Value& key);
const Value* find_key(Budget& budget, const Dict& dict, std::string_view key);

/// "str", "int", "list": Python's name of the type, for messages.
std::string_view type_name(const Value& value);

}  // namespace convoy::jinja
