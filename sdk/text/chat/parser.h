// The source of a chat template, cut into tokens and parsed into a program.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/text/chat/ast.h"

namespace meshwright::chat {

// Cuts a template into text and the tokens of its tags, as Jinja does with trim_blocks and
// lstrip_blocks.
enum class Lex : uint8_t {
  text,
  output_begin,
  output_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  sign,  // operators and brackets, by their spelling
  end
};

struct Token {
  Lex kind;
  int line;
  std::string text;
};

// Not a template: what is wrong and where.
struct SyntaxProblem {
  int line;
  std::string what;
};

// The last token is `end`. Throws SyntaxProblem.
std::vector<Token> tokens_of(std::string_view source);

// In two parts: parser.cpp (tags) and parse_expression.cpp.
class Parser {
 public:
  Parser(ast::Program& program, std::vector<Token> tokens)
      : program_(program), tokens_(std::move(tokens)) {}
  void run();

 private:
  // The tokens. The last is never passed.
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(std::string_view sign) const { return now().kind == Lex::sign && now().text == sign; }
  bool word(std::string_view name) const { return now().kind == Lex::name && now().text == name; }
  bool skip(std::string_view sign) { return is(sign) && (take(), true); }
  bool skip_word(std::string_view name) { return word(name) && (take(), true); }
  void expect(std::string_view sign);
  void expect_word(std::string_view name);
  std::string expect_name();
  [[noreturn]] void fail(std::string what) const { fail_at(now().line, std::move(what)); }
  [[noreturn]] void fail_at(int line, std::string what) const;
  static std::string described(const Token& token);

  // Expressions.
  struct Nested {
    explicit Nested(Parser& parser);
    ~Nested() { --parser_.nested_; }
    Parser& parser_;
  };
  ast::Expr* node(ast::Op op, int line);
  // Puts `child` below `parent`.
  ast::Expr* under(ast::Expr* parent, ast::Expr* child);
  ast::Expr* binary(ast::Op op, int line, ast::Expr* left, ast::Expr* right);
  ast::Expr* constant(Datum value, int line);
  ast::Expr* text_constant(std::string text, int line);
  ast::Expr* name(std::string text, int line);
  ast::Expr* expression(bool conditional = true);
  using Operator = std::pair<std::string_view, ast::Op>;
  ast::Expr* chain(ast::Expr* (Parser::*operand)(), std::span<const Operator> operators);
  ast::Expr* either();
  ast::Expr* both();
  ast::Expr* invert();
  ast::Expr* compare();
  ast::Expr* sum();
  ast::Expr* concat();
  ast::Expr* product();
  ast::Expr* power();
  ast::Expr* unary(bool with_filter);
  ast::Expr* operand() { return unary(true); }
  ast::Expr* primary();
  ast::Expr* postfix(ast::Expr* value);
  ast::Expr* filtered(ast::Expr* value);
  ast::Expr* subscript(ast::Expr* value);
  ast::Expr* subscribed(ast::Expr* value);
  ast::Expr* call(ast::Expr* value);
  ast::Expr* filter(ast::Expr* value);
  ast::Expr* filters(ast::Expr* value);
  ast::Expr* test(ast::Expr* value);
  template <class One>
  void listed(std::string_view close, const One& one);
  ast::Expr* list();
  ast::Expr* dict();
  bool tuple_ends(std::string_view end_word) const;
  ast::Expr* tuple(bool conditional, std::string_view end_word = {}, bool bracketed = false);
  void arguments(ast::Expr& of);
  // What may be assigned: a name, a tuple of them, ns.attr; declares names in the scope.
  ast::Expr* target(std::string_view end_word, bool members);
  ast::Expr* target_part(bool members);

  // Tags.
  using Ends = std::initializer_list<std::string_view>;
  ast::Stmt* statement(ast::Tag tag, int line);
  // Up to one of the tags of those names, which is `ended_` and passed, its block_end not.
  ast::Body body(Ends ends);
  ast::Body block(Ends ends);  // the same after the end of a tag
  ast::Stmt* tag();
  ast::Stmt* condition(int line);
  ast::Stmt* loop(int line);
  ast::Stmt* assign(int line);
  ast::Stmt* macro(int line);
  ast::Stmt* call_block(int line);
  ast::Stmt* filter_block(int line);
  ast::Stmt* generation(int line);
  ast::Stmt* with(int line);
  void captured_body(ast::Stmt& of, std::string_view end);
  ast::Macro* begin_macro(std::string name);
  void signature(ast::Macro& macro);
  void macro_body(ast::Macro& macro, std::string_view end);
  ast::Scope* open(bool nested = true);
  void close() { scope_ = scope_->parent; }
  void declare(ast::Expr& target);
  void resolve();

  ast::Program& program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nested_ = 0, blocks_ = 0;
  int loops_ = 0;  // that break and continue would leave
  std::string ended_;
  ast::Scope* scope_ = nullptr;
  std::vector<ast::Expr*> names_;
  std::vector<std::pair<std::string, int>> open_tags_;
};

// Reads a template into a Program. Throws SyntaxProblem.
std::shared_ptr<const ast::Program> parse_program(std::string source, std::string name);

// Nesting beyond these is refused, so that neither parsing nor rendering recurses without bound.
constexpr int kDeepestExpression = 120, kDeepestBlock = 60;
// Nodes below each other that need no nesting in the text: a + b + c, x.a.b.c.
constexpr int kLongestChain = 300;

}  // namespace meshwright::chat
