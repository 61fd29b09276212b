#include <doctest/doctest.h>

#include <thread>

#include "cases.h"
#include "meshwright/error.h"
#include "sdk/text/chat/chat_template.h"

namespace behaviour_test {

using namespace meshwright;
using namespace meshwright::chat;
using chat::testing::refusal;
using chat::testing::rendered;

using Origin = ChatTemplate::Origin;

Value messages(const std::string& json) { return parse_json(json); }

// A request for messages that it owns.
struct Chat {
  Value messages;
  ChatTemplate::Request request;
  explicit Chat(const std::string& json) : messages(parse_json(json)) {
    request.messages = &messages;
  }
  Chat(const Chat&) = delete;
  Chat& operator=(const Chat&) = delete;
};

ChatTemplate::Rendered render(const std::string& source, const Value& chat) {
  ChatTemplate::Request request;
  request.messages = &chat;
  return ChatTemplate::parse(source, "t").render(request);
}

// The bytes of message 0 in what the template makes of [{"role": "user", "content": "a.b"}].
std::string of_message(const std::string& source) {
  Value chat = messages(R"([{"role": "user", "content": "a.b", "n": 12, "list": ["x", 1]}])");
  ChatTemplate::Rendered out = render(source, chat);
  std::string found;
  for (const Origin& origin : out.origins)
    found += "[" + out.text.substr(origin.begin, origin.end - origin.begin) + "]";
  return found;
}

TEST_CASE("an error names template and line") {
  CHECK(refusal("a\nb\n{% nope %}") == "t:3: Encountered unknown tag 'nope'.");
  CHECK(refusal("a\n{{ 1|nope }}") == "t:2: No filter named 'nope'.");
  CHECK(refusal("{% if false %}{{ 1|nope }}{{ 1 is nope }}{{ nope() }}{% endif %}") ==
        std::nullopt);
  CHECK(refusal("\n\n{{ raise_exception('no ' ~ 'way') }}") == "t:3: no way");
  CHECK(refusal("{{ a.b }}") == "t:1: 'a' is undefined");
  CHECK(refusal("{{ {}.b.c }}") == "t:1: 'dict object' has no attribute 'b'");
  CHECK(refusal("{% if x %}\n{% for y in z %}\n") ==
        "t:2: unexpected end of the template: the 'for' of line 2 is not closed");
  CHECK(refusal("{{ [].append(1) }}") ==
        "t:1: access to attribute 'append' of 'list' object is unsafe.");
  CHECK(refusal("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ m() }}") ==
        "t:2: unsupported operand types for +: 'int' and 'str'");
  CHECK(refusal("{{ m() }}\n{{ x.y }}").value_or("").starts_with("t:1:"));
  CHECK(refusal("\xff") == "t:1: the text is not UTF-8");
}

TEST_CASE("a template that is not one is refused when it is loaded") {
  CHECK_THROWS_AS(ChatTemplate::parse("{% if true %}", "t"), Error);
  CHECK_THROWS_AS(ChatTemplate::parse("{% do x %}", "t"), Error);
  CHECK_NOTHROW(ChatTemplate::parse("{{ x|nope }}{{ nope() }}{{ 1 is nope }}", "t"));
}

TEST_CASE("no template runs away") {
  auto many = [](const std::string& text) {
    std::string out;
    for (int i = 0; i < 100000; ++i) out += text;
    return out;
  };
  const std::string each = "{% for i in range(", space = "{% set ns = namespace(x=";
  for (const auto& [source, part] : std::initializer_list<std::pair<std::string, const char*>>{
           {"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "64 calls"},
           {each + "1001) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", "1000000 turns"},
           {"{{ 'a' * 16777217 }}", "16 MiB"},
           {each + "40) %}{{ 'a' * 1000000 }}{% endfor %}", "16 MiB"},
           {space + "[]) %}" + each + "1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
            "nested too deeply"},
           {space + "'aaaaaaaa') %}" + each + "99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", ""},
           {space + "[1]) %}" + each + "99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "memory"},
           {"{% set a = 'a' * 9000000 %}" + each +
                "90000) %}{% if 'b' in a %}{% endif %}{% endfor %}",
            "too much work"},
           {"{{ range(100001) }}", ""},
           {"{{ " + many("("), "too deeply"},
           {"{{ 1" + many("+1") + " }}", "too deeply"},
           {many("{% if x %}"), "too deeply"},
           {"{{ " + many("not "), "too deeply"}}) {
    const std::string begins = source.substr(0, 80);
    CAPTURE(begins);
    const std::optional<std::string> refused = refusal(source);
    REQUIRE(refused.has_value());
    CHECK(refused->find(part) != std::string::npos);
  }
  CHECK(rendered("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}.{% endmacro %}{{ f(63) }}") ==
        std::string(64, '.'));
  CHECK(rendered("{{ 'a' * 16777216 }}").size() == size_t{16} << 20);
  CHECK_THROWS_AS(parse_json(std::string(100000, '[')), Error);
}

TEST_CASE("numbers print as Python prints them") {
  Value row = parse_json(
      R"({"a": 1.0, "b": 1e-05, "c": 1e16, "d": 123456789012345678901234567890, "e": 0.0001, "f": -0,
          "g": 1E400, "h": 5e-324, "i": 1e22, "j": 123456.789, "k": 1e15, "l": 0.1, "m": -1.50})");
  CHECK(rendered("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }} {{ f }} {{ g }} {{ h }} {{ i }} {{ j }} "
                 "{{ k }} {{ l }} {{ m }}",
                 &row) ==
        "1.0 1e-05 1e+16 123456789012345678901234567890 0.0001 0 inf 5e-324 1e+22 123456.789 "
        "1000000000000000.0 0.1 -1.5");
  CHECK(rendered("{{ [d, a]|tojson }}", &row) == "[123456789012345678901234567890, 1.0]");
  CHECK(python_float(-0.0) == "-0.0");
}

TEST_CASE("rows keep the order of keys, and the last value of a key given twice") {
  Value row = parse_json("{\"b\": 1, \"a\": 2, \"b\": 3}");
  CHECK(rendered("{{ r|tojson }}", [&] {
          static Value context;
          context = Value::dict({{"r", row}});
          return &context;
        }()) == "{\"b\": 3, \"a\": 2}");
  std::string many = "{";
  for (int i = 0; i < 40; ++i)
    many += "\"k" + std::to_string(i % 20) + "\": " + std::to_string(i) + ",";
  Value wide = parse_json(many.substr(0, many.size() - 1) + "}");
  REQUIRE(wide.as_dict().size() == 20);
  CHECK(wide.as_dict()[3].first == "k3");
  CHECK(wide.get("k3")->as_integer() == 23);
}

TEST_CASE("what is not JSON is refused with its place") {
  auto message = [](const std::string& text) -> std::string {
    try {
      parse_json(text);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_dataset);
      return error.message();
    }
    return "";
  };
  CHECK(message("{\"a\": 1,\n  \"b\": nope}").starts_with("2:8: not valid JSON"));
  CHECK(message("{} x").starts_with("1:4: not valid JSON"));
  CHECK(message("\"\xff\"").starts_with("1:"));
  CHECK(message(R"("\ud800")").starts_with("1:"));
  CHECK(!message("").empty());
  // What people and Python write.
  CHECK(message("{\"a\": NaN}") ==
        "1:7: not valid JSON: NaN is no number of JSON; write null, or a string, in its place");
  CHECK(message("{\"a\": -Infinity}").find("Infinity is no number of JSON") != std::string::npos);
  CHECK(message("{\"a\": None}") ==
        "1:7: not valid JSON: None is Python's; JSON has true, false and null");
  CHECK(message("{'a': 1}") ==
        "1:2: not valid JSON: strings and keys stand in double quotes, and not in '");
  CHECK(message("{\"a\": [1, ]}").ends_with("a comma stands before ], with nothing behind it"));
  CHECK(message("{\"a\": 1,\n}") ==
        "2:1: not valid JSON: a comma stands before }, with nothing behind it");
  for (const char* lone : {R"("\ud800")", R"("\ud800x")", R"("\ud800\n")", R"("\ud800\u0041")"})
    CHECK(message(lone).ends_with("half of a surrogate pair: \\ud800"));
  CHECK(message(R"(["\ud83d\ude00", "\udc00"])").ends_with("half of a surrogate pair: \\udc00"));
  CHECK(message(R"(["\ud83d\ude00" x])").ends_with("syntax error"));
  CHECK(message(R"({"a": 1)").ends_with("incomplete JSON"));
  CHECK(message(" [1, 2.5, \"\\u00e9\"] ").empty());
}

TEST_CASE("each byte knows its message, whatever is done with it") {
  CHECK(of_message("<{{ messages[0].content }}>") == "[a.b]");
  CHECK(of_message("<{{ messages[0].role }}>") == "");
  CHECK(of_message("{{ '<' + messages[0].content + '>' }}") == "[a.b]");
  CHECK(of_message("{{ '<' ~ messages[0].content ~ 1 }}") == "[a.b]");
  CHECK(of_message("{{ (messages[0].content + '!')[1:] }}") == "[.b]");
  CHECK(
      of_message("{{ messages[0].content|upper }}{{ (' x ' + messages[0].content)|trim|title }}") ==
      "[A.B][A.b]");
  CHECK(of_message("{{ messages[0].content.split('.')[1] }}") == "[b]");
  CHECK(of_message("{{ messages[0].content|replace('.', '-') }}") == "[a][b]");
  CHECK(of_message("{{ 'x.y'|replace('.', messages[0].content) }}") == "[a.b]");
  CHECK(of_message("{{ ['x', messages[0].content]|join(', ') }}") == "[a.b]");
  CHECK(of_message("{{ messages[0].content|tojson }}") == "[\"a.b\"]");
  CHECK(of_message("{{ messages[0].list|tojson }}") == "[[\"x\", 1]]");
  CHECK(of_message("{{ {'k': messages[0].content}|tojson }}") == "[{\"k\": \"a.b\"}]");
  CHECK(of_message("{{ messages[0].n }}{{ messages[0].n|string }}") == "[1212]");
  CHECK(of_message("{{ messages[0].list }}") == "[['x', 1]]");
  CHECK(of_message("{% set x %}<{{ messages[0].content }}>{% endset %}{{ x }}") == "[a.b]");
  CHECK(of_message("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].content)|trim }}") ==
        "[a.b]");
  CHECK(of_message("{% for c in messages[0].content %}{{ c }} {% endfor %}") == "[a][.][b]");
  CHECK(of_message("{{ messages[0].content[::-1] }}{{ '%s!' % messages[0].content }}") ==
        "[b.aa.b]");
  CHECK(of_message("{{ '{}!'.format(messages[0].content) }}{{ messages[0].content|indent }}") ==
        "[a.b][a.b]");
  CHECK(of_message("{% filter upper %}<{{ messages[0].content }}{% endfilter %}") == "[A.B]");
  CHECK(of_message("{{ (messages[0].content ~ '<')|e }}") == "[a.b]");
}

TEST_CASE("several messages keep apart") {
  Value chat = messages(R"([{"role": "u", "content": "one"}, {"role": "a", "content": "two"}])");
  ChatTemplate::Rendered out = render(
      "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages|map(attribute='content')|join "
      "}}",
      chat);
  CHECK(out.text == "onetwoonetwo");
  CHECK(out.origins == std::vector<Origin>{{0, 3, 0}, {3, 6, 1}, {6, 9, 0}, {9, 12, 1}});
}

TEST_CASE("the bytes of tools are told apart from messages and template") {
  Chat chat(R"([{"role": "u", "content": "one"}])");
  Value tools = messages(R"([{"name": "f"}])");
  ChatTemplate::Request& request = chat.request;
  request.tools = &tools;
  ChatTemplate::Rendered out =
      ChatTemplate::parse("<{{ tools|tojson }}>{{ messages[0].content }}|{{ tools[0].name }}", "t")
          .render(request);
  CHECK(out.text == "<[{\"name\": \"f\"}]>one|f");
  CHECK(out.tools == std::vector<std::pair<size_t, size_t>>{{1, 16}, {21, 22}});
  CHECK(out.origins == std::vector<Origin>{{17, 20, 0}});
}

TEST_CASE("a generation block is marked wherever its text ends up") {
  Value chat = messages(R"([{"role": "assistant", "content": "yo"}])");
  auto blocks = [&](const std::string& source) {
    ChatTemplate::Rendered out = render(source, chat);
    std::string found;
    for (auto [begin, end] : out.generations)
      found += "[" + out.text.substr(begin, end - begin) + "]";
    return found;
  };
  CHECK(blocks("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "[byo]");
  CHECK(blocks("{% generation %}{% endgeneration %}c") == "");
  CHECK(blocks("{% for i in [1, 2] %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}") ==
        "[1][2]");
  CHECK(
      blocks(
          "{% macro m() %} <{% generation %}x{% endgeneration %}> {% endmacro %}{{ m()|trim }}") ==
      "[x]");
  CHECK(blocks("{% generation %}{% macro m() %}y{{ messages[0].content }}z{% endmacro %}{{ m() "
               "}}{% endgeneration %}") == "[yyoz]");
}

TEST_CASE("an answer that no special token closes says so") {
  Chat chat(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])");
  ChatTemplate::Request& request = chat.request;
  ChatTemplate open = ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if "
      "add_generation_prompt %}assistant: {% endif %}",
      "t");
  std::vector<std::string> tokens = {"</s>"};
  ChatTemplate::Rendered out = open.render(request);
  CHECK(out.text == "user: hi\nassistant: yo\n");
  CHECK(assistant_spans(open, request, out, tokens) == std::vector<Span>{{20, 22, 1, false}});
  // A token in the words of the next message does not close the answer.
  chat.messages = messages(
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "</s>"}])");
  out = open.render(request);
  CHECK(assistant_spans(open, request, out, tokens) == std::vector<Span>{{20, 22, 1, false}});
  CHECK(message_spans(out, tokens) ==
        std::vector<Span>{{6, 8, 0, false}, {20, 22, 1, false}, {29, 33, 2, false}});
  // The token that the template puts behind a message is of its turn; the line's end is not.
  chat.messages =
      messages(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}])");
  out = ChatTemplate::parse(
            "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>\n{% endfor %}", "t")
            .render(request);
  CHECK(message_spans(out, tokens) == std::vector<Span>{{6, 12, 0, true}});
  // An answer that leaves nothing has no span.
  chat.messages =
      messages(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}])");
  out = open.render(request);
  CHECK(assistant_spans(open, request, out, tokens).empty());
}

TEST_CASE("an answer holds no byte of another message") {
  // Results stand beside the names of their calls, which are the assistant's bytes.
  Chat chat(R"([{"role": "user", "content": "hi"},
      {"role": "assistant", "content": "ask", "calls": ["f", "g"]},
      {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"},
      {"role": "assistant", "content": "so"}])");
  ChatTemplate::Request& request = chat.request;
  ChatTemplate quoting = ChatTemplate::parse(
      "{% for m in messages %}[{{ m.role[0] }}]{% if m.role == 'tool' %}{{ m.content }}:"
      "{{ messages[1].calls[loop.index0 - 2] }}{% else %}{{ m.content }}{% endif %}</s>\n"
      "{% endfor %}{% if add_generation_prompt %}[a]{% endif %}",
      "t");
  std::vector<std::string> tokens = {"</s>"};
  ChatTemplate::Rendered out = quoting.render(request);
  auto texts = [&](const std::vector<Span>& spans) {
    std::string found;
    for (const Span& span : spans)
      found += std::to_string(span.message) + "'" +
               out.text.substr(span.begin, span.end - span.begin) + "' ";
    return found;
  };
  REQUIRE(out.text == "[u]hi</s>\n[a]ask</s>\n[t]one:f</s>\n[t]two:g</s>\n[a]so</s>\n");
  CHECK(texts(message_spans(out, tokens)) ==
        "0'hi</s>' 1'ask</s>' 1'f</s>' 1'g</s>' 2'one' 3'two' 4'so</s>' ");
  CHECK(texts(assistant_spans(quoting, request, out, tokens)) == "1'ask</s>' 4'so</s>' ");
  // The name may come first: then no other message's byte lies before the quotation.
  ChatTemplate naming = ChatTemplate::parse(
      "{% for m in messages %}[{{ m.role[0] }}]{% if m.role == 'tool' %}"
      "{{ messages[1].calls[loop.index0 - 2] }}:{% endif %}{{ m.content }}</s>\n"
      "{% endfor %}{% if add_generation_prompt %}[a]{% endif %}",
      "t");
  out = naming.render(request);
  REQUIRE(out.text == "[u]hi</s>\n[a]ask</s>\n[t]f:one</s>\n[t]g:two</s>\n[a]so</s>\n");
  CHECK(texts(assistant_spans(naming, request, out, tokens)) == "1'ask</s>' 4'so</s>' ");
  // An answer of two turns is one.
  chat.messages = messages(R"([{"role": "assistant", "content": "so", "thought": "hm"}])");
  ChatTemplate thinking = ChatTemplate::parse(
      "{% for m in messages %}[a]{{ m.thought }}</s>[b]{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}[a]{% endif %}",
      "t");
  out = thinking.render(request);
  CHECK(texts(assistant_spans(thinking, request, out, tokens)) == "0'hm</s>[b]so</s>' ");
}

TEST_CASE("a generation block without the token that ends a turn says so") {
  Chat chat(R"([{"role": "assistant", "content": "a</s>", "more": "b"}])");
  ChatTemplate::Request& request = chat.request;
  auto ends = [&](const std::string& source) {
    ChatTemplate blocks = ChatTemplate::parse(source, "t");
    std::vector<bool> out;
    for (const Span& span :
         assistant_spans(blocks, request, blocks.render(request), std::vector<std::string>{"</s>"}))
      out.push_back(span.ends);
    return out;
  };
  using Ends = std::vector<bool>;
  CHECK(ends("{% generation %}{{ messages[0].content }}</s>{% endgeneration %}") == Ends{true});
  CHECK(ends("{% generation %}{{ messages[0].content }}</s>\n{% endgeneration %}x") == Ends{true});
  CHECK(ends("{% generation %}{{ messages[0].content }}{% endgeneration %}</s>") == Ends{false});
  // What one message says may be in several.
  CHECK(ends("{% generation %}{{ messages[0].content }}{% endgeneration %}-"
             "{% generation %}{{ messages[0].more }}</s>{% endgeneration %}") == Ends{true, true});
  CHECK(ends("{% generation %}{{ messages[0].content }}</s>{% endgeneration %}-"
             "{% generation %}{{ messages[0].more }}{% endgeneration %}") == Ends{true, false});
}

TEST_CASE("where an answer begins is said, or refused") {
  Chat chat(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])");
  ChatTemplate::Request& request = chat.request;
  ChatTemplate other = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}!{% endif "
      "%}",
      "t");
  try {
    assistant_spans(other, request, other.render(request), {});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_template);
    CHECK(error.message() == "t: cannot tell where answer 1 begins");
  }
}

TEST_CASE("the built-in template is ChatML") {
  Chat chat(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])");
  ChatTemplate::Request& request = chat.request;
  request.add_generation_prompt = true;
  ChatTemplate chatml = ChatTemplate::parse(std::string(chat::chatml()), "chatml");
  CHECK(chatml.render(request).text ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>"
        "assistant\n");
}

TEST_CASE("variables: special tokens, the row's, the user's, the date") {
  Value chat = messages("[]"), variables = parse_json(R"({"eos_token": "E", "x": [1]})");
  ChatTemplate::Request request;
  request.messages = &chat;
  request.special_tokens = {{"bos_token", "B"}, {"eos_token", "e"}};
  request.variables = &variables;
  ChatTemplate all = ChatTemplate::parse(
      "{{ bos_token }}{{ eos_token }}{{ x }}{{ pad_token is defined }}{{ tools is none }}{{ "
      "documents }}"
      "{{ add_generation_prompt }}{{ strftime_now is defined }}",
      "t");
  CHECK(all.render(request).text == "BE[1]FalseTrueNoneFalseFalse");
  request.date = Date{2024, 7, 6, 13, 5, 9};
  ChatTemplate date =
      ChatTemplate::parse("{{ strftime_now('%d %b %Y %A %H:%M:%S %j %-d %%') }}", "t");
  CHECK(date.render(request).text == "06 Jul 2024 Saturday 13:05:09 188 6 %");
}

TEST_CASE("a role is made of letters, digits, _ and -") {
  CHECK(is_role("tool_results-2"));
  CHECK(!is_role(""));
  CHECK(!is_role("a b"));
  CHECK(!is_role("<|x|>"));
  CHECK(!is_role("r\xc3\xb4le"));
}

TEST_CASE("one template is rendered by several threads at once") {
  ChatTemplate chat = ChatTemplate::parse(
      testing::golden().get("templates")->get("qwen3")->get("source")->as_string(), "t");
  ChatTemplate::Request request;
  request.messages = testing::golden().get("conversations")->get("think");
  std::string expected = chat.render(request).text;
  std::vector<std::thread> threads;
  std::vector<int> same(4);
  for (int& count : same)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += chat.render(request).text == expected ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(same == std::vector<int>(4, 200));
}

// What a template may take of a row that is long.

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
  CHECK(render("{% for m in messages %}{% for n in messages %}{% endfor %}.{% endfor %}", chat)
            .text == std::string(1500, '.'));
  // A gigabyte, were each of the texts kept.
  for (const char* gathered : {"ns.t + m.content", "ns.t ~ m.content"}) {
    const ChatTemplate::Rendered out =
        render("{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = " +
                   std::string(gathered) + " %}{% endfor %}{{ ns.t }}",
               chat);
    CHECK(out.text == std::string(1500000, 'a'));
    REQUIRE(out.origins.size() == 1500);
    CHECK(out.origins[700] == ChatTemplate::Origin{700000, 701000, 700});
  }
  CHECK(render("{% set ns = namespace(l=[], n=0) %}{% for m in messages %}{% set users = "
               "messages|map(attribute='role')|list %}{% set ns.n = ns.n + users|length %}"
               "{% set ns.l = ns.l + [m.role ~ loop.index] %}{% endfor %}{{ ns.n }} "
               "{{ ns.l|length }} {{ ns.l[1] }} {{ ns.l[-1] }}",
               chat)
            .text == "2250000 1500 assistant2 assistant1500");
  // Two who add to the same text do not see each other's.
  CHECK(render("{% set ns = namespace(t='', a='', b='') %}{% for m in messages[:9] %}{% set ns.t = "
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

}  // namespace behaviour_test
