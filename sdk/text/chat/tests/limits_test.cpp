// What a template may take of a row that is long.
#include <doctest/doctest.h>

#include <string>

#include "cases.h"

namespace limits_test {

using namespace meshwright::chat;
using meshwright::chat::testing::rendered;

ChatTemplate::Rendered rendered_chat(const std::string& source, const Value& chat) {
  ChatTemplate::Request request;
  request.messages = &chat;
  return ChatTemplate::parse(source, "t").render(request);
}

// A chat of many messages of a thousand bytes.
Value long_chat(int messages) {
  Value::List out;
  for (int i = 0; i < messages; ++i)
    out.push_back(Value::dict({{"role", Value::string(i % 2 == 0 ? "user" : "assistant")},
                               {"content", Value::string(std::string(1000, 'a'))}}));
  return Value::list(std::move(out));
}

TEST_CASE("a long chat may look at each message again for each, and gather what they say") {
  const Value chat = long_chat(1500);
  CHECK(
      rendered_chat("{% for m in messages %}{% for n in messages %}{% endfor %}.{% endfor %}", chat)
          .text == std::string(1500, '.'));
  // A gigabyte, were each of the texts kept.
  for (const char* gathered : {"ns.t + m.content", "ns.t ~ m.content"}) {
    const ChatTemplate::Rendered out =
        rendered_chat("{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = " +
                          std::string(gathered) + " %}{% endfor %}{{ ns.t }}",
                      chat);
    CHECK(out.text == std::string(1500000, 'a'));
    REQUIRE(out.origins.size() == 1500);
    CHECK(out.origins[700] == ChatTemplate::Origin{700000, 701000, 700});
  }
  CHECK(rendered_chat("{% set ns = namespace(l=[], n=0) %}{% for m in messages %}{% set users = "
                      "messages|map(attribute='role')|list %}{% set ns.n = ns.n + users|length %}"
                      "{% set ns.l = ns.l + [m.role ~ loop.index] %}{% endfor %}{{ ns.n }} "
                      "{{ ns.l|length }} {{ ns.l[1] }} {{ ns.l[-1] }}",
                      chat)
            .text == "2250000 1500 assistant2 assistant1500");
  // Two who add to the same text do not see each other's.
  CHECK(rendered_chat(
            "{% set ns = namespace(t='', a='', b='') %}{% for m in messages[:9] %}{% set ns.t = "
            "ns.t + m.content %}{% set ns.a = ns.t + '1' %}{% set ns.b = ns.t + '2' %}{% endfor "
            "%}{{ ns.a[-2:] }}{{ ns.b[-2:] }}{{ ns.t|length }}",
            chat)
            .text == "a1a29000");
  CHECK(rendered("{{ range(100000)|unique|list|length }}") == "100000");
  const Limits small = Limits::of_row(2, 10, 1000), large = Limits::of_row(20000, 100000, 20000000);
  CHECK(small.turns == 1'000'080);
  CHECK(large.turns == 1'000'000'000);
  CHECK(large.output == (size_t{16} << 20) + 160'000'000);
}

}  // namespace limits_test
