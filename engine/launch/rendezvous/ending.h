// How a process that is one of several ranks ends: together with the others, whatever ends it and
// whenever.
//
//   Ending ending;
//   try { ... ending.meeting(); ... ending.joined(exchange); ...; ending.finish(); }
//   catch (const Error& error) { print(error); ending.tell(error); return
//   exit_status(error.code()); }
#pragma once

#include <memory>

#include "engine/launch/rendezvous/error_exchange.h"

namespace meshwright::rendezvous {

class Ending {
 public:
  // From now on the ranks find out together what is wrong.
  void meeting() { stage_ = Stage::meeting; }
  // The ranks have met. Without an exchange (a single rank, or ranks whose parent ends them all)
  // there is nobody to tell.
  void joined(std::shared_ptr<ErrorExchange> exchange) {
    stage_ = Stage::joined;
    exchange_ = std::move(exchange);
  }
  // This rank has ended with that error, has said so and has closed its connections: tells the
  // others, before they have met too.
  void tell(const Error& error) noexcept;
  // Collective, last: see ErrorExchange::finish().
  void finish() {
    if (exchange_) exchange_->finish();
  }

 private:
  enum class Stage : uint8_t { alone, meeting, joined };
  Stage stage_ = Stage::alone;
  std::shared_ptr<ErrorExchange> exchange_;
};

}  // namespace meshwright::rendezvous
