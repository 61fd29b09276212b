#include "checks.h"

namespace meshwright {
namespace detail {  // defined by the source that the build makes
extern const char* const kEngineFacts;
extern const char* const kEngineFactsSymbol;
}  // namespace detail

std::string_view build_facts() { return detail::kEngineFacts; }
std::string_view build_facts_symbol() { return detail::kEngineFactsSymbol; }

}  // namespace meshwright
