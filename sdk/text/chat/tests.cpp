#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

bool Renderer::test(Test test, std::string_view name, const Datum& value, const Arguments& given) {
  auto argument = [&]() -> const Datum& {
    if (given.count != 1 || given.named != 0)
      fail("the test '" + std::string(name) + "' takes one argument");
    return given.list[0];
  };
  auto none = [&] {
    if (given.count + given.named != 0)
      fail("the test '" + std::string(name) + "' takes no argument");
  };
  switch (test) {
    case Test::unknown:
      fail("No test named '" + std::string(name) + "'.");
    case Test::eq:
      return equal(value, argument());
    case Test::ne:
      return !equal(value, argument());
    case Test::lt:
      return order(value, argument(), "<") == -1;
    case Test::le:
      return order(value, argument(), "<=") <= 0;
    case Test::gt:
      return order(value, argument(), ">") == 1;
    case Test::ge: {
      int found = order(value, argument(), ">=");
      return found == 0 || found == 1;
    }
    case Test::in:
      return contains(argument(), value);
    case Test::sameas:
      return identical(value, argument());
    case Test::divisibleby:
      return truth(
          Datum::boolean(equal(arithmetic(ast::Op::modulo, value, argument()), Datum::whole(0))));
    default:
      break;
  }
  none();
  auto remainder = [&] {
    if (value.is_string()) fail("not all arguments converted during string formatting");
    return arithmetic(ast::Op::modulo, value, Datum::whole(2));
  };
  switch (test) {
    case Test::defined:
      return !value.is_undefined();
    case Test::undefined:
      return value.is_undefined();
    case Test::none:
      return value.kind == Kind::none;
    case Test::boolean:
      return value.kind == Kind::boolean;
    case Test::true_:
      return value.kind == Kind::boolean && value.truth;
    case Test::false_:
      return value.kind == Kind::boolean && !value.truth;
    case Test::string:
      return value.is_string();
    case Test::mapping:
      return value.kind == Kind::dict;
    case Test::number:
      return is_number(value);
    case Test::integer:
      return value.kind == Kind::integer || value.kind == Kind::big;
    case Test::float_:
      return value.kind == Kind::real;
    case Test::sequence:
      return value.is_string() || value.is_indexed() || value.kind == Kind::dict ||
             value.is_undefined();
    case Test::iterable:
      return value.is_string() || value.is_sequence() || value.kind == Kind::dict ||
             value.is_undefined() || value.kind == Kind::loop;
    case Test::odd:
      return equal(remainder(), Datum::whole(1));
    case Test::even:
      return equal(remainder(), Datum::whole(0));
    case Test::lower:
      return all_chars(as_text(value), Method::islower);
    case Test::upper:
      return all_chars(as_text(value), Method::isupper);
    case Test::callable:
      return value.kind == Kind::callable || value.kind == Kind::loop;
    case Test::filter:
      return filter_named(plain(value)) != Filter::unknown;
    case Test::test:
      return test_named(plain(value)) != Test::unknown;
    default:
      return value.is_markup();  // escaped
  }
}

}  // namespace meshwright::chat
