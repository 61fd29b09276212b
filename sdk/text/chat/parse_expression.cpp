#include <algorithm>
#include <charconv>

#include "sdk/base/plain_text.h"
#include "sdk/text/chat/parser.h"

namespace meshwright::chat {

using ast::Expr;
using ast::Op;

Parser::Nested::Nested(Parser& parser) : parser_(parser) {
  if (++parser_.nested_ > kDeepestExpression) {
    --parser_.nested_;
    parser_.fail("the expression is nested too deeply");
  }
}

Expr* Parser::node(Op op, int line) {
  Expr& out = program_.exprs.emplace_back();
  out.op = op;
  out.line = line;
  return &out;
}

Expr* Parser::under(Expr* parent, Expr* child) {
  if (child == nullptr) return nullptr;
  if (child->depth >= kLongestChain) fail_at(child->line, "the expression is nested too deeply");
  parent->depth = std::max<uint16_t>(parent->depth, static_cast<uint16_t>(child->depth + 1));
  return child;
}

Expr* Parser::binary(Op op, int line, Expr* left, Expr* right) {
  Expr* out = node(op, line);
  out->a = under(out, left);
  out->b = under(out, right);
  return out;
}

Expr* Parser::constant(Datum value, int line) {
  Expr* out = node(Op::constant, line);
  out->constant = value;
  return out;
}

Expr* Parser::text_constant(std::string text, int line) {
  return constant(Datum::string(program_.texts.emplace_back(std::move(text))), line);
}

Expr* Parser::name(std::string text, int line) {
  Expr* out = node(Op::name, line);
  out->text = std::move(text);
  out->scope = scope_;
  names_.push_back(out);
  return out;
}

Expr* Parser::expression(bool conditional) {
  Nested nested(*this);
  Expr* value = either();
  while (conditional && word("if")) {
    int line = take().line;
    Expr* out = node(Op::conditional, line);
    out->a = under(out, value);
    out->b = under(out, either());
    if (skip_word("else")) out->c = under(out, expression());
    value = out;
  }
  return value;
}

// Operators that are as strong as each other, from left to right.
Expr* Parser::chain(Expr* (Parser::*operand)(), std::span<const Operator> operators) {
  Expr* left = (this->*operand)();
  for (;;) {
    const auto found = std::ranges::find_if(
        operators, [&](const Operator& one) { return is(one.first) || word(one.first); });
    if (found == operators.end()) return left;
    const int line = take().line;
    left = binary(found->second, line, left, (this->*operand)());
  }
}

Expr* Parser::either() {
  static constexpr Operator kSigns[] = {{"or", Op::either}};
  return chain(&Parser::both, kSigns);
}

Expr* Parser::both() {
  static constexpr Operator kSigns[] = {{"and", Op::both}};
  return chain(&Parser::invert, kSigns);
}

Expr* Parser::invert() {
  if (!word("not")) return compare();
  Nested nested(*this);
  Expr* out = node(Op::invert, take().line);
  out->a = under(out, invert());
  return out;
}

Expr* Parser::compare() {
  using ast::Relation;
  static constexpr std::pair<std::string_view, Relation> kSigns[] = {
      {"==", Relation::eq}, {"!=", Relation::ne}, {"<", Relation::lt},
      {"<=", Relation::le}, {">", Relation::gt},  {">=", Relation::ge}};
  Expr* left = sum();
  Expr* out = nullptr;
  for (;;) {
    const auto* sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                    [&](const auto& one) { return is(one.first); });
    Relation relation;
    int line = now().line;
    if (sign != std::end(kSigns)) {
      relation = sign->second;
      take();
    } else if (skip_word("in")) {
      relation = Relation::in;
    } else if (word("not") && ahead().kind == Lex::name && ahead().text == "in") {
      take();
      take();
      relation = Relation::not_in;
    } else {
      return out == nullptr ? left : out;
    }
    if (out == nullptr) {
      out = node(Op::compare, line);
      out->a = under(out, left);
    }
    out->relations.push_back(relation);
    out->list.push_back(under(out, sum()));
  }
}

Expr* Parser::sum() {
  static constexpr Operator kSigns[] = {{"+", Op::add}, {"-", Op::subtract}};
  return chain(&Parser::concat, kSigns);
}

Expr* Parser::concat() {
  Expr* first = product();
  if (!is("~")) return first;
  Expr* out = node(Op::concat, now().line);
  out->list.push_back(under(out, first));
  while (skip("~")) out->list.push_back(under(out, product()));
  return out;
}

Expr* Parser::product() {
  static constexpr Operator kSigns[] = {
      {"*", Op::multiply}, {"/", Op::divide}, {"//", Op::floor_divide}, {"%", Op::modulo}};
  return chain(&Parser::power, kSigns);
}

Expr* Parser::power() {
  static constexpr Operator kSigns[] = {{"**", Op::power}};
  return chain(&Parser::operand, kSigns);
}

Expr* Parser::unary(bool with_filter) {
  Expr* value;
  if (is("-") || is("+")) {
    Nested nested(*this);
    const Token& sign = take();
    value = node(sign.text == "-" ? Op::negative : Op::positive, sign.line);
    value->a = under(value, unary(false));
  } else {
    value = primary();
  }
  value = postfix(value);
  return with_filter ? filtered(value) : value;
}

Expr* Parser::primary() {
  const Token& token = now();
  int line = token.line;
  switch (token.kind) {
    case Lex::name: {
      std::string text = take().text;
      if (text == "true" || text == "True") return constant(Datum::boolean(true), line);
      if (text == "false" || text == "False") return constant(Datum::boolean(false), line);
      if (text == "none" || text == "None") return constant(Datum::none(), line);
      return name(std::move(text), line);
    }
    case Lex::string: {
      std::string text = take().text;
      while (now().kind == Lex::string) text += take().text;
      return text_constant(std::move(text), line);
    }
    case Lex::integer: {
      const std::string& text = take().text;
      int64_t value = 0;
      auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (failed == std::errc()) return constant(Datum::whole(value), line);
      Datum big = Datum::string(program_.texts.emplace_back(text));
      big.kind = Kind::big;
      return constant(big, line);
    }
    case Lex::real:
      return constant(Datum::number(text::read_real(take().text.c_str())), line);
    default:
      break;
  }
  if (skip("(")) {
    Expr* out = tuple(true, {}, true);
    expect(")");
    return out;
  }
  if (is("[")) return list();
  if (is("{")) return dict();
  fail("unexpected " + described(token));
}

Expr* Parser::postfix(Expr* value) {
  for (;;) {
    if (is(".") || is("["))
      value = subscript(value);
    else if (is("("))
      value = call(value);
    else
      return value;
  }
}

Expr* Parser::filtered(Expr* value) {
  for (;;) {
    if (is("|"))
      value = filters(value);
    else if (word("is"))
      value = test(value);
    else if (is("("))
      value = call(value);
    else
      return value;
  }
}

Expr* Parser::subscript(Expr* value) {
  int line = now().line;
  if (skip(".")) {
    if (now().kind == Lex::name) {
      Expr* out = node(Op::attribute, line);
      out->a = under(out, value);
      out->text = take().text;
      return out;
    }
    if (now().kind != Lex::integer) fail("expected a name or a number after '.'");
    Expr* index = primary();
    return binary(Op::item, line, value, index);
  }
  expect("[");
  Nested nested(*this);
  Expr* out = subscribed(value);
  if (is(",")) fail("several indices are not supported");
  expect("]");
  return out;
}

Expr* Parser::subscribed(Expr* value) {
  int line = now().line;
  Expr* first = is(":") ? nullptr : expression();
  if (!is(":")) return binary(Op::item, line, value, first);
  take();
  Expr* out = node(Op::slice, line);
  out->a = under(out, value);
  out->b = under(out, first);
  if (!is(":") && !is("]") && !is(",")) out->c = under(out, expression());
  if (skip(":") && !is("]") && !is(",")) out->d = under(out, expression());
  return out;
}

Expr* Parser::call(Expr* value) {
  Expr* out = node(Op::call, now().line);
  out->a = under(out, value);
  arguments(*out);
  return out;
}

Expr* Parser::filter(Expr* value) {
  Expr* out = node(Op::filter, now().line);
  out->a = under(out, value);
  out->text = expect_name();
  while (skip(".")) out->text += "." + expect_name();
  out->id = static_cast<uint8_t>(filter_named(out->text));
  if (is("(")) arguments(*out);
  return out;
}

Expr* Parser::filters(Expr* value) {
  while (skip("|")) value = filter(value);
  return value;
}

Expr* Parser::test(Expr* value) {
  Expr* out = node(Op::test, take().line);
  out->a = under(out, value);
  bool negated = skip_word("not");
  out->text = expect_name();
  while (skip(".")) out->text += "." + expect_name();
  out->id = static_cast<uint8_t>(test_named(out->text));
  Lex kind = now().kind;
  if (is("(")) {
    arguments(*out);
  } else if (kind == Lex::string || kind == Lex::integer || kind == Lex::real || is("[") ||
             is("{") || (kind == Lex::name && !word("else") && !word("or") && !word("and"))) {
    if (word("is")) fail("You cannot chain multiple tests with is");
    out->list.push_back(under(out, postfix(primary())));
  }
  if (!negated) return out;
  Expr* inverted = node(Op::invert, out->line);
  inverted->a = under(inverted, out);
  return inverted;
}

// What stands between brackets, of which the first is passed: `one` each, with commas between.
template <class One>
void Parser::listed(std::string_view close, const One& one) {
  for (bool first = true; !is(close); first = false) {
    if (!first) {
      expect(",");
      if (is(close)) break;
    }
    one();
  }
  expect(close);
}

Expr* Parser::list() {
  Nested nested(*this);
  Expr* out = node(Op::list, take().line);
  listed("]", [&] { out->list.push_back(under(out, expression())); });
  return out;
}

Expr* Parser::dict() {
  Nested nested(*this);
  Expr* out = node(Op::dict, take().line);
  listed("}", [&] {
    out->list.push_back(under(out, expression()));
    expect(":");
    out->list.push_back(under(out, expression()));
  });
  return out;
}

void Parser::arguments(Expr& of) {
  int line = now().line;
  expect("(");
  auto ensure = [&](bool fine) {
    if (!fine) fail_at(line, "invalid syntax for function call expression");
  };
  listed(")", [&] {
    if (skip("*")) {
      ensure(of.star == nullptr && of.stars == nullptr);
      of.star = under(&of, expression());
    } else if (skip("**")) {
      ensure(of.stars == nullptr);
      of.stars = under(&of, expression());
    } else if (now().kind == Lex::name && ahead().kind == Lex::sign && ahead().text == "=") {
      ensure(of.stars == nullptr);
      std::string key = take().text;
      take();
      of.keywords.emplace_back(std::move(key), under(&of, expression()));
    } else {
      ensure(of.star == nullptr && of.stars == nullptr && of.keywords.empty());
      of.list.push_back(under(&of, expression()));
    }
  });
}

bool Parser::tuple_ends(std::string_view end_word) const {
  return now().kind == Lex::output_end || now().kind == Lex::block_end || is(")") ||
         (!end_word.empty() && word(end_word));
}

Expr* Parser::tuple(bool conditional, std::string_view end_word, bool bracketed) {
  int line = now().line;
  std::vector<Expr*> items;
  bool several = false;
  for (;;) {
    if (!items.empty()) expect(",");
    if (tuple_ends(end_word)) break;
    items.push_back(expression(conditional));
    if (!is(",")) break;
    several = true;
  }
  if (!several) {
    if (!items.empty()) return items[0];
    if (!bracketed) fail("Expected an expression, got " + described(now()));
  }
  Expr* out = node(Op::tuple, line);
  for (Expr* item : items) out->list.push_back(under(out, item));
  return out;
}

}  // namespace meshwright::chat
