// Lines that a person types: with editing and a history on a terminal (libedit), as they are from a
// pipe or a file. And Ctrl-C, which is heard between two tokens or two keys and ends nothing by
// itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace meshwright::cli {

// Takes SIGINT for this process while it lives. Made before other threads are, which would be
// interrupted otherwise.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  // From now on they are only heard. Until then one ends the process, and so does a second one that
  // comes before the first was heard.
  void only_heard();
  // Whether one came since the last call.
  bool heard();
  int fd() const;  // readable when one came

 private:
  struct State;
  void wait() const;
  std::unique_ptr<State> state_;
  std::thread thread_;
};

class LineEditor {
 public:
  // Where standard input is a terminal. `prompt` stands before each line.
  LineEditor(std::string prompt, Interrupts& interrupts);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Kind : uint8_t { line, end, interrupted };
  struct Read {
    Kind kind = Kind::end;
    std::string line = {};  // without its end
  };
  Read next();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// The next line of standard input, without its end; nothing: no more come.
std::optional<std::string> plain_line();

}  // namespace meshwright::cli
