// One rendering of a template. Split over evaluate.cpp (tags, expressions), call.cpp
// (macros, functions), methods.cpp, operators.cpp, compare.cpp, format.cpp, value.cpp,
// filters.cpp and render.cpp.
#pragma once

#include <array>
#include <initializer_list>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sdk/text/chat/ast.h"
#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/value.h"

namespace meshwright::chat {

struct Frame {
  Datum* slots;
  Frame* parent;
};

// namespace(): name, value, name, value.
struct Space {
  Datum* entries;
  uint32_t count, capacity;
};

struct Loop {
  const ast::Stmt* stmt;
  Frame* outer;
  Frame* test_frame;  // of a loop with a condition
  Datum* items;       // that pass, as far as they have been looked for
  uint32_t found;
  const Datum* source;
  uint32_t source_size, source_at;
  uint32_t index0, depth0;
  uint32_t asked;        // items that were taken or asked for
  const Datum* changed;  // what loop.changed() saw last
  uint32_t changed_size;
};

enum class Function : uint8_t { space, dict, range, joiner, cycler, raise_exception, strftime_now };

struct Callable {
  enum class Type : uint8_t {
    function,
    method,
    macro,
    loop_cycle,
    loop_changed,
    joiner,
    cycler,
    cycler_next,
    cycler_reset
  };
  Type type;
  Function function{};
  Method method{};
  Datum self{};  // of a method; the separator of a joiner; the loop
  std::string_view name{};
  const ast::Macro* macro = nullptr;
  Frame* frame = nullptr;        // where the macro was defined
  const Datum* items = nullptr;  // of a cycler
  uint32_t size = 0;
  uint32_t* at = nullptr;  // state of a cycler or joiner
};

struct Arguments {
  struct Keyword {
    std::string_view name;
    Datum value;
  };
  const Datum* list = nullptr;
  size_t count = 0;
  const Keyword* keywords = nullptr;
  size_t named = 0;
};

struct Items {
  const Datum* at = nullptr;
  uint32_t size = 0;
  const Datum* begin() const { return at; }
  const Datum* end() const { return at + size; }
};

class Renderer {
 public:
  Renderer(const ast::Program& program, const ChatTemplate::Request& request);
  ChatTemplate::Rendered run();

 private:
  static constexpr int kDeepest = 1500;      // of evaluation
  static constexpr int kDeepestValue = 300;  // of lists in lists

  [[noreturn]] void fail(const std::string& what) const;
  void spend(size_t work) {
    if ((work_ += work) > limits_.work) fail("the template does too much work");
  }
  // A text has room for so many bytes.
  void check_size(size_t bytes) const {
    if (bytes > limits_.output)
      fail("a text is longer than " + std::to_string(limits_.output >> 20) + " MiB");
  }
  template <class T>
  T* take(size_t count) {
    return take_from<T>(arena_, count);
  }
  template <class T>
  T* take_from(Arena& arena, size_t count) {
    void* at = count > limits_.memory / sizeof(T) ? nullptr : arena.take(count * sizeof(T));
    if (at == nullptr) fail("the template takes too much memory");
    return static_cast<T*>(at);
  }
  template <class T>
  T* make(const T& value) {
    return new (take<T>(1)) T(value);
  }
  // One level more, until it goes.
  template <class Count>
  struct Level {
    explicit Level(Count& at) : count(at) { ++count; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --count; }
    Count& count;
  };
  [[nodiscard]] Level<int> deeper() {
    if (depth_ >= kDeepest) fail("the template is nested too deeply");
    return Level<int>(depth_);
  }
  [[nodiscard]] Level<size_t> called() {
    if (calls_ >= Limits::kCalls) fail("more than 64 calls inside each other");
    return Level<size_t>(calls_);
  }

  // What a turn of a loop takes is free again when it ends: its frame is cleared, and what it
  // leaves in a namespace has been moved by keep().
  struct Turn {
    explicit Turn(Renderer& renderer) : renderer_(renderer), mark_(renderer.arena_.mark()) {
      renderer.turns_open_.push_back(mark_);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      renderer_.turns_open_.pop_back();
      if (!renderer_.pinned_) renderer_.arena_.release(mark_);
    }
    Renderer& renderer_;
    Arena::Mark mark_;
  };

  // While it lives, what is written goes to `inner`, outside of any generation block: where the
  // text is printed decides about that.
  struct Aside {
    Aside(Renderer& renderer, Writer& inner)
        : renderer_(renderer), out_(renderer.out_), generation_(renderer.generation_) {
      renderer.out_ = &inner;
      renderer.generation_ = 0;
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;
    ~Aside() {
      renderer_.out_ = out_;
      renderer_.generation_ = generation_;
    }
    Renderer& renderer_;
    Writer* out_;
    uint32_t generation_;
  };

  // render.cpp: variables
  void measure();
  Datum import(const Value& value, int32_t message, int depth = 0);
  Datum import_messages(const Value& messages);
  Datum global(const std::string& name);

  // evaluate.cpp
  enum class Flow : uint8_t { on, stop, proceed };
  Flow execute(const ast::Body& body, Frame& frame);
  Flow execute(const ast::Stmt& stmt, Frame& frame);
  void output(const ast::Expr& expr, Frame& frame);
  void write(const Datum& value);
  Frame* open(const ast::Scope& scope, Frame* parent);
  void clear(Frame& frame, const ast::Scope& scope);
  Flow condition(const ast::Stmt& stmt, Frame& frame);
  Flow loop(const ast::Stmt& stmt, const Datum& iterated, Frame& frame, uint32_t depth);
  void turn();
  bool has(Loop& loop, size_t index);
  void assign(const ast::Expr& target, const Datum& value, Frame& frame);
  void assign_member(const ast::Expr& target, const Datum& value, Frame& frame);
  Datum captured(const ast::Body& body, Frame& frame);
  Datum text_of(const Writer& writer);
  void check_output() const { check_size(out_->text.size()); }

  // render.cpp: values that live longer than the turn that made them
  Datum keep(const Datum& value, int depth = 0);
  bool is_young(const void* at) const {
    return !turns_open_.empty() && arena_.since(turns_open_.front(), at);
  }
  // Room behind `size` values that were kept, for `more`: in place, or in a copy with as much
  // again. nullptr: they were not kept, or are few.
  template <class T>
  T* grown(const T* values, size_t size, size_t more);

  // evaluate.cpp
  Datum evaluate(const ast::Expr& expr, Frame& frame);
  Datum lookup(const ast::Expr& expr, Frame& frame);
  Datum sequence(const ast::Expr& expr, Frame& frame);
  Datum dict(const ast::Expr& expr, Frame& frame);
  Datum slice(const ast::Expr& expr, Frame& frame);
  Datum concat(const ast::Expr& expr, Frame& frame);
  Datum compared(const ast::Expr& expr, Frame& frame);
  Datum binary(const ast::Expr& expr, Frame& frame);
  Datum filtered(const ast::Expr& expr, Frame& frame, const Datum* piped = nullptr);
  bool tested(const ast::Expr& expr, Frame& frame);
  Arguments arguments(const ast::Expr& expr, Frame& frame);

  // call.cpp
  Datum call(const ast::Expr& expr, Frame& frame);
  Datum call(const Datum& callee, const Arguments& given);
  Datum call_macro(const ast::Macro& macro, Frame* defined, const Arguments& given,
                   const Datum* caller);
  Datum call_function(Function function, const Arguments& given);
  Datum call_loop(Loop& loop, const Arguments& given);
  Datum call_block(const ast::Stmt& stmt, Frame& frame);
  Datum range(const Arguments& given);
  Datum range_of(int64_t begin, int64_t end, int64_t step, size_t size);
  Datum strftime_now(const Arguments& given);
  Datum callable(const Callable& callable);
  // The arguments in the order of `names`, nullptr where not given; the first `needed` must be.
  using Bound = std::array<const Datum*, 6>;
  Bound bind(std::string_view callee, const Arguments& given,
             std::initializer_list<std::string_view> names, size_t needed = 0) const;

  // methods.cpp
  Datum attribute(const Datum& value, std::string_view name);
  Datum item(const Datum& value, const Datum& key);
  Datum loop_attribute(Loop& loop, std::string_view name);
  // "a.b.0" as the filters take it; an integer is an index. `otherwise`: of what is undefined.
  Datum path(const Datum& value, const Datum& path, const Datum* otherwise = nullptr);
  const Datum* find(const Datum& dict, std::string_view key);
  const Datum* find(const Datum& dict, const Datum& key);
  Datum method(const Datum& self, std::string_view name);
  static std::optional<Owner> owner_of(const Datum& self);  // of methods; none: it has none
  Datum sliced(const Datum& value, const Datum& begin, const Datum& end, const Datum& step);

  // operators.cpp
  Datum add(const Datum& left, const Datum& right);
  Datum appended(const Datum& left, const Datum& right);  // of strings, whatever they are marked
  Datum arithmetic(ast::Op op, const Datum& left, const Datum& right);
  Datum whole_arithmetic(ast::Op op, int64_t left, int64_t right);
  Datum real_arithmetic(ast::Op op, double left, double right);
  Datum repeated(const Datum& value, int64_t times);
  Datum negative(const Datum& value);
  double real_of(const Datum& value) const;
  static bool is_number(const Datum& value) {
    return value.kind == Kind::boolean || value.kind == Kind::integer || value.kind == Kind::real ||
           value.kind == Kind::big;
  }
  // Of integers and booleans that fit 64 bits; fails with `what` otherwise.
  int64_t whole_of(const Datum& value, std::string_view what) const;
  [[noreturn]] void unsupported(std::string_view op, const Datum& left, const Datum& right) const;
  [[noreturn]] void fail_undefined(const Datum& value) const;

  // compare.cpp
  bool truth(const Datum& value) const;
  bool equal(const Datum& left, const Datum& right, int depth = 0);
  size_t hash(const Datum& value, int depth = 0);  // alike of what is equal; fails as Python's does
  bool identical(const Datum& left, const Datum& right) const;
  // <0, 0, >0; an error for what has no order. `op` for its message.
  int order(const Datum& left, const Datum& right, std::string_view op, int depth = 0);
  int number_order(const Datum& left, const Datum& right);  // 2: not comparable (nan)
  bool related(ast::Relation relation, const Datum& left, const Datum& right);
  bool contains(const Datum& container, const Datum& value);
  Items items_of(const Datum& value);
  Items need_items(const Datum& value);
  uint32_t length(const Datum& value);
  uint32_t length_of(Loop& loop);
  static std::string type_name(Kind kind);
  static std::string view_name(const Datum& view);

  // format.cpp
  void print(const Datum& value, Writer& out, uint32_t generation);
  void represent(const Datum& value, Writer& out, int depth = 0);
  Datum as_text(const Datum& value);      // str()
  std::string plain(const Datum& value);  // its bytes, for messages and formats
  std::string number_text(const Datum& value) const;

  // value.cpp
  struct JsonStyle;
  Datum tojson(const Datum& value, const Arguments& given);
  void json(const Datum& value, const JsonStyle& style, Writer& out, int depth);
  void json_string(const Datum& value, bool ascii, Writer& out);

  // texts.cpp: pieces of strings, which keep their origins
  Datum cut(const Datum& string, size_t begin, size_t end);
  Datum copied(std::string_view bytes, int32_t message = kNoMessage);
  Datum need_text(const Datum& value);  // soft_str(): a Markup stays one; what is undefined is ""
  static Datum marked(Datum string, bool markup = true) {
    string.marked = markup;
    return string;
  }
  Datum strip(const Datum& string, const Datum* chars, bool left, bool right);
  Datum split(const Datum& string, const Arguments& given, bool from_right);
  Datum split_lines(const Datum& string, bool keep_ends);
  Datum replace(const Datum& string, const Datum& old, const Datum& by, int64_t count);
  Datum joined(const Datum& separator, Items items, bool strict);
  enum class Case : uint8_t { upper, lower, title, capitalize, title_filter, swap, fold };
  Datum cased(const Datum& string, Case to);
  Datum indent(const Datum& string, const Arguments& given);
  Datum escape(const Datum& value);  // what is no Markup becomes one
  Datum padded(const Datum& string, Method method, const Arguments& given);
  Datum partition(const Datum& string, const Arguments& given, bool from_right);
  Datum expand_tabs(const Datum& string, const Arguments& given);

  // methods.cpp, format.cpp
  Datum call_method(const Datum& self, Method method, std::string_view name,
                    const Arguments& given);
  Datum string_method(const Datum& self, Method method, std::string_view name,
                      const Arguments& given);
  Datum dict_method(const Datum& self, Method method, const Arguments& given);
  Datum list_method(const Datum& self, Method method, const Arguments& given);
  Datum starts(const Datum& self, const Arguments& given, bool at_end);
  Datum find_text(const Datum& self, Method method, const Arguments& given);
  bool all_chars(const Datum& self, Method method);
  bool is_title(const Datum& self);
  Datum format(const Datum& self, const Arguments& given);
  Datum percent(const Datum& format, const Arguments& given);
  void formatted(const Datum& value, std::string_view spec, Writer& out);

  // filters.cpp, operators.cpp
  Datum apply(Filter filter, std::string_view name, const Datum& value, const Arguments& given);
  Datum apply_plain(Filter filter, const Datum& value);
  bool test(Test test, std::string_view name, const Datum& value, const Arguments& given);
  Datum selected(const Datum& value, const Arguments& given, bool by_attribute, bool keep);
  Datum mapped(const Datum& value, const Arguments& given);
  Datum sorted(Items items, bool reverse, const std::vector<Datum>& keys);
  std::vector<Datum> sort_keys(Items items, const Datum* attribute, bool case_sensitive,
                               bool several = false, const Datum* otherwise = nullptr);
  Datum dictsorted(const Datum& value, const Arguments& given);
  Datum unique(const Datum& value, const Arguments& given);
  size_t size_of(const Datum& value, const std::string& what) const;
  Datum absolute(const Datum& value);
  Datum extreme(const Datum& value, const Arguments& given, bool largest);
  Datum summed(const Datum& value, const Arguments& given);
  Datum batched(const Datum& value, const Arguments& given);
  Datum sliced_columns(const Datum& value, const Arguments& given);
  Datum grouped(const Datum& value, const Arguments& given);
  Datum to_int(const Datum& value, const Arguments& given);
  Datum to_float(const Datum& value, const Arguments& given);
  Datum rounded(const Datum& value, const Arguments& given);
  Datum truncated(const Datum& value, const Arguments& given);
  // `several`: of attributes with commas between.
  Datum sort_key(const Datum& value, const Datum* attribute, bool case_sensitive,
                 bool several = false, const Datum* otherwise = nullptr);
  static bool is_given(const Datum* value) { return value != nullptr && value->kind != Kind::none; }
  bool flag(const Datum* value, bool otherwise) const {
    return value == nullptr ? otherwise : truth(*value);
  }
  Datum list_of(const std::vector<Datum>& items, Kind kind = Kind::list);
  Datum stream_of(const Datum* items, size_t size);  // an iterator
  Datum pair(const Datum& first, const Datum& second);

  const ast::Program& program_;
  const ChatTemplate::Request& request_;
  Limits limits_;
  Arena::Budget budget_{limits_.memory};
  Arena arena_{budget_}, kept_{budget_};
  std::vector<Arena::Mark> turns_open_;
  bool pinned_ = false;                           // something points into a turn that ended
  std::unordered_map<const void*, size_t> room_;  // bytes free, by the end of kept values
  Datum* globals_ = nullptr;
  Writer* out_ = nullptr;
  uint32_t generation_ = 0, generations_ = 0;
  int line_ = 1;
  int depth_ = 0;
  size_t calls_ = 0, turns_ = 0, work_ = 0;
};

}  // namespace meshwright::chat
