#include <algorithm>

#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

using ast::Expr;
using ast::Op;
using ast::Relation;

Datum Renderer::evaluate(const Expr& expr, Frame& frame) {
  if (expr.op == Op::constant) return expr.constant;
  if (expr.op == Op::name) return lookup(expr, frame);
  Deeper deeper(*this);
  switch (expr.op) {
    case Op::attribute: {
      Datum value = evaluate(*expr.a, frame);
      line_ = expr.line;
      return attribute(value, expr.text);
    }
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
    case Op::negative: {
      Datum value = evaluate(*expr.a, frame);
      line_ = expr.line;
      return negative(value);
    }
    case Op::positive: {
      Datum value = evaluate(*expr.a, frame);
      line_ = expr.line;
      if (value.is_undefined()) fail_undefined(value);
      if (!is_number(value))
        fail("bad operand type for unary +: '" + std::string(type_name(value.kind)) + "'");
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
    bool holds = false;
    switch (expr.relations[i]) {
      case Relation::eq:
        holds = equal(left, right);
        break;
      case Relation::ne:
        holds = !equal(left, right);
        break;
      case Relation::lt:
        holds = order(left, right, "<") == -1;
        break;
      case Relation::le:
        holds = order(left, right, "<=") <= 0;
        break;
      case Relation::gt:
        holds = order(left, right, ">") == 1;
        break;
      case Relation::ge: {
        int found = order(left, right, ">=");
        holds = found == 0 || found == 1;
        break;
      }
      case Relation::in:
        holds = contains(right, left);
        break;
      case Relation::not_in:
        holds = !contains(right, left);
        break;
    }
    if (!holds) return Datum::boolean(false);
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
  Deeper deeper(*this);
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

}  // namespace meshwright::chat
