// Reads the tokens of a template into a Program.
#pragma once

#include <memory>
#include <string>

#include "sdk/text/chat/ast.h"
#include "sdk/text/chat/lexer.h"

namespace meshwright::chat {

// Throws SyntaxProblem.
std::shared_ptr<const ast::Program> parse_program(std::string source, std::string name);

// Nesting beyond these is refused, so that neither parsing nor rendering recurses without bound.
constexpr int kDeepestExpression = 120, kDeepestBlock = 60;
// Nodes below each other that need no nesting in the text: a + b + c, x.a.b.c.
constexpr int kLongestChain = 300;

}  // namespace meshwright::chat
