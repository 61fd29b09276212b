// Values while a template is rendered. They live in the arena of one rendering and are freed
// together, so a Datum is copied as bytes; texts of rows and of the template are borrowed.
//
// A text knows which message each byte came from: `message` for all of it, or runs if it is mixed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace meshwright::chat {

enum class Kind : uint8_t {
  missing,  // a variable that is not assigned (yet): looked up further out
  undefined,
  none,
  boolean,
  integer,
  big,  // an integer beyond 64 bits: its digits
  real,
  string,
  list,
  tuple,
  range,     // three items before the first are its start, stop and step
  iterator,  // what map, select and their kin give: no length, always true, gone through once
  view,      // keys(), values(), items(): no index
  dict,
  space,  // namespace()
  loop,
  callable
};

constexpr int32_t kNoMessage = -1;
constexpr int32_t kOfTools = -2;  // in the place of a message's number

// Bytes [begin, end) of a text: the message they came from, and the generation block they were
// written in (0: none).
struct Run {
  uint32_t begin, end;
  int32_t message;
  uint32_t generation;
};

struct Mixed {
  const char* text;
  const Run* runs;  // in order, disjoint; bytes without one came from nowhere
  uint32_t count;
};

struct Datum;
struct Space;
struct Loop;
struct Callable;

// Of which method a view comes.
enum class View : uint8_t { keys, values, items };

// What is left of an iterator, for all who hold it.
struct Stream {
  const Datum* items;
  uint32_t size, at;
};

struct Datum {
  Kind kind = Kind::undefined;
  bool mixed = false;  // of strings
  // Of undefined: the kind of what lacks the attribute, or kUnsafe; 0: a variable. Of a view:
  // which.
  uint8_t holder = 0;
  // Of strings: a Markup, which escapes what it is joined with. Of tuples: one of groupby, with
  // names.
  bool marked = false;
  int32_t message = kNoMessage;
  uint32_t size = 0;  // bytes of a string or digits, items, pairs
  union {
    bool truth;
    int64_t integer = 0;
    double real;
    const char* text;    // string, big; the name of what is undefined
    const Mixed* parts;  // string with mixed
    const Datum* items;  // list ...; of a dict key, value, key, value
    Stream* stream;      // iterator
    Space* space;
    Loop* loop;
    const Callable* callable;
  };
  static constexpr uint8_t kUnsafe = 255;

  static Datum of(Kind kind) {
    Datum out;
    out.kind = kind;
    return out;
  }
  static Datum none() { return of(Kind::none); }
  static Datum boolean(bool value) {
    Datum out = of(Kind::boolean);
    out.truth = value;
    return out;
  }
  static Datum whole(int64_t value) {
    Datum out = of(Kind::integer);
    out.integer = value;
    return out;
  }
  static Datum number(double value) {
    Datum out = of(Kind::real);
    out.real = value;
    return out;
  }
  // Borrows the bytes.
  static Datum string(std::string_view bytes, int32_t message = kNoMessage) {
    Datum out = of(Kind::string);
    out.message = message;
    out.size = static_cast<uint32_t>(bytes.size());
    out.text = bytes.data();
    return out;
  }
  static Datum sequence(Kind kind, const Datum* items, size_t size) {
    Datum out = of(kind);
    out.size = static_cast<uint32_t>(size);
    out.items = items;
    return out;
  }
  static Datum undefined(std::string_view name, uint8_t holder = 0) {
    Datum out;
    out.holder = holder;
    out.size = static_cast<uint32_t>(name.size());
    out.text = name.data();
    return out;
  }

  bool is_string() const { return kind == Kind::string; }
  bool is_markup() const { return kind == Kind::string && marked; }
  bool is_sequence() const { return kind >= Kind::list && kind <= Kind::view; }
  bool is_indexed() const { return kind >= Kind::list && kind <= Kind::range; }
  bool is_listed() const { return kind == Kind::list || kind == Kind::tuple; }
  bool is_undefined() const { return kind == Kind::undefined; }
  // Of strings, digits and names.
  std::string_view view() const { return {mixed ? parts->text : text, size}; }
};

// Memory of one rendering, or of what lives longer than the turn of a loop that made it.
class Arena {
 public:
  // What all arenas of a rendering may take together.
  struct Budget {
    size_t limit = 0, taken = 0;
  };
  explicit Arena(Budget& budget) : budget_(budget) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A place to come back to: release() frees what was taken since, of marks the last one first.
  struct Mark {
    size_t blocks;
    char* at;
    size_t left;
  };
  Mark mark() const { return {blocks_.size(), at_, left_}; }
  void release(const Mark& mark);
  // Whether the bytes at `of` were taken since.
  bool since(const Mark& mark, const void* of) const;

  // nullptr beyond the limit.
  void* take(size_t bytes) {
    bytes = (bytes + 7) & ~size_t{7};
    if (bytes > left_) return refill(bytes);
    void* out = at_;
    at_ += bytes;
    left_ -= bytes;
    return out;
  }

 private:
  void* refill(size_t bytes);
  alignas(16) char first_[16 << 10];  // most chats need no more
  char* at_ = first_;
  size_t left_ = sizeof first_;
  struct Block {
    std::unique_ptr<char[]> bytes;
    size_t size;
  };
  std::vector<Block> blocks_;
  Budget& budget_;
};

// A text as it is written, with its runs.
struct Writer {
  std::string text;
  std::vector<Run> runs;

  void write(std::string_view bytes, int32_t message, uint32_t generation) {
    auto begin = static_cast<uint32_t>(text.size());
    text.append(bytes);
    if (message != kNoMessage || generation != 0)
      mark(begin, begin + static_cast<uint32_t>(bytes.size()), message, generation);
  }
  // Bytes [begin, end) of a string.
  void write(const Datum& string, size_t begin, size_t end, uint32_t generation);
  void write(const Datum& string, uint32_t generation) {
    write(string, 0, string.size, generation);
  }

 private:
  void mark(uint32_t begin, uint32_t end, int32_t message, uint32_t generation);
};

// Goes through the bytes of a string in order and says what each came from.
class Origins {
 public:
  explicit Origins(const Datum& string) : string_(&string) {}
  Run at(size_t offset);

 private:
  const Datum* string_;
  uint32_t next_ = 0;
};

// What a row holds: JSON as Python sees it. Integers of any length and floats keep their text, the
// order of keys is kept, and of a key given twice the last value wins at the first's place.
//
//   Value row = parse_json(line);
//   const Value* messages = row.get("messages");
//
// A Value owns what it holds. Values may be read by several threads at once.

class Value {
 public:
  using List = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  using Dict = std::vector<Member>;

  Value() = default;  // none
  static Value boolean(bool value) { return of(value); }
  static Value integer(int64_t value) { return of(value); }
  // Optional '-', then digits; kept verbatim.
  static Value big_integer(std::string digits) { return of(Digits{std::move(digits)}); }
  static Value real(double value) { return of(value); }
  static Value string(std::string text) { return of(std::move(text)); }  // UTF-8
  static Value list(List items = {}) { return of(std::move(items)); }
  static Value dict(Dict members = {});  // later duplicates overwrite earlier ones in place

  bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_boolean() const { return std::holds_alternative<bool>(held_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(held_); }  // fits 64 bits
  bool is_big_integer() const { return std::holds_alternative<Digits>(held_); }
  bool is_real() const { return std::holds_alternative<double>(held_); }
  bool is_string() const { return std::holds_alternative<std::string>(held_); }
  bool is_list() const { return std::holds_alternative<List>(held_); }
  bool is_dict() const { return std::holds_alternative<Dict>(held_); }
  // "null", "a boolean", "a number", "a string", "a list", "an object": for messages.
  std::string kind_name() const;

  // Each asks that the value is of that kind.
  bool as_boolean() const { return std::get<bool>(held_); }
  int64_t as_integer() const { return std::get<int64_t>(held_); }
  const std::string& as_digits() const { return std::get<Digits>(held_).text; }
  double as_real() const { return std::get<double>(held_); }
  const std::string& as_string() const { return std::get<std::string>(held_); }
  const List& as_list() const { return std::get<List>(held_); }
  List& as_list() { return std::get<List>(held_); }
  const Dict& as_dict() const { return std::get<Dict>(held_); }

  // The member of that name; nullptr if there is none or this is not a dict.
  const Value* get(std::string_view key) const;
  // Adds a member, or replaces it in its place. Of dicts only.
  void set(std::string key, Value value);
  void push_back(Value value) { as_list().push_back(std::move(value)); }

 private:
  struct Digits {
    std::string text;
  };
  using Held = std::variant<std::monostate, bool, int64_t, Digits, double, std::string, List, Dict>;
  static Value of(Held held) {
    Value out;
    out.held_ = std::move(held);
    return out;
  }
  Held held_;
};

// One JSON value and nothing after it. Throws Error(bad_dataset) "LINE:COLUMN: what is wrong", both
// counted from 1 within `text`. Nesting beyond 200 is refused, as are NaN and lone surrogates.
Value parse_json(std::string_view text);

// Python's str() of a float: the shortest digits that read back the same, "1.0", "1e-05", "1e+16".
std::string python_float(double value);

// Whether a role may stand in a row: [A-Za-z0-9_-]+.
bool is_role(std::string_view role);

}  // namespace meshwright::chat
