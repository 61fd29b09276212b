// A template once parsed. Nodes live in the deques of their Program and point at each other.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/text/chat/names.h"
#include "sdk/text/chat/value.h"

namespace meshwright::chat::ast {

// What can be assigned inside one block: a name has a slot in the frame of that block.
struct Scope {
  Scope* parent = nullptr;
  std::map<std::string, uint32_t, std::less<>> slots;

  uint32_t slot(std::string_view name) {
    return slots.emplace(std::string(name), static_cast<uint32_t>(slots.size())).first->second;
  }
};

enum class Op : uint8_t {
  constant,
  name,
  list,
  tuple,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  negative,
  positive,
  invert,
  both,
  either,
  conditional,
  concat,
  compare,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  member  // ns.attr, as the target of an assignment
};

enum class Relation : uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct Expr {
  Op op;
  int line;
  uint16_t depth = 1;
  uint8_t id = 0;        // of a filter, test or method: names.h
  Expr* a = nullptr;     // operand; condition's value; of a filter block nothing
  Expr* b = nullptr;     // second operand; condition; start of a slice
  Expr* c = nullptr;     // else; end of a slice
  Expr* d = nullptr;     // step of a slice
  Expr* star = nullptr;  // f(*star, **stars)
  Expr* stars = nullptr;
  std::vector<Expr*> list;  // items; key, value, key, value; arguments; operands
  std::vector<std::pair<std::string, Expr*>> keywords;
  std::vector<Relation> relations;
  Datum constant;
  std::string text;  // of a name, an attribute, a filter or a test
  // Of a name: the blocks it was found in, inside out, as (frames to go out, slot); then a variable
  // of the rendering.
  const Scope* scope = nullptr;
  std::vector<std::pair<uint32_t, uint32_t>> places;
  uint32_t global = 0;
};

enum class Tag : uint8_t {
  text,
  output,
  condition,
  loop,
  assign,
  assign_block,
  macro,
  call,
  filter,
  generation,
  with,
  stop,
  proceed
};

struct Stmt;
using Body = std::vector<Stmt*>;

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, uint32_t>> parameters;  // name, slot
  std::vector<Expr*> defaults;                               // of the last parameters
  Scope* scope = nullptr;
  Body body;
  // Slots of what the body asks for; kNone: it does not.
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t caller = kNone, varargs = kNone, kwargs = kNone;
};

struct Stmt {
  Tag tag;
  int line;
  std::string_view text;
  Expr* expr = nullptr;    // output; iterated; assigned; called; filter; condition
  Expr* target = nullptr;  // of for, set, macro
  Expr* test = nullptr;    // for ... if
  Scope* scope = nullptr;
  Scope* test_scope = nullptr;
  Scope* else_scope = nullptr;
  bool recursive = false;
  Body body, other;                              // other: else
  std::vector<std::pair<Expr*, Body>> branches;  // if, elif
  std::vector<std::pair<Expr*, Expr*>> values;   // with
  Macro* macro = nullptr;
};

struct Program {
  std::string name, source;
  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  std::deque<Scope> scopes;
  std::deque<Macro> macros;
  std::deque<std::string> texts;     // of literals
  std::vector<std::string> globals;  // names that no block assigns, or not always
  Scope* root = nullptr;
  Body body;
  bool has_generation = false;
};

}  // namespace meshwright::chat::ast
