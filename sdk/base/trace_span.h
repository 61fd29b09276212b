// One bar of a trace's computation, while the trace is on.
#pragma once

#include <string>
#include <utility>

#include "meshwright/parallel/group.h"

namespace meshwright {

class TraceSpan {
 public:
  // The bar's name is both parts, one after the other; nothing is put together while the trace is
  // off.
  explicit TraceSpan(Trace& trace, const char* what, const std::string& whose = {})
      : trace_(trace), begin_(trace.enabled ? trace.mark() : 0) {
    if (begin_ != 0) name_ = what + whose;
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (begin_ != 0) trace_.span(Trace::Lane::compute, std::move(name_), begin_, trace_.mark());
  }

 private:
  Trace& trace_;
  std::string name_;
  int64_t begin_;
};

}  // namespace meshwright
