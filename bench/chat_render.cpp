// bench_chat_render FILE [SECONDS]: chats a second that each template of chat-golden.json renders,
// with origins, on one thread; and with the spans of the answers.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/value.h"

namespace {

using namespace meshwright::chat;

template <class Work>
double a_second(double seconds, const Work& work) {
  std::clock_t begin = std::clock();  // of the processor: others may use it too
  constexpr int kAtOnce = 100;
  for (double count = 0;;) {
    for (int i = 0; i < kAtOnce; ++i) work();
    count += kAtOnce;
    double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    if (took > seconds) return count / took;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "bench_chat_render FILE [SECONDS]\n");
    return 2;
  }
  double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 0.3;
  std::ifstream in(argv[1], std::ios::binary);
  Value golden =
      parse_json(std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
  std::printf("%-20s %-20s %12s %14s\n", "template", "conversation", "chats/s", "with spans/s");
  for (const Value& one : golden.get("cases")->as_list()) {
    const Value& form = *golden.get("templates")->get(one.get("template")->as_string());
    const std::string& name = one.get("conversation")->as_string();
    if (!form.get("source")->is_string() || one.get("text") == nullptr) continue;
    if ((name != "chat" && name != "think") || one.get("add_generation_prompt") != nullptr)
      continue;
    ChatTemplate chat = ChatTemplate::parse(form.get("source")->as_string(), "t");
    ChatTemplate::Request request;
    request.messages = golden.get("conversations")->get(name);
    for (const char* key : {"bos_token", "eos_token"})
      if (form.get(key)->is_string())
        request.special_tokens.emplace_back(key, form.get(key)->as_string());
    std::vector<std::string> tokens;
    for (const Value& token : form.get("special_tokens")->as_list())
      tokens.push_back(token.as_string());
    double plain = a_second(seconds, [&] { (void)chat.render(request); });
    double spans = a_second(
        seconds, [&] { (void)assistant_spans(chat, request, chat.render(request), tokens); });
    std::printf("%-20s %-20s %12.0f %14.0f\n", one.get("template")->as_string().c_str(),
                name.c_str(), plain, spans);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_chat_render: %s\n", error.what());
  return 2;
}
