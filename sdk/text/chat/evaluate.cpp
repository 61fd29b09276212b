#include <algorithm>

#include "meshwright/error.h"
#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

using ast::Expr;
using ast::Op;

Datum Renderer::evaluate(const Expr& expr, Frame& frame) {
  if (expr.op == Op::constant) return expr.constant;
  if (expr.op == Op::name) return lookup(expr, frame);
  const auto level = deeper();
  // With the line of what is done with it.
  auto operand = [&] {
    const Datum value = evaluate(*expr.a, frame);
    line_ = expr.line;
    return value;
  };
  switch (expr.op) {
    case Op::attribute:
      return attribute(operand(), expr.text);
    case Op::item: {
      Datum value = evaluate(*expr.a, frame), key = evaluate(*expr.b, frame);
      line_ = expr.line;
      return item(value, key);
    }
    case Op::list:
    case Op::tuple:
      return sequence(expr, frame);
    case Op::dict:
      return dict(expr, frame);
    case Op::slice:
      return slice(expr, frame);
    case Op::call:
      return call(expr, frame);
    case Op::filter:
      return filtered(expr, frame);
    case Op::test:
      return Datum::boolean(tested(expr, frame));
    case Op::negative:
      return negative(operand());
    case Op::positive: {
      const Datum value = operand();
      if (value.is_undefined()) fail_undefined(value);
      if (!is_number(value)) fail("bad operand type for unary +: '" + type_name(value.kind) + "'");
      return value.kind == Kind::boolean ? Datum::whole(value.truth) : value;
    }
    case Op::invert:
      return Datum::boolean(!truth(evaluate(*expr.a, frame)));
    case Op::both: {
      Datum left = evaluate(*expr.a, frame);
      return truth(left) ? evaluate(*expr.b, frame) : left;
    }
    case Op::either: {
      Datum left = evaluate(*expr.a, frame);
      return truth(left) ? left : evaluate(*expr.b, frame);
    }
    case Op::conditional:
      if (truth(evaluate(*expr.b, frame))) return evaluate(*expr.a, frame);
      if (expr.c != nullptr) return evaluate(*expr.c, frame);
      return Datum::undefined("the inline if-expression without else");
    case Op::concat:
      return concat(expr, frame);
    case Op::compare:
      return compared(expr, frame);
    default:
      return binary(expr, frame);
  }
}

Datum Renderer::lookup(const Expr& expr, Frame& frame) {
  Frame* at = &frame;
  uint32_t gone = 0;
  for (auto [out, slot] : expr.places) {
    for (; gone < out; ++gone) at = at->parent;
    if (at->slots[slot].kind != Kind::missing) return at->slots[slot];
  }
  const Datum& found = globals_[expr.global];
  return found.kind == Kind::missing ? Datum::undefined(expr.text) : found;
}

Datum Renderer::sequence(const Expr& expr, Frame& frame) {
  Datum* items = take<Datum>(expr.list.size());
  for (size_t i = 0; i < expr.list.size(); ++i) items[i] = evaluate(*expr.list[i], frame);
  return Datum::sequence(expr.op == Op::list ? Kind::list : Kind::tuple, items, expr.list.size());
}

Datum Renderer::dict(const Expr& expr, Frame& frame) {
  Datum* entries = take<Datum>(expr.list.size());
  Datum out = Datum::sequence(Kind::dict, entries, 0);
  for (size_t i = 0; i < expr.list.size(); i += 2) {
    Datum key = evaluate(*expr.list[i], frame), value = evaluate(*expr.list[i + 1], frame);
    line_ = expr.line;
    if (const Datum* known = find(out, key)) {
      entries[known - entries] = value;
      continue;
    }
    entries[2 * out.size] = key;
    entries[2 * out.size + 1] = value;
    ++out.size;
  }
  return out;
}

Datum Renderer::slice(const Expr& expr, Frame& frame) {
  Datum value = evaluate(*expr.a, frame);
  auto bound = [&](const Expr* part) {
    return part == nullptr ? Datum::none() : evaluate(*part, frame);
  };
  Datum begin = bound(expr.b), end = bound(expr.c), step = bound(expr.d);
  line_ = expr.line;
  return sliced(value, begin, end, step);
}

Datum Renderer::concat(const Expr& expr, Frame& frame) {
  // The first part may be a text that grows in place.
  const Datum first = as_text(evaluate(*expr.list[0], frame));
  Writer rest;
  for (size_t i = 1; i < expr.list.size(); ++i) {
    const Datum value = evaluate(*expr.list[i], frame);
    line_ = expr.line;
    print(value, rest, 0);
    check_size(rest.text.size());
  }
  return appended(first, text_of(rest));
}

Datum Renderer::compared(const Expr& expr, Frame& frame) {
  Datum left = evaluate(*expr.a, frame);
  for (size_t i = 0; i < expr.relations.size(); ++i) {
    Datum right = evaluate(*expr.list[i], frame);
    line_ = expr.line;
    if (!related(expr.relations[i], left, right)) return Datum::boolean(false);
    left = right;
  }
  return Datum::boolean(true);
}

Datum Renderer::binary(const Expr& expr, Frame& frame) {
  Datum left = evaluate(*expr.a, frame), right = evaluate(*expr.b, frame);
  line_ = expr.line;
  return expr.op == Op::add ? add(left, right) : arithmetic(expr.op, left, right);
}

Arguments Renderer::arguments(const Expr& expr, Frame& frame) {
  Arguments out;
  size_t count = expr.list.size(), named = expr.keywords.size();
  if (count + named == 0 && expr.star == nullptr && expr.stars == nullptr) return out;
  Items more;
  Datum named_more;
  Datum* list = take<Datum>(count);
  for (size_t i = 0; i < count; ++i) list[i] = evaluate(*expr.list[i], frame);
  if (expr.star != nullptr) {
    more = need_items(evaluate(*expr.star, frame));
    Datum* longer = take<Datum>(count + more.size);
    std::copy_n(list, count, longer);
    std::copy_n(more.at, more.size, longer + count);
    list = longer;
  }
  auto* keywords = take<Arguments::Keyword>(named);
  for (size_t i = 0; i < named; ++i)
    keywords[i] = {expr.keywords[i].first, evaluate(*expr.keywords[i].second, frame)};
  if (expr.stars != nullptr) {
    named_more = evaluate(*expr.stars, frame);
    line_ = expr.line;
    if (named_more.kind != Kind::dict) fail("the argument after ** must be a mapping");
    auto* longer = take<Arguments::Keyword>(named + named_more.size);
    std::copy_n(keywords, named, longer);
    for (uint32_t i = 0; i < named_more.size; ++i) {
      if (!named_more.items[2 * i].is_string()) fail("keywords must be strings");
      longer[named + i] = {named_more.items[2 * i].view(), named_more.items[2 * i + 1]};
    }
    keywords = longer;
    named += named_more.size;
  }
  out.list = list;
  out.count = count + more.size;
  out.keywords = keywords;
  out.named = named;
  return out;
}

Datum Renderer::filtered(const Expr& expr, Frame& frame, const Datum* piped) {
  const auto level = deeper();
  // Of a filter block the first filter has no operand: it gets the block's text.
  Datum value = expr.a == nullptr          ? *piped
                : expr.a->op == Op::filter ? filtered(*expr.a, frame, piped)
                                           : evaluate(*expr.a, frame);
  Arguments given = arguments(expr, frame);
  line_ = expr.line;
  return apply(static_cast<Filter>(expr.id), expr.text, value, given);
}

bool Renderer::tested(const Expr& expr, Frame& frame) {
  Datum value = evaluate(*expr.a, frame);
  Arguments given = arguments(expr, frame);
  line_ = expr.line;
  return test(static_cast<Test>(expr.id), expr.text, value, given);
}

using ast::Scope;
using ast::Stmt;
using ast::Tag;

void Renderer::fail(const std::string& what) const {
  throw Error(ErrorCode::bad_template, program_.name + ":" + std::to_string(line_) + ": " + what);
}

Frame* Renderer::open(const Scope& scope, Frame* parent) {
  Frame* out = make(Frame{take<Datum>(scope.slots.size()), parent});
  clear(*out, scope);
  return out;
}

void Renderer::clear(Frame& frame, const Scope& scope) {
  std::fill_n(frame.slots, scope.slots.size(), Datum::of(Kind::missing));
}

Renderer::Flow Renderer::execute(const ast::Body& body, Frame& frame) {
  for (const Stmt* stmt : body)
    if (Flow flow = execute(*stmt, frame); flow != Flow::on) return flow;
  return Flow::on;
}

Renderer::Flow Renderer::execute(const Stmt& stmt, Frame& frame) {
  line_ = stmt.line;
  switch (stmt.tag) {
    case Tag::text:
      out_->write(stmt.text, kNoMessage, generation_);
      check_output();
      return Flow::on;
    case Tag::output:
      output(*stmt.expr, frame);
      return Flow::on;
    case Tag::condition:
      return condition(stmt, frame);
    case Tag::loop:
      return loop(stmt, evaluate(*stmt.expr, frame), frame, 0);
    case Tag::assign:
      assign(*stmt.target, evaluate(*stmt.expr, frame), frame);
      return Flow::on;
    case Tag::assign_block: {
      Datum text = captured(stmt.body, *open(*stmt.scope, &frame));
      if (stmt.expr != nullptr) text = filtered(*stmt.expr, frame, &text);
      assign(*stmt.target, text, frame);
      return Flow::on;
    }
    case Tag::macro: {
      Callable macro{.type = Callable::Type::macro, .name = stmt.macro->name};
      macro.macro = stmt.macro;
      macro.frame = &frame;
      assign(*stmt.target, callable(macro), frame);
      return Flow::on;
    }
    case Tag::call:
      write(call_block(stmt, frame));
      return Flow::on;
    case Tag::filter: {
      Datum text = captured(stmt.body, *open(*stmt.scope, &frame));
      write(filtered(*stmt.expr, frame, &text));
      return Flow::on;
    }
    case Tag::generation: {
      uint32_t outer = generation_;
      generation_ = ++generations_;
      execute(stmt.body, *open(*stmt.scope, &frame));
      generation_ = outer;
      return Flow::on;
    }
    case Tag::with: {
      Frame* inner = open(*stmt.scope, &frame);
      for (const auto& [target, value] : stmt.values)
        assign(*target, evaluate(*value, frame), *inner);
      return execute(stmt.body, *inner);
    }
    case Tag::stop:
      return Flow::stop;
    case Tag::proceed:
      return Flow::proceed;
  }
  return Flow::on;
}

Renderer::Flow Renderer::condition(const Stmt& stmt, Frame& frame) {
  const auto level = deeper();
  for (const auto& [test, body] : stmt.branches)
    if (truth(evaluate(*test, frame))) return execute(body, frame);
  return execute(stmt.other, frame);
}

// A sum of texts is written piece by piece: most of what templates print is one.
void Renderer::output(const Expr& expr, Frame& frame) {
  constexpr size_t kMost = 16;
  std::array<const Expr*, kMost> parts;
  size_t first = kMost;
  const Expr* left = &expr;
  for (; left->op == Op::add && first > 1; left = left->a) parts[--first] = left->b;
  parts[--first] = left;
  if (first == kMost - 1) return write(evaluate(expr, frame));
  std::array<Datum, kMost> values;
  bool texts = true;
  for (size_t i = first; i < kMost; ++i) {
    values[i] = evaluate(*parts[i], frame);
    texts = texts && values[i].is_string() && !values[i].marked;
  }
  line_ = expr.line;
  if (texts) {
    for (size_t i = first; i < kMost; ++i) out_->write(values[i], generation_);
    return check_output();
  }
  Datum sum = values[first];
  for (size_t i = first + 1; i < kMost; ++i) sum = add(sum, values[i]);
  write(sum);
}

void Renderer::write(const Datum& value) {
  if (value.is_string())
    out_->write(value, generation_);
  else
    print(value, *out_, generation_);
  check_output();
}

Datum Renderer::text_of(const Writer& writer) {
  Datum out = copied(writer.text);
  if (writer.runs.empty()) return out;
  const Run& run = writer.runs[0];
  if (writer.runs.size() == 1 && run.begin == 0 && run.end == out.size && run.generation == 0) {
    out.message = run.message;
    return out;
  }
  Run* runs = take<Run>(writer.runs.size());
  std::copy(writer.runs.begin(), writer.runs.end(), runs);
  out.parts = make(Mixed{out.text, runs, static_cast<uint32_t>(writer.runs.size())});
  out.mixed = true;
  return out;
}

// What a body writes.
Datum Renderer::captured(const ast::Body& body, Frame& frame) {
  const auto level = deeper();
  Writer inner;
  const Aside aside(*this, inner);
  execute(body, frame);
  return text_of(inner);
}

void Renderer::turn() {
  if (++turns_ > limits_.turns)
    fail("the loops take more than " + std::to_string(limits_.turns) + " turns");
}

// Whether there is an item of that index among those that pass the condition; looks no further
// than needed, as the body may change what the condition asks for.
bool Renderer::has(Loop& loop, size_t index) {
  while (loop.found <= index && loop.source_at < loop.source_size) {
    turn();
    const Datum& item = loop.source[loop.source_at++];
    const Turn turn_of_test(*this);
    clear(*loop.test_frame, *loop.stmt->test_scope);
    assign(*loop.stmt->target, item, *loop.test_frame);
    if (truth(evaluate(*loop.stmt->test, *loop.test_frame))) loop.items[loop.found++] = item;
  }
  return index < loop.found;
}

// What comes back is how the else was left: `break` there leaves the loop around.
Renderer::Flow Renderer::loop(const Stmt& stmt, const Datum& iterated, Frame& frame,
                              uint32_t depth) {
  const auto level = deeper();
  line_ = stmt.line;
  // Of an iterator what the loop does not come to is left for others.
  Stream* stream = iterated.kind == Kind::iterator ? iterated.stream : nullptr;
  const uint32_t from = stream != nullptr ? stream->at : 0;
  Items all = need_items(iterated);
  Loop* state = make(Loop{});
  state->stmt = &stmt;
  state->outer = &frame;
  state->depth0 = depth;
  if (stmt.test != nullptr) {
    state->source = all.at;
    state->source_size = all.size;
    state->items = take<Datum>(all.size);
    state->test_frame = open(*stmt.test_scope, &frame);
  } else {
    state->items = const_cast<Datum*>(all.at);  // only read, as found says they are all there
    state->found = all.size;
  }
  // As in Jinja: else follows unless some turn came to the end of the body.
  bool completed = false;
  Frame* inner = open(*stmt.scope, &frame);
  Datum handle = Datum::of(Kind::loop);
  handle.loop = state;
  for (size_t i = 0; has(*state, i); ++i) {
    turn();
    const Turn open_turn(*this);
    line_ = stmt.line;
    if (i > 0) clear(*inner, *stmt.scope);
    state->index0 = static_cast<uint32_t>(i);
    state->asked = std::max(state->asked, static_cast<uint32_t>(i) + 1);
    inner->slots[0] = handle;
    assign(*stmt.target, state->items[i], *inner);
    Flow flow = execute(stmt.body, *inner);
    if (flow == Flow::stop) {
      if (stream != nullptr)
        stream->at = from + (stmt.test != nullptr ? state->source_at : state->asked);
      break;
    }
    completed = completed || flow == Flow::on;
  }
  if (completed || stmt.else_scope == nullptr) return Flow::on;
  return execute(stmt.other, *open(*stmt.else_scope, &frame));
}

void Renderer::assign(const Expr& target, const Datum& value, Frame& frame) {
  if (target.op == Op::name) {
    frame.slots[target.places[0].second] = value;
    return;
  }
  if (target.op == Op::member) return assign_member(target, value, frame);
  Items parts = need_items(value);
  if (parts.size != target.list.size())
    fail(parts.size < target.list.size()
             ? "not enough values to unpack (expected " + std::to_string(target.list.size()) +
                   ", got " + std::to_string(parts.size) + ")"
             : "too many values to unpack (expected " + std::to_string(target.list.size()) + ")");
  for (size_t i = 0; i < parts.size; ++i) assign(*target.list[i], parts.at[i], frame);
}

void Renderer::assign_member(const Expr& target, const Datum& value, Frame& frame) {
  line_ = target.line;
  Datum space = lookup(*target.a, frame);
  if (space.kind != Kind::space) fail("cannot assign attribute on non-namespace object");
  Space& to = *space.space;
  const Datum kept = keep(value);
  for (uint32_t i = 0; i < to.count; ++i)
    if (to.entries[2 * i].view() == target.text) {
      to.entries[2 * i + 1] = kept;
      return;
    }
  if (to.count == to.capacity) {
    uint32_t capacity = std::max(8u, to.capacity * 2);
    Datum* entries = take_from<Datum>(kept_, 2 * size_t{capacity});
    std::copy_n(to.entries, 2 * size_t{to.count}, entries);
    to.entries = entries;
    to.capacity = capacity;
  }
  to.entries[2 * to.count] = Datum::string(target.text);
  to.entries[2 * to.count + 1] = kept;
  ++to.count;
}

}  // namespace meshwright::chat
