// For every key of the reference: another value than its default, and where its effect shows.
#pragma once

#include <string>
#include <vector>

namespace meshwright::keys {

enum class Shows {
  plan,     // the plan differs
  told,     // a notice or a warning names the key or its table
  refused,  // an error
  trained,  // what a short run of the program leaves differs: files, losses, learning rates,
            // threads
  test,     // a test of its own shows it, whose name `where` holds
};

struct Row {
  std::string key;  // dotted; a std::string, since doctest prints a const char* inside a message as
                    // its address
  std::string value;  // as --set takes it
  Shows shows;
  std::vector<std::string> with =
      {};  // settings beside which the key matters; both sides of the comparison have them
  std::vector<std::string> under =
      {};                  // strategies the row speaks of; empty: all that read the key
  std::string where = {};  // of Shows::test: "path: name of the case"
};

// Several rows of one key speak of different strategies, or of different companions.
const std::vector<Row>& rows();

}  // namespace meshwright::keys
