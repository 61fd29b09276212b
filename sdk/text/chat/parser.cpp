#include "sdk/text/chat/parser.h"

#include <algorithm>
#include <limits>

namespace meshwright::chat {

using ast::Body;
using ast::Expr;
using ast::Macro;
using ast::Op;
using ast::Scope;
using ast::Stmt;
using ast::Tag;

void Parser::fail_at(int line, std::string what) const {
  throw SyntaxProblem{line, std::move(what)};
}

std::string Parser::described(const Token& token) {
  switch (token.kind) {
    case Lex::text:
      return "text";
    case Lex::output_begin:
      return "'{{'";
    case Lex::output_end:
      return "'}}'";
    case Lex::block_begin:
      return "'{%'";
    case Lex::block_end:
      return "'%}'";
    case Lex::end:
      return "the end of the template";
    case Lex::string:
      return "a string";
    default:
      return "'" + token.text + "'";
  }
}

void Parser::expect(std::string_view sign) {
  if (!skip(sign)) fail("expected '" + std::string(sign) + "', got " + described(now()));
}

void Parser::expect_word(std::string_view name) {
  if (!skip_word(name)) fail("expected '" + std::string(name) + "', got " + described(now()));
}

std::string Parser::expect_name() {
  if (now().kind != Lex::name) fail("expected a name, got " + described(now()));
  return take().text;
}

Stmt* Parser::statement(Tag tag, int line) {
  Stmt& out = program_.stmts.emplace_back();
  out.tag = tag;
  out.line = line;
  return &out;
}

Scope* Parser::open(bool nested) {
  Scope& out = program_.scopes.emplace_back();
  out.parent = scope_;
  if (nested) scope_ = &out;
  return &out;
}

void Parser::run() {
  program_.root = open();
  program_.body = body({});
  resolve();
}

Body Parser::body(Ends ends) {
  Body out;
  for (;;) {
    int line = now().line;
    switch (now().kind) {
      case Lex::text: {
        Stmt* text = statement(Tag::text, line);
        text->text = program_.texts.emplace_back(take().text);
        out.push_back(text);
        break;
      }
      case Lex::output_begin: {
        take();
        Stmt* output = statement(Tag::output, line);
        output->expr = tuple(true);
        if (now().kind != Lex::output_end) fail("expected '}}', got " + described(now()));
        take();
        out.push_back(output);
        break;
      }
      case Lex::block_begin: {
        take();
        if (now().kind != Lex::name) fail("tag name expected, got " + described(now()));
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) {
          ended_ = take().text;
          return out;
        }
        out.push_back(tag());
        if (now().kind != Lex::block_end) fail("expected '%}', got " + described(now()));
        take();
        break;
      }
      default: {
        if (open_tags_.empty()) return out;
        fail("unexpected end of the template: the '" + open_tags_.back().first + "' of line " +
             std::to_string(open_tags_.back().second) + " is not closed");
      }
    }
  }
}

Body Parser::block(Ends ends) {
  skip(":");
  if (now().kind != Lex::block_end) fail("expected '%}', got " + described(now()));
  take();
  return body(ends);
}

Stmt* Parser::tag() {
  int line = now().line;
  std::string name = take().text;
  if (name == "break" || name == "continue") {
    if (loops_ == 0) fail_at(line, "'" + name + "' outside of a loop");
    return statement(name == "break" ? Tag::stop : Tag::proceed, line);
  }
  if (name == "include" || name == "import" || name == "from" || name == "extends")
    fail_at(line, "'" + name + "': a chat template is one file; there is no loader");
  using Read = Stmt* (Parser::*)(int);
  static constexpr std::pair<std::string_view, Read> kTags[] = {{"if", &Parser::condition},
                                                                {"for", &Parser::loop},
                                                                {"set", &Parser::assign},
                                                                {"macro", &Parser::macro},
                                                                {"call", &Parser::call_block},
                                                                {"filter", &Parser::filter_block},
                                                                {"generation", &Parser::generation},
                                                                {"with", &Parser::with}};
  const auto* found = std::find_if(std::begin(kTags), std::end(kTags),
                                   [&](const auto& one) { return one.first == name; });
  if (found == std::end(kTags)) {
    std::string what = "Encountered unknown tag '" + name + "'.";
    if (!open_tags_.empty())
      what += " The innermost block that needs to be closed is '" + open_tags_.back().first + "'.";
    fail_at(line, what);
  }
  if (++blocks_ > kDeepestBlock) fail_at(line, "the blocks are nested too deeply");
  open_tags_.emplace_back(name, line);
  Stmt* out = (this->*found->second)(line);
  open_tags_.pop_back();
  --blocks_;
  return out;
}

Stmt* Parser::condition(int line) {
  Stmt* out = statement(Tag::condition, line);
  for (;;) {
    Expr* test = tuple(false);
    Body then = block({"elif", "else", "endif"});
    out->branches.emplace_back(test, std::move(then));
    if (ended_ == "elif") continue;
    if (ended_ == "else") out->other = block({"endif"});
    return out;
  }
}

Stmt* Parser::loop(int line) {
  Stmt* out = statement(Tag::loop, line);
  // The loop's own frame: slot 0 is `loop`, then the targets, in the frame of the test likewise.
  Scope* outer = scope_;
  out->scope = open();
  out->scope->slot("loop");
  out->target = target("in", false);
  if (out->target->op == Op::name && out->target->places[0].second == 0)
    fail_at(line, "can't assign to special loop variable in for-loop target");
  expect_word("in");
  scope_ = outer;
  out->expr = tuple(false, "recursive");
  if (skip_word("if")) {
    out->test_scope = open();
    // `loop` is not known there yet; its slot stays empty.
    out->test_scope->slot("loop");
    declare(*out->target);
    out->test = expression();
    scope_ = outer;
  }
  out->recursive = skip_word("recursive");
  scope_ = out->scope;
  ++loops_;
  out->body = block({"endfor", "else"});
  --loops_;
  scope_ = outer;
  if (ended_ == "else") {
    out->else_scope = open();
    out->other = block({"endfor"});
    close();
  }
  return out;
}

Expr* Parser::target_part(bool members) {
  int line = now().line;
  if (skip("(")) {
    Nested nested(*this);
    Expr* inner = target({}, members);
    expect(")");
    return inner;
  }
  std::string text = expect_name();
  for (std::string_view fixed : {"true", "false", "none", "True", "False", "None"})
    if (text == fixed) fail_at(line, "can't assign to '" + text + "'");
  if (members && skip(".")) {
    Expr* out = node(Op::member, line);
    out->a = name(std::move(text), line);
    out->text = expect_name();
    return out;
  }
  Expr* out = node(Op::name, line);
  out->text = std::move(text);
  return out;
}

Expr* Parser::target(std::string_view end_word, bool members) {
  int line = now().line;
  std::vector<Expr*> parts;
  bool several = false;
  while (parts.empty() || skip(",")) {
    if (!parts.empty() && (tuple_ends(end_word) || is("="))) {
      several = true;
      break;
    }
    parts.push_back(target_part(members));
    several = several || is(",");
  }
  Expr* out = parts[0];
  if (several) {
    out = node(Op::tuple, line);
    for (Expr* part : parts) out->list.push_back(under(out, part));
  }
  declare(*out);
  return out;
}

void Parser::declare(Expr& target) {
  if (target.op == Op::name)
    target.places.assign(1, {0, scope_->slot(target.text)});
  else
    for (Expr* part : target.list) declare(*part);
}

// A body with a frame of its own, which no loop around can be left from: for Jinja it is a
// function, or its text would be lost.
void Parser::captured_body(Stmt& of, std::string_view end) {
  int loops = loops_;
  loops_ = 0;
  of.scope = open();
  of.body = block({end});
  close();
  loops_ = loops;
}

Stmt* Parser::assign(int line) {
  Stmt* out = statement(Tag::assign, line);
  out->target = target({}, true);
  if (skip("=")) {
    out->expr = tuple(true);
    return out;
  }
  out->tag = Tag::assign_block;
  out->expr = filters(nullptr);
  captured_body(*out, "endset");
  return out;
}

Macro* Parser::begin_macro(std::string name) {
  Macro& out = program_.macros.emplace_back();
  out.name = std::move(name);
  out.scope = open();
  return &out;
}

void Parser::signature(Macro& macro) {
  expect("(");
  while (!is(")")) {
    if (!macro.parameters.empty()) expect(",");
    int line = now().line;
    std::string parameter = expect_name();
    for (const auto& [known, slot] : macro.parameters)
      if (known == parameter) fail_at(line, "duplicate parameter '" + parameter + "'");
    uint32_t slot = scope_->slot(parameter);
    if (skip("="))
      macro.defaults.push_back(expression());
    else if (!macro.defaults.empty())
      fail("non-default argument follows default argument");
    macro.parameters.emplace_back(std::move(parameter), slot);
  }
  expect(")");
}

void Parser::macro_body(Macro& macro, std::string_view end) {
  int loops = loops_;
  loops_ = 0;
  size_t first = names_.size();
  macro.body = block({end});
  loops_ = loops;
  for (size_t i = first; i < names_.size(); ++i) {
    auto wants = [&](std::string_view special, uint32_t& slot) {
      if (names_[i]->text == special && !macro.scope->slots.contains(special))
        slot = macro.scope->slot(special);
    };
    wants("caller", macro.caller);
    wants("varargs", macro.varargs);
    wants("kwargs", macro.kwargs);
  }
  close();
}

Stmt* Parser::macro(int line) {
  Stmt* out = statement(Tag::macro, line);
  std::string called = expect_name();
  out->target = node(Op::name, line);
  out->target->text = called;
  declare(*out->target);
  out->macro = begin_macro(called);
  signature(*out->macro);
  macro_body(*out->macro, "endmacro");
  return out;
}

Stmt* Parser::call_block(int line) {
  Stmt* out = statement(Tag::call, line);
  out->macro = begin_macro("caller");
  if (is("(")) signature(*out->macro);
  Scope* inner = scope_;
  scope_ = inner->parent;
  out->expr = expression();
  if (out->expr->op != Op::call) fail_at(line, "expected a call");
  scope_ = inner;
  macro_body(*out->macro, "endcall");
  return out;
}

Stmt* Parser::filter_block(int line) {
  Stmt* out = statement(Tag::filter, line);
  out->expr = filters(filter(nullptr));
  captured_body(*out, "endfilter");
  return out;
}

Stmt* Parser::generation(int line) {
  Stmt* out = statement(Tag::generation, line);
  program_.has_generation = true;
  captured_body(*out, "endgeneration");
  return out;
}

Stmt* Parser::with(int line) {
  Stmt* out = statement(Tag::with, line);
  Scope* outer = scope_;
  out->scope = open();
  while (now().kind != Lex::block_end) {
    if (!out->values.empty()) expect(",");
    scope_ = out->scope;
    Expr* to = target({}, false);
    expect("=");
    scope_ = outer;
    Expr* value = expression();
    out->values.emplace_back(to, value);
  }
  scope_ = out->scope;
  out->body = block({"endwith"});
  close();
  return out;
}

// All assignments are known: each name gets the places it may be found in.
void Parser::resolve() {
  std::map<std::string, uint32_t, std::less<>> globals;
  for (Expr* name : names_) {
    uint32_t out = 0;
    for (const Scope* scope = name->scope; scope != nullptr; scope = scope->parent, ++out)
      if (auto slot = scope->slots.find(name->text); slot != scope->slots.end())
        name->places.emplace_back(out, slot->second);
    name->global = globals.emplace(name->text, static_cast<uint32_t>(globals.size())).first->second;
  }
  program_.globals.resize(globals.size());
  for (auto& [name, index] : globals) program_.globals[index] = name;
}

std::shared_ptr<const ast::Program> parse_program(std::string source, std::string name) {
  if (source.size() > std::numeric_limits<int32_t>::max() / 2)
    throw SyntaxProblem{1, "the template is too large"};
  auto out = std::make_shared<ast::Program>();
  out->name = std::move(name);
  out->source = std::move(source);
  Parser(*out, tokens_of(out->source)).run();
  return out;
}

}  // namespace meshwright::chat
